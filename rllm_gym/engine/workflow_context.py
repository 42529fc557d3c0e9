"""The context of one attempt at a workflow episode: gives the workflow its agents, environments and result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.core import Episode, StopReason, Trajectory
from rllm_gym.engine.agent_session import AgentSession, check_finite
from rllm_gym.engine.attempt_state import AttemptState
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.env_pool import EnvPool
from rllm_gym.engine.env_set import EnvSet
from rllm_gym.engine.game_host import GameHost, resolve_game
from rllm_gym.engine.handles import EnvironmentHandle, GameHandle, WorkerHandle
from rllm_gym.engine.roles import Role
from rllm_gym.engine.task_env_host import TaskEnvHost
from rllm_gym.runtime.env_building import resolve

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
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

    Args:
        state: The state of the attempt, which its agents and environments share.
        roles: The configuration of each role.
        env: The environment that :meth:`env` and :meth:`game` create by default; ``None``: there is no default.
        env_kwargs: Keyword arguments of ``env``.
        envs: Holds the environments of the attempt.
        env_pool: Runs the functions of :meth:`call`.
        call_timeout: Deadline of :meth:`call` in seconds, if it is given none.
        new_sampler: Connects an agent to the sampler, given its name and its role.
    """

    def __init__(
        self,
        state: AttemptState,
        *,
        roles: Mapping[str, Role],
        env: EnvSpec | str | Callable[..., Any] | None,
        env_kwargs: Mapping[str, Any],
        envs: EnvSet,
        env_pool: EnvPool,
        call_timeout: float,
        new_sampler: Callable[[str, str], ConversationSampler],
    ) -> None:
        spec = state.spec
        self.seed = state.seed
        self.greedy = spec.greedy
        self.group_id = spec.group_id
        self.episode_id = spec.episode_id
        self.task = spec.task
        self.roles = dict(roles)
        self.metrics: dict[str, float] = {}
        self.handles: list[WorkerHandle] = []
        self.sessions: dict[str, AgentSession] = {}
        self._state = state
        self._env = env
        self._env_kwargs = env_kwargs
        self._envs = envs
        self._env_pool = env_pool
        self._call_timeout = call_timeout
        self._new_sampler = new_sampler

    @property
    def task_row(self) -> dict[str, Any] | None:
        """The task as JSON types: that of the spec, else the one that the first environment reported."""
        return self._state.task_row

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
        session = AgentSession(
            self._state,
            name,
            role,
            agent,
            tools,
            self._new_sampler(name, role),
            trainable=self.roles[role].trainable,
        )
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
        worker = self._envs.acquire(resolve(env_id), kwargs, name=_name(env_id), host=TaskEnvHost)
        handle = EnvironmentHandle(self._state, worker, _name(env_id))
        self.handles.append(handle)
        return handle

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
        handle = GameHandle(self._state, worker, _name(env_id))
        self.handles.append(handle)
        return handle

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
        began = time.perf_counter()
        await self._state.check_running()
        with self._state.sampler_client.busy():
            try:
                return await self._env_pool.call(
                    function, args, name=_name(function), timeout=self._call_timeout if timeout is None else timeout
                )
            finally:
                self._state.seconds["env"] += time.perf_counter() - began

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
        truncated = reason is not None and reason.truncated
        trajectories = [session.trajectory(truncated=truncated) for session in sessions]
        if reward is None:
            reward = float(sum(trajectory.reward for trajectory in trajectories))
        if success is None:
            success = reason is StopReason.SUCCESS if reason is not None else reward > 0
        success = bool(success)
        return Episode(
            episode_id=self.episode_id,
            task_id=self._state.task_id,
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

    # Called by the engine

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
        if self._env is None:
            raise ValueError("no environment: pass its id, or pass env= to the engine")
        return self._env, {**self._env_kwargs, **kwargs}


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


def _natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key by which ``solver_2`` comes before ``solver_10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts], name


def _name(source: Any) -> str:
    if isinstance(source, str):
        return source
    return str(getattr(source, "id", None) or getattr(source, "__qualname__", None) or type(source).__name__)
