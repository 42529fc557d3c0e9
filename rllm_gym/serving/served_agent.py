"""``ServedAgent``: replies to the chat requests of any clients with a sampler, and logs every call with its tokens."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import logging
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.chat.tokenizer import has_channels, is_undecided, reply_decoder
from rllm_gym.chat_server import ChatReply, ChatRequest, RequestError, reply_message
from rllm_gym.core import StopReason
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.call_recorder import check_gets_tools
from rllm_gym.engine.conversation import ConversationTokens
from rllm_gym.engine.conversation_index import ConversationIndex, ConversationLine, FoundConversation
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.spec import Budget
from rllm_gym.samplers.protocol import Completion, Sampler, SamplerError, SamplingParams, SamplingRequest
from rllm_gym.serving.call_log import CallLog
from rllm_gym.serving.partial_reply import PartialReply

_log = logging.getLogger(__name__)

_MAX_CONVERSATIONS = 4096
_MAX_TOKENS = 8 << 20  # of all conversations that are kept
_MAX_CHARACTERS = 64  # of a request as JSON, for each token of the context: longer ones are not even rendered


@dataclass(slots=True)
class _Served:
    """A conversation: its id for feedback, and what samples its replies, one at a time."""

    id: str
    sampler: ConversationSampler
    turns: int = 0
    busy: bool = False


class ServedAgent:
    """Replies to chat requests as the model does in training: a request that continues an earlier one, with the replies
    as they were returned, continues its token ids. Pass :meth:`respond` to a :class:`~rllm_gym.chat_server.ChatServer`,
    and call :meth:`close` after it.

    Conversations have an id: the client's (``metadata.conversation_id``), else that of the conversation it continues,
    else a new one.

    Args:
        sampler: Samples the replies. It remains the caller's.
        params: Sampling parameters of requests that do not give their own.
        system_prompt: First message of requests without a system message; ``""`` for none.
        max_context_tokens: Maximum length of a conversation in tokens, if it is less than the sampler's.
        seed: Seed of requests that do not give their own; ``None``: a random one for each.
        parallel: Number of replies that are sampled at a time. Others wait.
        log: Where calls are logged.
        model: Entries of each line of the log that name the model.
    """

    def __init__(
        self,
        sampler: Sampler,
        params: SamplingParams,
        *,
        system_prompt: str = "",
        max_context_tokens: int | None = None,
        seed: int | None = None,
        parallel: int = 64,
        log: CallLog | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        tokenizer = getattr(sampler, "tokenizer", None)
        self._sampler = sampler
        self._renderer = None if tokenizer is None else ChatRenderer(tokenizer)
        # Replies in channels cannot be decoded in parts.
        parts = tokenizer is not None and not has_channels(tokenizer)
        self._partial_reply = (
            partial(PartialReply, reply_decoder(tokenizer), is_undecided(tokenizer)) if parts else None
        )
        self._seed = seed
        end_of_turn = None if self._renderer is None else self._renderer.end_of_turn_id
        self._params = params if end_of_turn is None else replace(params, stop_token_ids=(end_of_turn,))
        self._system = ({"role": "system", "content": system_prompt},) if system_prompt else ()
        self._budget = Budget(max_context_tokens=max_context_tokens)
        self._log, self._model = log, dict(model or {})
        self._longest = min(filter(None, (max_context_tokens, sampler.context_length)), default=None)
        self._index: ConversationIndex[_Served] = ConversationIndex(
            max(16, min(_MAX_CONVERSATIONS, _MAX_TOKENS // (self._longest or 8192)))
        )
        self._slots = asyncio.Semaphore(parallel)
        # Rendering a long text takes long. In one thread: one conversation is never rendered twice at a time.
        self._renders = ThreadPoolExecutor(1, "render")

    async def respond(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a request, and log it.

        Raises:
            RequestError: The request cannot be rendered, or does not fit the context.
            SamplerError: The sampler failed.
        """
        size = len(json.dumps(request.messages, ensure_ascii=False)) + len(request.tools)
        if self._longest is not None and size > _MAX_CHARACTERS * self._longest:
            raise RequestError(
                f"the conversation is too long: it has {size} characters, more than {_MAX_CHARACTERS} for each of the "
                f"{self._longest} tokens of the context",
                code="context_length_exceeded",
            )
        async with self._slots:
            return await self._reply(request)

    def close(self) -> None:
        """End the thread that renders. Replies that wait for it are cancelled."""
        self._renders.shutdown(wait=False, cancel_futures=True)

    async def _reply(self, request: ChatRequest) -> ChatReply:
        if request.tools:
            check_gets_tools(self._sampler.returns_tokens)
        has_system = any(message["role"] == "system" for message in request.messages)
        messages = request.messages if has_system else (*self._system, *request.messages)
        found = self._find(messages, request)
        line = found.line
        if line is None or not found.continues or line.owner.busy:
            line = ConversationLine(self._new(request, found))
        served = line.owner
        name = secrets.token_hex(12)
        served.busy = True
        try:
            served.sampler.params = self._params_of(request)
            asked = self._seeded(await self._rendered(served, found, request.tools), request)
            part = self._partial(request, asked, served.id, name)
            completion = await served.sampler.reply(replace(asked, on_token=part.add if part else None))
            if completion.finish_reason == "context_length":
                raise _too_long(StopReason.CONTEXT_LENGTH)
            sent = part.sent if part else ""
            if not completion.text.startswith(sent):
                raise SamplerError("the tokenizer decodes parts of a reply in another way than the reply")
            served.sampler.append(completion)
            served.turns += 1
        finally:
            served.busy = False
        message = reply_message(completion.text, tools=bool(request.tools), name=name, sent=sent)
        self._index.add_reply(line, found, message, completion.text)
        self._write(name, served.id, messages, request.tools, asked, completion, message)
        finish_reason = "tool_calls" if message.get("tool_calls") else completion.finish_reason
        return ChatReply(message, finish_reason, len(asked.ids), len(completion.ids), served.id, name)

    def _find(self, messages: tuple[dict[str, Any], ...], request: ChatRequest) -> FoundConversation[_Served]:
        found = self._index.find(messages, request.tools, request.conversation)
        if found.line is None and request.conversation:  # it may be an id of this server
            without_id = self._index.find(messages, request.tools)
            if without_id.line is not None and without_id.line.owner.id == request.conversation:
                return without_id
        return found

    def _new(self, request: ChatRequest, found: FoundConversation[_Served]) -> _Served:
        name = secrets.token_hex(12)
        conversation = ConversationTokens(self._renderer, self._budget, self._sampler.context_length)
        if found.line is not None:
            conversation.fork(found.line.owner.sampler.conversation)
            name_for_client = request.conversation or found.line.owner.id
        else:
            name_for_client = request.conversation or f"conv-{name}"
        sampler = ConversationSampler(
            conversation, self._sample, self._params, name, name, self._sampler.returns_tokens
        )
        return _Served(name_for_client, sampler)

    async def _rendered(self, served: _Served, found: FoundConversation[_Served], tools: str) -> SamplingRequest:
        def render() -> SamplingRequest | StopReason:
            return served.sampler.request(lambda: found.messages, tools or None, served.turns)

        try:
            asked = await asyncio.get_running_loop().run_in_executor(self._renders, render)
        except AgentError as error:
            raise RequestError(str(error)) from error
        if isinstance(asked, StopReason):
            raise _too_long(asked)
        return asked

    def _seeded(self, asked: SamplingRequest, request: ChatRequest) -> SamplingRequest:
        seed = self._seed if request.seed is None else request.seed
        if seed is None:
            return asked
        digest = hashlib.sha256(f"{seed} {request.choice}".encode()).digest()
        return replace(asked, seed=int.from_bytes(digest[:8], "big") >> 1)

    def _partial(
        self, request: ChatRequest, asked: SamplingRequest, conversation: str, name: str
    ) -> PartialReply | None:
        """Return what makes the parts of a reply, if the client wants some."""
        on_part = request.on_part
        if on_part is None or self._partial_reply is None:
            return None

        def send(content: str) -> None:
            message = {"role": "assistant", "content": content}
            on_part(ChatReply(message, "", conversation=conversation, name=name))

        return self._partial_reply(send, tools=bool(request.tools), stop=asked.params.stop)

    def _params_of(self, request: ChatRequest) -> SamplingParams:
        own = self._params
        try:
            return replace(
                own,
                temperature=own.temperature if request.temperature is None else request.temperature,
                top_p=own.top_p if request.top_p is None else request.top_p,
                max_tokens=request.max_tokens or own.max_tokens,
                stop=request.stop,
            )
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def _sample(self, request: SamplingRequest) -> Completion:
        (completion,) = await self._sampler.sample([request])
        return completion

    def _write(
        self,
        name: str,
        conversation: str,
        messages: tuple[dict[str, Any], ...],
        tools: str,
        asked: SamplingRequest,
        completion: Completion,
        message: Mapping[str, Any],
    ) -> None:
        if self._log is None:
            return
        params = asked.params
        was_stopped = self._log.stopped
        self._log.write(
            {
                "id": f"chatcmpl-{name}",
                "conversation_id": conversation,
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                **self._model,
                "weight_version": completion.weight_version,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "stop": params.stop,
                "messages": messages,
                "tools": json.loads(tools) if tools else [],
                "reply": message,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "prompt_ids": asked.ids if completion.ids else (),
                "ids": completion.ids,
                "logprobs": completion.logprobs,
            }
        )
        if self._log.stopped and not was_stopped:
            _log.warning("no further call is logged: %s", self._log.stopped)


def _too_long(reason: StopReason) -> RequestError:
    return RequestError(f"the conversation is too long ({reason.value})", code="context_length_exceeded")
