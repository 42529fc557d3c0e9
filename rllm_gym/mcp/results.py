"""Results of tools, as text for the model and as data for grading."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from rllm_gym.mcp.protocol import MAX_DEPTH, depth, printable

NO_OUTPUT = "(no output)"
_MAX_PARTS = 1_000


@dataclass(frozen=True)
class ToolResult:
    """One result.

    Attributes:
        text: For the model: texts unchanged; structured content as JSON where no text has the same; images, sound and
            files described in brackets; ``"(no output)"`` for an empty result.
        is_error: The tool reports a failure, or the server refuses the call.
        structured: The structured content, ``None`` if there is none.
        images: The images, encoded as they were sent.
    """

    text: str
    is_error: bool = False
    structured: Any | None = None
    images: tuple[bytes, ...] = ()

    def shortened(self, max_chars: int) -> str:
        """Return the text; if it is longer than ``max_chars`` characters, the middle is replaced by a note.

        >>> ToolResult("abcdefghij" * 20).shortened(80)
        'abcdefghijabcdefghija\\n[… 158 of 200 characters left out …]\\njabcdefghijabcdefghij'

        Raises:
            ValueError: ``max_chars`` is below 80, too little for the note.
        """
        if max_chars < 80:
            raise ValueError(f"max_chars={max_chars!r} must be at least 80")
        if len(self.text) <= max_chars:
            return self.text
        note = "\n[… {:,} of {:,} characters left out …]\n"
        kept = max_chars - len(note.format(len(self.text), len(self.text)))
        head, tail = kept // 2, kept - kept // 2
        return self.text[:head] + note.format(len(self.text) - kept, len(self.text)) + self.text[-tail:]


def refusal(text: str) -> ToolResult:
    """Return the result of a refused call with this message."""
    return ToolResult(text, is_error=True)


def read_result(raw: dict[str, Any]) -> ToolResult:
    """Parse the result of ``tools/call`` as a server sent it, with any content.

    >>> read_result({"content": [{"type": "text", "text": "17"}], "structuredContent": {"result": 17}})
    ToolResult(text='17', is_error=False, structured={'result': 17}, images=())
    >>> read_result({"content": []}).text
    '(no output)'
    """
    if raw.get("resultType") == "input_required":
        return refusal("The tool needs more input of its user, which it did not get. Call it with all that it needs.")
    content = raw.get("content")
    parts: list[str] = []
    images: list[bytes] = []
    if isinstance(content, list):
        for item in content[:_MAX_PARTS]:
            parts.append(_part(item, images))
        if len(content) > _MAX_PARTS:
            parts.append(f"[{len(content) - _MAX_PARTS:,} more parts left out]")
    elif content is not None:
        parts.append(shown_json(content))
    structured = raw.get("structuredContent")
    if depth(structured) > MAX_DEPTH:
        structured = None
        parts.append("[structured content that is nested too deeply]")
    if structured is not None and not any(parts):
        parts.append(shown_json(structured))
    text = printable("\n".join(part for part in parts if part))
    return ToolResult(text or NO_OUTPUT, raw.get("isError") is True, structured, tuple(images))


def _part(item: Any, images: list[bytes]) -> str:
    if not isinstance(item, dict):
        return shown_json(item)
    kind = item.get("type")
    if kind == "text":
        return _text(item.get("text"))
    if kind in ("image", "audio"):
        data = _bytes(item.get("data"))
        if data is None:
            return f"[{kind} that cannot be decoded]"
        if kind == "image":
            images.append(data)
        return f"[{kind} {_word(item.get('mimeType'))}, {len(data):,} bytes]"
    if kind == "resource" and isinstance(item.get("resource"), dict):
        return _resource(item["resource"], images)
    if kind == "resource_link":
        words = [_word(item.get(key)) for key in ("title", "description") if item.get(key)]
        return f"[resource {_word(item.get('uri'))}{''.join(f', {word}' for word in words)}]"
    return shown_json(item)


def _resource(resource: dict[str, Any], images: list[bytes]) -> str:
    name = _word(resource.get("uri"))
    if "text" in resource:
        return f"[resource {name}]\n{_text(resource['text'])}"
    data = _bytes(resource.get("blob"))
    if data is not None and _word(resource.get("mimeType")).startswith("image/"):
        images.append(data)
    size = "cannot be decoded" if data is None else f"{len(data):,} bytes"
    return f"[resource {name}, {_word(resource.get('mimeType') or 'application/octet-stream')}, {size}]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown_json(value)


def _word(value: Any) -> str:
    return str(value)[:500].replace("\n", " ")


def _bytes(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return None


def shown_json(value: Any) -> str:
    """Return a value as JSON, as the model reads it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[JSON that is nested too deeply]"
