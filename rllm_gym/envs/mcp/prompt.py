"""Text for the model: the task, its tools as text and as schemas, how to call them, how to finish, and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.mcp.results import ToolResult
from rllm_gym.mcp.tools import MCPTool

FINISH = MCPTool(
    "finish",
    "End the task. Give the final answer where one is asked for, alone and without explanation.",
    {
        "type": "object",
        "properties": {"answer": {"type": ["string", "number", "boolean", "array", "null"]}},
        "additionalProperties": False,
    },
    "",
    "finish",
)
REPORT_INFEASIBLE = MCPTool(
    "report_infeasible",
    "End the task by stating that it cannot be done with these tools, or must not be done, and why.",
    {
        "type": "object",
        "properties": {"reason": {"type": "string"}},
        "required": ["reason"],
        "additionalProperties": False,
    },
    "",
    "report_infeasible",
)
ENDINGS = (FINISH, REPORT_INFEASIBLE)

EXAMPLE = '<tool_call>{"name": "…", "arguments": {…}}</tool_call>'

_MAX_DESCRIPTION_CHARS = 400
_MAX_SIGNATURE_CHARS = 400
_MAX_TOOLS_CHARS = 20_000
_MIN_RESULT_CHARS = 80


def first_observation(goal: str, tools: Sequence[MCPTool], *, listed: bool, max_calls: int, max_turns: int) -> str:
    """Return the first observation.

    Args:
        goal: The request.
        tools: The offered tools, including those that end the task.
        listed: Whether the observation lists the tools.
        max_calls: Most calls in a reply.
        max_turns: Number of replies.
    """
    parts = [goal]
    if listed:
        parts.append("Tools:\n" + tool_list(tools))
    several = f", up to {max_calls} of them in one reply" if max_calls > 1 else ", one in a reply"
    parts.append(
        f"Call tools with {EXAMPLE}{several}; the results come back. When you are done, reply with the final answer "
        f"alone and no call, or call finish. If the task cannot or must not be done, call report_infeasible. You have "
        f"{max_turns} turn{'s' * (max_turns > 1)}."
    )
    return "\n\n".join(parts)


def tool_list(tools: Sequence[MCPTool]) -> str:
    """Return one line per tool, ``name(parameter: type, other: type = default): description``; long lines are cut."""
    lines: list[str] = []
    left = _MAX_TOOLS_CHARS
    for tool in tools:
        line = f"- {tool.name}({_line(_parameters(tool.input_schema), _MAX_SIGNATURE_CHARS)})"
        if description := _line(tool.description, _MAX_DESCRIPTION_CHARS):
            line += f": {description}"
        left -= len(line)
        if left < 0:
            line = f"- {tool.name}"  # at least the tool's name
        lines.append(line)
    return "\n".join(lines)


def _parameters(schema: Mapping[str, Any]) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return ""
    needed = required if isinstance(required, list) else []
    return ", ".join(_parameter(name, wanted, name in needed) for name, wanted in properties.items())


def _parameter(name: str, schema: Any, needed: bool) -> str:
    text = f"{name}: {_type(schema)}"
    if needed:
        return text
    if isinstance(schema, dict) and schema.get("default") is not None:
        return f"{text} = {_cut(json.dumps(schema['default'], ensure_ascii=False), 40)}"
    return f"{text}, optional"


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"][:20])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " | ".join(_type(one) for one in schema[key][:8] if one != {"type": "null"})
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(str(one) for one in kind[:8])
    return f"array of {_type(schema['items'])}" if kind == "array" and "items" in schema else str(kind)


def _line(text: str, max_chars: int) -> str:
    return _cut(" ".join(text.split()), max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def results_text(results: Sequence[tuple[str, ToolResult]], *, max_result_chars: int, max_chars: int) -> str:
    """Return the results of a turn, in the order of the calls, each under its tool's name.

    Args:
        results: Name and result of each call.
        max_result_chars: Limit of one result; the middle of a longer one is cut, with a note.
        max_chars: Limit of all results together.
    """
    many = len(results)
    heads = [
        f"Result{f' {number} of {many}' * (many > 1)}, {name}{' (failed)' * result.is_error}:"
        for number, (name, result) in enumerate(results, 1)
    ]
    chars_per_result = (max_chars - sum(len(head) + 3 for head in heads)) // many
    result_chars = max(_MIN_RESULT_CHARS, min(max_result_chars, chars_per_result))
    return "\n\n".join(f"{head}\n{result.shortened(result_chars)}" for head, (_, result) in zip(heads, results))
