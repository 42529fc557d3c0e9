"""One attempt at an episode of a workflow: runs the workflow's code and converts its exceptions to results."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rllm_gym.core import EnvironmentFault, Episode, StopReason, TaskError
from rllm_gym.engine.agent_session import AgentSession, check_finite
from rllm_gym.engine.attempt import AgentError, empty_episode
from rllm_gym.engine.attempt_state import AttemptState
from rllm_gym.engine.env_set import EnvSet
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.engine.workflow import Workflow
from rllm_gym.engine.workflow_context import WorkflowContext, check_stop_reason
from rllm_gym.samplers.protocol import SamplerError


class WorkflowAttempt:
    """A running workflow with its context and its result.

    Args:
        workflow: Its ``run`` is awaited.
        context: The argument of ``run``.
        state: The state that ``context`` shares with its agents and environments.
        envs: The environments of the attempt.
    """

    agent = None

    def __init__(self, workflow: Workflow, context: WorkflowContext, state: AttemptState, envs: EnvSet) -> None:
        self.stop_reason = StopReason.NONE
        self.error: Exception | None = None
        self.seconds = state.seconds
        self._workflow = workflow
        self._context = context
        self._state = state
        self._envs = envs
        self._episode: Episode | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(session.sampler.prompt_tokens for session in self._context.sessions.values())

    @property
    def usage(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for session in self._context.sessions.values():
            total.update(session.sampler.usage)
        return dict(total)

    @property
    def sampled_tokens(self) -> int:
        return sum(session.sampler.sampled_tokens for session in self._context.sessions.values())

    @property
    def started(self) -> bool:
        return any(session.steps for session in self._context.sessions.values())

    @property
    def conversations(self) -> Iterable[str]:
        return [session.sampler.name for session in self._context.sessions.values()]

    async def run(self) -> None:
        # In a separate task, so that code which catches every exception can be abandoned.
        work = asyncio.create_task(self._run())
        try:
            either: set[asyncio.Future[Any]] = {work, self._state.aborted}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=self._state.close_timeout)
        finally:
            self.error = self._state.error
            await self._state.aclose(work)
        if self._state.error is not None:
            # The workflow continued after the error. Discard what it returned.
            raise self._state.error
        if work.cancelled():
            raise self._failed(asyncio.CancelledError("the workflow cancelled its own task"))
        self._episode = work.result()
        self.stop_reason = self._episode.stop_reason
        await self._envs.end_episode()

    def to_episode(
        self, stop_reason: StopReason, message: str | None, *, env_id: str, attempts: int, seconds: float
    ) -> Episode:
        spec = self._state.spec
        identity = empty_episode(spec, stop_reason, message, env_id=env_id, attempts=attempts, seconds=seconds)
        identity.seconds |= self.seconds
        identity.task_id = self._state.task_id or identity.task_id
        returned = self._episode if message is None else None
        if returned is None and stop_reason is StopReason.TIMEOUT:
            returned = self._context.truncate(stop_reason)
        if returned is None:
            identity.trajectories = self._context.trajectories()
            identity.info = self._context.final_info()
            return identity
        return replace(
            identity,
            task_id=returned.task_id or identity.task_id,
            trajectories=returned.trajectories,
            reward=returned.reward,
            success=returned.success,
            info=returned.info,
            metrics=returned.metrics,
        )

    async def _run(self) -> Episode:
        try:
            returned = await self._workflow.run(self._state.spec.task, self._context)
            return self._validated(self._context.finish() if returned is None else returned)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._failed(error) from error
        except (Exception, SystemExit) as error:
            leaves = list(_leaf_errors(error))
            if self._state.error is not None:
                raise self._state.error from error
            # If several tasks failed together, errors of environments and samplers explain the others.
            for kind in (SamplerError, EnvironmentFault, TaskError):
                for leaf in leaves:
                    if isinstance(leaf, kind):
                        self._state.fail(leaf)
                        raise leaf from None
            wrong = [leaf for leaf in leaves if not isinstance(leaf, Truncated)]
            if not wrong:
                (cut, *_) = [leaf for leaf in leaves if isinstance(leaf, Truncated)]
                return self._truncated_episode(cut)
            if isinstance(wrong[0], AgentError):
                raise wrong[0] from None
            raise self._failed(wrong[0]) from error

    def _truncated_episode(self, cut: Truncated) -> Episode:
        try:
            return self._context.truncate(cut.stop_reason)
        except ValueError as error:  # a metric is not a number
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> AgentError:
        return AgentError(f"{type(self._workflow).__name__}.run raised {type(error).__name__}: {error}")

    def _validated(self, returned: object) -> Episode:
        """Check the episode that the workflow returned. The workflow may have created it itself."""
        if not isinstance(returned, Episode):
            raise TypeError(f"run() must return an Episode (context.finish()) or None; got {type(returned).__name__}")
        names = [trajectory.name for trajectory in returned.trajectories]
        if len(set(names)) != len(names):
            raise ValueError(f"the returned episode has several trajectories of the same name: {sorted(names)}")
        steps = [id(step) for trajectory in returned.trajectories for step in trajectory.steps]
        if len(set(steps)) != len(steps):
            raise ValueError(
                "the returned episode contains a step more than once; each step must be in one trajectory, once"
            )
        for trajectory in returned.trajectories:
            check_finite(f"reward of {trajectory.name}", trajectory.reward)
            for step in trajectory.steps:
                check_finite(f"reward of a step of {trajectory.name}", step.reward)
        self._check_tokens(returned)
        check_finite("reward of the episode", returned.reward)
        returned.metrics = {
            str(key): check_finite(f"metrics[{key!r}]", value) for key, value in returned.metrics.items()
        }
        if returned.stop_reason is StopReason.NONE:
            returned.stop_reason = StopReason.SUCCESS if returned.success else StopReason.FAILURE
        check_stop_reason(returned.stop_reason)
        return returned

    def _check_tokens(self, episode: Episode) -> None:
        """Check that every token was sampled in this episode, is used once, follows the replies it was conditioned on,
        and is trainable only if its role is."""
        sampled: dict[int, _SampledReply] = {}
        for agent_session in self._context.sessions.values():
            latest: dict[int, int] = {}
            for step in agent_session.steps:
                if step.tokens is not None:
                    reply = id(step.tokens.ids)
                    sampled[reply] = _SampledReply(
                        agent_session, step.tokens.context_ids, latest.get(step.tokens.branch)
                    )
                    latest[step.tokens.branch] = reply
        for trajectory in episode.trajectories:
            what = f"the returned trajectory {trajectory.name!r}"
            latest = {}
            for step in trajectory.steps:
                if step.tokens is None:
                    continue
                reply, branch = id(step.tokens.ids), step.tokens.branch
                known = sampled.pop(reply, None)
                if known is None:
                    raise ValueError(
                        f"{what} contains tokens that no agent of this episode sampled, or that are in another "
                        "step as well; use each step of context.finish() once"
                    )
                if step.tokens.context_ids is known.context_ids and latest.get(branch) != known.before:
                    raise ValueError(
                        f"{what} contains a reply of {known.session.name} without the previous one, which is part "
                        "of its prompt; keep the steps in order, and remove only the last ones"
                    )
                if trajectory.trainable and not self._context.roles[known.session.role].trainable:
                    raise ValueError(
                        f"{what} is trainable, but contains a reply of {known.session.name}, whose role "
                        f"{known.session.role!r} is not trainable; set trainable=False"
                    )
                latest[branch] = reply


@dataclass(frozen=True, slots=True)
class _SampledReply:
    """A sampled reply. Replies are identified by the identity of their ids, since two replies may have the same text,
    and steps may be copied, with their tokens in another numbering of branches."""

    session: AgentSession
    context_ids: tuple[int, ...]
    before: int | None  # identity of the previous reply in its branch


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaf_errors(inner)
    else:
        yield error
