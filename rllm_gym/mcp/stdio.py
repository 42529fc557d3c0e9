"""A connection to a server over its standard input and output, robust to anything it writes and any way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

from rllm_gym.mcp.errors import JsonRpcError, ServerFault
from rllm_gym.mcp.protocol import (
    FLOOD_BYTES,
    FLOOD_MESSAGES,
    MAX_MESSAGE_BYTES,
    LineSplitter,
    MCPConnection,
    bounded_instructions,
    decoded,
    encoded,
    printable,
    reply_to,
    result_of,
    shown,
)
from rllm_gym.mcp.server_launcher import LaunchSpec, ServerLauncher, private_fds
from rllm_gym.version import __version__

_HANDSHAKE_VERSION = "2025-11-25"
"""The newest protocol that begins with ``initialize``; servers of older versions answer with theirs."""

_STATELESS_VERSION = "2026-07-28"
"""The protocol without a handshake, with the client in every request: for servers that refuse ``initialize``."""

_CLIENT_INFO = {"name": "rllm-gym", "version": __version__}
_STATELESS_META = {
    "io.modelcontextprotocol/protocolVersion": _STATELESS_VERSION,
    "io.modelcontextprotocol/clientInfo": _CLIENT_INFO,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_CHUNK = 1 << 18
_STDERR_BYTES = 8_000
_IDLE_BYTES = 1 << 20
"""Maximum bytes read from a server without a pending request; more waits in its pipe until the next request."""
_UNSENT_BYTES = 32 << 20
_MAX_INVALID_LINES = 10_000
"""Maximum total number of lines that are not messages: banners and stray prints are far fewer."""
_LAST_READS = 8
_GONE_S = 15.0
"""Seconds until all processes of a server must be gone; its supervisor gives up earlier."""


class StdioConnection(MCPConnection):
    """See :class:`~rllm_gym.mcp.protocol.MCPConnection`. Everything runs on the loop of :meth:`open`."""

    def __init__(self, label: str, spec: LaunchSpec, launcher: ServerLauncher) -> None:
        super().__init__(label)
        self._spec = spec
        self._launcher = launcher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stdin = self._stdout = self._stderr = self._control = -1
        self._launched: asyncio.Future[int] | None = None
        self._gone: asyncio.Future[None] | None = None
        self._version: str | None = None
        self._waiting: dict[int, tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._numbered = 0
        self._lines = LineSplitter()
        self._unsent = bytearray()
        self._reported = b""
        self._stderr_text = bytearray()
        self._read_since_asked = self._messages_since_asked = 0
        self._paused = False
        self._invalid: bytes | None = None
        self._invalid_lines = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, while it runs."""
        done = self._launched is not None and self._launched.done() and not self._launched.cancelled()
        return self._launched.result() if self._launched is not None and done and not self._fault else None

    def error_context(self) -> str:
        words = ""
        if self._invalid is not None:
            words += f"; it wrote {self._invalid_lines} lines that are not messages, e.g. {shown(self._invalid)}"
        if stderr := printable(self._stderr_text.decode("utf-8", "replace")).strip():
            words += f"; its stderr ends with:\n{stderr}"
        return words

    # Opening and closing

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._launched, self._gone = self._loop.create_future(), self._loop.create_future()
        theirs = self._make_pipes()
        try:
            self._control = self._owned(self._launcher.start(self._spec, theirs))
        finally:
            for fd in theirs:
                os.close(fd)
        self._loop.add_reader(self._control, self._on_report)
        self._loop.add_reader(self._stdout, self._on_output)
        self._loop.add_reader(self._stderr, self._on_stderr)
        await self._launched
        await self._handshake()

    async def close(self) -> None:
        """End the server with all its descendants, and wait until they are gone. Safe to call twice."""
        if self._control < 0:
            self._release_fds()
            return
        self._fail(ServerFault(f"{self.label} was closed", kind="server_died"))
        with contextlib.suppress(OSError):
            os.write(self._control, b"x")
        assert self._gone is not None
        try:
            async with asyncio.timeout(_GONE_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            pass  # a process cannot be killed; its supervisor has given up
        finally:
            self._release_fds()

    def _make_pipes(self) -> list[int]:
        theirs = []
        for name in ("_stdin", "_stdout", "_stderr"):
            reading, writing = os.pipe()
            ours, other = (writing, reading) if name == "_stdin" else (reading, writing)
            os.set_blocking(ours, False)
            setattr(self, name, self._owned(ours))
            theirs.append(other)
        return theirs

    def _owned(self, fd: int) -> int:
        private_fds.add(fd)
        return fd

    def _release_fds(self) -> None:
        for name in ("_stdin", "_stdout", "_stderr", "_control"):
            fd = getattr(self, name)
            if fd < 0:
                continue
            setattr(self, name, -1)
            if self._loop is not None:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)
            private_fds.discard(fd)
            os.close(fd)

    def _fail(self, fault: ServerFault) -> None:
        """Mark the connection as failed: all waiting calls raise the fault."""
        if self._fault is not None:
            return
        self._fault = fault
        futures: list[asyncio.Future[Any]] = [future for _, future in self._waiting.values()]
        if self._launched is not None:
            futures.append(self._launched)
        self._waiting.clear()
        for future in futures:
            if not future.done():
                future.set_exception(fault)
                future.exception()  # marks it as retrieved, also if there is no caller left
        self._lines = LineSplitter()
        self._unsent.clear()
        self._drop_readers()

    def _drop_readers(self) -> None:
        assert self._loop is not None
        for fd in (self._stdout, self._stdin):
            if fd >= 0:
                self._loop.remove_reader(fd)
                self._loop.remove_writer(fd)

    async def _handshake(self) -> None:
        try:
            hello = await self._request(
                "initialize",
                {"protocolVersion": _HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": _CLIENT_INFO},
            )
        except JsonRpcError as rejection:
            await self._discover(rejection)
            return
        self._version = hello.get("protocolVersion")
        if not isinstance(self._version, str):
            words = f"{self.label} answers 'initialize' without a protocolVersion: {shown(hello)}"
            raise ServerFault(words, kind="server_protocol")
        self.instructions = bounded_instructions(hello.get("instructions"))
        self._send({"method": "notifications/initialized", "params": {}})

    async def _discover(self, rejection: JsonRpcError) -> None:
        self._version = _STATELESS_VERSION
        try:
            found = await self._request("server/discover", {})
        except JsonRpcError:
            words = f"{self.label} rejects the MCP handshake: {rejection}"
            raise ServerFault(words, kind="server_protocol") from rejection
        versions = found.get("supportedVersions")
        if not isinstance(versions, list) or _STATELESS_VERSION not in versions:
            raise ServerFault(
                f"{self.label} supports none of this client's protocol versions ({_HANDSHAKE_VERSION} and earlier, "
                f"{_STATELESS_VERSION}); it supports {shown(versions)}",
                kind="server_protocol",
            )
        self.instructions = bounded_instructions(found.get("instructions"))

    # Requests

    def _stamped(self, params: dict[str, Any]) -> dict[str, Any]:
        return {**params, "_meta": _STATELESS_META} if self._version == _STATELESS_VERSION else params

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._check_open()
        assert self._loop is not None
        self._numbered += 1
        number = self._numbered
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[number] = (method, future)
        self._read_since_asked = self._messages_since_asked = 0
        self.sent_invalid = False
        self._resume_reading()
        self._send({"id": number, "method": method, "params": self._stamped(params)})
        try:
            reply = await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None and method == "tools/call":
                self._send({"method": "notifications/cancelled", "params": {"requestId": number}})
            raise
        return result_of(reply, self.label, method)

    def _send(self, message: dict[str, Any]) -> None:
        if self._fault is not None:
            return
        self._unsent += encoded(message) + b"\n"
        if len(self._unsent) > _UNSENT_BYTES:
            self._fail(
                ServerFault(f"{self.label} does not read its input{self.error_context()}", kind="server_protocol")
            )
        self._on_writable()

    def _on_writable(self) -> None:
        assert self._loop is not None
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent[:_CHUNK])]
        except BlockingIOError:
            self._loop.add_writer(self._stdin, self._on_writable)
            return
        except OSError:  # it has closed its input; if it has ended, its supervisor reports that
            self._unsent.clear()
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)

    # Output of the server

    def _on_output(self) -> None:
        self._take_output()

    def _take_output(self) -> bool:
        """Read once; return whether there may be more."""
        data = _read(self._stdout)
        if data is None or self._fault is not None:
            return False
        if not data:
            assert self._loop is not None
            self._loop.remove_reader(self._stdout)
            # If it has ended, that is known a moment later, with its exit status.
            self._loop.call_later(0.5, self._hung_up)
            return False
        self._read_since_asked += len(data)
        for line in self._lines.take(data):
            if self._too_long(line):
                return False
            self._take_line(line)
            if self._fault is not None:
                return False
        if self._too_long(self._lines.partial):
            return False
        self._pause_reading()
        return self._fault is None

    def _too_long(self, line: bytes | bytearray) -> bool:
        if len(line) <= MAX_MESSAGE_BYTES:
            return False
        words = f"{self.label} sends a message of more than {MAX_MESSAGE_BYTES:,} bytes, beginning {shown(line[:800])}"
        self._fail(ServerFault(words, kind="server_protocol"))
        return True

    def _pause_reading(self) -> None:
        assert self._loop is not None
        read, messages = self._read_since_asked, self._messages_since_asked
        if self._waiting and (read > FLOOD_BYTES or messages > FLOOD_MESSAGES):
            words = f"{self.label} sends {messages:,} messages of {read:,} bytes instead of an answer"
            self._fail(ServerFault(words + self.error_context(), kind="server_protocol"))
        elif not self._waiting and read > _IDLE_BYTES and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._stdout)

    def _resume_reading(self) -> None:
        assert self._loop is not None
        if self._paused:
            self._paused = False
            self._loop.add_reader(self._stdout, self._on_output)

    def _take_line(self, line: bytes) -> None:
        if not (line := line.strip()):
            return
        try:
            messages = decoded(line)
        except ValueError as error:
            self._on_invalid_line(line, error)
            return
        self._messages_since_asked += len(messages)
        for message in messages:
            if "method" in message:
                if isinstance(message.get("id"), int | str):
                    self._send(reply_to(message))
            elif (number := _number(message.get("id"))) in self._waiting:
                _, future = self._waiting.pop(number)
                if not future.done():
                    future.set_result(message)

    def _on_invalid_line(self, line: bytes, error: ValueError) -> None:
        """Ignore a banner or a stray print; fail on JSON-RPC that cannot be parsed, because its answer is lost."""
        self._invalid = self._invalid or line[:1_000]
        self._invalid_lines += 1
        if line.startswith((b"{", b"[")):
            self.sent_invalid = True
        if self.sent_invalid and b'"jsonrpc"' in line[:10_000]:
            words = f"{self.label} sent invalid JSON-RPC ({error}): {shown(line[:800])}"
        elif self._invalid_lines > _MAX_INVALID_LINES:
            words = f"{self.label} is not an MCP server{self.error_context()}"
        else:
            return
        self._fail(ServerFault(words, kind="server_protocol"))

    def _on_stderr(self) -> None:
        data = _read(self._stderr)
        if data:
            self._stderr_text += data
            del self._stderr_text[:-_STDERR_BYTES]
        elif data is not None:
            assert self._loop is not None
            self._loop.remove_reader(self._stderr)

    # Reports of its supervisor

    def _on_report(self) -> None:
        data = _read(self._control)
        if data is None:
            return
        if not data:
            self._all_gone()
            return
        *lines, self._reported = (self._reported + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "pid" in report and self._launched is not None and not self._launched.done():
                self._launched.set_result(report["pid"])
            elif "error" in report:
                words = f"{self.label} cannot be started: {report['error']}: {report['file']!r}"
                self._fail(ServerFault(words, kind="server_start"))
            elif "status" in report:
                self._ended(report["status"])

    def _ended(self, status: int) -> None:
        for _ in range(_LAST_READS):  # output before its end counts; a descendant may continue to write
            if not self._take_output():
                break
        self._on_stderr()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        self._fail(ServerFault(f"{self.label} ended ({how}){self.error_context()}", kind="server_died"))

    def _hung_up(self) -> None:
        if self._stdout >= 0:
            self._fail(ServerFault(f"{self.label} closed its output{self.error_context()}", kind="server_died"))

    def _all_gone(self) -> None:
        assert self._loop is not None
        assert self._gone is not None
        self._loop.remove_reader(self._control)
        self._fail(ServerFault(f"{self.label} was killed{self.error_context()}", kind="server_died"))
        if not self._gone.done():
            self._gone.set_result(None)


def _read(fd: int) -> bytes | None:
    """Return available data: ``b""`` at the end, ``None`` if there is none yet."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _number(identifier: Any) -> int:
    """Return the id of a request as an integer, which some servers send back as a string; -1 if it is not one."""
    if isinstance(identifier, str) and identifier.isascii() and identifier.isdigit() and len(identifier) < 19:
        return int(identifier)
    return identifier if type(identifier) is int else -1
