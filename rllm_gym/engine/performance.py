"""One attempt at an episode of a workflow: runs the workflow's code and converts its exceptions to results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rllm_gym.core import EnvironmentFault, Episode, StopReason, TaskError
from rllm_gym.engine.crew import AgentFailed, unplayed
from rllm_gym.engine.play import Play, check_reason
from rllm_gym.engine.speaker import Speaker, Truncated, finite
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.stage import Stage
from rllm_gym.engine.workflow import Workflow
from rllm_gym.samplers.protocol import SamplerError


class Performance:
    """A running workflow with its play and its result.

    Args:
        workflow: Its ``run`` is awaited.
        play: The argument of ``run``.
        spec: The episode to run.
        stage: The environments of the play.
    """

    agent = None

    def __init__(self, workflow: Workflow, play: Play, spec: EpisodeSpec, stage: Stage) -> None:
        self.stop_reason = StopReason.NONE
        self.broken: Exception | None = None
        self.seconds = play.seconds
        self._workflow = workflow
        self._play = play
        self._spec = spec
        self._stage = stage
        self._episode: Episode | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(speaker.voice.prompt_tokens for speaker in self._play.speakers.values())

    @property
    def sampled_tokens(self) -> int:
        return sum(speaker.voice.sampled_tokens for speaker in self._play.speakers.values())

    @property
    def begun(self) -> bool:
        return any(speaker.steps for speaker in self._play.speakers.values())

    @property
    def conversations(self) -> Iterable[str]:
        return [speaker.voice.name for speaker in self._play.speakers.values()]

    async def play(self) -> None:
        # In a separate task, so that code which catches every exception can be abandoned.
        work = asyncio.create_task(self._run())
        try:
            either: set[asyncio.Future[Any]] = {work, self._play.broken_off}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=self._play.seconds_to_end)
        finally:
            self.broken = self._play.broken
            await self._play.aclose(work)
        if self._play.broken is not None:
            # The workflow continued after the error. Discard what it returned.
            raise self._play.broken
        if work.cancelled():
            raise self._failed(asyncio.CancelledError("it cancelled its own task"))
        self._episode = work.result()
        self.stop_reason = self._episode.stop_reason
        await self._stage.end()

    def episode(
        self, stop_reason: StopReason, why: str | None, *, env_id: str, attempts: int, seconds: float
    ) -> Episode:
        identity = unplayed(self._spec, stop_reason, why, env_id=env_id, attempts=attempts, seconds=seconds)
        identity.seconds |= self.seconds
        identity.task_id = self._play.task_id or identity.task_id
        made = self._episode if why is None else None
        if made is None and stop_reason is StopReason.TIMEOUT:
            made = self._play.cut_off(stop_reason)
        if made is None:
            identity.trajectories = self._play.so_far()
            identity.info = self._play.told()
            return identity
        return replace(
            identity,
            task_id=made.task_id or identity.task_id,
            trajectories=made.trajectories,
            reward=made.reward,
            success=made.success,
            info=made.info,
            metrics=made.metrics,
        )

    async def _run(self) -> Episode:
        try:
            made = await self._workflow.run(self._spec.task, self._play)
            return self._checked(self._play.finish() if made is None else made)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._failed(error) from error
        except (Exception, SystemExit) as error:
            leaves = list(_leaves(error))
            if self._play.broken is not None:
                raise self._play.broken from error
            # If several tasks failed together, errors of environments and samplers explain the others.
            for kind in (SamplerError, EnvironmentFault, TaskError):
                for leaf in leaves:
                    if isinstance(leaf, kind):
                        self._play.fail(leaf)
                        raise leaf from None
            wrong = [leaf for leaf in leaves if not isinstance(leaf, Truncated)]
            if not wrong:
                (cut, *_) = [leaf for leaf in leaves if isinstance(leaf, Truncated)]
                return self._cut_off(cut)
            if isinstance(wrong[0], AgentFailed):
                raise wrong[0] from None
            raise self._failed(wrong[0]) from error

    def _cut_off(self, cut: Truncated) -> Episode:
        try:
            return self._play.cut_off(cut.stop_reason)
        except ValueError as error:  # a metric is not a number
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> AgentFailed:
        return AgentFailed(f"{type(self._workflow).__name__}.run raised {type(error).__name__}: {error}")

    def _checked(self, made: object) -> Episode:
        """Check the episode that the workflow returned. The workflow may have created it itself."""
        if not isinstance(made, Episode):
            raise TypeError(f"it returned {type(made).__name__}, neither an Episode (play.finish()) nor None")
        names = [trajectory.name for trajectory in made.trajectories]
        if len(set(names)) != len(names):
            raise ValueError(f"its episode has several trajectories of one name: {sorted(names)}")
        steps = [id(step) for trajectory in made.trajectories for step in trajectory.steps]
        if len(set(steps)) != len(steps):
            raise ValueError("its episode has one step in several places; each belongs to one trajectory, once")
        for trajectory in made.trajectories:
            finite(f"reward of {trajectory.name}", trajectory.reward)
            for step in trajectory.steps:
                finite(f"reward of a step of {trajectory.name}", step.reward)
        self._check_tokens(made)
        finite("reward of the episode", made.reward)
        made.metrics = {str(key): finite(f"metrics[{key!r}]", value) for key, value in made.metrics.items()}
        if made.stop_reason is StopReason.NONE:
            made.stop_reason = StopReason.SUCCESS if made.success else StopReason.FAILURE
        check_reason(made.stop_reason)
        return made

    def _check_tokens(self, made: Episode) -> None:
        """Check that every token was sampled in this episode, is used once, follows the replies it was conditioned on,
        and is trainable only if its role is."""
        sampled: dict[int, _Sampled] = {}
        for speaker in self._play.speakers.values():
            latest: dict[int, int] = {}
            for step in speaker.steps:
                if step.tokens is not None:
                    reply = id(step.tokens.ids)
                    sampled[reply] = _Sampled(speaker, step.tokens.context_ids, latest.get(step.tokens.branch))
                    latest[step.tokens.branch] = reply
        for trajectory in made.trajectories:
            what = f"its trajectory {trajectory.name!r}"
            latest = {}
            for step in trajectory.steps:
                if step.tokens is None:
                    continue
                reply, branch = id(step.tokens.ids), step.tokens.branch
                known = sampled.pop(reply, None)
                if known is None:
                    raise ValueError(
                        f"{what} holds tokens that no agent of this episode sampled, or that are in another step as "
                        "well; take each step of play.finish() once"
                    )
                if step.tokens.context_ids is known.context_ids and latest.get(branch) != known.before:
                    raise ValueError(
                        f"{what} holds a reply of {known.speaker.name} without the one before it, which is part of its "
                        "prompt; keep them in order, and leave out none but the last ones"
                    )
                if trajectory.trainable and not self._play.roles[known.speaker.role].trainable:
                    raise ValueError(
                        f"{what} is trainable, but {known.speaker.name} spoke in it, whose role "
                        f"{known.speaker.role!r} is not trained; set trainable=False"
                    )
                latest[branch] = reply


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A sampled reply. Replies are identified by the identity of their ids, since two replies may have the same text,
    and steps may be copied, with their tokens in another numbering of branches."""

    speaker: Speaker
    context_ids: tuple[int, ...]
    before: int | None  # identity of the previous reply in its branch


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
