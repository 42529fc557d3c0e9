"""Reads logs of chat calls: those of ``rllm-gym serve-agent``, and messages in OpenAI's format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rllm_gym.chat_server import RequestError, checked_messages, checked_tools, conversation_of
from rllm_gym.core import TurnTokens
from rllm_gym.serving.conversations import ServedCall

_MAX_LINE_BYTES = 64 << 20
_MAX_ID = 1 << 31
_MAX_VERSION = 1 << 53


class LogRowError(ValueError):
    """A line that cannot be used, and why."""


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | LogRowError]]:
    """Yield each line that is not empty, with its number from 1: a JSON object, or the reason why it is none."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(_MAX_LINE_BYTES)
                yield number, LogRowError(f"it has more than {_MAX_LINE_BYTES >> 20} MiB")
            elif line.strip():
                yield number, _object(line)


def _object(line: bytes) -> dict[str, Any] | LogRowError:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return LogRowError(f"it is not JSON ({error})")
    return row if isinstance(row, dict) else LogRowError(f"it is not a JSON object but a {type(row).__name__}")


def calls_of_row(row: Mapping[str, Any]) -> list[ServedCall]:
    """Return the calls of a line.

    A line is a call of ``rllm-gym serve-agent`` (``messages`` and ``reply``); a request and its response (``request``
    and ``response``, or the ``choices`` beside the ``messages``); or a whole chat (``messages``), each of whose
    assistant messages is a reply.

    Raises:
        LogRowError: It is none of them.
    """
    try:
        if "reply" in row:
            return [_own_call(row)]
        if isinstance(row.get("request"), Mapping) and isinstance(row.get("response"), Mapping):
            return _responses(row, row["request"], row["response"])
        if "choices" in row:
            return _responses(row, row, row)
        return _chat(row)
    except RequestError as error:
        raise LogRowError(str(error)) from error
    except RecursionError as error:
        raise LogRowError("it is nested too deeply") from error


def _own_call(row: Mapping[str, Any]) -> ServedCall:
    text = row.get("text")
    if not isinstance(text, str):
        raise LogRowError(f"text={text!r:.80} must be a text")
    prompt, ids = _ids(row, "prompt_ids"), _ids(row, "ids")
    logprobs, version = row.get("logprobs", ()), row.get("weight_version", 0)
    if not isinstance(logprobs, list | tuple) or not all(map(_is_logprob, logprobs)):
        raise LogRowError("logprobs must be a list of numbers, 0 or less")
    if len(logprobs) != len(ids) or bool(prompt) != bool(ids):
        raise LogRowError(
            f"it has {len(prompt)} prompt_ids, {len(ids)} ids and {len(logprobs)} logprobs; each id needs a "
            "log-prob, and a prompt before it"
        )
    if not isinstance(version, int) or not 0 <= version < _MAX_VERSION:
        raise LogRowError(f"weight_version={version!r:.80} must be a whole number")
    finish_reason = _text(row, "finish_reason") or "stop"
    stop = row.get("stop") or ()
    if not isinstance(stop, str | list | tuple):
        raise LogRowError(f"stop={stop!r:.80} must be a list of texts")
    return ServedCall(
        _text(row, "id"),
        _conversation(row, row),
        checked_messages(row.get("messages")),
        checked_tools(row.get("tools")),
        _assistant(row["reply"]),
        text,
        TurnTokens(prompt, ids, tuple(map(float, logprobs)), version, 0, finish_reason) if ids else None,
        finish_reason,
        (stop,) if isinstance(stop, str) else tuple(map(str, stop)),
        {
            name: row[name]
            for name in ("model", "model_version", "time", "temperature", "top_p", "top_k")
            if isinstance(row.get(name), str | int | float)
        },
    )


def _responses(row: Mapping[str, Any], request: Mapping[str, Any], response: Mapping[str, Any]) -> list[ServedCall]:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, Mapping) for choice in choices):
        raise LogRowError(f"choices={choices!r:.80} must be a list of at least one choice")
    messages, tools = checked_messages(request.get("messages")), checked_tools(request.get("tools"))
    name, conversation = _text(response, "id"), _conversation(row, request)
    return [
        _written(
            f"{name}#{index}" if name and index else name,
            conversation,
            messages,
            tools,
            _assistant(choice.get("message")),
            str(choice.get("finish_reason") or "stop"),
        )
        for index, choice in enumerate(choices)
    ]


def _chat(row: Mapping[str, Any]) -> list[ServedCall]:
    messages, tools = checked_messages(row.get("messages")), checked_tools(row.get("tools"))
    name, conversation = _text(row, "id"), _conversation(row, row)
    replies = [index for index, message in enumerate(messages) if index and message["role"] == "assistant"]
    if not replies:
        raise LogRowError("no message of the assistant follows another message, so there is no reply")
    return [
        _written(name if index == replies[-1] else "", conversation, messages[:index], tools, messages[index], "stop")
        for index in replies
    ]


def _written(
    name: str,
    conversation: str,
    messages: tuple[dict[str, Any], ...],
    tools: str,
    reply: dict[str, Any],
    finish_reason: str,
) -> ServedCall:
    text = None if reply.get("tool_calls") else reply["content"]
    return ServedCall(name, conversation, messages, tools, reply, text, finish_reason=finish_reason)


def _assistant(message: Any) -> dict[str, Any]:
    (reply,) = checked_messages([message])
    if reply["role"] != "assistant":
        raise LogRowError(f"the reply has the role {reply['role']!r}; it must be assistant")
    return reply


def _conversation(row: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    if row.get("conversation_id") is not None:
        return conversation_of({"metadata": row})
    return conversation_of(request)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise LogRowError(f"{name}={value!r:.80} must be a text")
    return value or ""


def _ids(row: Mapping[str, Any], name: str) -> tuple[int, ...]:
    ids = row.get(name) or ()
    if not isinstance(ids, list | tuple) or not all(type(item) is int and 0 <= item < _MAX_ID for item in ids):
        raise LogRowError(f"{name} must be a list of token ids")
    return tuple(ids)


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value <= 1e-3
