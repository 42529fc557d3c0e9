"""Deterministic sampling: requests wait for each other, so that a batch depends only on the episodes, not on timing."""

from __future__ import annotations

import asyncio

from rllm_gym.samplers.protocol import Completion, Sampler, SamplerError, SamplingRequest


class SamplingBarrier:
    """Collects the requests of all running episodes, then samples them as one batch, in episode order.

    An episode loop runs one episode after another. A round is sampled when every registered loop waits here and none
    waits for anything else. Sampler caches are released at that moment too, in episode order. The
    result does not depend on clocks or threads.

    Several agents of one episode may wait at the same time, in tasks of the user's code. A round that looks complete
    therefore stays open for ``settle_turns`` event loop iterations after the last event, to give a task that was just
    resumed by a reply or an environment the time to request its own reply.

    Args:
        sampler: Samples the replies.
        settle_turns: Event loop iterations to wait; 0 if each episode loop is a single task, which needs no wait.
    """

    def __init__(self, sampler: Sampler, *, settle_turns: int = 0) -> None:
        self._sampler = sampler
        self._settle_turns = settle_turns
        self._running = 0
        self._busy = 0
        self._started = False
        self._waiting: dict[int, dict[str, tuple[SamplingRequest, asyncio.Future[Completion]]]] = {}
        self._to_release: list[tuple[int, str]] = []
        self._round: asyncio.Task[None] | None = None
        self._turns_left = 0
        self._settling = False

    def register(self) -> None:
        """Register one more episode loop."""
        self._running += 1

    def start(self) -> None:
        """Allow rounds to start, after all loops are registered."""
        self._started = True
        self._check_round()

    async def sample(self, index: int, request: SamplingRequest, agent_name: str = "") -> Completion:
        """Return the reply for an agent of the episode at position ``index``, after its round was sampled."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        pending = self._waiting.setdefault(index, {})
        pending[agent_name] = (request, future)
        self._check_round()
        try:
            return await future
        finally:
            pending.pop(agent_name, None)
            if not pending and self._waiting.get(index) is pending:
                del self._waiting[index]

    def begin_work(self) -> None:
        """Record that an episode loop waits for an environment or a call."""
        self._busy += 1

    def end_work(self) -> None:
        """Record that an episode loop no longer waits for an environment or a call."""
        self._busy -= 1
        self._check_round()

    def release(self, index: int, conversation: str) -> None:
        """Drop the sampler's cache of a conversation before the next round is sampled."""
        self._to_release.append((index, conversation))

    def leave(self) -> None:
        """Unregister an episode loop that has no more episodes."""
        self._running -= 1
        self._check_round()

    async def aclose(self) -> None:
        """Cancel the current round and release the remaining caches."""
        self._started = False
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await self._release()

    # Private methods

    def _full(self) -> bool:
        return self._started and bool(self._waiting) and not self._busy and len(self._waiting) == self._running

    def _check_round(self) -> None:
        if self._round is not None or not self._full():
            return
        self._turns_left = self._settle_turns
        if not self._settle_turns:
            self._begin_round()
        elif not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._on_loop_turn)

    def _on_loop_turn(self) -> None:
        if self._round is not None or not self._full():
            self._settling = False
        elif self._turns_left:
            self._turns_left -= 1
            asyncio.get_running_loop().call_soon(self._on_loop_turn)
        else:
            self._settling = False
            self._begin_round()

    def _begin_round(self) -> None:
        batch = [
            entry
            for _, pending in sorted(self._waiting.items(), key=lambda item: item[0])
            for _, entry in sorted(pending.items(), key=lambda item: item[0])
        ]
        self._waiting = {}
        self._round = asyncio.get_running_loop().create_task(self._sample(batch))

    async def _sample(self, batch: list[tuple[SamplingRequest, asyncio.Future[Completion]]]) -> None:
        try:
            await self._release()
            completions = check_completions(await self._sampler.sample([request for request, _ in batch]), len(batch))
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            for (_, future), completion in zip(batch, completions, strict=True):
                if not future.done():
                    future.set_result(completion)
        finally:
            self._round = None
            # A request may have arrived meanwhile from a loop that no longer waits for this round.
            self._check_round()

    async def _release(self) -> None:
        names, self._to_release = sorted(self._to_release), []
        for _, conversation in names:
            await self._sampler.release(conversation)


def check_completions(completions: list[Completion], requests: int) -> list[Completion]:
    """Check that a sampler returned one completion per request, and return the completions.

    Raises:
        SamplerError: There are more or fewer.
    """
    if len(completions) != requests:
        raise SamplerError(f"the sampler returned {len(completions)} completions for {requests} requests")
    return completions
