"""The connection of one episode to the sampler: samples immediately, or in the rounds of a deterministic run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rllm_gym.engine.sampling_barrier import SamplingBarrier, check_completions
from rllm_gym.samplers.protocol import Completion, Sampler, SamplingRequest


@dataclass(slots=True, frozen=True)
class SamplerClient:
    """Requests replies for one episode: immediately, or in rounds together with all other episodes.

    Attributes:
        index: Position of the episode's spec.
        sampler: Samples the replies.
        barrier: The rounds of a deterministic run, else ``None``.
    """

    index: int
    sampler: Sampler
    barrier: SamplingBarrier | None

    async def sample(self, request: SamplingRequest, agent_name: str = "") -> Completion:
        """Request one reply. ``agent_name`` distinguishes the agents of an episode that request at the same time."""
        if self.barrier is not None:
            return await self.barrier.sample(self.index, request, agent_name)
        (completion,) = check_completions(await self.sampler.sample([request]), 1)
        return completion

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark that the episode waits for something other than a reply, so that no round starts."""
        if self.barrier is None:
            yield
            return
        self.barrier.begin_work()
        try:
            yield
        finally:
            self.barrier.end_work()

    async def release(self, conversation: str) -> None:
        """Drop the sampler's cache of a conversation; with rounds, before the next round."""
        if self.barrier is not None:
            self.barrier.release(self.index, conversation)
        else:
            await self.sampler.release(conversation)
