"""Deterministic sampling: requests wait for each other, so that no batch depends on anything but the episodes."""

from __future__ import annotations

import asyncio

from rllm_gym.samplers.protocol import Completion, Request, Sampler, SamplerError


class Rounds:
    """Collects one request of every running episode, then samples them together, in episode order.

    A lane is a place where episodes run one after the other. A round is sampled when every lane that is not
    retired waits here; caches are released at that moment too, in episode order. No clock and no thread decides.

    Args:
        sampler: What draws the replies.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._running = 0
        self._open = False
        self._waiting: dict[int, tuple[Request, asyncio.Future[Completion]]] = {}
        self._to_release: list[tuple[int, str]] = []
        self._round: asyncio.Task[None] | None = None

    def enlist(self) -> None:
        """One more lane runs."""
        self._running += 1

    def open(self) -> None:
        """All lanes are enlisted: rounds may begin."""
        self._open = True
        self._sample_if_full()

    async def sample(self, index: int, request: Request) -> Completion:
        """The reply for the episode at position ``index``, when the round is full."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[index] = (request, future)
        self._sample_if_full()
        try:
            return await future
        finally:
            self._waiting.pop(index, None)

    def release(self, index: int, conversation: str) -> None:
        """Forget a conversation before the next round is sampled."""
        self._to_release.append((index, conversation))

    def retire(self) -> None:
        """A lane found no more episodes."""
        self._running -= 1
        self._sample_if_full()

    async def aclose(self) -> None:
        """Release what is left; nothing waits any more."""
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await self._release()

    def _sample_if_full(self) -> None:
        if self._open and self._waiting and len(self._waiting) == self._running:
            batch = sorted(self._waiting.items())
            self._waiting = {}
            self._round = asyncio.get_running_loop().create_task(self._sample([entry for _, entry in batch]))

    async def _sample(self, batch: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        try:
            await self._release()
            completions = one_each(await self._sampler.sample([request for request, _ in batch]), len(batch))
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for (_, future), completion in zip(batch, completions, strict=True):
            if not future.done():
                future.set_result(completion)

    async def _release(self) -> None:
        names, self._to_release = sorted(self._to_release), []
        for _, conversation in names:
            await self._sampler.release(conversation)


def one_each(completions: list[Completion], requests: int) -> list[Completion]:
    """What a sampler returned, one completion for each request.

    Raises:
        SamplerError: There are more or fewer.
    """
    if len(completions) != requests:
        raise SamplerError(f"the sampler returned {len(completions)} completions for {requests} requests")
    return completions
