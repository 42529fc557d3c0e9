"""Parse the tool calls of a reply, in every notation that models are trained on.

All functions take time linear in the length of the reply. The only error is :class:`~rllm_gym.core.InvalidAction`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.function_calls import (
    FUNCTION_OPEN,
    JSON_EXAMPLE,
    TOOL_CALL_OPEN,
    FunctionCall,
    after_space,
    calls_of,
    json_at,
    tagged_calls,
)
from rllm_gym.parsing.python_calls import is_python_call, python_calls, untagged_python_calls
from rllm_gym.parsing.thinking import THINK_CLOSE, THINK_OPEN, before_end_tokens, think_end

PYTHON_TAG, PHI_OPEN, PHI_CLOSE, MISTRAL_OPEN = "<|python_tag|>", "<|tool_call|>", "<|/tool_call|>", "[TOOL_CALLS]"
DEEPSEEK_OPEN, DEEPSEEK_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK_CALL, DEEPSEEK_CALL_CLOSE, DEEPSEEK_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"

_MARKS = (TOOL_CALL_OPEN, FUNCTION_OPEN, PYTHON_TAG, PHI_OPEN, MISTRAL_OPEN, DEEPSEEK_OPEN, DEEPSEEK_CALL)
_MARK = re.compile("|".join(map(re.escape, (*_MARKS, THINK_OPEN))))

_NAME_CHARS = r"[A-Za-z0-9_.:/-]{1,200}"
_MISTRAL_HEAD = re.compile(rf"\s*+({_NAME_CHARS})(?:\[CALL_ID\][A-Za-z0-9_-]{{1,100}})?\s*+(?:\[ARGS\])?\s*+(?=\{{)")
_FENCED_HEAD = rf"function{DEEPSEEK_SEP}\s*+({_NAME_CHARS})\s*+```(?:json)?+\s*+"
_DEEPSEEK_HEAD = re.compile(rf"\s*+(?:{_FENCED_HEAD}|({_NAME_CHARS}){DEEPSEEK_SEP}\s*+)(?=\{{)")

_THOUGHT_MARK = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}")

# JSON without a tag: a line that begins with an object or list whose first key is one of those that begin calls …
_FIRST_KEYS = "name|function|type|id|index|tool_calls|function_call|role|content|arguments|parameters"
_HEAD = rf'(?:\[\s*+)?\{{\s*+"(?:{_FIRST_KEYS})"\s*+:'
_AT_START = re.compile(_HEAD)
_BARE = re.compile(rf"^[ \t]*+{_HEAD}", re.MULTILINE)
# … and, if it cannot be parsed, this shows that it was meant as a call.
_MEANT = re.compile(
    r'"(?:name|function)"\s*+:\s*+"[^"\n]{0,200}+"\s*+,\s*+"(?:arguments|parameters)"\s*+:|"tool_calls"\s*+:\s*+\['
)
_MEANT_WITHIN = 600
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "index", "function", "call_id"})
_MESSAGE_KEYS = ("tool_calls", "function_call")
_UNREADABLE_BARE = 8
_BETWEEN_BARE = re.compile(r"\s*+[;,]?\s*+(?=\{)")
_EMPTY_FENCE = re.compile(r"```[a-zA-Z_]{0,20}+\s*+```")


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The parsed content of a reply.

    Attributes:
        calls: The calls, in order; empty if the reply is an answer.
        text: The text besides calls and reasoning, stripped.
    """

    calls: tuple[FunctionCall, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _NonTextSpan:
    """A part of the reply that is not text: calls, or reasoning."""

    start: int
    end: int
    calls: tuple[FunctionCall, ...] = ()


def parse_tool_calls(reply: str) -> ParsedReply:
    """Return the calls of a reply and the text besides them. Linear time in its length.

    The supported notations, also several in one reply, are:

    * ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` (Hermes, Qwen);
    * ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`` (Qwen3-Coder; the outer tag
      may be missing), and ``<function=name>{…}</function>`` (Llama 3.1);
    * ``<|python_tag|>{"name": …, "parameters": {…}}; {…}``, and the same without any tag (Llama 3);
    * ``<|python_tag|>name.call(key="value")``, with or without ``.call``; without the tag if the whole reply is
      ``name.call(…)`` (Llama's built-in tools; :mod:`rllm_gym.parsing.python_calls`);
    * ``[TOOL_CALLS][{…}]`` and ``[TOOL_CALLS]name[ARGS]{…}`` (Mistral), ``<|tool_call|>[{…}]`` (Phi);
    * ``<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`` with fenced arguments (DeepSeek R1, V3), or
      ``name<｜tool▁sep｜>{…}`` (V3.1);
    * a message of OpenAI's API as JSON, with ``tool_calls`` whose arguments are JSON within a string.

    JSON without a tag is a call only if it begins a line, there is no tagged call, and it has the form of a call: a
    name, ``arguments`` (or ``parameters``) and no key that calls do not have. Any other JSON is part of an answer.
    Text in the reasoning is not a call. Arguments from XML are text (``FunctionCall.typed`` is false).

    >>> parse_tool_calls('Let me look. <tool_call>{"name": "read", "arguments": {"path": "a.txt"}}</tool_call>')
    ParsedReply(calls=(FunctionCall(name='read', arguments={'path': 'a.txt'}),), text='Let me look.')
    >>> parse_tool_calls('<think>easy</think>It is {"name": "Ada", "age": 36}.').calls
    ()

    Raises:
        InvalidAction: A call is malformed, or the reasoning is not closed; names the problem and its position,
            counted from 1.
    """
    text = reply[: before_end_tokens(reply)]
    begin = _after_thought(text)
    # Text right after </think> counts as the start of a line. Padding keeps the positions of the reply.
    text = "\n" * begin + text[begin:]
    spans, message_text = _spans(text, begin)
    calls = tuple(call for span in spans for call in span.calls)
    return ParsedReply(calls, _text_beside(text, begin, spans) if message_text is None else message_text)


def _spans(text: str, begin: int) -> tuple[list[_NonTextSpan], str | None]:
    """Return calls and reasoning, in order, and the text of a message of OpenAI's API if the reply is one."""
    spans: list[_NonTextSpan] = []
    if _AT_START.match(text, after_space(text, begin)):
        # Parse leading JSON first, because its strings may contain anything, including tags.
        spans, message_text = _bare(text, begin, only_first=True)
        if message_text is not None:
            return spans, message_text
    at = spans[-1].end if spans else begin
    tagged = _tagged(text, at)
    if any(span.calls for span in tagged):
        return spans + tagged, None
    bare, message_text = _bare(text, at)
    if not spans and not tagged and not bare:
        calls, end = untagged_python_calls(text, begin)
        return ([_NonTextSpan(begin, end, calls)] if calls else []), message_text
    return sorted(spans + tagged + bare, key=lambda span: span.start), message_text


def _after_thought(text: str) -> int:
    """Return where the reply after the reasoning begins. If the prompt opens ``<think>``, it has only ``</think>``."""
    start = after_space(text, 0)
    if text.startswith(THINK_OPEN, start):
        return think_end(text, start)
    if THINK_CLOSE not in text:
        return 0
    try:
        held = [span for span in _spans(text, 0)[0] if span.calls]  # an argument may contain <think> or </think>
    except InvalidAction:
        held = []  # the reasoning may contain malformed calls
    begin, opened, at = 0, False, 0
    for mark in _THOUGHT_MARK.finditer(text):
        while at < len(held) and held[at].end <= mark.start():
            at += 1
        if at < len(held) and held[at].start < mark.start():
            continue
        if mark[0] == THINK_CLOSE and not opened:
            begin = mark.end()
        opened = mark[0] == THINK_OPEN
    return begin


def _text_beside(text: str, begin: int, spans: list[_NonTextSpan]) -> str:
    pieces, at = [], begin
    for span in spans:
        pieces.append(text[at : span.start])
        at = max(at, span.end)
    pieces.append(text[at:])
    return _EMPTY_FENCE.sub("", "".join(pieces)).strip()


# Tagged calls


def _tagged(text: str, begin: int) -> list[_NonTextSpan]:
    spans: list[_NonTextSpan] = []
    at = begin
    while (mark := _MARK.search(text, at)) is not None:
        start = mark.start()
        if mark[0] == THINK_OPEN:
            span = _NonTextSpan(start, think_end(text, start))
        else:
            calls, end = _READERS[mark[0]](text, start)
            span = _NonTextSpan(start, end, calls)
        spans.append(span)
        at = span.end
    return spans


def _refuse(mark: str, start: int, missing: str) -> InvalidAction:
    return InvalidAction(f"The {mark} at position {start + 1} is not followed by {missing}. Write: {JSON_EXAMPLE}")


def _json_after(text: str, start: int, mark: str) -> tuple[tuple[FunctionCall, ...], int]:
    at = after_space(text, start + len(mark))
    if not text.startswith(("{", "["), at):
        raise _refuse(mark, start, "a call as a JSON object")
    value, end = json_at(text, at)
    return calls_of(value, at), end


def _python_tag(text: str, start: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Parse objects, or calls in Python notation, separated by ``;`` or by nothing."""
    at = after_space(text, start + len(PYTHON_TAG))
    if is_python_call(text, at):
        try:
            return python_calls(text, at)
        except InvalidAction as error:
            raise InvalidAction(f"The {PYTHON_TAG} at position {start + 1} is followed by no call. {error}") from error
    calls, end = _json_after(text, start, PYTHON_TAG)
    more, end = _further_objects(text, end)
    return calls + more, end


def _further_objects(text: str, at: int) -> tuple[tuple[FunctionCall, ...], int]:
    calls: list[FunctionCall] = []
    while (between := _BETWEEN_BARE.match(text, at)) is not None:
        value, at = json_at(text, between.end())
        calls += calls_of(value, between.end())
    return tuple(calls), at


def _phi(text: str, start: int) -> tuple[tuple[FunctionCall, ...], int]:
    calls, end = _json_after(text, start, PHI_OPEN)
    at = after_space(text, end)
    return calls, at + len(PHI_CLOSE) if text.startswith(PHI_CLOSE, at) else end


def _mistral(text: str, start: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Parse a list of calls, or one name with ``[ARGS]`` and an object."""
    head = _MISTRAL_HEAD.match(text, start + len(MISTRAL_OPEN))
    if head is None:
        return _json_after(text, start, MISTRAL_OPEN)
    return _named(text, head[1], head.end())


def _deepseek(text: str, start: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Parse all calls from ``<｜tool▁calls▁begin｜>`` on; the outer tags may be missing."""
    calls: list[FunctionCall] = []
    at = start
    if text.startswith(DEEPSEEK_OPEN, at):
        at = after_space(text, at + len(DEEPSEEK_OPEN))
        if not text.startswith(DEEPSEEK_CALL, at):
            raise _refuse(DEEPSEEK_OPEN, start, DEEPSEEK_CALL)
    while text.startswith(DEEPSEEK_CALL, after_space(text, at)):
        opened = after_space(text, at)
        head = _DEEPSEEK_HEAD.match(text, opened + len(DEEPSEEK_CALL))
        if head is None:
            raise _refuse(DEEPSEEK_CALL, opened, f"a name, {DEEPSEEK_SEP} and the arguments as a JSON object")
        parsed, at = _named(text, head[1] or head[2], head.end())
        calls += parsed
        at = after_space(text, at)
        if head[1] and text.startswith("```", at):
            at = after_space(text, at + 3)
        if text.startswith(DEEPSEEK_CALL_CLOSE, at):
            at += len(DEEPSEEK_CALL_CLOSE)
        elif at < len(text):
            raise InvalidAction(
                f"The call of {calls[-1].name!r} at position {opened + 1} goes on after its arguments, at position "
                f"{at + 1}; close it there with {DEEPSEEK_CALL_CLOSE}."
            )
    end = after_space(text, at)
    return tuple(calls), end + len(DEEPSEEK_CLOSE) if text.startswith(DEEPSEEK_CLOSE, end) else at


def _named(text: str, name: str, at: int) -> tuple[tuple[FunctionCall, ...], int]:
    """Return the call of ``name`` with the object at ``at``, whose opening brace the caller's pattern has matched."""
    arguments, end = json_at(text, at)
    return (FunctionCall(name, arguments),), end


_READERS: dict[str, Callable[[str, int], tuple[tuple[FunctionCall, ...], int]]] = {
    TOOL_CALL_OPEN: tagged_calls,
    FUNCTION_OPEN: tagged_calls,
    PYTHON_TAG: _python_tag,
    PHI_OPEN: _phi,
    MISTRAL_OPEN: _mistral,
    DEEPSEEK_OPEN: _deepseek,
    DEEPSEEK_CALL: _deepseek,
}


# JSON without a tag


def _bare(text: str, begin: int, *, only_first: bool = False) -> tuple[list[_NonTextSpan], str | None]:
    """Return the calls without a tag, and the text of a message of OpenAI's API if there is one."""
    spans: list[_NonTextSpan] = []
    at, unreadable = begin, 0
    while unreadable < _UNREADABLE_BARE and (looks := _BARE.search(text, at)) is not None:
        start = after_space(text, looks.start())
        try:
            value, at = json_at(text, start)
        except InvalidAction:
            if _MEANT.search(text, start, start + _MEANT_WITHIN):
                raise
            unreadable, at = unreadable + 1, looks.end()
        else:
            if _is_message(value):
                return [_NonTextSpan(start, at, _calls_of_message(value, start))], _content_of(value)
            if _is_call(value):
                calls = calls_of(value, start)
                more, at = _further_objects(text, at)
                spans.append(_NonTextSpan(start, at, calls + more))
        if only_first:
            break
    return spans, None


def _is_call(value: Any) -> bool:
    """Return whether JSON without a tag has the form of a call, or of a list of calls."""
    if isinstance(value, list):
        return bool(value) and all(_is_call(item) for item in value)
    if not isinstance(value, dict) or not _CALL_KEYS.issuperset(value):
        return False
    if isinstance(value.get("function"), dict):
        return _is_call(value["function"])
    named = isinstance(value.get("name", value.get("function")), str)
    return named and ("arguments" in value or "parameters" in value)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return any(value.get(key) for key in _MESSAGE_KEYS) or ("content" in value and value.get("role") == "assistant")


def _calls_of_message(message: dict[str, Any], start: int) -> tuple[FunctionCall, ...]:
    called = message.get("tool_calls") or message.get("function_call")
    return calls_of(called, start) if called else ()


def _content_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""
