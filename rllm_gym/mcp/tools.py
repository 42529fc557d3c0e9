"""The tools of an episode's servers, under unique names that a model can call."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.mcp.offers import RequestTool
from rllm_gym.mcp.protocol import depth, printable

MAX_NAME_CHARS = 64
_MAX_SCHEMA_CHARS = 100_000
_MAX_SCHEMA_DEPTH = 64
_MAX_DESCRIPTION_CHARS = 20_000
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True)
class MCPTool:
    """A tool that an episode's model may call.

    Attributes:
        name: Its name for the model: letters, digits, ``_`` and ``-``, at most 64, unique in the episode.
        description: The server's description.
        input_schema: JSON schema of its arguments, of type ``object``.
        server: Its server's name.
        remote_name: Its name at the server.
        method: The request that a call of it is: see :mod:`rllm_gym.mcp.offers`.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    server: str
    remote_name: str
    method: str = "tools/call"


def tools_json(tools: Iterable[MCPTool]) -> str:
    """Return the tools in the format of chat templates and OpenAI's API.

    >>> tools_json([MCPTool("add", "Add two numbers.", {"type": "object"}, "sums", "add")])
    '[{"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": \
{"type": "object"}}}]'
    """
    return json.dumps(
        [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in tools
        ],
        ensure_ascii=False,
    )


def named_tools(listed: Sequence[tuple[str, Sequence[Any]]], reserved: Collection[str] = ()) -> list[MCPTool]:
    """Return the tools of several servers, in their order.

    A tool keeps its name, with ``_`` for characters that a model may not write. Tools with the same name, or a reserved
    one, are all renamed to ``server__tool``; if that is taken too, a number is appended.

    >>> both = [("a", [{"name": "list"}, {"name": "get"}]), ("b", [{"name": "list"}])]
    >>> [tool.name for tool in named_tools(both)]
    ['a__list', 'get', 'b__list']

    Args:
        listed: Each server's name, and its tools as the server describes them. Entries that are not tools are ignored,
            as are repeated names.
        reserved: Names that are already used otherwise.
    """
    found: list[tuple[str, str, dict[str, Any]]] = []
    for server, raw_tools in listed:
        seen: set[str] = set()
        for raw in raw_tools:
            name = raw.get("name") if isinstance(raw, dict) else None
            if isinstance(name, str) and name and name not in seen:
                seen.add(name)
                found.append((server, name, raw))
    plain = Counter(_callable_name(name) for _, name, _ in found)
    taken = set(reserved)
    # Unchanged names come first, so that no generated name takes them.
    taken |= {name for name, count in plain.items() if count == 1}
    tools = []
    for server, remote_name, raw in found:
        name = _callable_name(remote_name)
        if plain[name] > 1 or name in reserved:
            name = _free(_callable_name(f"{server}__{remote_name}"), taken)
        taken.add(name)
        schema, note = _bounded_schema(raw.get("inputSchema"))
        description = raw.get("description")
        words = printable(description[:_MAX_DESCRIPTION_CHARS]) if isinstance(description, str) else ""
        method = raw.method if isinstance(raw, RequestTool) else "tools/call"
        tools.append(MCPTool(name, words + note, schema, server, remote_name, method))
    return tools


def _callable_name(name: str) -> str:
    return _FOREIGN.sub("_", name)[:MAX_NAME_CHARS]


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 2
    while (numbered := f"{name[: MAX_NAME_CHARS - len(str(number)) - 1]}_{number}") in taken:
        number += 1
    return numbered


def _bounded_schema(schema: Any) -> tuple[dict[str, Any], str]:
    """Return a schema of type ``object``, and a note for the description if it differs from what the server sent."""
    if not isinstance(schema, dict):
        return {"type": "object"}, "" if schema is None else " (Its server describes no arguments that can be read.)"
    if depth(schema) > _MAX_SCHEMA_DEPTH:
        return {"type": "object"}, " (The description of its arguments is nested too deeply to show.)"
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > _MAX_SCHEMA_CHARS:
        return {
            "type": "object"
        }, f" (The description of its arguments is too large to show: {len(text):,} characters.)"
    return {**json.loads(printable(text)), "type": "object"}, ""
