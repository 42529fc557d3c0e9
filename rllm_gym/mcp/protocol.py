"""What all connections to a server have in common: listing and calling its tools, and the limits of its messages.

Of a server's own requests only ``ping`` is served: sampling, elicitation and roots are not offered, and each such
request is refused with a message.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from rllm_gym.mcp.errors import JsonRpcError, ServerFault

MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size in bytes of a message from a server."""

FLOOD_BYTES = 64 << 20
FLOOD_MESSAGES = 100_000
"""Maximum number of messages read while waiting for an answer; more count as flooding."""

MAX_DEPTH = 100
"""Maximum nesting of JSON: servers' parsers give up at 128, and Python's when the stack is full."""

MAX_TOOLS = 1_000
MAX_TOOLS_BYTES = 8 << 20
_MAX_PAGES = 100
METHOD_NOT_FOUND = -32601
_MAX_INSTRUCTIONS_CHARS = 20_000
_SHOWN = 200


class MCPConnection(ABC):
    """A connection to one server, on one event loop. The code that opens it closes it and sets deadlines.

    Attributes:
        label: The server's name in messages, such as ``MCP server 'files' (node …)``.
        instructions: What the server says about its use when the connection is opened.
    """

    sent_invalid = False
    """Whether the server has sent unreadable data instead of a missing answer."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.instructions = ""
        self._fault: ServerFault | None = None

    @abstractmethod
    async def open(self) -> None:
        """Connect and do the handshake.

        Raises:
            ServerFault: The server cannot be started or reached, or is not an MCP server.
            ModuleNotFoundError: The extra is not installed.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the connection. Safe to call twice."""

    @abstractmethod
    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            JsonRpcError: The server answers with an error.
            ServerFault: It does not answer, or the answer is invalid.
        """

    def error_context(self) -> str:
        """Return further details of a failure, as a clause that begins with a space, or ``""``."""
        return ""

    @property
    def broken(self) -> bool:
        """Whether the connection has failed."""
        return self._fault is not None

    def _check_open(self) -> None:
        """Raise the fault of a connection that has failed or was closed."""
        if self._fault is not None:
            raise ServerFault(self._fault.message, kind=self._fault.kind)

    async def tools(self) -> list[dict[str, Any]]:
        """List every tool as the server describes it, all pages.

        Raises:
            ServerFault: There are too many of them, or the answer is not a list.
        """
        found: list[dict[str, Any]] = []
        size, cursor = 0, None
        for _ in range(_MAX_PAGES):
            try:
                page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor})
            except JsonRpcError as error:
                if error.code == METHOD_NOT_FOUND and not found:
                    return []  # a server with only prompts or resources
                raise ServerFault(f"{self.label} does not list its tools: {error}", kind="server_protocol") from error
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise ServerFault(
                    f"{self.label} answers 'tools/list' without a list: {shown(page)}", kind="server_protocol"
                )
            found += tools
            size += _size(tools)
            cursor = page.get("nextCursor")
            if len(found) > MAX_TOOLS or size > MAX_TOOLS_BYTES:
                break
            if cursor is None or cursor == "":
                return found
        raise ServerFault(
            f"{self.label} lists at least {len(found)} tools ({size:,} bytes); the limits are {MAX_TOOLS} tools, "
            f"{MAX_TOOLS_BYTES:,} bytes and {_MAX_PAGES} pages",
            kind="server_protocol",
        )

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return its result as the server sends it.

        Raises:
            JsonRpcError: The server refuses the call.
            ServerFault: It does not answer.
        """
        return await self._request("tools/call", {"name": name, "arguments": arguments})


def depth(value: Any) -> int:
    """Return the nesting depth of a JSON value: 1 for a number."""
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return deepest


def _size(tools: list[Any]) -> int:
    """Return the number of characters of their JSON; tools nested too deeply to serialise are skipped and cut later."""
    return sum(len(json.dumps(tool)) for tool in tools if depth(tool) <= MAX_DEPTH)


# Messages


class LineSplitter:
    """Splits a stream of chunks into lines, in linear time."""

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial(self) -> bytearray:
        """The beginning of an incomplete line."""
        return self._partial

    def take(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, without line endings."""
        first, *others = piece.split(b"\n")
        self._partial += first
        if not others:
            return []
        lines = [bytes(self._partial), *others]
        self._partial = bytearray(lines.pop())
        return [line.removesuffix(b"\r") for line in lines]


def encoded(message: dict[str, Any]) -> bytes:
    """Return a message as one line of bytes."""
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()


def decoded(data: bytes) -> list[dict[str, Any]]:
    """Return the messages in a text: one, or a batch as in older protocols.

    Raises:
        ValueError: It is not JSON, or not a message.
    """
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    messages = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("it is not a JSON object")
    return messages


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a server's own request: an empty result for ``ping``, an error for anything else."""
    if request.get("method") == "ping":
        return {"id": request["id"], "result": {}}
    return {"id": request["id"], "error": {"code": METHOD_NOT_FOUND, "message": refusal_of(str(request.get("method")))}}


def refusal_of(method: str) -> str:
    """Return the message for a server's request that is not served."""
    return f"this client runs tools and serves no {method[:_SHOWN]!r}"


def bounded_instructions(instructions: Any) -> str:
    """Return a server's instructions, of bounded length and without lone surrogates; ``""`` if there are none."""
    return printable(instructions[:_MAX_INSTRUCTIONS_CHARS]) if isinstance(instructions, str) else ""


def result_of(reply: dict[str, Any], label: str, method: str) -> dict[str, Any]:
    """Return the result in a reply.

    Raises:
        JsonRpcError: The reply is an error.
        ServerFault: It is neither a result nor an error.
    """
    result, error = reply.get("result"), reply.get("error")
    if isinstance(error, dict):
        raise JsonRpcError(error.get("code"), printable(str(error.get("message", ""))[:10_000]))
    if not isinstance(result, dict):
        raise ServerFault(
            f"{label} answers {method!r} with neither a result nor an error: {shown(reply)}", kind="server_protocol"
        )
    return result


def shown(value: Any) -> str:
    """Return the beginning of what a server sent, for an error message."""
    if isinstance(value, bytes | bytearray):
        text = value[: 4 * _SHOWN].decode("utf-8", "replace")
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except RecursionError:
            text = "JSON that is nested too deeply"
    return repr(text[:_SHOWN] + ("…" if len(text) > _SHOWN else ""))


def printable(text: str) -> str:
    """Return the text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
