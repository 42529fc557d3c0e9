"""Parse tool calls in Python notation, ``search.call(query="x")``, as used by Llama 3.1 and 4. Nothing is executed."""

from __future__ import annotations

import math
import re
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.function_calls import FunctionCall, after_space
from rllm_gym.parsing.literal_calls import MAX_DEPTH, Literal, WrittenNumber, read_arguments

PYTHON_EXAMPLE = 'name_of_the_tool.call(key="value")'

# Llama calls its built-in tools by their method "call", and other tools also directly by their name.
_HEAD = re.compile(r"([A-Za-z0-9_.:/-]{1,200}?)(?:\.call)?+[ \t]{0,16}+\(")
_BUILT_IN = re.compile(r"[A-Za-z0-9_.:/-]{1,200}?\.call\(\s*+(?:\)|[^\W\d]\w{0,63}+\s*+=(?!=))")
_BETWEEN = re.compile(r"\s*+(?:;\s*+)?+")


def is_python_call(text: str, at: int) -> bool:
    """Return whether a name and an opening parenthesis begin at this position."""
    return _HEAD.match(text, at) is not None


def python_calls(text: str, at: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Return the call at a position, the calls that follow it after ``;`` or white space, and where they end.

    Values are literals of Python or JSON: texts, numbers, booleans, lists and dicts.

    >>> python_calls('search.call(query="gymnasium", most=3)', 0)[0]
    (FunctionCall(name='search', arguments={'query': 'gymnasium', 'most': 3}),)

    Raises:
        InvalidAction: A call is malformed, or an argument has no name; names the problem and its position.
    """
    calls: list[FunctionCall] = []
    end = at
    while (head := _HEAD.match(text, at)) is not None:
        read = read_arguments(text, head.end(), head[1], depth=MAX_DEPTH)
        if read.positional:
            raise InvalidAction(
                f"{head[1]} at position {at + 1} is given {read.positional[0]!r:.80} without the name of a parameter. "
                f"Write: {PYTHON_EXAMPLE}"
            )
        calls.append(FunctionCall(head[1], {key: _plain(value) for key, value in read.keyword.items()}))
        end = read.end
        at = _past(_BETWEEN, text, end)
    return tuple(calls), end


def untagged_python_calls(text: str, begin: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Return the calls of a reply that consists only of ``name.call(key=…)``: samplers omit the special tag token.

    Return nothing if the reply does not start with such a call or continues after it: then it is an answer.

    Raises:
        InvalidAction: The reply starts with such a call, and it is malformed.
    """
    begin = after_space(text, begin)
    if _BUILT_IN.match(text, begin) is None:
        return (), begin
    calls, end = python_calls(text, begin)
    return (calls, end) if after_space(text, end) == len(text) else ((), begin)


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _plain(value: Literal) -> Any:
    if isinstance(value, WrittenNumber):
        return _number(value.written)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _number(written: str) -> int | float:
    if written.lstrip("+-").isdecimal():
        return int(written)
    number = float(written)
    if not math.isfinite(number):
        raise InvalidAction(f"The number {written} is too large.")
    return number
