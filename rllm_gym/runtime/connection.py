"""Length-prefixed frames over a socket between this program and its workers, blocking or awaited."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time

MAX_FRAME = 512 * 1024 * 1024
"""Maximum size in bytes of an argument or result. A larger one raises an error."""

_HEADER = struct.Struct("!Q")
_CHUNK = 1 << 16
_MAX_POLL_MS = 2**31 - 1


class FramedConnection:
    """One end of a socket pair. Frames alternate: a request, then its reply.

    Every method raises ``EOFError`` when the other end has closed and ``TimeoutError`` when the deadline
    (``time.monotonic()`` seconds, ``None`` for none) passes; after either, the connection cannot be used any more.
    """

    def __init__(self, sock: socket.socket, *, blocking: bool = False) -> None:
        # A worker has nothing else to wait for: a blocking socket saves two system calls per frame.
        sock.setblocking(blocking)
        self._sock = sock
        self.fileno = sock.fileno()
        self._buffer = bytearray()

    def close(self) -> None:
        self._sock.close()

    def hang_up(self) -> None:
        """Shut down the socket: pending reads and writes raise ``EOFError``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def is_idle(self) -> bool:
        """Return whether there is nothing to read and the other end is open, as for an idle worker."""
        return not _poll(self._sock, select.POLLIN, 0)

    def send(self, payload: bytes, deadline: float | None) -> None:
        rest: bytes | memoryview = frame(payload)
        while rest := self.try_send(rest):
            _wait(self._sock, select.POLLOUT, deadline)

    def recv(self, deadline: float | None) -> bytes:
        while (payload := self.try_recv()) is None:
            _wait(self._sock, select.POLLIN, deadline)
        return payload

    def try_send(self, data: bytes | memoryview) -> bytes | memoryview:
        """Send what is possible without waiting, and return the rest."""
        try:
            while (sent := self._sock.send(data)) < len(data):
                data = memoryview(data)[sent:]
        except BlockingIOError:
            return data
        except OSError as error:
            raise EOFError(str(error)) from error
        return b""

    def try_recv(self) -> bytes | None:
        """Return the payload of the next frame if it has arrived, without waiting."""
        while not self._buffer or (payload := self._frame()) is None:
            try:
                data = self._sock.recv(self._missing() if self._buffer else _CHUNK)
            except BlockingIOError:
                return None
            except OSError as error:
                raise EOFError(str(error)) from error
            if (
                not self._buffer
                and len(data) >= _HEADER.size
                and _HEADER.unpack_from(data)[0] == len(data) - _HEADER.size
            ):
                return data[_HEADER.size :]  # mostly, one read gets one whole frame
            self._feed(data)
        return payload

    async def asend(self, payload: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, frame(payload))
        except OSError as error:
            raise EOFError(str(error)) from error

    async def arecv(self) -> bytes:
        loop = asyncio.get_running_loop()
        while (payload := self._frame()) is None:
            try:
                data = await loop.sock_recv(self._sock, self._missing())
            except OSError as error:
                raise EOFError(str(error)) from error
            self._feed(data)
        return payload

    def _feed(self, data: bytes) -> None:
        if not data:
            raise EOFError("the other end closed the connection")
        self._buffer += data

    def _missing(self) -> int:
        if len(self._buffer) < _HEADER.size:
            return _CHUNK
        length: int = _HEADER.unpack_from(self._buffer)[0]
        return min(max(_HEADER.size + length - len(self._buffer), _CHUNK), 1 << 20)

    def _frame(self) -> bytes | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME:
            raise EOFError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME} bytes")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return payload


def frame(payload: bytes) -> bytes:
    """Return the bytes to send for a payload."""
    return _HEADER.pack(len(payload)) + payload


def _poll(sock: socket.socket, event: int, timeout_ms: float | None) -> bool:
    if sock.fileno() < 0:
        raise EOFError("the connection is closed")
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(timeout_ms))


def _wait(sock: socket.socket, event: int, deadline: float | None) -> None:
    if deadline is None:
        _poll(sock, event, None)
        return
    left = deadline - time.monotonic()
    if left <= 0 or not _poll(sock, event, min(left * 1000 + 1, _MAX_POLL_MS)):
        raise TimeoutError("the deadline passed")
