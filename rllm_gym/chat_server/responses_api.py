"""OpenAI's Responses API as a translation: its requests to chat completions, and their replies to its responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rllm_gym.chat_server.replies import ChatReply
from rllm_gym.chat_server.requests import ChatRequest, RequestError, chat_request_of, check_only, json_object, shown

_TEXTS = ("input_text", "output_text", "text")
# Fields that would change what is sampled, and what the server does.
_ONLY: dict[str, tuple[Any, ...]] = {
    "prompt": (None,),
    "background": (None, False),
    "text": (None, {}, {"format": {"type": "text"}}),
    "top_logprobs": (None, 0),
}
_SAME = ("model", "temperature", "top_p", "stream", "metadata", "tool_choice")


def responses_request(body: bytes) -> ChatRequest:
    """Read the body of a request. Responses are not stored: ``input`` is the whole conversation.

    Raises:
        RequestError: It is not one, or asks for something that the server cannot do.
    """
    content = json_object(body)
    check_only(content, _ONLY)
    for name in ("previous_response_id", "conversation"):
        if content.get(name) is not None:
            raise RequestError(f"{name}={shown(content[name])} is not supported; give the whole conversation as input")
    chat = {name: content[name] for name in _SAME if content.get(name) is not None}
    chat["max_completion_tokens"] = content.get("max_output_tokens")
    chat["messages"] = _messages(content.get("instructions"), content.get("input"))
    chat["tools"] = _tools(content.get("tools"))
    return chat_request_of(chat)


def _messages(instructions: Any, items: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list):
        raise RequestError(f"input={shown(items)} must be a text or a list of items")
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _content(item.get("output"), where)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            raise RequestError(f"{where}={shown(item)} must be a message, a function_call or a function_call_output")
    return messages


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in _TEXTS:
            raise RequestError(f"{where}: {shown(part)} is not a text: the model reads only texts")
    return [{"type": "text", "text": part.get("text")} for part in content]


def _tools(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools
    return [
        {"type": tool.get("type"), "function": {name: value for name, value in tool.items() if name != "type"}}
        if isinstance(tool, Mapping)
        else tool
        for tool in tools
    ]


def response(name: str, model: str, replies: Sequence[ChatReply]) -> dict[str, Any]:
    """Return the body of a response with the only reply."""
    (reply,) = replies
    is_cut = reply.finish_reason == "length"
    return {
        **_head(name, model, reply),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _items(name, reply),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


def response_events(
    name: str, model: str, replies: Sequence[ChatReply], *, include_usage: bool = True
) -> Iterator[bytes]:
    """Yield a response as server-sent events. The reply is sent as a whole: it was sampled before."""
    whole = response(name, model, replies)
    started = {**_head(name, model, replies[0]), "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
    ]
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            place["content_index"] = 0
            empty = {**item, "content": [], "status": "in_progress"}
            inner = [
                ("response.content_part.added", {"part": {**part, "text": ""}}),
                ("response.output_text.delta", {"delta": part["text"], "logprobs": []}),
                ("response.output_text.done", {"text": part["text"], "logprobs": []}),
                ("response.content_part.done", {"part": part}),
            ]
        else:
            empty = {**item, "arguments": "", "status": "in_progress"}
            inner = [
                ("response.function_call_arguments.delta", {"delta": item["arguments"]}),
                ("response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}),
            ]
        events.append(("response.output_item.added", {"output_index": index, "item": empty}))
        events += [(kind, {**place, **fields}) for kind, fields in inner]
        events.append(("response.output_item.done", {"output_index": index, "item": item}))
    events.append((f"response.{whole['status']}", {"response": whole}))
    for number, (kind, fields) in enumerate(events):
        data = json.dumps({"type": kind, "sequence_number": number, **fields})
        yield f"event: {kind}\ndata: {data}\n\n".encode()


def _head(name: str, model: str, reply: ChatReply) -> dict[str, Any]:
    head = {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }
    return head | ({"conversation_id": reply.conversation} if reply.conversation else {})


def _items(name: str, reply: ChatReply) -> list[dict[str, Any]]:
    message = reply.message
    calls = message.get("tool_calls") or []
    items: list[dict[str, Any]] = []
    if message.get("content") or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": message.get("content") or "", "annotations": []}
        items.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}
        )
    for index, call in enumerate(calls):
        function = call["function"]
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{name}_{index}",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": function["arguments"],
                "status": "completed",
            }
        )
    return items
