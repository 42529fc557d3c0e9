"""Frames on a file descriptor: four bytes of length, big-endian, then that many bytes."""

from __future__ import annotations

import os
import struct

# Keep references: a program, or a test on its behalf, may replace these functions.
_read, _write = os.read, os.write

MAX_FRAME = 16 * 1024 * 1024
"""Maximum bytes of a frame."""

_RESERVED = 64
"""Bytes of a frame that the relay may add."""

_DESCRIPTOR = 3  # of the stream; opened by the sandbox
_LENGTH = struct.Struct("!I")


class FrameTooLarge(Exception):
    """A message does not fit into one frame."""


class FrameChannel:
    """One end of the stream of frames. ``receive`` raises ``EOFError`` when the other end is closed."""

    def send(self, frame: bytes) -> None:
        if len(frame) > MAX_FRAME - _RESERVED:
            raise FrameTooLarge(f"a message of {len(frame):,} bytes; at most {MAX_FRAME - _RESERVED:,} are carried")
        view = memoryview(_LENGTH.pack(len(frame)) + frame)
        while view:
            view = view[_write(_DESCRIPTOR, view) :]

    def receive(self) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > MAX_FRAME:
            raise EOFError(f"a frame of {length} bytes was announced; at most {MAX_FRAME} are taken")
        return self._read(length)

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            part = _read(_DESCRIPTOR, min(length, 1 << 20))
            if not part:
                raise EOFError("the other end closed the channel")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)
