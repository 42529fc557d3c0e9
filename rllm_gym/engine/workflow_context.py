"""The context of one attempt at a workflow episode: gives the workflow its agents, environments and result."""

from __future__ import annotations

import asyncio
import re
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.core import EnvironmentFault, Episode, StopReason, Task, Trajectory
from rllm_gym.engine.agent_session import AgentSession, TokenBudget, Truncated, check_finite
from rllm_gym.engine.engine_run import AgentError, SamplerClient
from rllm_gym.engine.env_host import EnvironmentHost, resolve
from rllm_gym.engine.env_set import EnvSet
from rllm_gym.engine.game_host import GameHost, resolve_game
from rllm_gym.engine.handles import EnvironmentHandle, GameHandle, WorkerHandle
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.task_cancellation import cancel_tasks
from rllm_gym.engine.workflow import Role
from rllm_gym.runtime import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError

if TYPE_CHECKING:
    from rllm_gym.engine.workflow_engine import AgentWorkflowEngine

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_REFUSALS = 1_000  # number of refusals after which code that catches every exception is ended
# The stop reasons that a workflow may set; the engine sets the others.
_WORKFLOW_STOP_REASONS = frozenset(StopReason) - {
    StopReason.NONE,
    StopReason.FAULT,
    StopReason.AGENT_ERROR,
    StopReason.CANCELLED,
}


class WorkflowContext:
    """One attempt at one episode, created by the engine and passed to a workflow's ``run``.

    A workflow makes everything that takes time through this object: replies, environments and calls. In a
    deterministic run it must not wait for anything else, except for its own tasks.

    Attributes:
        seed: Seed of the episode's dynamics.
        greedy: Whether replies are sampled at temperature 0.
        group_id: Name of the group of episodes whose rewards are compared.
        episode_id: Unique within the run.
        task: The task, as in the spec.
        roles: The configuration of each role.
        metrics: Metrics of the whole episode; the workflow writes them.
    """

    def __init__(
        self,
        engine: AgentWorkflowEngine,
        spec: EpisodeSpec,
        *,
        roles: Mapping[str, Role],
        envs: EnvSet,
        sampler_client: SamplerClient,
        name: str,
    ) -> None:
        self.seed = spec.seed or 0
        self.greedy = spec.greedy
        self.group_id = spec.group_id
        self.episode_id = spec.episode_id
        self.task = spec.task
        self.roles = dict(roles)
        self.metrics: dict[str, float] = {}
        self.handles: list[WorkerHandle] = []
        self.task_row = _row(spec.task)
        self.task_id = str((self.task_row or {}).get("task_id", ""))
        self.sampler_client = sampler_client
        self.name = name
        self.sessions: dict[str, AgentSession] = {}
        self.seconds = {"env": 0.0, "sample": 0.0, "render": 0.0, "agent": 0.0}
        self.token_budget = TokenBudget(engine.max_episode_tokens, engine.budget.max_turns)
        self.error: Exception | None = None
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.close_timeout = engine.deadlines.close
        self._refused = 0
        self._engine = engine
        self._envs = envs
        self._closed = False
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    # Agents

    def agent(
        self,
        name: str,
        role: str | None = None,
        *,
        system: str | None = None,
        agent: BaseAgent | None = None,
        tools: Sequence[Mapping[str, Any]] | str | None = None,
    ) -> AgentSession:
        """Return the agent of this name; create it on the first call.

        Args:
            name: Unique in the episode and the same in every episode, such as ``"solver_0"``.
            role: One of the workflow's roles; ``None``: the name without its number.
            system: Its system prompt.
            agent: The object that keeps its messages; ``None`` creates a :class:`~rllm_gym.agents.ChatAgent`.
            tools: OpenAI tool schemas, as a list or as JSON text.

        Raises:
            ValueError: An agent of another role has the name, the name contains other characters than letters,
                digits, ``_``, ``.`` and ``-``, or the workflow has no such role.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"agent name {name!r} must be 1 to 64 letters, digits, '_', '.' or '-'")
        role = re.sub(r"_\d+$", "", name) if role is None else role
        known = self.sessions.get(name)
        if known is not None:
            if known.role != role:
                raise ValueError(
                    f"agent {name!r} already exists with the role {known.role!r}; use another name "
                    f"for the role {role!r}"
                )
            if system is not None or agent is not None or tools is not None:
                raise ValueError(
                    f"agent {name!r} already exists; system, agent and tools can only be passed when it is created"
                )
            return known
        if role not in self.roles:
            raise ValueError(
                f"agent {name!r} has the role {role!r}, but the workflow's roles are {sorted(self.roles)}: add "
                "it to Workflow.roles, or pass role="
            )
        if agent is not None and system is not None:
            raise ValueError(
                f"agent {name!r}: pass system or agent, not both; an agent object has its own system prompt"
            )
        if agent is None:
            agent = ChatAgent(system or "")
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"agent {name!r}: agent= must be a BaseAgent; got {type(agent).__name__}")
        session = AgentSession(self, name, role, agent, tools, self._engine.new_conversation_sampler(self, name, role))
        self.sessions[name] = session
        return session

    # Environments and calls

    async def env(self, env_id: Any = None, **kwargs: Any) -> EnvironmentHandle:
        """Return a handle of an environment in its own worker, ready to be reset.

        Args:
            env_id: A Gymnasium id, or a callable that returns an environment; ``None``: the engine's environment.
            **kwargs: Keyword arguments of the environment. If ``env_id`` is ``None``, they are added to the engine's.

        Raises:
            gymnasium.error.Error: There is no such id.
            ValueError: The engine has no environment.
        """
        env_id, kwargs = self._resolve_env(env_id, kwargs)
        worker = self._envs.acquire(resolve(env_id), kwargs, name=_name(env_id), host=EnvironmentHost)
        return EnvironmentHandle(self, worker, _name(env_id))

    async def game(self, env_id: Any = None, **kwargs: Any) -> GameHandle:
        """Return a handle of a turn-based PettingZoo game in its own worker, ready to be reset.

        Args:
            env_id: Id of an AEC environment, or a callable that returns one; ``None``: the engine's environment.
            **kwargs: Keyword arguments of the game. If ``env_id`` is ``None``, they are added to the engine's.

        Raises:
            KeyError, ValueError: There is no such id, or the engine has no environment.
        """
        env_id, kwargs = self._resolve_env(env_id, kwargs)
        worker = self._envs.acquire(resolve_game(env_id), kwargs, name=_name(env_id), host=GameHost)
        return GameHandle(self, worker, _name(env_id))

    async def call(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Run ``function(*args)`` in a worker. Use it for code that blocks or may hang.

        Args:
            function: The function. For process workers, anything that ``cloudpickle`` can serialize.
            *args: Its arguments.
            timeout: Deadline in seconds; ``None``: ``deadlines.call``.

        Raises:
            EnvironmentFault: The deadline passed (kind ``call_deadline``), the worker died (``worker_died``) or ran out
                of memory (``memory``). Catch it only if the model caused it; otherwise the episode restarts.
            Exception: Any exception that the function raised.
        """
        seconds = self._engine.deadlines.call if timeout is None else timeout
        self._engine.env_made.set()  # a fault in a call must not be reported as EnvironmentUnavailable
        began = time.perf_counter()
        await self.check_running()
        with self.sampler_client.busy():
            try:
                return await self._engine.pool().arun(function, *args, timeout=seconds)
            except DeadlineExceeded:
                self._engine.count_lost_worker()
                raise EnvironmentFault(
                    f"{_name(function)} did not finish within {seconds:g} s", kind="call_deadline"
                ) from None
            except MemoryExceeded as error:
                self._engine.count_lost_worker()
                raise EnvironmentFault(
                    f"{_name(function)} exceeded its memory limit: {error}", kind="memory"
                ) from error
            except WorkerDied as error:
                self._engine.count_lost_worker()
                raise EnvironmentFault(
                    f"the worker died during {_name(function)}: {error}", kind="worker_died"
                ) from error
            except WorkerError as error:
                raise RuntimeError(f"{_name(function)}: {error}") from error
            finally:
                self.seconds["env"] += time.perf_counter() - began

    # Ending the episode

    def finish(
        self,
        *,
        reward: float | None = None,
        success: bool | None = None,
        stop_reason: StopReason | str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Episode:
        """Return the episode in its current state, with one trajectory per agent.

        Args:
            reward: Reward of the episode. ``None``: the sum over all agents. If no agent was given a reward of its own,
                each agent gets this reward on its last step.
            success: Whether the task was solved. ``None``: derived from the stop reason, or without one, whether the
                reward is above 0.
            stop_reason: ``None``: ``SUCCESS`` or ``FAILURE``.
            info: Info of the episode; ``None``: the latest info of the environment that was created first.

        Raises:
            ValueError: A reward or metric is not a finite number, or a workflow may not set this stop reason.
        """
        sessions = self._sorted_sessions()
        if reward is not None:
            reward = check_finite("reward", reward)
            if not any(session.rewarded for session in sessions):
                for session in sessions:
                    if session.steps:
                        session.add_reward(reward)
        reason = None if stop_reason is None else StopReason(stop_reason)
        if reason is not None:
            check_stop_reason(reason)
        metrics = {str(key): check_finite(f"metrics[{key!r}]", value) for key, value in self.metrics.items()}
        trajectories = [session.trajectory() for session in sessions]
        if reward is None:
            reward = float(sum(trajectory.reward for trajectory in trajectories))
        if success is None:
            success = reason is StopReason.SUCCESS if reason is not None else reward > 0
        success = bool(success)
        return Episode(
            episode_id=self.episode_id,
            task_id=self.task_id,
            trajectories=trajectories,
            reward=reward,
            success=success,
            stop_reason=reason or (StopReason.SUCCESS if success else StopReason.FAILURE),
            info=self.final_info() if info is None else {**self.final_info(), **info},
            metrics=metrics,
        )

    def truncate(self, reason: StopReason) -> Episode:
        """Return the episode after a limit ended it. Agents whose last reply got no reward are not trained on."""
        episode = self.finish(success=False, stop_reason=reason)
        for trajectory, session in zip(episode.trajectories, self._sorted_sessions(), strict=True):
            trajectory.trainable = trajectory.trainable and session.rewarded_last
        return episode

    def trajectories(self) -> list[Trajectory]:
        """Return the trajectories so far, for the record of an episode without a result."""
        return [session.trajectory() for session in self._sorted_sessions()]

    # Called by the engine and by the handles

    async def check_running(self) -> None:
        """Register the current task before it waits, and refuse if the episode is over or has failed.

        Raises:
            RuntimeError: The episode is over.
            EnvironmentFault, SamplerError, AgentError: The error that ended the episode before.
        """
        if self._closed or self.error is not None:
            await self._refuse()
        if self._closed:
            raise RuntimeError(f"episode {self.episode_id!r} is over: its context can no longer be used")
        if self.error is not None:
            raise self.error
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)

    async def refuse_truncated(self, cut: Truncated) -> None:
        """Count a request to an agent that a limit has stopped, to end code that repeats such requests forever."""
        if self._refused == _MAX_REFUSALS:
            self.fail(
                AgentError(
                    f"{cut}; the workflow requested a reply {_MAX_REFUSALS} times nevertheless: end the loop, or "
                    "do not catch Truncated"
                )
            )
        await self._refuse()

    async def _refuse(self) -> None:
        """Let other tasks run before the refusal. A task that ignores too many refusals waits until it is cancelled."""
        self._refused += 1
        if self._refused > 2 * _MAX_REFUSALS:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    def abort(self, error: Exception) -> None:
        """Record that the attempt cannot continue. Only the first error is kept."""
        self.error = self.error or error
        if not self.aborted.done():
            self.aborted.set_result(None)

    def fail(self, error: Exception) -> None:
        """Call :meth:`abort` for an error of the workflow, which does not mean that no environment can be made."""
        self._engine.env_made.set()
        self.abort(error)

    def set_task(self, task_id: str, row: dict[str, Any] | None) -> None:
        """Record the task that an environment reported. The first report is used if the spec does not name a task."""
        self.task_id = self.task_id or task_id
        self.task_row = self.task_row or row

    async def aclose(self, work: asyncio.Task[Any]) -> None:
        """Cancel the workflow and all of its tasks that still request something. Nothing continues afterwards."""
        self._closed = True
        await cancel_tasks({work, *self._tasks} - {asyncio.current_task()}, self.close_timeout)

    def final_info(self) -> dict[str, Any]:
        """Return the info of the first environment, and the weights of agents that do not use the policy's weights."""
        info = dict(self.handles[0].info) if self.handles else {}
        weights = {session.name: session.weights for session in self._sorted_sessions() if session.weights}
        return {**info, "weights": weights} if weights else info

    def _sorted_sessions(self) -> list[AgentSession]:
        """Return the agents by role and number, so that the order does not depend on the timing of tasks."""
        roles = list(self.roles)
        return sorted(
            self.sessions.values(),
            key=lambda session: (roles.index(session.role), *_natural_key(session.name)),
        )

    def _resolve_env(self, env_id: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if env_id is not None:
            return env_id, kwargs
        if self._engine.env is None:
            raise ValueError("no environment: pass its id, or pass env= to the engine")
        return self._engine.env, {**self._engine.env_kwargs, **kwargs}


def check_stop_reason(reason: StopReason) -> None:
    """Check that a workflow may end an episode for this reason.

    Raises:
        ValueError: It may not.
    """
    if reason not in _WORKFLOW_STOP_REASONS:
        raise ValueError(
            f"stop_reason={reason.value!r} can only be set by the engine: raise EnvironmentFault if the "
            "environment failed, and do not catch the exception of a bug"
        )


def _row(task: Any) -> dict[str, Any] | None:
    if isinstance(task, Task):
        return task.to_json()
    return dict(task) if isinstance(task, Mapping) else None


def _natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key by which ``solver_2`` comes before ``solver_10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts], name


def _name(source: Any) -> str:
    if isinstance(source, str):
        return source
    return str(getattr(source, "id", None) or getattr(source, "__qualname__", None) or type(source).__name__)
