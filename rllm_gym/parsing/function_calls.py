"""Function calls as models write them, in XML or JSON: from text to a name and arguments. Not what a name means.

Everything is linear in the length of the text, and the only error is :class:`~rllm_gym.core.InvalidAction`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction

TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_OPEN, FUNCTION_CLOSE = "<function=", "</function>"

_FUNCTION = re.compile(r"<function=([^<>\n]{1,100})>")
_PARAMETER = re.compile(r"\s*+<parameter=([^<>\n]{1,100})>")
_SPACE = re.compile(r"\s*+")
# A value ends where the markup goes on: "</parameter>" within a file that is being written does not end it. Engines
# that stop at "</function" leave it out, so the end of the reply does as well.
_VALUE_END = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function|</tool_call>|\Z))")
_FUNCTION_END = re.compile(r"\s*+(?:</function>|</function\Z|(?=</tool_call>)|\Z)")
_BARE = re.compile(
    r'^[ \t]*+(?:\[\s*+)?\{\s*+"(?:name|function|type|id|index|tool_calls|role|content|arguments|parameters)"\s*+:',
    re.MULTILINE,
)

XML_EXAMPLE = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"
JSON_EXAMPLE = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function by name, and its arguments: from JSON with JSON's types, from XML all text.

    Attributes:
        name: The function.
        arguments: By parameter name.
    """

    name: str
    arguments: dict[str, Any]


def tagged_call(text: str, start: int) -> tuple[FunctionCall, int]:
    r"""The call whose ``<tool_call>`` or ``<function=`` stands at ``start``, and where its text ends.

    Hermes and Qwen write ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``; SWE-agent and OpenHands
    ``<function=name><parameter=key>value</parameter></function>``, Qwen3-Coder the same within ``<tool_call>``. A
    newline after ``<parameter=key>`` and one before ``</parameter>`` are no part of the value. A closing tag that the
    reply ends before may be missing; a value or JSON text that is not complete is an error.

    >>> tagged_call("<function=bash><parameter=command>\nls -a\n</parameter></function>", 0)
    (FunctionCall(name='bash', arguments={'command': 'ls -a'}), 64)

    Raises:
        InvalidAction: The call is malformed; says what, where, and how to write it.
    """
    if text.startswith(FUNCTION_OPEN, start):
        return _xml_call(text, start)
    at = _after_space(text, start + len(TOOL_CALL_OPEN))
    if text.startswith(FUNCTION_OPEN, at):
        call, at = _xml_call(text, at)
    elif text.startswith(("{", "["), at):
        call, at = _json_call(text, at)
    else:
        raise InvalidAction(
            f"The <tool_call> at position {start + 1} holds neither a JSON object nor <function=…>. "
            f"Write: {JSON_EXAMPLE}"
        )
    at = _after_space(text, at)
    if text.startswith(TOOL_CALL_CLOSE, at):
        return call, at + len(TOOL_CALL_CLOSE)
    if at == len(text):
        return call, at
    raise InvalidAction(
        f"The <tool_call> at position {start + 1} goes on after its call, at position {at + 1}; close it there with "
        f"{TOOL_CALL_CLOSE}, and make one call a turn."
    )


def bare_call(text: str, start: int = 0) -> tuple[FunctionCall, int] | None:
    """The first call written as JSON without any tag, from the beginning of a line, and where it ends.

    It is ``{"name": …, "arguments": {…}}`` (``parameters`` does as well), OpenAI's
    ``{"type": "function", "function": {…}}``, whose arguments are JSON within a string, or a message or list that
    holds one such. ``None`` where nothing looks like one.

    >>> bare_call('{"tool_calls": [{"function": {"name": "submit", "arguments": "{}"}}]}')[0]
    FunctionCall(name='submit', arguments={})

    Raises:
        InvalidAction: Something looks like a call and is malformed.
    """
    looks = _BARE.search(text, start)
    return None if looks is None else _json_call(text, _after_space(text, looks.start()))


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


# XML ------------------------------------------------------------------------------------------------------------


def _xml_call(text: str, start: int) -> tuple[FunctionCall, int]:
    head = _FUNCTION.match(text, start)
    if head is None:
        raise InvalidAction(f"The <function= at position {start + 1} has no name closed by '>'. Write:\n{XML_EXAMPLE}")
    name, at = _bare_name(head[1]), head.end()
    arguments: dict[str, Any] = {}
    while (opening := _PARAMETER.match(text, at)) is not None:
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
        at = _after_space(text, at)
        raise InvalidAction(
            f"The call of {name!r} has {text[at : at + 40]!r} at position {at + 1}, where <parameter=…> or </function> "
            f"belongs. Write:\n{XML_EXAMPLE}"
        )
    return FunctionCall(name, arguments), end.end()


def _bare_name(name: str) -> str:
    return name.strip().strip("\"'")


# JSON -----------------------------------------------------------------------------------------------------------


class _Repeated(ValueError):
    """An object that names a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(f"it names {key[:80]!r} twice")
            seen.add(key)
    return found


# Models put line breaks into JSON strings as they are; that harms nothing.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_unique)


def _decode(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at ``start`` and its end.

    Raises:
        InvalidAction: There is none.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise InvalidAction(
            f"The function call is not JSON: {error.msg} at position {error.pos + 1}. Write: {JSON_EXAMPLE}"
        ) from error
    except _Repeated as error:
        raise InvalidAction(f"The function call at position {start + 1} is ambiguous: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidAction(
            f"The function call at position {start + 1} is not JSON that can be read: it is nested too deeply or holds "
            "a number that is too long."
        ) from error


def _json_call(text: str, start: int) -> tuple[FunctionCall, int]:
    value, end = _decode(text, start)
    return _call_of(value, start), end


def _call_of(value: Any, start: int) -> FunctionCall:
    where = f"The function call at position {start + 1}"
    for key in ("tool_calls", None):
        if key and isinstance(value, dict) and key in value:
            value = value[key]
        if isinstance(value, list):
            if len(value) != 1:
                raise InvalidAction(f"{where} is a list of {len(value)}; make exactly one call a turn.")
            value = value[0]
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
        return _decode(arguments, _after_space(arguments, 0))
    except InvalidAction as error:
        raise InvalidAction(f"{where} has 'arguments' that cannot be read. {error}") from error
