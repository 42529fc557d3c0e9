"""A server with resources and prompts, whose tools ask their client: run over standard output, or served at a URL."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel


class Place(BaseModel):
    """What the user is asked for."""

    city: str


def make_server() -> MCPServer:
    server = MCPServer("offering", log_level="ERROR")

    @server.resource("notes://today")
    def today() -> str:
        """What to do today."""
        return "Water the plants."

    @server.resource("notes://day/{day}")
    def day(day: str) -> str:
        """What to do on a day."""
        return f"Nothing on {day}."

    @server.resource("pictures://dot", mime_type="image/png")
    def dot() -> bytes:
        """A picture."""
        return b"\x89PNG"

    @server.prompt()
    def greet(name: str) -> str:
        """Greet someone."""
        return f"Say hello to {name}."

    @server.tool()
    async def book(ctx: Context) -> str:
        """Book a trip to the place that the user names."""
        answer = await ctx.elicit("Where to?", Place)
        return f"{answer.action}: {answer.data.city if answer.action == 'accept' else ''}"

    @server.tool()
    async def think(ctx: Context) -> str:
        """Ask the client's model."""
        question = SamplingMessage(role="user", content=TextContent(type="text", text="?"))
        answer = await ctx.session.create_message(messages=[question], max_tokens=9)
        return f"{answer.model}: {answer.content.text}"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Offer another tool."""
        server.add_tool(lambda: "new", name="extra")
        await ctx.session.send_tool_list_changed()
        return "grown"

    return server


if __name__ == "__main__":
    make_server().run("stdio")
