"""One run of the engine: lanes that play one episode after the other, retries, and the line of results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rllm_gym.agents import BaseAgent
from rllm_gym.core import EnvironmentFault, Episode, StopReason, TaskError
from rllm_gym.engine.conversation import Conversation
from rllm_gym.engine.progress import RunProgress
from rllm_gym.engine.rollout import AgentFailed, Rollout, greedy, unplayed
from rllm_gym.engine.rounds import Rounds, one_each
from rllm_gym.engine.slot import Slot
from rllm_gym.engine.spec import EpisodeSpec, as_spec
from rllm_gym.samplers.protocol import Completion, Request, SamplerError

if TYPE_CHECKING:
    from rllm_gym.engine.execution import AgentExecutionEngine, Specs

_log = logging.getLogger(__name__)

_TOLD = 20  # faults of a kind that are logged as warnings

Result = tuple[int, Episode, BaseAgent | None]
"""Position of the spec, its episode, and the agent that played it last."""


class EnvironmentUnavailable(RuntimeError):
    """No environment could be made at all: an argument, an import or a file is wrong. Names the reason."""


class Crew:
    """Plays the specs of one run.

    Args:
        engine: Whose environments, agents and sampler are used, and whose stats are kept.
        specs: What to run.
        run: Number of the run within the engine; keeps names of conversations apart.
    """

    def __init__(self, engine: AgentExecutionEngine, specs: Specs, *, run: int) -> None:
        self._engine = engine
        self._run = run
        self._specs = _numbered(specs)
        self._taking = asyncio.Lock()
        self._ids: set[str] = set()
        self._done: asyncio.Queue[Result | None] = asyncio.Queue(maxsize=engine.n_parallel)
        self._rounds: Rounds | None = None
        self._work: asyncio.Task[None] | None = None
        self._left = False  # nobody reads results any more
        self._progress = RunProgress(engine.progress, total=len(specs) if isinstance(specs, Sized) else None)

    async def results(self) -> AsyncIterator[Result]:
        """As they finish; deterministic runs in order of position."""
        self._work = asyncio.create_task(self._play())
        waiting: dict[int, Result] = {}
        position = 0
        with self._progress:
            while (result := await self._done.get()) is not None:
                self._progress.advance(self._engine.stats)
                if not self._engine.deterministic:
                    yield result
                    continue
                waiting[result[0]] = result
                while position in waiting:
                    yield waiting.pop(position)
                    position += 1
        await self._work  # raises what ended the run

    async def aclose(self) -> None:
        """End what still runs and release what the sampler keeps for it."""
        self._left = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        try:
            async with asyncio.TaskGroup() as lanes:
                if self._engine.deterministic:
                    self._rounds = Rounds(self._engine.sampler)
                for _ in range(self._engine.n_parallel):
                    taken = await self._take()
                    if taken is None:
                        break
                    if self._rounds is not None:
                        self._rounds.enlist()
                    lanes.create_task(self._lane(*taken))
                if self._rounds is not None:
                    self._rounds.open()
        except BaseExceptionGroup as errors:
            # One reason is enough; the others are mostly its consequences.
            raise errors.exceptions[0] from None
        finally:
            if self._rounds is not None:
                await self._rounds.aclose()
            if not self._left:
                await self._done.put(None)

    async def _lane(self, index: int, spec: EpisodeSpec) -> None:
        slot = self._engine.take_slot()
        try:
            while True:
                episode, agent = await self._episode(index, spec, slot)
                self._record(episode)
                await self._done.put((index, episode, agent))
                taken = await self._take()
                if taken is None:
                    break
                index, spec = taken
        except BaseException:
            await slot.aclose()
            raise
        self._engine.give_back(slot)
        if self._rounds is not None:
            self._rounds.retire()

    async def _take(self) -> tuple[int, EpisodeSpec] | None:
        async with self._taking:
            taken = await anext(self._specs, None)
        if taken is None:
            return None
        index, item = taken
        spec = as_spec(item, run_seed=self._engine.seed, index=index)
        if not spec.episode_id:
            spec = replace(spec, episode_id=f"{self._run}-{index}")
        if spec.episode_id in self._ids:
            raise ValueError(f"two specs have the episode_id {spec.episode_id!r}; ids are unique within a run")
        self._ids.add(spec.episode_id)
        return index, spec

    async def _episode(self, index: int, spec: EpisodeSpec, slot: Slot) -> tuple[Episode, BaseAgent | None]:
        """Play a spec, again on a fresh environment after a fault, and record what came of it."""
        engine = self._engine
        began = time.perf_counter()
        attempts = 0
        rollout: Rollout | None = None
        stop_reason: StopReason | None = None
        why: str | None = None
        try:
            async with asyncio.timeout(engine.deadlines.episode) as deadline:
                while stop_reason is None:
                    attempts += 1
                    try:
                        rollout = self._rollout(index, spec, slot, attempts)
                        await self._attempt(index, rollout)
                        stop_reason = rollout.stop_reason
                    except EnvironmentFault as fault:
                        self._count(fault.kind, spec, fault)
                        await slot.discard()
                        if attempts > engine.retries:
                            if not engine.made.is_set():
                                raise EnvironmentUnavailable(f"no environment could be made: {fault}") from fault
                            stop_reason, why = StopReason.FAULT, str(fault)
                        else:
                            engine.stats.retries += 1
        except TaskError as error:
            # The same task fails the same way on every environment.
            self._count("task", spec, error)
            stop_reason, why = StopReason.FAULT, str(error)
        except AgentFailed as error:
            self._count("agent", spec, error)
            stop_reason, why = StopReason.AGENT_ERROR, str(error)
        except SamplerError as error:
            if engine.on_sampler_error == "raise":
                raise
            self._count("sampler", spec, error)
            stop_reason, why = StopReason.FAULT, str(error)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if rollout is not None and rollout.steps:
                stop_reason = StopReason.TIMEOUT
            else:
                self._count("episode_deadline", spec, error)
                stop_reason = StopReason.FAULT
                why = f"no turn was done within the episode's {engine.deadlines.episode:g} s"
        if why is not None or stop_reason is StopReason.TIMEOUT:
            await slot.discard()
        seconds = time.perf_counter() - began
        if rollout is None:
            return unplayed(spec, stop_reason, why, env_id=engine.env_id, attempts=attempts, seconds=seconds), None
        engine.stats.prompt_tokens += rollout.prompt_tokens
        engine.stats.sampled_tokens += rollout.sampled_tokens
        engine.stats.seconds.update(rollout.seconds)
        episode = rollout.episode(stop_reason, why, env_id=engine.env_id, attempts=attempts, seconds=seconds)
        return episode, rollout.agent

    def _count(self, kind: str, spec: EpisodeSpec, error: Exception) -> None:
        faults = self._engine.stats.faults
        faults[kind] += 1
        # A world that breaks a thousand times is told of often enough by then.
        level = logging.WARNING if faults[kind] <= _TOLD else logging.DEBUG
        more = "; further ones of this kind are only counted" if faults[kind] == _TOLD else ""
        _log.log(level, "episode %s: fault (%s): %s%s", spec.episode_id, kind, error, more)

    def _rollout(self, index: int, spec: EpisodeSpec, slot: Slot, attempt: int) -> Rollout:
        engine = self._engine

        async def sample(request: Request) -> Completion:
            if self._rounds is not None:
                return await self._rounds.sample(index, request)
            (completion,) = one_each(await engine.sampler.sample([request]), 1)
            return completion

        try:
            agent = engine.make_agent()
        except Exception as error:
            raise AgentFailed(f"making the agent raised {type(error).__name__}: {error}") from error
        if not isinstance(agent, BaseAgent):
            raise TypeError(
                f"agent= gave a {type(agent).__name__}, not a BaseAgent; derive it from rllm_gym.agents.BaseAgent"
            )
        return Rollout(
            spec=spec,
            agent=agent,
            slot=slot,
            conversation=Conversation(engine.renderer, engine.budget, engine.sampler.context_length),
            sample=sample,
            params=greedy(engine.params) if spec.greedy else engine.params,
            name=f"{self._run}/{spec.episode_id}/{attempt}",
            max_turns=engine.budget.max_turns,
            returns_tokens=engine.sampler.returns_tokens,
        )

    async def _attempt(self, index: int, rollout: Rollout) -> None:
        try:
            await rollout.play()
        finally:
            if self._rounds is not None:
                self._rounds.release(index, rollout.name)
            else:
                await self._engine.sampler.release(rollout.name)

    def _record(self, episode: Episode) -> None:
        stats = self._engine.stats
        stats.episodes += 1
        stats.turns += episode.num_turns
        stats.stop_reasons[episode.stop_reason.value] += 1
        if episode.stop_reason is StopReason.FAULT:
            stats.dropped += 1
        elif episode.trainable:
            stats.rewards += episode.reward


async def _numbered(specs: Specs) -> AsyncGenerator[tuple[int, Any], None]:
    index = 0
    if isinstance(specs, AsyncIterable):
        async for item in specs:
            yield index, item
            index += 1
    else:
        for item in specs:
            yield index, item
            index += 1
