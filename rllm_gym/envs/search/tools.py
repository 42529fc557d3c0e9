"""The tools of a search episode: their schemas, the parsing of their calls, and their results as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.envs.search.corpus import MAX_ID_CHARS, Document
from rllm_gym.mcp.protocol import printable
from rllm_gym.parsing.function_calls import FunctionCall

MAX_QUERY_CHARS = 1_000
MAX_RESULTS = 20
EXAMPLE = '<tool_call>{"name": "search", "arguments": {"query": "…"}}</tool_call>'


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A call of ``search``."""

    query: str
    k: int


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call of ``read``; ``start`` is a position in the text, from 0."""

    id: str
    start: int


def tools(k: int) -> list[dict[str, Any]]:
    """Return the schemas of the tools.

    Args:
        k: Number of results if a call gives none.
    """
    return [
        _tool(
            "search",
            "Find documents by the words of a query. Each result has an id, a title and the beginning of its text.",
            {
                "query": {"type": "string", "description": "Words to look for."},
                "k": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": k},
            },
            "query",
        ),
        _tool(
            "read",
            "Read a document.",
            {
                "id": {"type": "string", "description": "Id of the document, from a result."},
                "start": {"type": "integer", "minimum": 0, "default": 0, "description": "Where to begin in its text."},
            },
            "id",
        ),
    ]


def _tool(name: str, description: str, properties: dict[str, Any], required: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [required],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def tool_lines(k: int) -> str:
    """Return one line per tool, for the first observation."""
    return (
        f"- search(query: string, k: integer = {k}): find documents by the words of a query.\n"
        "- read(id: string, start: integer = 0): read a document."
    )


def parse_call(call: FunctionCall, number: int, k: int) -> SearchCall | ReadCall:
    """Return a call with checked arguments.

    Args:
        call: The call.
        number: Position of the call in its reply, from 1.
        k: Number of results if it gives none.

    Raises:
        InvalidAction: It is no call of these tools; the message says why.
    """
    which = f"Tool call {number}"
    keys = {"search": ("query", "k"), "read": ("id", "start")}.get(call.name)
    if keys is None:
        raise InvalidAction(
            f"{which} names the tool {printable(call.name)[:80]!r}; the tools are 'search' and 'read'. "
            "No call was made."
        )
    unknown = [key for key in call.arguments if key not in keys]
    text, option = (call.arguments.get(key) for key in keys)
    if keys[0] == "id" and isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    longest = MAX_QUERY_CHARS if keys[0] == "query" else MAX_ID_CHARS
    if unknown or not isinstance(text, str) or not 1 <= len(text) <= longest:
        given = printable(json.dumps(call.arguments, ensure_ascii=False, default=str))[:200]
        raise InvalidAction(
            f"{which} must have the text {keys[0]!r} of 1 to {longest} characters, and may have the whole number "
            f"{keys[1]!r}; it has {given}. No call was made. Write: {EXAMPLE}"
        )
    low, high, default = (1, MAX_RESULTS, k) if keys[1] == "k" else (0, 10**9, 0)
    value = _whole(default if option is None else option)
    if value is None or not low <= value <= high:
        raise InvalidAction(
            f"{which} has {keys[1]} = {option!r:.80}; it must be a whole number from {low} to {high}. No call was made."
        )
    text = printable(text)
    return SearchCall(text, value) if call.name == "search" else ReadCall(text, value)


def _whole(value: Any) -> int | None:
    """Return a whole number, also from text, as XML notation has it."""
    if isinstance(value, str) and len(value) <= 10:
        try:
            return int(value)
        except ValueError:
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def results_text(documents: Sequence[Document], *, snippet_chars: int, max_chars: int) -> str:
    """Return results as text: id, title and the beginning of each text, in at most ``max_chars`` characters."""
    if not documents:
        return "No document has any of these words; use other words."
    shown = documents[: max(1, max_chars // 100)]
    width = (max_chars - 60) // len(shown) - 1
    lines = [_cut(f"{one.heading}: {_snippet(one.text, snippet_chars)}", width) for one in shown]
    if len(shown) < len(documents):
        lines.append(f"({len(documents) - len(shown)} more results left out; ask for fewer)")
    return "\n".join(lines)


def _snippet(text: str, chars: int) -> str:
    start = " ".join(text[: 2 * chars].split())
    return _cut(start + " …" * (len(text) > 2 * chars), chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"


def document_text(document: Document, start: int, max_chars: int) -> str:
    """Return a document as text, in at most ``max_chars`` characters, with a note on how to read on."""
    total, heading = len(document.text), _cut(document.heading, max_chars // 3)
    if start and start >= total:
        return f"{heading}: the text has only {total:,} characters."
    text = document.text[start : start + max_chars - len(heading) - 100]
    lines = [heading, text]
    end = start + len(text)
    if end < total:
        lines.append(f"(characters {start:,} to {end:,} of {total:,}; read on with start = {end})")
    return "\n".join(lines)
