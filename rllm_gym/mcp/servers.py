"""Descriptions of an episode's MCP servers: a command, a URL, or a server in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rllm_gym.mcp.offers import OFFERS
from rllm_gym.mcp.server_requests import BY_MODEL


@dataclass(frozen=True)
class StdioServer:
    """An MCP server that is a program, reached over its standard input and output.

    ``{workspace}``, ``{seed}`` and ``{python}`` in arguments, environment and directory are filled in for each episode.

    Attributes:
        command: The program.
        args: Its arguments.
        env: Its environment in addition to ``PATH``, ``HOME`` (an empty folder beside the workspace), ``LANG``: the
            trainer's environment is not passed on.
        cwd: Its working directory; the workspace by default.
        name: Prefix for its tools where two servers offer a tool of the same name.
        shared: One process for all episodes: only for stateless servers. It has its own directory, so ``{workspace}``
            and ``{seed}`` cannot be used.
        prestart: Start it in the still empty workspace of a future episode: only for servers that read none of their
            files when they start. ``{seed}`` cannot be used.
        restartable: Whether it can be started again in the middle of an episode without a loss: it keeps no state, or
            keeps it in files or elsewhere outside of its process. The episode ends if a call ends any other server.
        timeout: Seconds for its start, and for each call unless the environment sets less.
        offers: ``"resources"`` and ``"prompts"`` add tools that list and read those of the server.
        elicitations: What its user enters when it asks for input, in order: an object, or ``None`` to decline; the last
            one is repeated. Or ``"model"``: the agent's model answers, in a turn of its own. Without any, the client
            declares no support for it, and a request is declined. Cannot be used with ``shared``.
        samples: The completions that it gets when it asks for one, in order, or ``"model"``; otherwise as above.

    Raises:
        ValueError: An argument is invalid.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "{workspace}"
    name: str = ""
    shared: bool = False
    prestart: bool = False
    restartable: bool = False
    timeout: float = 30.0
    offers: tuple[str, ...] = ()
    elicitations: tuple[Mapping[str, Any] | None, ...] | Literal["model"] = ()
    samples: tuple[str, ...] | Literal["model"] = ()

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.command, str) or not self.command:
            raise ValueError(f"command={self.command!r} must name a program")
        if isinstance(self.args, str):
            raise ValueError(f"args={self.args!r} must be a tuple of strings, not a string")
        texts = (self.command, *self.args, *self.env.keys(), *self.env.values(), self.cwd)
        for text in texts:
            if not isinstance(text, str) or "\0" in text:
                raise ValueError(f"server {self.command!r}: {text!r} must be a string without NUL characters")
        object.__setattr__(self, "args", tuple(self.args))
        if self.shared and self.prestart:
            raise ValueError(
                "shared=True and prestart=True are mutually exclusive: a shared server is started only once"
            )
        named = "".join(texts[:-1]) + ("" if self.cwd == "{workspace}" else self.cwd)
        for placeholder, options in (("{workspace}", ("shared",)), ("{seed}", ("shared", "prestart"))):
            for option in options:
                if placeholder in named and getattr(self, option):
                    raise ValueError(f"server {self.command!r}: {placeholder} cannot be used with {option}=True")

    def __hash__(self) -> int:
        return hash((self.command, self.args, tuple(sorted(self.env.items())), self.cwd, self.name, self.timeout))


@dataclass(frozen=True)
class HttpServer:
    """An MCP server at a URL, with a separate session for each episode. A lost session is replaced
    by a new one, unless ``restartable`` is false.

    Attributes:
        url: ``http://…/mcp``.
        transport: ``"http"`` (streamable HTTP), or ``"sse"`` for a server of the older HTTP+SSE transport, with the URL
            of its stream of events.
        headers: Sent with every request.
        name: As for :class:`StdioServer`.
        shared: One session for all episodes: only for stateless servers.
        timeout: As for :class:`StdioServer`.
        offers: As for :class:`StdioServer`.
        elicitations, samples: As for :class:`StdioServer`.
        restartable: Whether a new session can replace a lost one: the server keeps no state, or the same one for all of
            its sessions. If it keeps a state for each session, set this to false: the episode then ends, as for
            :class:`StdioServer`.

    Raises:
        ValueError: An argument is invalid.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    shared: bool = False
    timeout: float = 30.0
    transport: str = "http"
    offers: tuple[str, ...] = ()
    elicitations: tuple[Mapping[str, Any] | None, ...] | Literal["model"] = ()
    samples: tuple[str, ...] | Literal["model"] = ()
    restartable: bool = True

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.url, str) or not (parts := urlsplit(self.url)).hostname:
            raise ValueError(f"url={self.url!r} must be a URL such as http://127.0.0.1:8000/mcp")
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"url={self.url!r} must begin with http:// or https://")
        if self.transport not in ("http", "sse"):
            raise ValueError(f"transport={self.transport!r} of {self.url!r} must be 'http' or 'sse'")
        if self.shared and not self.restartable:
            raise ValueError(f"{self.url!r}: shared=True is for servers without state, which are restartable")
        for key, value in self.headers.items():
            # The message does not contain the value, which may be secret; the client's own messages would.
            if not all(isinstance(text, str) and text.isascii() and text.isprintable() for text in (key, value)):
                raise ValueError(f"header {key!r} of {self.url!r} must be a string of printable ASCII characters")
            if value != value.strip():
                raise ValueError(f"header {key!r} of {self.url!r} has spaces at an end of its value; remove them")

    def __hash__(self) -> int:
        return hash((self.url, tuple(sorted(self.headers.items())), self.name, self.timeout))


@dataclass(frozen=True)
class InProcessServer:
    """An MCP server created in this process, a new one for each episode.

    Attributes:
        make: ``make(workspace: Path, seed: int) -> mcp.server.MCPServer``.
        name: As for :class:`StdioServer`.
        restartable: As for :class:`StdioServer`.
        timeout: As for :class:`StdioServer`.
        offers: As for :class:`StdioServer`.

    Raises:
        ValueError: An argument is invalid.
    """

    make: Callable[[Path, int], Any]
    name: str = ""
    restartable: bool = False
    timeout: float = 30.0
    offers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)
        if not callable(self.make):
            raise ValueError(f"make={self.make!r} must be a function make(workspace, seed) that returns a server")


Server = StdioServer | HttpServer | InProcessServer


def _check(server: Server) -> None:
    if not isinstance(server.name, str):
        raise ValueError(f"name={server.name!r} must be a string")
    timeout = server.timeout
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout={timeout!r} must be a positive, finite number of seconds")
    _check_tuple(server, "offers", lambda one: one in OFFERS, f"{' and '.join(map(repr, OFFERS))}")
    if not isinstance(server, InProcessServer):
        if server.elicitations != BY_MODEL:
            what = "objects and None, or 'model'"
            _check_tuple(server, "elicitations", lambda one: one is None or isinstance(one, Mapping), what)
        if server.samples != BY_MODEL:
            _check_tuple(server, "samples", lambda one: isinstance(one, str), "texts, or 'model'")
        for script in ("elicitations", "samples"):
            if server.shared and getattr(server, script):
                raise ValueError(
                    f"{script}={getattr(server, script)!r:.200} cannot be used with shared=True: the answers would "
                    "depend on the other episodes"
                )


def _check_tuple(server: Server, name: str, is_valid: Callable[[Any], bool], what: str) -> None:
    values = getattr(server, name)
    if isinstance(values, str | Mapping) or not all(map(is_valid, values)):
        raise ValueError(f"{name}={values!r:.200} must be a list of {what}")
    object.__setattr__(server, name, tuple(values))
