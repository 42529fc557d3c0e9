"""The link between one agent and the sampler: renders messages to a request, and records the tokens of the reply."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import StopReason, TurnTokens
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.conversation import ConversationTokens
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingParams, SamplingRequest


@dataclass(slots=True)
class ConversationSampler:
    """Requests the replies of one conversation, one after another.

    Attributes:
        conversation: The tokens so far.
        sample: Samples one reply.
        params: Sampling parameters.
        name: Name of the conversation, for the sampler's cache.
        seed: Text from which, together with the turn number, the seed of each request is derived.
        returns_tokens: Whether replies come with ids and log-probs.
        weights: Name of the weights that sample the replies.
        messages: The messages of the latest request.
        prompt_tokens: Number of tokens appended to the context.
        sampled_tokens: Number of tokens sampled.
        truncated_replies: Number of replies that a token limit has cut.
        input_tokens: Number of tokens of the prompts, each of which is counted as a whole: what endpoints bill.
        seconds: Seconds spent rendering and waiting for replies.
    """

    conversation: ConversationTokens
    sample: Callable[[SamplingRequest], Awaitable[Completion]]
    params: SamplingParams
    name: str
    seed: str
    returns_tokens: bool
    weights: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    truncated_replies: int = 0
    input_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"sample": 0.0, "render": 0.0})
    _tools: str | None = None
    _prompt: tuple[int, tuple[int, ...]] = (-1, ())  # the latest prompt, after the number of replies before it

    def request(
        self, messages: Callable[[], Sequence[Mapping[str, Any]]], tools: str | None, turn: int
    ) -> SamplingRequest | StopReason:
        """Return the next request to the sampler, or the stop reason if no request is possible.

        Args:
            messages: Returns the whole conversation.
            tools: The offered tool schemas, as JSON.
            turn: Number of replies so far.

        Raises:
            AgentError: The messages cannot be rendered.
        """
        self._render(messages, tools, turn)
        params = self.conversation.limit_params(self.params)
        if isinstance(params, StopReason):
            return params
        self.prompt_tokens += len(self.conversation.context_ids)
        digest = hashlib.sha256(f"{self.seed}{turn}".encode()).digest()
        seed = int.from_bytes(digest[:8], "big") >> 1
        return SamplingRequest(self.conversation.ids, params, seed, self.name, self.messages, self.weights)

    def final_ids(self, messages: Callable[[], Sequence[Mapping[str, Any]]], turn: int) -> tuple[int, ...]:
        """Return the prompt of the next reply after a truncated episode; empty if there is none, or if it does not fit
        the context.

        Args:
            messages: Returns the whole conversation.
            turn: Number of replies of the episode.
        """
        if self._prompt[0] != turn:
            with contextlib.suppress(AgentError):  # the episode is complete without it
                self._render(messages, self._tools, turn)
                if self.messages[-1].get("role") == "assistant":  # the agent did not keep the last observation
                    return ()
        at_turn, ids = self._prompt
        return ids if at_turn == turn else ()

    def _render(self, messages: Callable[[], Sequence[Mapping[str, Any]]], tools: str | None, turn: int) -> None:
        began = time.perf_counter()
        try:
            shown = self.messages = _snapshot(messages(), self.messages)
            self.conversation.extend(shown, tools)
        except Exception as error:
            raise AgentError(
                f"the messages of the agent cannot be rendered: {type(error).__name__}: {error}"
            ) from error
        finally:
            self.seconds["render"] += time.perf_counter() - began
        self._tools = tools
        self._prompt = turn, self.conversation.ids if self.conversation.fits else ()

    @property
    def usage(self) -> dict[str, int]:
        """The counts of an episode's record: :attr:`~rllm_gym.core.Episode.usage`."""
        names = ("input_tokens", "sampled_tokens", "truncated_replies")
        return {name: getattr(self, name) for name in names}

    async def reply(self, request: SamplingRequest) -> Completion:
        """Request one reply from the sampler.

        Raises:
            SamplerError: The sampler failed, or returned no ids or log-probs.
        """
        began = time.perf_counter()
        try:
            completion = await self.sample(request)
        finally:
            self.seconds["sample"] += time.perf_counter() - began
        nothing_sampled = completion.finish_reason == "context_length"
        complete = completion.ids and len(completion.ids) == len(completion.logprobs)
        if self.returns_tokens and not complete and not nothing_sampled:
            raise SamplerError(
                f"the sampler returned {len(completion.ids)} ids and {len(completion.logprobs)} log-probs for "
                "one reply; a sampler with returns_tokens=True must return at least one id, and one log-prob "
                "per id"
            )
        prompt, sampled = completion.usage or (len(request.ids), len(completion.ids))
        self.input_tokens += prompt
        self.sampled_tokens += sampled
        self.truncated_replies += completion.finish_reason == "length"
        return completion

    def append(self, completion: Completion) -> TurnTokens | None:
        """Append the reply to the conversation and return its tokens for training, if the sampler gave any."""
        return self.conversation.append(completion)


def _snapshot(messages: Sequence[Mapping[str, Any]], before: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """Copy the messages, since agents rewrite history in place. Unchanged messages share the copy in ``before``;
    otherwise the memory for a long conversation would grow with the square of its turns."""
    kept = 0
    for old, new in zip(before, messages, strict=False):
        if old != new:
            break
        kept += 1
    return before[:kept] + tuple(_copied(message) for message in messages[kept:])


def _copied(message: Mapping[str, Any]) -> dict[str, Any]:
    flat = all(isinstance(value, str) for value in message.values())
    return dict(message) if flat else copy.deepcopy(dict(message))
