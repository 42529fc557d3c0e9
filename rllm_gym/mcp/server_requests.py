"""A server's own requests, for input of the user and for a completion, and their answers: scripted, or by the model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rllm_gym.mcp.offers import parts_of_message
from rllm_gym.mcp.protocol import MAX_DEPTH, depth, printable
from rllm_gym.mcp.results import read_result

BY_MODEL: Literal["model"] = "model"

_INPUT, _COMPLETION = "elicitation/create", "sampling/createMessage"
_MAX_PARAMS_CHARS = 200_000
_COMPLETION_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


def passed_on(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's request for the SDK, with its parameters only where they are used and not too large."""
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"], "method": message["method"]}
    params = message.get("params")
    if message["method"] in (_INPUT, _COMPLETION) and isinstance(params, dict) and depth(params) <= MAX_DEPTH:
        text = json.dumps(params)
        if len(text) <= _MAX_PARAMS_CHARS:
            request["params"] = params
    return request


class ServerRequest:
    """A request of a server that waits for the model.

    Attributes:
        wanted: What the server asks for, as a phrase.
        text: Its words.
        schema: JSON schema of the answer.
        is_answered: Whether :meth:`answer` was called.
    """

    def __init__(self, wanted: str, text: str, schema: Mapping[str, Any]) -> None:
        self.wanted, self.text, self.schema = wanted, text, schema
        self.is_answered = False
        self._loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[Mapping[str, Any] | None] = self._loop.create_future()

    def answer(self, content: Mapping[str, Any] | None) -> None:
        """Answer it, from any thread: with an object that fits the schema, or ``None`` to decline."""
        self.is_answered = True
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._set, content)

    def _set(self, content: Mapping[str, Any] | None) -> None:
        if not self.answered.done():
            self.answered.set_result(content)


class RequestAnswers:
    """The answers to a server's requests for input of the user and for a completion.

    Args:
        elicitations: What the user enters, in order, ``None`` to decline; the last one is repeated. ``"model"`` for
            what the model answers.
        samples: The completions, in order; the last one is repeated. Or ``"model"``.

    Attributes:
        elicits: Whether there is more than a refusal for requests for input.
        samples: Whether there is for requests for a completion.
        waiting: Requests that wait for the model.
    """

    def __init__(self, elicitations: Sequence[Mapping[str, Any] | None] | str, samples: Sequence[str] | str) -> None:
        self.elicits, self.samples = bool(elicitations), bool(samples)
        given = {_INPUT: elicitations, _COMPLETION: samples}
        self._by_model = {method for method, answers in given.items() if answers == BY_MODEL}
        self._scripts = {method: _repeating_last(answers) for method, answers in given.items()}
        self.waiting: list[ServerRequest] = []
        self._notify: Callable[[], None] | None = None
        self._deadlines: dict[asyncio.Timeout, float] = {}

    def listen(self, notify: Callable[[], None] | None) -> None:
        """Call ``notify`` for each request that waits for the model, from another thread. ``None``: the model answers
        no more, and what waits is declined."""
        self._notify = notify
        if notify is None:
            for request in [*self.waiting]:
                request.answer(None)

    @contextlib.contextmanager
    def suspending(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Let a deadline stand still while a request waits for the model. Called on the connection's loop."""
        self._deadlines[deadline] = 0.0
        if self.waiting:
            self._suspend(deadline)
        try:
            yield
        finally:
            del self._deadlines[deadline]

    async def answer(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the result of a request; ``None`` if it is declined with an error, or not supported."""
        if method == "ping":
            return {}
        if method not in self._scripts:
            return None
        content = await self._ask_model(method, params) if method in self._by_model else next(self._scripts[method])
        if method == _INPUT:
            return {"action": "decline"} if content is None else {"action": "accept", "content": dict(content)}
        if content is None:
            return None
        by_model = method in self._by_model
        text = content["text"] if by_model else content
        return {
            "role": "assistant",
            "content": {"type": "text", "text": text},
            "model": "agent" if by_model else "scripted",
            "stopReason": "endTurn",
        }

    async def _ask_model(self, method: str, params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        request = _request_of(method, params or {})
        if request is None:
            return None
        if not self.waiting:
            for deadline in self._deadlines:
                self._suspend(deadline)
        self.waiting.append(request)
        try:
            notify = self._notify  # read after it is listed: another thread may call listen(None)
            if notify is None:
                return None
            notify()
            return await request.answered
        finally:
            self.waiting.remove(request)
            if not self.waiting:
                for deadline, left in self._deadlines.items():
                    if not deadline.expired():
                        deadline.reschedule(asyncio.get_running_loop().time() + left)

    def _suspend(self, deadline: asyncio.Timeout) -> None:
        when = deadline.when()
        if when is not None and not deadline.expired():
            self._deadlines[deadline] = when - asyncio.get_running_loop().time()
            deadline.reschedule(None)


def _request_of(method: str, params: Mapping[str, Any]) -> ServerRequest | None:
    """Return what to ask the model; ``None`` if it cannot answer."""
    if method == _COMPLETION:
        messages = params.get("messages")
        if not isinstance(messages, list):
            return None
        parts = [part for message in messages for part in parts_of_message(message)]
        system = params.get("systemPrompt")
        if isinstance(system, str) and system:
            parts.insert(0, {"type": "text", "text": printable(f"system:\n{system}")})
        return ServerRequest("a completion of a conversation", read_result({"content": parts}).text, _COMPLETION_SCHEMA)
    message, schema = params.get("message"), params.get("requestedSchema")
    if params.get("mode", "form") != "form" or not isinstance(message, str) or not isinstance(schema, dict):
        return None  # such as a page to visit
    return ServerRequest("input of its user", printable(message), schema)


def _repeating_last(values: Sequence[Any]) -> Iterator[Any]:
    return itertools.chain(values, itertools.repeat(values[-1] if values else None))
