"""rLLM's ``AgentExecutionEngine``: its constructor and ``execute_tasks``, on top of ``rllm_gym.engine``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from rllm_gym import core
from rllm_gym.agents import BaseAgent
from rllm_gym.compat.agents import LegacyAgentAdapter, row_of
from rllm_gym.compat.environments import LegacyEnvAdapter
from rllm_gym.compat.types import Trajectory
from rllm_gym.core import Task
from rllm_gym.engine import AgentExecutionEngine as Engine
from rllm_gym.engine import Deadlines, EpisodeSpec
from rllm_gym.samplers.protocol import Sampler, SamplingParams

_log = logging.getLogger(__name__)

_PORTING_HINT = "see docs/from-rllm.md for the replacement"


class AgentExecutionEngine:
    """Runs agents and environments written for rLLM.

    Args:
        engine_name: ``"openai"`` for an OpenAI-compatible endpoint; any name with ``rollout_engine=``.
        rollout_engine: A sampler (:class:`rllm_gym.samplers.Sampler`), instead of an endpoint.
        rollout_engine_args: ``base_url``, ``api_key`` and ``model`` of the endpoint.
        tokenizer: A Hugging Face tokenizer. With a tokenizer, lengths are limits in tokens.
        sampling_params: ``temperature``, ``top_p``, ``top_k``, ``max_tokens``, ``stop``, ``model``.
        max_response_length: Tokens sampled per episode.
        max_prompt_length: Maximum tokens of the first prompt.
        max_steps: Replies per episode.
        n_parallel_agents: Maximum number of concurrent episodes.
        trajectory_timeout: Deadline of an episode in seconds.
        retry_limit: Number of environments tried for an episode whose environment fails.
        gamma: Discount factor of the steps' ``mc_return``.
        agent_class, agent_args: The agent.
        env_class, env_args: A class with ``from_dict``; or a Gymnasium id or an environment of this package, whose
            observations an agent reads as ``{"question": text, **task row}``.

    Raises:
        ValueError: An option is not supported; the message says what to write instead.
    """

    def __init__(
        self,
        engine_name: str = "openai",
        tokenizer: Any = None,
        rollout_engine: Any = None,
        n_parallel_agents: int = 128,
        trajectory_timeout: float | None = None,
        gamma: float = 0.2,
        api_retries: int = 3,
        retry_limit: int = 3,
        max_steps: int = 5,
        max_response_length: int = 8192,
        max_prompt_length: int = 1024,
        config: Any = None,
        agent_class: type[BaseAgent] | None = None,
        env_class: Any = None,
        agent_args: Mapping[str, Any] | None = None,
        rollout_engine_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None,
        max_workers: int | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        **unsupported: Any,
    ) -> None:
        for name, value in {"config": config, **unsupported}.items():
            if value:
                raise ValueError(f"{name}={value!r} is not supported; {_PORTING_HINT}")
        if agent_class is None or env_class is None:
            raise ValueError(f"pass agent_class and env_class; got {agent_class!r} and {env_class!r}")
        self.agent_class, self.agent_args = agent_class, dict(agent_args or {})
        self.env_class, self.env_args = env_class, dict(env_args or {})
        self.tokenizer = tokenizer
        self.n_parallel_agents = min(n_parallel_agents, max_workers or n_parallel_agents)
        self.max_steps = max_steps
        self.max_response_length = max_response_length
        self.max_prompt_length = max_prompt_length
        self.gamma = gamma
        self.retry_limit = retry_limit
        self.trajectory_timeout = trajectory_timeout
        self.sampling_params = dict(sampling_params or {})
        self._constructor_errors: list[Exception] = []
        self.rollout_engine = rollout_engine or self._endpoint(
            engine_name, dict(rollout_engine_args or {}), api_retries
        )
        if not isinstance(self.rollout_engine, Sampler):
            raise ValueError(
                f"rollout_engine is a {type(rollout_engine).__name__}, not a sampler (rllm_gym.samplers); "
                f"{_PORTING_HINT}"
            )

    async def execute_tasks(
        self, tasks: Iterable[Any], num_rollouts_per_task: int = 1, **sampling_params: Any
    ) -> list[Trajectory | core.Trajectory]:
        """Return one trajectory per task (and rollout), in order: the agent's own, with ``task`` and ``reward`` set.

        If the environment failed ``retry_limit`` times, or the agent raised an exception, the reward is ``None`` and
        ``trajectory.info`` gives the reason.

        Args:
            tasks: Task rows; for environments of this package also indices, ids or :class:`~rllm_gym.core.Task`.
            num_rollouts_per_task: Episodes per task.
            **sampling_params: Override those of the constructor.

        Raises:
            Exception: The agent or an environment could not be created: what its constructor raised. Other failures of
                environments are in the trajectories.
        """
        rows = [row for row in tasks for _ in range(num_rollouts_per_task)]
        self.agent_class(**self.agent_args)  # a wrong argument is one error here, and not one per episode
        self._constructor_errors.clear()
        engine, chosen = self._engine(
            rows, sampling_params_of({**self.sampling_params, **sampling_params}, self.max_response_length)
        )
        trajectories: list[Any] = [None] * len(rows)
        specs = [EpisodeSpec(task) for task in chosen]
        async with aclosing(engine.stream_with_agents(specs)) as results:
            async for index, episode, agent in results:
                if self._constructor_errors and not episode.trainable:  # also after its retries
                    raise self._constructor_errors[0]
                row = rows[index] if isinstance(rows[index], Mapping) else row_of(episode.trajectories[0].task)
                trajectories[index] = self._finish(episode, agent, row)
        return trajectories

    def execute_tasks_sync(self, tasks: Iterable[Any], **kwargs: Any) -> list[Trajectory | core.Trajectory]:
        """Run :meth:`execute_tasks` from code without an event loop."""
        return asyncio.run(self.execute_tasks(tasks, **kwargs))

    def shutdown(self) -> None:
        """Do nothing: every :meth:`execute_tasks` cleans up what it started."""

    # Private methods

    def _engine(self, rows: list[Any], params: SamplingParams) -> tuple[Engine, list[Any]]:
        old = hasattr(self.env_class, "from_dict")
        env, kwargs, chosen = self.env_class, self.env_args, rows
        if old:
            env, kwargs = LegacyEnvAdapter, {
                "env_class": self.env_class, "env_args": self.env_args, "max_steps": self.max_steps,
                "constructor_errors": self._constructor_errors,
            }  # fmt: skip
        elif any(isinstance(row, Mapping) for row in rows):
            kwargs, chosen = _tasks_of(rows, self.env_args)
        # Without a tokenizer, tokens cannot be counted; max_response_length then limits each reply instead.
        counted = self.tokenizer is not None or getattr(self.rollout_engine, "tokenizer", None) is not None
        engine = Engine(
            env=env,
            env_kwargs=kwargs,
            agent=lambda: LegacyAgentAdapter(
                self.agent_class(**self.agent_args), new_environment=not old, max_steps=self.max_steps
            ),
            sampler=self.rollout_engine,
            tokenizer=self.tokenizer,
            sampling_params=params,
            n_parallel=self.n_parallel_agents,
            max_turns=self.max_steps,
            retries=max(0, self.retry_limit - 1),
            deadlines=Deadlines(episode=self.trajectory_timeout) if self.trajectory_timeout else Deadlines(),
            max_prompt_tokens=self.max_prompt_length if counted else None,
            max_response_tokens=self.max_response_length if counted else None,
            max_context_tokens=self.max_prompt_length + self.max_response_length if counted else None,
        )
        return engine, chosen

    def _finish(self, episode: core.Episode, agent: Any, row: Any) -> Trajectory | core.Trajectory:
        faulted = episode.fault is not None
        trajectory = agent.trajectory if agent is not None and not faulted else Trajectory()
        trajectory.task = row
        trajectory.reward = None if faulted else episode.reward
        if isinstance(trajectory, Trajectory):
            trajectory.info |= {"stop_reason": episode.stop_reason.value, "fault": episode.fault}
        future = 0.0
        for step in reversed(trajectory.steps):
            future = step.reward + self.gamma * future
            step.mc_return = future
        return trajectory

    def _endpoint(self, engine_name: str, arguments: dict[str, Any], retries: int) -> Sampler:
        if engine_name != "openai":
            raise ValueError(
                f"engine_name={engine_name!r} needs rollout_engine=, a sampler of rllm_gym; {_PORTING_HINT}"
            )
        from rllm_gym.samplers.openai_compatible import OpenAISampler

        model = arguments.pop("model", None) or self.sampling_params.get("model")
        if not model:
            raise ValueError("no model name: pass sampling_params={'model': …} or rollout_engine_args={'model': …}")
        return OpenAISampler(model=model, retries=retries, **arguments)


def sampling_params_of(params: dict[str, Any], max_response_length: int) -> SamplingParams:
    known = {"temperature", "top_p", "top_k", "max_tokens", "stop", "model"}
    if unknown := sorted(set(params) - known):
        raise ValueError(f"sampling parameter(s) {unknown} are not supported; the supported ones are {sorted(known)}")
    stop = params.get("stop") or ()
    return SamplingParams(
        temperature=float(params.get("temperature", 1.0)),
        top_p=float(params.get("top_p", 1.0)),
        top_k=max(0, int(params.get("top_k", 0))),  # -1 means "all" elsewhere
        max_tokens=int(params.get("max_tokens", max_response_length)),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _tasks_of(rows: list[Any], env_args: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the task set of the rows for an environment of this package, and the task index of each episode."""
    if all(isinstance(row, Mapping) and set(row) == {"task_id", "content", "data"} for row in rows):
        return dict(env_args), [Task.from_json(row) for row in rows]
    positions: dict[str, int] = {}
    unique: list[Any] = []
    chosen = []
    for row in rows:
        key = json.dumps(row, sort_keys=True, default=repr)
        if key not in positions:
            positions[key] = len(unique)
            unique.append(row)
        chosen.append(positions[key])
    return {**env_args, "tasks": unique}, chosen
