"""One agent and the sampler: messages become a request, the reply comes back with its tokens, and both are counted."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import StopReason, TurnTokens
from rllm_gym.engine.conversation import Conversation
from rllm_gym.engine.crew import AgentFailed
from rllm_gym.samplers.protocol import Completion, Request, SamplerError, SamplingParams


@dataclass(slots=True)
class Voice:
    """Asks for one reply after the other in one conversation.

    Attributes:
        conversation: The tokens so far.
        sample: Draws one reply.
        params: How replies are drawn.
        name: The conversation's name for the sampler's cache.
        seed: Text from which the seed of each request is made, with the number of the turn.
        returns_tokens: Replies come with ids and log-probs.
        weights: Which weights of the sampler draw the replies.
        shown: The messages of the latest request.
        seconds: Seconds spent in rendering and in waiting for replies.
    """

    conversation: Conversation
    sample: Callable[[Request], Awaitable[Completion]]
    params: SamplingParams
    name: str
    seed: str
    returns_tokens: bool
    weights: str = ""
    shown: tuple[dict[str, Any], ...] = ()
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"sample": 0.0, "render": 0.0})

    def request(
        self, messages: Callable[[], Sequence[Mapping[str, Any]]], tools: str | None, turn: int
    ) -> Request | StopReason:
        """What to ask the sampler next, or why nothing more can be asked.

        Args:
            messages: Gives the whole conversation.
            tools: Schemas offered, as JSON.
            turn: Replies so far.

        Raises:
            AgentFailed: The messages cannot be rendered.
        """
        began = time.perf_counter()
        try:
            shown = self.shown = _snapshot(messages(), self.shown)
            self.conversation.extend(shown, tools)
        except Exception as error:
            raise AgentFailed(f"its messages cannot be rendered: {type(error).__name__}: {error}") from error
        finally:
            self.seconds["render"] += time.perf_counter() - began
        params = self.conversation.room(self.params)
        if isinstance(params, StopReason):
            return params
        self.prompt_tokens += len(self.conversation.context_ids)
        digest = hashlib.sha256(f"{self.seed}{turn}".encode()).digest()
        seed = int.from_bytes(digest[:8], "big") >> 1
        return Request(self.conversation.ids, params, seed, self.name, shown, self.weights)

    async def reply(self, request: Request) -> Completion:
        """
        Raises:
            SamplerError: The sampler cannot serve, or leaves out ids or log-probs.
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
                f"the sampler returned {len(completion.ids)} ids and {len(completion.logprobs)} log-probs for one "
                "reply; a sampler with returns_tokens=True gives at least one id, and one log-prob each"
            )
        self.sampled_tokens += len(completion.ids)
        return completion

    def append(self, completion: Completion) -> TurnTokens | None:
        """The reply becomes part of the conversation; its tokens for training, where the sampler gave some."""
        return self.conversation.append(completion)


def _snapshot(messages: Sequence[Mapping[str, Any]], before: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """Copies of the messages, since agents rewrite history in place. What did not change is the copy of ``before``:
    otherwise the record of a long conversation would grow with the square of its turns."""
    kept = 0
    for old, new in zip(before, messages, strict=False):
        if old != new:
            break
        kept += 1
    return before[:kept] + tuple(_copied(message) for message in messages[kept:])


def _copied(message: Mapping[str, Any]) -> dict[str, Any]:
    flat = all(isinstance(value, str) for value in message.values())
    return dict(message) if flat else copy.deepcopy(dict(message))
