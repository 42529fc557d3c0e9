"""Where an episode's tools come from: a command, a URL, or a server made in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StdioServer:
    """An MCP server that is a program, talked to over its standard input and output.

    ``{workspace}``, ``{seed}`` and ``{python}`` in arguments, environment and directory are filled in for each episode.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Its environment beside ``PATH``, ``HOME`` (the workspace), ``LANG``: nothing of the trainer's is passed on.
        cwd: Its working directory; the workspace by default.
        name: What its tools are called after where two servers offer a tool of one name.
        shared: One process for all episodes: only for servers that keep no state (``read_only``).
        timeout_s: Seconds for its start, and for each call unless the environment sets less.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "{workspace}"
    name: str = ""
    shared: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True)
class HttpServer:
    """An MCP server at a URL (streamable HTTP): a session of its own for each episode.

    Attributes:
        url: ``http://…/mcp``.
        headers: Sent with every request.
        name: As for :class:`StdioServer`.
        shared: One session for all episodes: only for servers that keep no state.
        timeout_s: As for :class:`StdioServer`.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    shared: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True)
class InProcessServer:
    """An MCP server made in this process, anew for each episode.

    Attributes:
        make: ``make(workspace: Path, seed: int) -> mcp.server.MCPServer``.
        name: As for :class:`StdioServer`.
        timeout_s: As for :class:`StdioServer`.
    """

    make: Callable[[Path, int], Any]
    name: str = ""
    timeout_s: float = 30.0


Server = StdioServer | HttpServer | InProcessServer
