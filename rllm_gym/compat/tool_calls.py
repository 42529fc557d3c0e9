"""rLLM's tool call parsers for the notations of Qwen and DeepSeek-R1, with prompts that explain the notation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class ToolCall:
    """One tool call by the model."""

    name: str
    arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": self.arguments}


class QwenToolParser:
    """Parser of ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    begin, end = "<tool_call>", "</tool_call>"

    def parse(self, response: str) -> list[ToolCall]:
        """Return the calls in a reply; malformed calls are ignored."""
        calls = []
        for body in _between(response, self.begin, self.end):
            call = _object(body)
            if isinstance(call.get("name"), str) and isinstance(call.get("arguments", {}), dict):
                calls.append(ToolCall(call["name"], call.get("arguments", {})))
        return calls

    def get_tool_prompt(self, tools_schema: str) -> str:
        return (
            "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools_schema}\n"
            "</tools>\n\nFor each function call, return a json object with function name and arguments within "
            f"{self.begin}{self.end} XML tags:\n{self.begin}\n"
            f'{{"name": <function-name>, "arguments": <args-json-object>}}\n{self.end}'
        )


class R1ToolParser:
    """Parser of DeepSeek-R1's notation, with the arguments in a fenced JSON block."""

    begin, end, separator = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "function<｜tool▁sep｜>"
    all_begin, all_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

    def parse(self, response: str) -> list[ToolCall]:
        """Return the calls in a reply; malformed calls are ignored."""
        calls = []
        for body in _between(response, self.begin, self.end):
            _, found, rest = body.partition(self.separator)
            name, fence, arguments = rest.partition("```json")
            block, closed, _ = arguments.partition("```")
            if found and fence and closed and name.strip() and (parsed := _object(block, None)) is not None:
                calls.append(ToolCall(name.strip(), parsed))
        return calls

    def get_tool_prompt(self, tools_schema: str) -> str:
        return (
            "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n"
            f"<tools>\n{tools_schema}\n</tools>\n\nOutput format for tool calls:\n\n"
            f"{self.all_begin}\n{self.begin}{self.separator}function_name\n"
            f'```json\n{{"param1": "value1", "param2": "value2"}}\n```\n{self.end}\n{self.all_end}\n'
        )


_PARSERS: dict[str, type[QwenToolParser] | type[R1ToolParser]] = {"qwen": QwenToolParser, "r1": R1ToolParser}


def parser(name: str) -> QwenToolParser | R1ToolParser:
    """Create the parser of this name.

    Raises:
        ValueError: There is no such parser.
    """
    if name not in _PARSERS:
        raise ValueError(f"parser_name={name!r} is not one of {sorted(_PARSERS)}")
    return _PARSERS[name]()


def _between(text: str, begin: str, end: str) -> list[str]:
    pieces = []
    start = text.find(begin)
    while start >= 0:
        stop = text.find(end, start + len(begin))
        if stop < 0:
            break
        pieces.append(text[start + len(begin) : stop])
        start = text.find(begin, stop)
    return pieces


def _object(text: str, default: Any = ()) -> Any:
    """Return the JSON object in a text; if there is none, ``default`` (an empty object if not given)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else dict(default) if default is not None else None
