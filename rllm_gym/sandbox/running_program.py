"""A running program as seen by its caller, and the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.sandbox.program import Program, ProgramResult
from rllm_gym.sandbox.watching import watch

MAX_FRAME = 16 << 20
"""Maximum length of a frame on a channel, in bytes. The channel of a program that announces a longer frame is
closed."""

_LENGTH = struct.Struct(">I")
_INBOX = 4 * MAX_FRAME
"""Maximum bytes read ahead of the caller. Beyond that the program has to wait."""

_CHUNK = 1 << 18


def resolve_future(future: Future[Any], value: Any) -> None:
    """Set a future's result or exception; a cancelled future stays cancelled."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


class ProgramChannel:
    """Frames to and from a program: 4 bytes of length, big-endian, then the content. The content may be hostile."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop
        self._lock = threading.RLock()
        self._sock: socket.socket | None = None
        self._buffer = bytearray()
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._readers: deque[Future[bytes | None]] = deque()
        self._outbox: deque[tuple[memoryview, Future[bool]]] = deque()
        self._ended_in = self._ended_out = False
        self._events = 0

    # Called from any thread

    def send(self, frame: bytes) -> Future[bool]:
        if len(frame) > MAX_FRAME:
            raise ValueError(f"a frame of {len(frame)} bytes; a channel takes at most {MAX_FRAME}")
        future: Future[bool] = Future()
        data = memoryview(_LENGTH.pack(len(frame)) + frame)
        with self._lock:
            if self._ended_out:
                resolve_future(future, False)
                return future
            self._outbox.append((data, future))
            if len(self._outbox) == 1 and self._sock is not None:
                self._write()
        return future

    def receive(self) -> Future[bytes | None]:
        future: Future[bytes | None] = Future()
        with self._lock:
            if self._inbox:
                frame = self._inbox.popleft()
                self._inbox_bytes -= len(frame)
                resolve_future(future, frame)
                self._set_events()
            elif self._ended_in:
                resolve_future(future, None)
            else:
                self._readers.append(future)
        return future

    # Called in the loop's thread

    def connect(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with self._lock:
            if self._ended_in and self._ended_out:
                sock.close()
                return
            self._sock = sock
            self._write()
            self._set_events()

    def _set_events(self) -> None:
        events = 0
        if self._sock is not None:
            if not self._ended_in and self._inbox_bytes < _INBOX:
                events |= selectors.EVENT_READ
            if self._outbox and not self._ended_out:
                events |= selectors.EVENT_WRITE
        if events != self._events:
            self._events = events
            self._loop.call_soon(self._watch)

    def _watch(self) -> None:
        with self._lock:
            if self._sock is not None:
                watch(self._sock.fileno(), self._events, self._ready)

    def _ready(self, events: int) -> None:
        with self._lock:
            if self._sock is None:
                return
            if events & selectors.EVENT_WRITE:
                self._write()
            if events & selectors.EVENT_READ:
                self._read()
            self._set_events()

    def _write(self) -> None:
        assert self._sock is not None
        while self._outbox:
            data, future = self._outbox[0]
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                break
            except OSError:  # the program closed its end
                self._end_out()
                return
            if sent < len(data):
                self._outbox[0] = (data[sent:], future)
                continue
            self._outbox.popleft()
            resolve_future(future, True)
        self._set_events()

    def _read(self) -> None:
        assert self._sock is not None
        try:
            piece = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._end_in()
            return
        self._buffer += piece
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                self._end_in()
                self._end_out()
                return
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            self._deliver(bytes(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]

    def _deliver(self, frame: bytes) -> None:
        while self._readers:
            future = self._readers.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(frame)
                return
        self._inbox.append(frame)
        self._inbox_bytes += len(frame)

    def _end_in(self) -> None:
        self._ended_in = True
        self._buffer.clear()
        while self._readers:
            resolve_future(self._readers.popleft(), None)

    def _end_out(self) -> None:
        self._ended_out = True
        while self._outbox:
            resolve_future(self._outbox.popleft()[1], False)

    def abandon(self) -> None:
        """Close a channel that was never connected, because the program has ended. In the loop's thread."""
        if self._sock is None:
            self.close()

    def close(self) -> None:
        """Close the channel in both directions. Received frames can still be read. In the loop's thread."""
        with self._lock:
            self._end_in()
            self._end_out()
            if self._sock is not None:
                watch(self._sock.fileno(), 0, self._ready)
                self._sock.close()
                self._sock = None


def end(program: RunningProgram, outcome: ProgramResult | BaseException) -> None:
    """Deliver the outcome of a program to its caller."""
    resolve_future(program.outcome, outcome)
    if program.channel is not None:
        program.channel.abandon()


class RunningProgram:
    """A program started with a channel. Methods have a ``_sync`` variant for code without an event loop."""

    def __init__(self, program: Program, loop: BackgroundLoop | None = None) -> None:
        self.program = program
        self.channel = None if loop is None else ProgramChannel(loop)
        self.outcome: Future[ProgramResult] = Future()
        self.halt: Callable[[], None] | None = None

    async def send(self, frame: bytes) -> bool:
        """Send a frame to the program, waiting while it does not read. Returns False if its end is closed, or it ended.

        Raises:
            ValueError: The frame is longer than :data:`MAX_FRAME`.
        """
        return await asyncio.wrap_future(self._channel.send(frame))

    def send_sync(self, frame: bytes) -> bool:
        return self._channel.send(frame).result()

    async def receive(self) -> bytes | None:
        """Return the next frame of the program; ``None`` if its end is closed, or it ended, and no frame is left."""
        return await asyncio.wrap_future(self._channel.receive())

    def receive_sync(self) -> bytes | None:
        return self._channel.receive().result()

    async def result(self) -> ProgramResult:
        """Wait until the program ends and return its result.

        Raises:
            SandboxFault: The sandbox failed, not the program.
        """
        return await asyncio.shield(asyncio.wrap_future(self.outcome))

    def result_sync(self) -> ProgramResult:
        return self.outcome.result()

    def stop(self) -> None:
        """Stop the program: :attr:`~rllm_gym.sandbox.program.Ended.STOPPED`, unless it has already ended by itself."""
        if self.halt is not None:
            self.halt()

    @property
    def _channel(self) -> ProgramChannel:
        assert self.channel is not None, "only programs that were started with a channel are handed out"
        return self.channel
