"""rLLM's tool call parsers for the notations of Qwen and DeepSeek-R1, with prompts that explain the notation."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass
class ToolCall:
    """One tool call by the model."""

    name: str
    arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": self.arguments}


class ToolParser(ABC):
    """Parser of the tool calls in a reply."""

    @abstractmethod
    def parse(self, model_response: str) -> list[ToolCall]:
        """Return the calls in a reply; malformed calls are ignored."""

    @abstractmethod
    def get_tool_prompt(self, tools_schema: str) -> str:
        """Return the part of a system prompt that lists the tools and explains the notation."""


class QwenToolParser(ToolParser):
    """Parser of ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    tool_call_begin, tool_call_end = "<tool_call>", "</tool_call>"

    def parse(self, model_response: str) -> list[ToolCall]:
        calls = []
        for body in _between(model_response, self.tool_call_begin, self.tool_call_end):
            call = _object(body)
            if isinstance(call.get("name"), str) and isinstance(call.get("arguments", {}), dict):
                calls.append(ToolCall(call["name"], call.get("arguments", {})))
        return calls

    def get_tool_prompt(self, tools_schema: str) -> str:
        return (
            "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools_schema}\n"
            "</tools>\n\nFor each function call, return a json object with function name and arguments within "
            f"{self.tool_call_begin}{self.tool_call_end} XML tags:\n{self.tool_call_begin}\n"
            f'{{"name": <function-name>, "arguments": <args-json-object>}}\n{self.tool_call_end}'
        )


class R1ToolParser(ToolParser):
    """Parser of DeepSeek-R1's notation, with the arguments in a fenced JSON block."""

    tool_call_begin, tool_call_end, tool_sep = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    tool_calls_begin, tool_calls_end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

    def parse(self, model_response: str) -> list[ToolCall]:
        calls = []
        for body in _between(model_response, self.tool_call_begin, self.tool_call_end):
            _, found, rest = body.partition(f"function{self.tool_sep}")
            name, fence, arguments = rest.partition("```json")
            block, closed, _ = arguments.partition("```")
            if found and fence and closed and name.strip() and (parsed := _object(block, None)) is not None:
                calls.append(ToolCall(name.strip(), parsed))
        return calls

    def get_tool_prompt(self, tools_schema: str) -> str:
        return (
            "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n"
            f"<tools>\n{tools_schema}\n</tools>\n\nOutput format for tool calls:\n\n"
            f"{self.tool_calls_begin}\n{self.tool_call_begin}function{self.tool_sep}function_name\n"
            f'```json\n{{"param1": "value1", "param2": "value2"}}\n```\n{self.tool_call_end}\n{self.tool_calls_end}\n'
        )


_PARSERS: dict[str, type[ToolParser]] = {"qwen": QwenToolParser, "r1": R1ToolParser}


def get_tool_parser(parser_name: str) -> type[ToolParser]:
    """Return the parser class of this name.

    Raises:
        ValueError: There is no such parser.
    """
    if parser_name not in _PARSERS:
        raise ValueError(f"parser_name={parser_name!r} is not one of {sorted(_PARSERS)}")
    return _PARSERS[parser_name]


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
