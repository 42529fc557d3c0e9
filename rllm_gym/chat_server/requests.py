"""Bodies of OpenAI's chat completions as checked requests. Every field comes from a program that may send anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.chat_server.replies import ChatReply

_MAX_CHOICES = 64
_MAX_STOPS = 16
_MAX_NAME = 200
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# Fields that would change what is sampled. Others (user, metadata, store, …) are accepted and not used.
_ONLY: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "tool_choice": (None, "auto", "none"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "functions": (None, []),
}


class RequestError(Exception):
    """A request that gets an error in OpenAI's format.

    Args:
        message: What is wrong, with the field and its value.
        status: The HTTP status.
        code: OpenAI's name of the error, such as ``"context_length_exceeded"``.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the body of the response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion that was asked for.

    Attributes:
        messages: The conversation. Contents are texts; ``tool_calls`` have OpenAI's format.
        tools: The offered tools as JSON, ``""`` for none.
        model: The name that the client used.
        max_tokens: Maximum length of a reply in tokens; ``None``: the server's.
        temperature, top_p: As asked for; ``None`` if they were not given.
        stop: Texts that end a reply.
        choices: Number of replies.
        stream: Whether the client wants server-sent events.
        include_usage: Whether the last event has the number of tokens.
        conversation: ``metadata.conversation_id``, the client's own name of the conversation; ``""`` for none.
        seed: Seed of the replies; ``None`` if it was not given.
        choice: Number of this reply among those that were asked for.
        on_part: Called with the reply so far whenever its content has grown, if the client wants parts; who replies
            need not call it. The content of each part begins that of the next one, and of the reply.
    """

    messages: tuple[dict[str, Any], ...]
    tools: str = ""
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    conversation: str = ""
    seed: int | None = None
    choice: int = 0
    on_part: Callable[[ChatReply], None] | None = field(default=None, compare=False, repr=False)


def chat_request(body: bytes) -> ChatRequest:
    """Read the body of a request.

    Raises:
        RequestError: It is not one, or asks for something that the server cannot do.
    """
    return chat_request_of(json_object(body))


def json_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        RequestError: There is none.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(content, Mapping):
        raise RequestError("the body is not a JSON object")
    return content


def chat_request_of(content: Mapping[str, Any]) -> ChatRequest:
    """Check a request. Raises as :func:`chat_request`."""
    check_only(content, _ONLY)
    stream_options = content.get("stream_options")
    return ChatRequest(
        checked_messages(content.get("messages")),
        "" if content.get("tool_choice") == "none" else checked_tools(content.get("tools")),
        str(content.get("model") or ""),
        _whole(content, "max_completion_tokens") or _whole(content, "max_tokens"),
        _number(content, "temperature", 0.0, 2.0),
        _number(content, "top_p", 0.0, 1.0),
        _stop(content.get("stop")),
        _whole(content, "n", most=_MAX_CHOICES) or 1,
        content.get("stream") is True,
        isinstance(stream_options, Mapping) and stream_options.get("include_usage") is True,
        conversation_of(content),
        _seed(content.get("seed")),
    )


def check_only(content: Mapping[str, Any], values: Mapping[str, tuple[Any, ...]]) -> None:
    """Check that fields have one of the values that are supported.

    Raises:
        RequestError: One has another.
    """
    for name, allowed in values.items():
        value = content.get(name)
        if value not in allowed or (isinstance(value, bool) and value):
            others = " or ".join(json.dumps(each) for each in allowed[1:])
            use = f", or use {others}" if others else ""
            raise RequestError(f"{name}={shown(value)} is not supported; leave it out{use}")


def checked_messages(messages: Any) -> tuple[dict[str, Any], ...]:
    """Return messages in OpenAI's format with texts as their contents, and without fields that no model reads.

    Raises:
        RequestError: They are no list of messages, or not only of texts.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"messages={shown(messages)} must be a list of at least one message")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def conversation_of(content: Mapping[str, Any]) -> str:
    """Return the client's own name of the conversation of a request; ``""`` if it gave none.

    Raises:
        RequestError: It is no text, or too long.
    """
    metadata = content.get("metadata")
    name = metadata.get("conversation_id") if isinstance(metadata, Mapping) else None
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()):
        raise RequestError(
            f"metadata.conversation_id={shown(name)} must be a text of 1 to {_MAX_NAME} printable characters"
        )
    return name or ""


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where}={shown(message)} is not an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{where}.role={shown(role)} must be one of {', '.join(_ROLES)}")
    checked: dict[str, Any] = {"role": _ROLES[role], "content": _text(message.get("content"), f"{where}.content")}
    if message.get("tool_calls"):
        if role != "assistant":
            raise RequestError(f"{where}: a message of the role {role!r} has no tool_calls")
        checked["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    for name in ("name", "tool_call_id"):
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise RequestError(f"{where}.{name}={shown(value)} must be a text")
            checked[name] = value
    return checked


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where}={shown(content)} must be a text or a list of parts")
    parts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError(f"{where}[{index}]={shown(part)} is not a text: the model reads only texts")
        parts.append(text)
    return "\n".join(parts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    checked = []
    for index, call in enumerate(calls if isinstance(calls, list) else [calls]):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        arguments = function.get("arguments", "{}") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise RequestError(
                f"{where}[{index}]={shown(call)} must have a function with a name, and arguments as a JSON text"
            )
        identity = str(call.get("id") or "")
        checked.append({"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}})
    return checked


def checked_tools(tools: Any) -> str:
    """Return tools as JSON; ``""`` for none.

    Raises:
        RequestError: They are not in OpenAI's format.
    """
    if not tools:
        return ""
    if not isinstance(tools, list):
        raise RequestError(f"tools={shown(tools)} must be a list")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(
                f'tools[{index}]={shown(tool)} must be {{"type": "function", "function": {{"name": …}}}}'
            )
    return json.dumps(tools)


def _stop(stop: Any) -> tuple[str, ...]:
    given = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(given, list) or len(given) > _MAX_STOPS or not all(isinstance(s, str) and s for s in given):
        raise RequestError(f"stop={shown(stop)} must be a text or up to {_MAX_STOPS} texts")
    return tuple(given)


def _seed(seed: Any) -> int | None:
    if seed is not None and not (isinstance(seed, int) and not isinstance(seed, bool) and abs(seed) < 1 << 63):
        raise RequestError(f"seed={shown(seed)} must be a whole number of at most 63 bits")
    return seed


def _whole(content: Mapping[str, Any], name: str, *, most: int | None = None) -> int | None:
    value = content.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        limit = "" if most is None else f" to {most}"
        raise RequestError(f"{name}={shown(value)} must be a whole number from 1{limit}")
    return value


def _number(content: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (math.isfinite(value) and least <= value <= most):
        raise RequestError(f"{name}={shown(value)} must be a number from {least:g} to {most:g}")
    return float(value)


def shown(value: Any) -> str:
    """Return a value for an error message."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
