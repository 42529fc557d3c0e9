"""The browser's protocol over its pipe, shared with Playwright's driver: commands, answers and events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import weakref
from collections.abc import Callable
from typing import Any

GONE = "Target page, context or browser has been closed"

_OURS = 2**30
"""The first id of commands of this process. Playwright's driver uses lower ones."""

_MESSAGE_BYTES = 512 * 2**20

EventHandler = Callable[[dict[str, Any]], object]


class ProtocolError(Exception):
    """The browser refused a command, or has ended."""


class CDPSession:
    """The connection to one target: a tab, a frame with its own process, or the browser itself (``""``)."""

    def __init__(self, connection: CDPConnection, name: str) -> None:
        self.closed = False
        self._connection = connection
        self._name = name
        self._handlers: dict[str, list[EventHandler]] = {}
        self._waiting: set[asyncio.Future[dict[str, Any]]] = set()

    def send_nowait(self, method: str, parameters: dict[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Send a command now; the future's result is the answer. Commands are executed in order."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_exception(ProtocolError(f"{method}: {GONE}"))
            future.exception()
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
            self._connection.post(self._name, method, parameters, future)
        return future

    async def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Execute a command.

        Raises:
            ProtocolError: It was refused, or the target is closed.
        """
        return await self.send_nowait(method, parameters)

    def on(self, event: str, handler: EventHandler) -> None:
        """Call a function with the parameters of each such event."""
        self._handlers.setdefault(event, []).append(handler)

    def off(self, event: str, handler: EventHandler) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._handlers[event].remove(handler)

    def dispatch(self, event: str, parameters: dict[str, Any]) -> None:
        for handler in tuple(self._handlers.get(event, ())):
            handler(parameters)

    def close(self) -> None:
        """Close the session; pending requests fail."""
        self.closed = True
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(ProtocolError(GONE))
                future.exception()


class CDPConnection:
    """The browser's pipe, which this process holds and shares with Playwright's driver.

    The driver starts and ends the browser, which takes few messages. All other messages bypass it.

    Attributes:
        root: The session of the browser itself.
        ends: The descriptors of its pipes.
        closed: Done when the browser, or the driver, has closed the connection.
    """

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sessions: dict[str, CDPSession] = {}
        self._answers: dict[int, tuple[str, asyncio.Future[dict[str, Any]] | None]] = {}
        self._last = _OURS
        self._transports: list[asyncio.BaseTransport] = []
        self.ends: tuple[int, ...] = ()
        self._browser: asyncio.WriteTransport
        self._driver: asyncio.WriteTransport
        self.root = self.session("")

    async def open(self, to_browser: int, from_browser: int, to_driver: int, from_driver: int) -> None:
        """Take over four ends of pipes."""
        loop = asyncio.get_running_loop()
        self.ends = (to_browser, from_browser, to_driver, from_driver)
        _open.add(self)
        self._browser, _ = await loop.connect_write_pipe(_Writer, os.fdopen(to_browser, "wb", 0))
        self._driver, _ = await loop.connect_write_pipe(_Writer, os.fdopen(to_driver, "wb", 0))
        from_them, _ = await loop.connect_read_pipe(
            lambda: _MessageProtocol(self._on_driver_message, self.close), os.fdopen(from_driver, "rb", 0)
        )
        from_it, _ = await loop.connect_read_pipe(
            lambda: _MessageProtocol(self._on_browser_message, self.close), os.fdopen(from_browser, "rb", 0)
        )
        self._transports = [self._browser, self._driver, from_them, from_it]

    def session(self, name: str) -> CDPSession:
        """Return the session of this name; created on first use."""
        if name not in self._sessions:
            self._sessions[name] = CDPSession(self, name)
        return self._sessions[name]

    def end_session(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()

    def post(
        self, session: str, method: str, parameters: dict[str, Any] | None, answer: asyncio.Future[dict[str, Any]]
    ) -> None:
        if self.closed.done():
            answer.set_exception(ProtocolError(f"{method}: {GONE}"))
            answer.exception()  # an unread failure should not be logged
            return
        self._last += 1
        self._answers[self._last] = (method, answer)
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        self._browser.write(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\0")

    def close(self) -> None:
        """Close both connections, which ends the browser. May be called twice."""
        if self.closed.done():
            return
        self.closed.set_result(None)
        _open.discard(self)
        for session in self._sessions.values():
            session.close()
        self._answers.clear()
        for transport in self._transports:
            if not transport.is_closing():
                transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()

    def _on_driver_message(self, line: bytes) -> None:
        self._browser.write(line + b"\0")

    def _on_browser_message(self, line: bytes) -> None:
        message = json.loads(line)
        number = message.get("id")
        if number is None:
            session = self._sessions.get(message.get("sessionId", ""))
            if session is not None:
                session.dispatch(message["method"], message.get("params", {}))
        elif number <= _OURS:
            self._driver.write(line + b"\0")
        else:
            method, answer = self._answers.pop(number, ("", None))
            if answer is None or answer.done():
                return  # no caller waits for it any more
            if "error" in message:
                answer.set_exception(ProtocolError(f"{method}: {message['error'].get('message', '')}"))
                answer.exception()
            else:
                answer.set_result(message.get("result", {}))


class _Writer(asyncio.Protocol):
    """A writer without back-pressure: the transport buffers the output, because commands are few and short."""


class _MessageProtocol(asyncio.Protocol):
    """Splits the input at NUL bytes."""

    def __init__(self, on_message: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._on_message = on_message
        self._ended = ended
        self._pieces: list[bytes] = []
        self._size = 0

    def data_received(self, data: bytes) -> None:
        head, *rest = data.split(b"\0")
        self._pieces.append(head)
        self._size += len(head)
        for piece in rest:
            self._on_message(b"".join(self._pieces))
            self._pieces, self._size = [piece], len(piece)
        if self._size > _MESSAGE_BYTES:
            self._ended()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()


_open: weakref.WeakSet[CDPConnection] = weakref.WeakSet()


def _after_fork() -> None:
    """Close the pipes in a fork: the browser detects the end of this process when its pipes are closed."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in tuple(_open):
        for end in connection.ends:
            os.dup2(nothing, end, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_after_fork)
