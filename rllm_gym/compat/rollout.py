"""rLLM's rollout engines, which return a reply for messages, from a sampler or from a running workflow episode."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from rllm_gym.chat.renderer import ChatRenderer
from rllm_gym.compat.engine import sampling_params_of
from rllm_gym.engine.conversation import ConversationTokens
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.spec import Budget
from rllm_gym.samplers.protocol import Completion, Sampler, SamplingParams, SamplingRequest

# Arguments of get_model_response that have no effect here.
_WITHOUT_EFFECT = {"application_id", "validate", "skip_special_tokens", "model"}


@dataclass
class ModelOutput:
    """A reply.

    Attributes:
        text: The text that the model wrote.
        content: The text after ``</think>``; all of it if there is none.
        reasoning: The text before ``</think>``.
        number: Index of the reply in the episode, used to find its tokens.
    """

    text: str = ""
    content: str = ""
    reasoning: str = ""
    tool_calls: list[Any] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_length: int = 0
    completion_length: int = 0
    finish_reason: str | None = None
    weight_version: int | None = None
    number: int = -1

    def to_dict(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "number"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelOutput:
        names = {entry.name for entry in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


class WorkflowCalls(Protocol):
    """The interface of the context in which a workflow is running."""

    async def respond(self, messages: Sequence[Mapping[str, Any]], overrides: dict[str, Any]) -> ModelOutput: ...

    async def call(self, function: Callable[[], Any]) -> Any: ...


CURRENT_WORKFLOW: ContextVar[WorkflowCalls | None] = ContextVar("current_workflow", default=None)
"""Tasks that a workflow starts inherit it, so that every rollout engine of the workflow uses its context."""


class RolloutEngine:
    """Returns replies to messages. Inside a workflow the reply belongs to the running episode; outside of one it is a
    single reply.

    Args:
        sampler: Samples the replies; ``None`` if it is only used inside workflows that this package's engine runs.
        tokenizer: A Hugging Face tokenizer; ``None``: the sampler's.
        sampling_params: ``temperature``, ``top_p``, ``top_k``, ``max_tokens``, ``stop``.
        max_prompt_length: Maximum tokens of the first prompt.
        max_response_length: Maximum tokens of a reply if ``max_tokens`` is not given.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        *,
        tokenizer: Any = None,
        sampling_params: Mapping[str, Any] | None = None,
        max_prompt_length: int | None = None,
        max_response_length: int = 4096,
    ) -> None:
        self.sampler = sampler
        self.tokenizer = tokenizer if tokenizer is not None else getattr(sampler, "tokenizer", None)
        self.sampling_params = dict(sampling_params or {})
        self.max_prompt_length = max_prompt_length
        self.max_response_length = max_response_length
        self._numbers = itertools.count()

    @property
    def weight_version(self) -> int:
        return 0 if self.sampler is None else self.sampler.weight_version

    @property
    def params(self) -> SamplingParams:
        """The default sampling parameters, which a call can override."""
        return sampling_params_of(self.sampling_params, self.max_response_length)

    async def get_model_response(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> ModelOutput:
        """Return one reply to a conversation.

        Args:
            messages: The whole conversation, in OpenAI format.
            **kwargs: ``tools``, and sampling parameters for this reply.

        Raises:
            TerminationEvent: A limit of the engine does not allow a reply.
            SamplerError: The sampler failed.
            ValueError: There is no sampler, or an argument is not supported.
        """
        overrides = {key: value for key, value in kwargs.items() if key not in _WITHOUT_EFFECT}
        workflow = CURRENT_WORKFLOW.get()
        if workflow is not None:
            return await workflow.respond(messages, {**self.sampling_params, **overrides})
        return await self._single_reply(messages, overrides)

    async def wake_up(self) -> None:
        """Do nothing."""

    async def sleep(self) -> None:
        """Do nothing."""

    async def _single_reply(self, messages: Sequence[Mapping[str, Any]], overrides: dict[str, Any]) -> ModelOutput:
        sampler = self.sampler
        if sampler is None:
            raise ValueError("this rollout engine has no sampler: pass one, or use it inside a workflow")
        tools = overrides.pop("tools", None)
        if tools:
            raise ValueError("tools= is not supported outside of a workflow; write the schemas into a message")

        async def sample(request: SamplingRequest) -> Completion:
            (completion,) = await sampler.sample([request])
            return completion

        renderer = ChatRenderer(self.tokenizer) if self.tokenizer is not None else None
        conversation = ConversationTokens(renderer, Budget(), sampler.context_length)
        params = sampling_params_of({**self.sampling_params, **overrides}, self.max_response_length)
        seed = f"alone/{next(self._numbers)}/"
        conversation_sampler = ConversationSampler(conversation, sample, params, "", seed, sampler.returns_tokens)
        request = conversation_sampler.request(lambda: messages, None, 0)
        if not isinstance(request, SamplingRequest):
            raise ValueError(f"the messages exceed a token limit: {request.value}")
        completion = await conversation_sampler.reply(request)
        return output_of(completion, conversation.ids, -1)


class OpenAIEngine(RolloutEngine):
    """A rollout engine for an OpenAI-compatible endpoint.

    Args:
        model, base_url, api_key: Model, URL and key of the endpoint.
        api_retries: How often a request is repeated.
        **arguments: See :class:`RolloutEngine`.
    """

    def __init__(
        self,
        model: str = "",
        tokenizer: Any = None,
        max_prompt_length: int | None = None,
        max_response_length: int = 4096,
        api_retries: int = 3,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> None:
        for name, value in unsupported.items():
            if value:
                raise ValueError(f"{name}={value!r} is not supported; see docs/from-rllm.md for its replacement")
        from rllm_gym.samplers.openai_compatible import OpenAISampler

        super().__init__(
            OpenAISampler(model=model, base_url=base_url, api_key=api_key, retries=api_retries),
            tokenizer=tokenizer,
            sampling_params=sampling_params,
            max_prompt_length=max_prompt_length,
            max_response_length=max_response_length,
        )
        self.model = model


async def run_blocking(function: Callable[[], Any], executor: Any) -> Any:
    """Run ``function()`` in a worker of the running workflow if there is one and no executor is given, else in the
    executor."""
    workflow = CURRENT_WORKFLOW.get()
    if workflow is not None and executor is None:
        return await workflow.call(function)
    waiting: Awaitable[Any] = asyncio.get_running_loop().run_in_executor(executor, function)
    return await waiting


def output_of(completion: Any, prompt_ids: Sequence[int], number: int) -> ModelOutput:
    """Return a reply in rLLM's format."""
    thought, closed, answer = completion.text.rpartition("</think>")
    return ModelOutput(
        text=completion.text,
        content=answer.lstrip() if closed else completion.text,
        reasoning=thought.removeprefix("<think>").strip(),
        prompt_ids=list(prompt_ids),
        completion_ids=list(completion.ids),
        logprobs=list(completion.logprobs),
        prompt_length=len(prompt_ids),
        completion_length=len(completion.ids),
        finish_reason=completion.finish_reason,
        weight_version=completion.weight_version,
        number=number,
    )
