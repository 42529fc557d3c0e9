"""Deterministic sampling: requests wait for each other, so that no batch depends on anything but the episodes."""

from __future__ import annotations

import asyncio

from rllm_gym.samplers.protocol import Completion, Request, Sampler, SamplerError


class Rounds:
    """Collects the requests of every running episode, then samples them together, in episode order.

    A lane is a place where episodes run one after the other. A round is sampled when every lane that is not
    retired waits here and nothing else is waited for; caches are released at that moment too, in episode order. No
    clock and no thread decides.

    Several speakers of one episode may wait at the same time, in tasks of the user's own. A round that looks full
    then stays open for ``settle`` turns of the event loop after the last thing that happened: time for a task that a
    reply or a world has just woken to ask for its own.

    Args:
        sampler: What draws the replies.
        settle: Turns of the event loop; 0 where each lane is one task, so that full is full.
    """

    def __init__(self, sampler: Sampler, *, settle: int = 0) -> None:
        self._sampler = sampler
        self._settle = settle
        self._running = 0
        self._at_work = 0
        self._open = False
        self._waiting: dict[int, dict[str, tuple[Request, asyncio.Future[Completion]]]] = {}
        self._to_release: list[tuple[int, str]] = []
        self._round: asyncio.Task[None] | None = None
        self._turns_left = 0
        self._settling = False

    def enlist(self) -> None:
        """One more lane runs."""
        self._running += 1

    def open(self) -> None:
        """All lanes are enlisted: rounds may begin."""
        self._open = True
        self._something_happened()

    async def sample(self, index: int, request: Request, speaker: str = "") -> Completion:
        """The reply for a speaker of the episode at position ``index``, when the round is full."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        asking = self._waiting.setdefault(index, {})
        asking[speaker] = (request, future)
        self._something_happened()
        try:
            return await future
        finally:
            asking.pop(speaker, None)
            if not asking and self._waiting.get(index) is asking:
                del self._waiting[index]

    def begin_work(self) -> None:
        """Some lane waits for a world or a call."""
        self._at_work += 1

    def end_work(self) -> None:
        """It waits no longer."""
        self._at_work -= 1
        self._something_happened()

    def release(self, index: int, conversation: str) -> None:
        """Forget a conversation before the next round is sampled."""
        self._to_release.append((index, conversation))

    def retire(self) -> None:
        """A lane found no more episodes."""
        self._running -= 1
        self._something_happened()

    async def aclose(self) -> None:
        """Release what is left; nothing waits any more."""
        self._open = False
        if self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)
        await self._release()

    # ------------------------------------------------------------------------------------------------------

    def _full(self) -> bool:
        return self._open and bool(self._waiting) and not self._at_work and len(self._waiting) == self._running

    def _something_happened(self) -> None:
        if self._round is not None or not self._full():
            return
        self._turns_left = self._settle
        if not self._settle:
            self._begin_round()
        elif not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self._round is not None or not self._full():
            self._settling = False
        elif self._turns_left:
            self._turns_left -= 1
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._settling = False
            self._begin_round()

    def _begin_round(self) -> None:
        batch = [
            entry
            for _, asking in sorted(self._waiting.items(), key=lambda item: item[0])
            for _, entry in sorted(asking.items(), key=lambda item: item[0])
        ]
        self._waiting = {}
        self._round = asyncio.get_running_loop().create_task(self._sample(batch))

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
        else:
            for (_, future), completion in zip(batch, completions, strict=True):
                if not future.done():
                    future.set_result(completion)
        finally:
            self._round = None
            # Someone may have asked meanwhile, whose lane no longer waits for this round.
            self._something_happened()

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
