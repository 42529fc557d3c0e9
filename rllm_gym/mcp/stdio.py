"""A connection to a server over its standard input and output, robust to anything it writes and any way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
from mcp import ClientSession
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from rllm_gym.mcp.connection import TOOLS_CHANGED, ServerConnection, checked_session, sdk_error
from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.protocol import (
    FLOOD_BYTES,
    FLOOD_MESSAGES,
    FLOOD_REQUESTS,
    MAX_MESSAGE_BYTES,
    decoded,
    printable,
    shown,
)
from rllm_gym.mcp.server_requests import RequestAnswers, passed_on
from rllm_gym.runtime.program_launcher import LaunchSpec, ProgramLauncher, private_fds

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


class StdioConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`. The SDK's client over pipes to a supervised program.

    The SDK's own stdio transport collects a line of any length, waits until a program ends by itself, and leaves
    programs behind if the trainer is killed.
    """

    _end_s = _GONE_S + 5.0

    def __init__(self, label: str, spec: LaunchSpec, launcher: ProgramLauncher, answers: RequestAnswers) -> None:
        super().__init__(label, answers)
        self._spec = spec
        self._launcher = launcher
        self._stdin = self._stdout = self._stderr = self._control = -1
        self._launched: asyncio.Future[int] | None = None
        self._gone: asyncio.Future[None] | None = None
        # Unbounded, but filled only while a request waits, up to the limits of a flood.
        self._received, self._messages = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._partial = bytearray()
        self._unsent = bytearray()
        self._reported = b""
        self._stderr_text = bytearray()
        self._read_since_asked = self._messages_since_asked = self._requests_since_asked = 0
        self._paused = False
        self._invalid: bytes | None = None
        self._invalid_lines = 0

    def error_context(self) -> str:
        words = ""
        if self._invalid is not None:
            words += f"; it wrote {self._invalid_lines} lines that are not messages, e.g. {shown(self._invalid)}"
        if stderr := printable(self._stderr_text.decode("utf-8", "replace")).strip():
            words += f"; its stderr ends with:\n{stderr}"
        return words

    # Opening and closing

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        try:
            await self._start_program()
            streams = self._messages, _RequestWriter(self)
            async with checked_session(streams, self.answers) as session:
                await self._handshake(session)
                yield session
        finally:
            await self._end_program()

    async def _start_program(self) -> None:
        loop = asyncio.get_running_loop()
        self._launched, self._gone = loop.create_future(), loop.create_future()
        theirs = self._make_pipes()
        try:
            self._control = self._owned(self._launcher.start(self._spec, theirs))
        finally:
            for fd in theirs:
                os.close(fd)
        loop.add_reader(self._control, self._on_report)
        loop.add_reader(self._stdout, self._take_output)
        loop.add_reader(self._stderr, self._on_stderr)
        await self._launched

    async def _end_program(self) -> None:
        """End the server with all its descendants, and wait until they are gone."""
        self._fail(ServerFault(f"{self.label} was closed", kind="server_died"))
        try:
            if self._control >= 0 and self._gone is not None:
                with contextlib.suppress(OSError):
                    os.write(self._control, b"x")
                with contextlib.suppress(TimeoutError):  # a process cannot be killed; its supervisor has given up
                    async with asyncio.timeout(_GONE_S):
                        await asyncio.shield(self._gone)
        finally:
            self._release_fds()
            self._messages.close()

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
            asyncio.get_running_loop().remove_reader(fd)
            asyncio.get_running_loop().remove_writer(fd)
            private_fds.discard(fd)
            os.close(fd)

    def _fail(self, fault: ServerFault) -> None:
        """Mark the connection as failed: all waiting calls raise the fault."""
        fault = self._break(fault)
        self._received.close()
        if self._launched is not None and not self._launched.done():
            self._launched.set_exception(fault)
            self._launched.exception()  # marks it as retrieved, also if there is no caller left
        self._partial.clear()
        self._unsent.clear()
        for fd in (self._stdout, self._stdin):
            if fd >= 0:
                asyncio.get_running_loop().remove_reader(fd)
                asyncio.get_running_loop().remove_writer(fd)

    # Messages to the server

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; what does not fit into the pipe is sent later."""
        if self._fault is not None:
            return
        if "id" in message and "method" in message:
            self._read_since_asked = self._messages_since_asked = self._requests_since_asked = 0
            if self._paused:
                self._paused = False
                asyncio.get_running_loop().add_reader(self._stdout, self._take_output)
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self._unsent) > _UNSENT_BYTES:
            words = f"{self.label} does not read its input{self.error_context()}"
            self._fail(ServerFault(words, kind="server_protocol"))
        self._on_writable()

    @property
    def _asked(self) -> bool:
        """Whether a request waits for its answer."""
        return self._session is None or bool(self._calls)

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin, self._unsent[:_CHUNK])]
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._stdin, self._on_writable)
            return
        except OSError:  # it has closed its input; if it has ended, its supervisor reports that
            self._unsent.clear()
        if self._stdin >= 0:
            asyncio.get_running_loop().remove_writer(self._stdin)

    # Output of the server

    def _take_output(self) -> bool:
        """Read once; return whether there may be more."""
        data = _read(self._stdout)
        if data is None or self._fault is not None:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._stdout)
            # If it has ended, that is known a moment later, with its exit status.
            asyncio.get_running_loop().call_later(0.5, self._hung_up)
            return False
        self._read_since_asked += len(data)
        first, *lines = data.split(b"\n")
        self._partial += first
        if lines:
            lines.insert(0, bytes(self._partial))
            self._partial = bytearray(lines.pop())
        for line in lines:
            if self._too_long(line):
                return False
            self._take_line(line)
            if self._fault is not None:
                return False
        if self._too_long(self._partial):
            return False
        if not self._asked and self._read_since_asked > _IDLE_BYTES and not self._paused:
            self._paused = True
            asyncio.get_running_loop().remove_reader(self._stdout)
        return self._fault is None

    def _too_long(self, line: bytes | bytearray) -> bool:
        if len(line) <= MAX_MESSAGE_BYTES:
            return False
        words = f"{self.label} sends a message of more than {MAX_MESSAGE_BYTES:,} bytes, beginning {shown(line[:800])}"
        self._fail(ServerFault(words, kind="server_protocol"))
        return True

    def _has_flooded(self) -> bool:
        read, messages, requests = self._read_since_asked, self._messages_since_asked, self._requests_since_asked
        too_many = read > FLOOD_BYTES or messages > FLOOD_MESSAGES
        if self._fault is None and (requests > FLOOD_REQUESTS or (self._asked and too_many)):
            words = f"{self.label} sends {messages:,} messages ({requests:,} requests) of {read:,} bytes"
            self._fail(ServerFault(f"{words} instead of an answer{self.error_context()}", kind="server_protocol"))
        return self._fault is not None

    def _take_line(self, line: bytes) -> None:
        if not (line := line.strip()):
            return
        try:
            messages = decoded(line.decode("utf-8", "replace"))
        except ValueError as error:
            self._on_invalid_line(line, error)
            return
        self._messages_since_asked += len(messages)
        for message in messages:
            if self._has_flooded():
                break
            self._take_message(message)

    def _take_message(self, message: dict[str, Any]) -> None:
        """Pass on an answer or a request, without a validation by the SDK; of notifications only one is used."""
        number = _number(message.get("id"))
        method, result, error = message.get("method"), message.get("result"), message.get("error")
        taken: JSONRPCRequest | JSONRPCResponse | JSONRPCError
        if "method" in message:
            if method == TOOLS_CHANGED:
                self.note_changed_tools()
            if type(message.get("id")) not in (int, str) or not isinstance(method, str):
                return
            self._requests_since_asked += 1
            taken = JSONRPCRequest.model_construct(**passed_on(message))
        elif number < 0:
            return
        elif isinstance(error, dict):
            taken = JSONRPCError(jsonrpc="2.0", id=number, error=sdk_error(error))
        elif isinstance(result, dict):
            taken = JSONRPCResponse.model_construct(id=number, result=result)
        else:
            words = f"{self.label} answers with neither a result nor an error: {shown(message)}"
            self._fail(ServerFault(words, kind="server_protocol"))
            return
        self._received.send_nowait(SessionMessage(taken))

    def _on_invalid_line(self, line: bytes, error: ValueError) -> None:
        """Ignore a banner or a stray print; fail on JSON-RPC that cannot be parsed, because its answer is lost."""
        self._invalid = self._invalid or line[:1_000]
        self._invalid_lines += 1
        if line.startswith((b"{", b"[")) and b'"jsonrpc"' in line[:10_000]:
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
            asyncio.get_running_loop().remove_reader(self._stderr)

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
                self._on_exit(report["status"])

    def _on_exit(self, status: int) -> None:
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
        asyncio.get_running_loop().remove_reader(self._control)
        self._fail(ServerFault(f"{self.label} was killed{self.error_context()}", kind="server_died"))
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


class _RequestWriter:
    """The SDK's end of a program's standard input."""

    def __init__(self, connection: StdioConnection) -> None:
        self._connection = connection

    async def send(self, item: SessionMessage, /) -> None:
        self._connection.send(item.message.model_dump(by_alias=True, mode="json", exclude_unset=True))

    async def aclose(self) -> None:
        pass  # the connection owns the pipe

    async def __aenter__(self) -> _RequestWriter:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


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
