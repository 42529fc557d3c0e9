"""Text for the model: the task, its tools as text and as schemas, how to call them, how to finish, and results."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rllm_gym.envs.mcp.arguments import has_default
from rllm_gym.mcp.results import ToolResult
from rllm_gym.mcp.server_requests import ServerRequest
from rllm_gym.mcp.tools import MCPTool, named_tools

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

DECLINE = MCPTool(
    "decline_request",
    "Decline the request.",
    {"type": "object", "properties": {}, "additionalProperties": False},
    "",
    "decline_request",
)
_ANSWER = {"name": "answer_request", "description": "Answer the request of the server."}
ANSWERS = (str(_ANSWER["name"]), DECLINE.name)
"""Names of the tools that answer a request of a server."""

USER_LOST = "The task ends unsolved, because the user does not answer any more."
LOST = "\n\nThe task ends unsolved, because a server that it needs cannot go on after a call."

EXAMPLE = '<tool_call>{"name": "…", "arguments": {…}}</tool_call>'

HOW_TO_ANSWER = f"Answer with one call of {' or '.join(ANSWERS)}."

_MAX_SIGNATURE_CHARS = 1_000
_MAX_VALUE_CHARS = 40
_TOOL_CHARS = range(40, 401)  # of the description of a tool, which gets more where there is room
_NOTE_CHARS = range(50, 1_501)  # of the description of a parameter
_MAX_NOTES = 200
_MAX_NESTING = 3
_MIN_RESULT_CHARS = 80


def first_observation(
    goal: str,
    tools: Sequence[MCPTool],
    instructions: Mapping[str, str],
    *,
    listed: bool,
    max_tools_chars: int,
    max_calls: int,
    max_turns: int,
    opening: str | None = None,
) -> str:
    """Return the first observation.

    Args:
        goal: The request.
        tools: The offered tools, including those that end the task.
        instructions: What each server says about its use, by the server's name.
        listed: Whether the observation lists the tools.
        max_tools_chars: Limit of the instructions, which get at most half of it, and the list of tools.
        max_calls: Most calls in a reply.
        max_turns: Number of replies.
        opening: The first message of the simulated user, if there is one.
    """
    parts = [goal]
    share = max_tools_chars // 2 // max(1, len(instructions))
    for name, text in instructions.items():
        server = f" of the server {name}" if len(instructions) > 1 else ""
        words = _cut(text.strip(), share)
        parts.append(f"Instructions for the tools{server}:\n{words}")
        max_tools_chars -= len(words)
    if listed:
        parts.append("Tools:\n" + tool_list(tools, max_tools_chars))
    several = f", up to {max_calls} of them in one reply" if max_calls > 1 else ", one in a reply"
    end = (
        "When you are done, reply with the final answer alone and no call, or call finish. If the task cannot or must "
        "not be done, call report_infeasible."
        if opening is None
        else "You talk with a user: a reply without a call is a message to the user, who answers, and who ends the "
        "conversation."
    )
    turns = f"You have {max_turns} turn{'s' * (max_turns > 1)}."
    parts.append(f"Call tools with {EXAMPLE}{several}; the results come back. {end} {turns}")
    return "\n\n".join(parts if opening is None else [*parts, user_message(opening)])


def user_message(message: str) -> str:
    """Return the observation of a message of the user."""
    return f"The user says:\n{message}"


def answer_tools(request: ServerRequest) -> list[MCPTool]:
    """Return the tools with which the model answers a request of a server, or declines it."""
    return [*named_tools([("", [{**_ANSWER, "inputSchema": request.schema}])]), DECLINE]


def request_text(server: str, wanted: str, text: str, tools: Sequence[MCPTool], max_tools_chars: int) -> str:
    """Return the observation of a request of a server."""
    return (
        f"Before it answers your call, the server {server} asks for {wanted}:\n{text}\n\n"
        f"{HOW_TO_ANSWER} Tools:\n{tool_list(tools, max_tools_chars)}"
    )


def tool_list(tools: Sequence[MCPTool], max_chars: int) -> str:
    """Return one line per tool, ``name(parameter: type, other: type = default): description``, and below it one line
    per parameter that has a description or is inside another one.

    If there are more than ``max_chars`` characters, all descriptions are cut to the greatest length at which they fit.
    If none fits, those of optional parameters are left out, then those of all parameters, and then everything but the
    names of the last tools.
    """
    heads = [(_head(tool), _line(tool.description, 2 * _NOTE_CHARS[-1])) for tool in tools]
    notes = [
        [
            (_line(label, _MAX_SIGNATURE_CHARS), _line(text, _NOTE_CHARS[-1]), needed)
            for label, text, needed in islice(_notes(tool.input_schema, tool.input_schema), _MAX_NOTES)
        ]
        for tool in tools
    ]

    def lines(tool_chars: int, note_chars: int = 0, *, optional: bool = False) -> list[str]:
        found = []
        for (head, description), parameters in zip(heads, notes):
            found.append(_described(head, description, tool_chars))
            for label, text, needed in parameters if note_chars else ():
                if needed or optional:
                    found.append(_described(f"    {label}", text, note_chars))
        return found

    def longest(lengths: range, lines_of: Callable[[int], list[str]]) -> str:
        fitting = bisect_right(lengths, max_chars, key=lambda chars: sum(len(line) + 1 for line in lines_of(chars)))
        return "\n".join(lines_of(lengths[fitting - 1])) if fitting else ""

    return (
        longest(_NOTE_CHARS, lambda chars: lines(max(_TOOL_CHARS[-1], 2 * chars), chars, optional=True))
        or longest(_NOTE_CHARS, lambda chars: lines(max(_TOOL_CHARS[-1], 2 * chars), chars))
        or longest(_TOOL_CHARS, lines)
        or "\n".join(_within(lines(_TOOL_CHARS[0]), tools, max_chars))
    )


def changed_tools(before: Mapping[str, MCPTool], now: Mapping[str, MCPTool], max_chars: int) -> str:
    """Return what to add to an observation when the tools have changed, ``""`` if they have not."""
    changed = [tool for name, tool in now.items() if before.get(name) != tool]
    removed = [name for name in before if name not in now]
    parts = [f"New or changed tools:\n{tool_list(changed, max_chars)}"] if changed else []
    parts += [f"Tools that no longer exist: {', '.join(removed)}"] if removed else []
    return "".join(f"\n\n{part}" for part in parts)


def _head(tool: MCPTool) -> str:
    return f"- {tool.name}({_line(_parameters(tool.input_schema), _MAX_SIGNATURE_CHARS)})"


def _described(head: str, description: str, max_chars: int) -> str:
    return f"{head}: {_cut(description, max_chars)}" if description else head


def _within(heads: Sequence[str], tools: Sequence[MCPTool], left: int) -> Iterator[str]:
    for head, tool in zip(heads, tools):
        left -= len(head) + 1
        yield head if left >= 0 else f"- {tool.name}"  # at least the tool's name


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name and schema of each property, and whether a call must give it."""
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and properties:
        needed = {one for one in required if isinstance(one, str)} if isinstance(required, list) else ()
        for name, wanted in properties.items():
            yield name, wanted, name in needed and not has_default(schema, name)


def _parameters(schema: Mapping[str, Any]) -> str:
    return _joined(", ", (_parameter(name, wanted, needed, schema) for name, wanted, needed in _properties(schema)))


def _parameter(name: str, schema: Any, needed: bool, root: Mapping[str, Any]) -> str:
    text = f"{name}: {_type(schema, root)}"
    if needed:
        return text
    if isinstance(schema, dict) and schema.get("default") is not None:
        return f"{text} = {_value(schema['default'])}"
    return f"{text}, optional"


def _notes(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: str = "", nesting: int = 0, outer_needed: bool = True
) -> Iterator[tuple[str, str, bool]]:
    """Yield a label, a description and whether it is required, for each parameter with a description or in another."""
    for name, described, needed in _properties(schema):
        inner = _resolved(described, root)
        text = inner.get("description")
        if nesting or isinstance(text, str):
            label = _parameter(path + name, described, needed, root) if nesting else name
            yield label, text if isinstance(text, str) else "", needed and outer_needed
        below = path + name
        for _ in range(_MAX_NESTING):
            if inner.get("type") == "array":
                inner, below = _resolved(inner.get("items"), root), f"{below}[]"
        if nesting < _MAX_NESTING:
            yield from _notes(inner, root, f"{below}.", nesting + 1, needed and outer_needed)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a reference inside ``root``, or a choice with only one other value than null, stands for;
    ``{}`` if there is none. An outer description comes first."""
    for _ in range(8):
        if not isinstance(schema, Mapping):
            break
        outer = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            inner: Any = root
            for key in reference[2:].split("/")[:8]:
                inner = inner.get(key) if isinstance(inner, dict) else None
        else:
            choices: list[Any] = next(
                (schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)), []
            )
            choices = [one for one in choices[:8] if one != {"type": "null"}]
            if len(choices) != 1:
                return schema
            inner = choices[0]
        schema = ChainMap(outer, inner) if isinstance(inner, dict) else None
    return {}


def _type(schema: Any, root: Mapping[str, Any], nesting: int = 0) -> str:
    schema = _resolved(schema, root)
    if isinstance(schema.get("enum"), list):
        return _joined(" | ", map(_value, schema["enum"][:20]))
    kind = schema.get("type", "any")
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and nesting < _MAX_NESTING:
            choices = (one for one in schema[key][:8] if one != {"type": "null"})
            return _joined(" | ", dict.fromkeys(_type(one, root, nesting + 1) for one in choices))
    if isinstance(kind, list):
        return " | ".join(_cut(str(one), _MAX_VALUE_CHARS) for one in kind[:8])
    if kind == "array" and "items" in schema and nesting < _MAX_NESTING:
        return f"array of {_type(schema['items'], root, nesting + 1)}"
    return _cut(str(kind), _MAX_VALUE_CHARS)


def _value(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False), _MAX_VALUE_CHARS)


def _joined(separator: str, pieces: Iterable[str]) -> str:
    """Join pieces until they exceed a signature, which is cut: with a hostile schema, all would take gigabytes."""
    text = ""
    for piece in pieces:
        text += separator * bool(text) + piece
        if len(text) > _MAX_SIGNATURE_CHARS:
            break
    return text


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
