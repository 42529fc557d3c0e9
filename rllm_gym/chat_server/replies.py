"""Replies in OpenAI's format: messages with tool calls, bodies, and server-sent events."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.tool_calls import parse_tool_calls

# Where a call may begin, in any notation of parse_tool_calls; at the beginning also name.call(…) without a tag.
_CALL_MAY_BEGIN = re.compile(r"[<\[{`]|\A\s*+[\w.]{0,300}+(?:\(|\Z)")


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One reply.

    Attributes:
        message: The assistant's message, as :func:`reply_message` returns it.
        finish_reason: ``"stop"``, ``"length"`` or ``"tool_calls"``; ``""`` for a part of a reply.
        prompt_tokens, completion_tokens: Their numbers; 0 if they are unknown.
        conversation: Id of the conversation, if the server gives them; ``""`` for none.
        name: Unique name of the reply, the end of the response's id; ``""``: the server numbers its responses.
    """

    message: dict[str, Any]
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    conversation: str = ""
    name: str = ""


def streamable(text: str, *, tools: bool, stop: Sequence[str], sent: int = 0) -> str:
    """Return how much of the beginning of a reply is part of its content, however it goes on.

    Args:
        text: The beginning of the reply.
        tools: Whether tools were offered.
        stop: Texts that end the reply.
        sent: How many characters of it an earlier call has returned.

    >>> streamable("The sum. <tool_call", tools=True, stop=())
    'The sum.'
    >>> streamable("one\\nEN", tools=False, stop=["END"])
    'one\\n'
    """
    if tools:
        held = _CALL_MAY_BEGIN.search(text, sent)
        text = text[: held.start() if held else None].rstrip()
    held_back = 0
    for end in stop:
        lengths = range(min(len(end) - 1, len(text)), held_back, -1)
        held_back = next((length for length in lengths if text.endswith(end[:length])), held_back)
    return text[: len(text) - held_back]


def reply_message(text: str, *, tools: bool, name: str, sent: str = "") -> dict[str, Any]:
    """Return the assistant's message of a text that the model wrote.

    Args:
        text: The whole text, with calls and reasoning.
        tools: Whether tools were offered. Calls are found only then, and a text with malformed calls stays a text.
        name: Unique in the conversation, the beginning of the ids of calls.
        sent: What the client has got of the content. The content begins with it, also where it would be left out
            besides calls as reasoning.
    """
    if tools:
        try:
            parsed = parse_tool_calls(text)
        except InvalidAction:
            parsed = None
        if parsed is not None and parsed.calls:
            calls = [
                {
                    "id": f"call_{name}_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for index, call in enumerate(parsed.calls)
            ]
            content = parsed.text if parsed.text.startswith(sent) else sent
            return {"role": "assistant", "content": content or None, "tool_calls": calls}
    return {"role": "assistant", "content": text}


def completion(name: str, model: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    """Return the body of a response with these replies."""
    choices = [
        {
            "index": index,
            "message": {"refusal": None, **reply.message},
            "finish_reason": reply.finish_reason,
            "logprobs": None,
            **_conversation(reply),
        }
        for index, reply in enumerate(replies)
    ]
    return {**_head(name, model, "chat.completion", replies), "choices": choices, "usage": _usage(replies)}


def events(
    name: str,
    model: str,
    replies: Sequence[ChatReply],
    *,
    include_usage: bool,
    created: float | None = None,
    sent: str | None = None,
) -> Iterator[bytes]:
    """Yield a response with these replies as server-sent events.

    Args:
        name, model, replies: As in the response.
        include_usage: Whether the last event has the number of tokens.
        created: When the first of the events was made; now by default.
        sent: What earlier events had of the content of the only reply; ``None`` if there were none. A reply without a
            ``finish_reason`` is not at its end.
    """
    head = _head(name, model, "chat.completion.chunk", replies)
    if created is not None:
        head["created"] = int(created)
    usage = {"usage": None} if include_usage else {}
    for index, reply in enumerate(replies):
        calls = reply.message.get("tool_calls") or []
        delta = {**reply.message}
        if sent is not None:
            delta = {"content": (delta["content"] or "")[len(sent) :]}
        if calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        ends: list[tuple[dict[str, Any], str | None]] = [({}, reply.finish_reason)] if reply.finish_reason else []
        for part, finish_reason in ((delta, None), *ends):
            choice = {"index": index, "delta": part, "finish_reason": finish_reason, "logprobs": None}
            choice |= _conversation(reply)
            yield _event({**head, "choices": [choice], **usage})
    if not all(reply.finish_reason for reply in replies):
        return
    if include_usage:
        yield _event({**head, "choices": [], "usage": _usage(replies)})
    yield b"data: [DONE]\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """Return the event that says why a stream ends, from the body of the error."""
    return _event(body)


def _head(name: str, model: str, kind: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{name}", "object": kind, "created": int(time.time()), "model": model}
    return {**head, **_conversation(replies[0])}


def _conversation(reply: ChatReply) -> dict[str, str]:
    return {"conversation_id": reply.conversation} if reply.conversation else {}


def _usage(replies: Sequence[ChatReply]) -> dict[str, int]:
    prompt = replies[0].prompt_tokens
    sampled = sum(reply.completion_tokens for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
