"""Parse one function call in XML or JSON notation to a name and arguments.

All functions take time linear in the length of the text. The only error is :class:`~rllm_gym.core.InvalidAction`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rllm_gym.core import InvalidAction

TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_OPEN = "<function="

_FUNCTION = re.compile(r"<function=([^<>\n]{1,100})>")
_PARAMETER = re.compile(r"\s*+<parameter=([^<>\n]{1,100})>")
_SPACE = re.compile(r"\s*+")
# A value ends where the markup continues: a "</parameter>" within the content of a file does not end it. Engines that
# stop at "</function" omit that text, so the end of the reply ends a value as well.
_VALUE_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function|</tool_call>|\Z))")
_FUNCTION_END = re.compile(r"\s*+(?:</function>|</function\Z|(?=</tool_call>)|\Z)")
_BARE = re.compile(
    r'^[ \t]*+(?:\[\s*+)?\{\s*+"(?:name|function|type|id|index|tool_calls|role|content|arguments|parameters)"\s*+:',
    re.MULTILINE,
)

XML_EXAMPLE = "<function=name_of_the_tool>\n<parameter=key>\nvalue\n</parameter>\n</function>"
JSON_EXAMPLE = '<tool_call>{"name": "name_of_the_tool", "arguments": {"key": "value"}}</tool_call>'


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function name and its arguments: with JSON types from JSON, as text from XML.

    Attributes:
        name: The function.
        arguments: By parameter name.
        typed: Whether the arguments have types; ``False`` for XML, whose arguments are all text.
    """

    name: str
    arguments: dict[str, Any]
    typed: bool = field(default=True, compare=False, repr=False)


def tagged_call(text: str, start: int) -> tuple[FunctionCall, int]:
    r"""Return the one call whose ``<tool_call>`` or ``<function=`` begins at ``start``, and where it ends.

    >>> tagged_call("<function=bash><parameter=command>\nls -a\n</parameter></function>", 0)
    (FunctionCall(name='bash', arguments={'command': 'ls -a'}), 64)

    Raises:
        InvalidAction: The call is malformed, or there is more than one; names the problem, its position and the
            correct form.
    """
    calls, end = tagged_calls(text, start)
    return only_call(calls, start), end


def tagged_calls(text: str, start: int) -> tuple[tuple[FunctionCall, ...], int]:
    r"""Return the calls of the ``<tool_call>`` or ``<function=`` that begins at ``start``, and where it ends.

    Hermes and Qwen write ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` (a list within is accepted as well);
    SWE-agent and OpenHands ``<function=name><parameter=key>value</parameter></function>``, Qwen3-Coder the same within
    ``<tool_call>``, Llama 3.1 ``<function=name>{…}</function>``. A newline after ``<parameter=key>`` and one before
    ``</parameter>`` are not part of the value. A closing tag may be missing if the reply ends before it; an incomplete
    value or JSON text is an error.

    Raises:
        InvalidAction: The call is malformed; names the problem, its position and the correct form.
    """
    if text.startswith(FUNCTION_OPEN, start):
        call, end = _xml_call(text, start)
        return (call,), end
    at = after_space(text, start + len(TOOL_CALL_OPEN))
    calls: tuple[FunctionCall, ...]
    if text.startswith(FUNCTION_OPEN, at):
        call, at = _xml_call(text, at)
        calls = (call,)
    elif text.startswith(("{", "["), at):
        value, end = json_at(text, at)
        calls, at = calls_of(value, at), end
    else:
        raise InvalidAction(
            f"The <tool_call> at position {start + 1} holds neither a JSON object nor <function=…>. "
            f"Write: {JSON_EXAMPLE}"
        )
    at = after_space(text, at)
    if text.startswith(TOOL_CALL_CLOSE, at):
        return calls, at + len(TOOL_CALL_CLOSE)
    if at == len(text):
        return calls, at
    raise InvalidAction(
        f"The <tool_call> at position {start + 1} goes on after its call, at position {at + 1}; close it there with "
        f"{TOOL_CALL_CLOSE}."
    )


def bare_call(text: str, start: int = 0) -> tuple[FunctionCall, int] | None:
    """Return the first call written as JSON without a tag at the beginning of a line, and where it ends.

    The forms are ``{"name": …, "arguments": {…}}`` (or ``parameters``), OpenAI's
    ``{"type": "function", "function": {…}}``, whose arguments are JSON within a string, and a message or list that
    contains one of these. ``None`` if nothing looks like a call.

    >>> bare_call('{"tool_calls": [{"function": {"name": "submit", "arguments": "{}"}}]}')[0]
    FunctionCall(name='submit', arguments={})

    Raises:
        InvalidAction: Something looks like a call and is malformed.
    """
    looks = _BARE.search(text, start)
    if looks is None:
        return None
    begin = after_space(text, looks.start())
    value, end = json_at(text, begin)
    return only_call(calls_of(value, begin), begin), end


def only_call(calls: tuple[FunctionCall, ...], start: int) -> FunctionCall:
    """Return the call if there is exactly one.

    Raises:
        InvalidAction: There is none, or more than one.
    """
    if len(calls) != 1:
        raise InvalidAction(
            f"The function call at position {start + 1} is a list of {len(calls)}; make exactly one call a turn."
        )
    return calls[0]


def after_space(text: str, at: int) -> int:
    """Return the position of the next character that is not white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


# XML


def _xml_call(text: str, start: int) -> tuple[FunctionCall, int]:
    head = _FUNCTION.match(text, start)
    if head is None:
        raise InvalidAction(f"The <function= at position {start + 1} has no name closed by '>'. Write:\n{XML_EXAMPLE}")
    name, at = _bare_name(head[1]), head.end()
    arguments: dict[str, Any] = {}
    within = after_space(text, at)
    if typed := text.startswith("{", within):
        arguments, at = json_at(text, within)
    while not typed and (opening := _PARAMETER.match(text, at)) is not None:
        key = _bare_name(opening[1])
        if key in arguments:
            raise InvalidAction(f"The call of {name!r} gives the parameter {key!r} twice; give it once.")
        closing = _VALUE_END.search(text, opening.end())
        if closing is None:
            raise InvalidAction(
                f"The parameter {key!r} at position {opening.start(1) - 10} is never closed with </parameter> "
                f"before </function>. Write:\n{XML_EXAMPLE}"
            )
        value = text[opening.end() : closing.start()]
        arguments[key] = value.removeprefix("\n").removesuffix("\n")
        at = closing.end()
    end = _FUNCTION_END.match(text, at)
    if end is None:
        at = after_space(text, at)
        raise InvalidAction(
            f"The call of {name!r} has {text[at : at + 40]!r} at position {at + 1}, where <parameter=…> or </function> "
            f"belongs. Write:\n{XML_EXAMPLE}"
        )
    return FunctionCall(name, arguments, typed), end.end()


def _bare_name(name: str) -> str:
    return name.strip().strip("\"'")


# JSON


MAX_DEPTH = 64
"""Maximum levels of objects and lists. Other JSON readers (pydantic, JavaScript clients) have a depth limit as well."""


class _NotJson(ValueError):
    """Raised for text that Python's decoder accepts, but that JSON or a reader of the call does not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _NotJson(f"is ambiguous: it names {key[:80]!r} twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise _NotJson(f"is not JSON: it holds {name}, which JSON has no number for")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise _NotJson(f"holds the number {number[:40]}, which is too large")
    return value


# Models write raw line breaks in JSON strings. They are unambiguous, so they are accepted.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def json_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at ``start`` and its end. The keys of an object must be unique, and numbers finite.

    Raises:
        InvalidAction: There is no such value; names the problem and its position.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise InvalidAction(
            f"The function call is not JSON: {error.msg} at position {error.pos + 1}. Write: {JSON_EXAMPLE}"
        ) from error
    except _NotJson as error:
        raise InvalidAction(f"The function call at position {start + 1} {error}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidAction(
            f"The function call at position {start + 1} is not JSON that can be read: it is nested too deeply or holds "
            "a number that is too long."
        ) from error
    if _deeper_than(value, MAX_DEPTH):
        raise InvalidAction(
            f"The function call at position {start + 1} is nested too deeply: more than {MAX_DEPTH} levels."
        )
    return value, end


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [item for node in level if isinstance(node, dict | list) for item in _within(node)]
        if not level:
            return False
    return True


def _within(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node


def calls_of(value: Any, start: int) -> tuple[FunctionCall, ...]:
    """Return the calls in a JSON value: one call, a list of them, or a message with ``tool_calls``.

    Args:
        value: The value.
        start: Its position in the reply, for error messages.

    Raises:
        InvalidAction: The value is something else.
    """
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    if not isinstance(value, list):
        return (_call_of(value, f"The function call at position {start + 1}"),)
    if len(value) == 1:
        return (_call_of(value[0], f"The function call at position {start + 1}"),)
    return tuple(
        _call_of(item, f"Call {number} of the list at position {start + 1}") for number, item in enumerate(value, 1)
    )


def _call_of(value: Any, where: str) -> FunctionCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise InvalidAction(f"{where} is not a JSON object. Write: {JSON_EXAMPLE}")
    name = value.get("name", value.get("function"))
    if not isinstance(name, str) or not name:
        raise InvalidAction(f"{where} has no text under 'name'. Write: {JSON_EXAMPLE}")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str) and arguments.strip():
        inner, end = _decode_arguments(arguments, where)
        if arguments[end:].strip():
            raise InvalidAction(f"{where} has text after the JSON object in its 'arguments'.")
        arguments = inner
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidAction(f"{where} has 'arguments' that are no JSON object. Write: {JSON_EXAMPLE}")
    return FunctionCall(name, arguments)


def _decode_arguments(arguments: str, where: str) -> tuple[Any, int]:
    try:
        return json_at(arguments, after_space(arguments, 0))
    except InvalidAction as error:
        raise InvalidAction(f"{where} has 'arguments' that cannot be read. {error}") from error
