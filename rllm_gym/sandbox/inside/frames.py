"""The frames between a trusted process and its owner: the lengths of a JSON header and of a body, then both.

The lengths have 4 bytes each, big-endian. Sent in as source text: standard library only.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTHS = struct.Struct(">II")


class OwnerGone(Exception):
    """The owner has closed the connection."""


def frame_start(header: dict[str, Any], *bodies: bytes | bytearray) -> bytes:
    """Return the lengths and the header of a frame, which the bodies follow."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return LENGTHS.pack(len(text), sum(map(len, bodies))) + text
