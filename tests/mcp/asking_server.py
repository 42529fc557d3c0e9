"""A server whose tool asks for input by the protocol that is agreed upon: a request of its own, or a result."""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Elicit, Resolve
from pydantic import BaseModel


class Place(BaseModel):
    """What the user is asked for."""

    city: str


def ask() -> Elicit[Place]:
    return Elicit("Where to?", Place)


def make_server() -> MCPServer:
    server = MCPServer("asking", log_level="ERROR")

    @server.tool()
    def book(place: Annotated[Place, Resolve(ask)]) -> str:
        """Book a trip to the place that the user names."""
        return f"to {place.city}"

    return server
