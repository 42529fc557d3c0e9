"""Limits of what a server may send, and safe reading of it. The protocol itself is kept by the SDK."""

from __future__ import annotations

import json
from typing import Any

MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size in bytes of a message from a server."""

FLOOD_BYTES = 64 << 20
FLOOD_MESSAGES = 10_000
FLOOD_REQUESTS = 1_000
"""Maximum number of bytes, messages and requests that a server may send for one answer; more count as flooding."""

MAX_DEPTH = 100
"""Maximum nesting of JSON: servers' parsers give up at 128, and Python's when the stack is full."""

_MAX_INSTRUCTIONS_CHARS = 20_000
_SHOWN = 200


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


def decoded(text: str) -> list[dict[str, Any]]:
    """Return the messages in a text: one, or a batch as in older protocols.

    Raises:
        ValueError: It is not JSON, or not a message.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    messages = value if isinstance(value, list) else [value]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("it is not a JSON object")
    return messages


def bounded_instructions(instructions: Any) -> str:
    """Return a server's instructions, of bounded length and without lone surrogates; ``""`` if there are none."""
    return printable(instructions[:_MAX_INSTRUCTIONS_CHARS]) if isinstance(instructions, str) else ""


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


def sendable_json(arguments: Any) -> dict[str, Any]:
    """Return the arguments without lone surrogates: a server might not answer at all.

    Raises:
        ValueError: They are not a JSON object, or JSON that servers cannot parse.
    """
    if not isinstance(arguments, dict):
        raise ValueError(f"they are of type {type(arguments).__name__}, not a JSON object")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if (deep := depth(arguments)) > MAX_DEPTH:
        raise ValueError(f"they are nested {deep} deep, and at most {MAX_DEPTH} are read")
    return json.loads(printable(text))  # type: ignore[no-any-return]
