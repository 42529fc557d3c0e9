"""rLLM's workflow base class, its termination reasons, and its three ready-made workflows."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import statistics
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.environments import BaseEnv
from rllm_gym.compat.rewards import RewardFunction
from rllm_gym.compat.rollout import ModelOutput, RolloutEngine, run_blocking
from rllm_gym.compat.types import Episode, Step, Trajectory


class TerminationReason(Enum):
    """Why a workflow ended."""

    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    ERROR = "error"


class TerminationEvent(Exception):
    """Raised in ``run`` to end the episode."""

    def __init__(self, reason: TerminationReason = TerminationReason.UNKNOWN) -> None:
        super().__init__(f"Terminated: {reason}")
        self.reason = reason


class Workflow(ABC):
    """An episode in rLLM's style: :meth:`run` requests replies from ``rollout_engine`` and returns an episode, or
    commits trajectories and returns ``None``.

    Args:
        rollout_engine: Has ``await rollout_engine.get_model_response(messages)``.
        executor: The executor for ``loop.run_in_executor``; ``None``: the event loop's own.
        timeout: Deadline of :meth:`run` in seconds.
        gamma: Discount factor. If it is above 0, the rewards of steps become discounted returns.
        reward_bonus_coeff: Coefficient of the reward shaping: multiplied by the change of the reward since the step
            before, and added to the reward.
        store: Any object that workflows share; stored as ``self.store``.
    """

    def __init__(
        self,
        rollout_engine: RolloutEngine,
        executor: Any = None,
        timeout: float = 1e6,
        gamma: float = 0.0,
        reward_bonus_coeff: float = 0.0,
        store: Any = None,
        **kwargs: Any,
    ) -> None:
        self.rollout_engine = rollout_engine
        self.executor = executor
        self.timeout = int(timeout)
        self.gamma = gamma
        self.reward_bonus_coeff = reward_bonus_coeff
        self.store = store
        self.uid: str | None = None
        self.task: Any = None
        self._completed_trajectories: list[Trajectory] = []

    @abstractmethod
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode | None:
        """Run one task. ``None`` means that the committed trajectories are the result."""

    async def run_with_termination_handling(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        """Run :meth:`run`, and convert timeouts, errors and :class:`TerminationEvent` to an episode with the reason."""
        limit = kwargs.pop("timeout", self.timeout)
        error: dict[str, Any] | None = None
        try:
            result = await asyncio.wait_for(self.run(task, uid, **kwargs), timeout=limit)
            if isinstance(result, Episode):
                return result
            reason = TerminationReason.UNKNOWN
        except TimeoutError:
            reason = TerminationReason.TIMEOUT
        except TerminationEvent as event:
            reason = event.reason
        except Exception as raised:
            reason = TerminationReason.ERROR
            error = {
                "error_message": str(raised),
                "error_type": type(raised).__name__,
                "traceback": traceback.format_exc(),
            }
        return self.postprocess_episode(self.collect_trajectories(), reason, error)

    def commit(
        self,
        name: str | None = None,
        agent: BaseAgent | None = None,
        trajectory: Any = None,
        reset: bool = False,
    ) -> None:
        """Add a copy of a trajectory, or of an agent's trajectory, to the episode.

        Raises:
            ValueError: Neither is given, or both.
        """
        if (agent is None) == (trajectory is None):
            raise ValueError("commit() needs either an agent or a trajectory")
        committed: Any = trajectory if agent is None else agent.trajectory
        if name:
            committed.name = name
        if committed.steps:
            self._completed_trajectories.append(copy.deepcopy(committed))
        if agent is not None and reset:
            agent.reset()

    def collect_trajectories(self) -> Episode:
        """Return an episode of the committed trajectories and the uncommitted ones of agents on ``self``."""
        episode = Episode(trajectories=list(self._completed_trajectories))
        committed = {getattr(trajectory, "uid", None) for trajectory in self._completed_trajectories}
        for agent in self._own(BaseAgent):
            trajectory: Any = agent.trajectory
            if trajectory.steps and getattr(trajectory, "uid", None) not in committed - {None}:
                episode.trajectories.append(copy.deepcopy(trajectory))
        return episode

    def compute_trajectory_reward(self, trajectory: Any) -> None:
        """Set the reward of a trajectory to the sum of its steps' rewards."""
        trajectory.reward = float(sum(step.reward for step in trajectory.steps))

    def adjust_step_rewards(self, trajectory: Any) -> None:
        """Apply reward shaping, then discounting, as configured in the constructor."""
        steps = trajectory.steps
        if self.reward_bonus_coeff > 0:
            raw = [step.reward for step in steps]
            for step, now, before in zip(steps[1:], raw[1:], raw, strict=False):
                step.reward += self.reward_bonus_coeff * (now - before)
        if self.gamma > 0:
            future = 0.0
            for step in reversed(steps):
                future = step.reward = step.reward + self.gamma * future

    def assign_episode_correctness(self, episode: Episode) -> None:
        """Set ``is_correct`` if the rewards of all trajectories sum to more than 0."""
        episode.is_correct = sum(trajectory.reward or 0.0 for trajectory in episode.trajectories) > 0

    def collect_metrics(self, episode: Episode) -> None:
        """Set the metrics to the mean reward of the trajectories of each name, as ``<name>_acc``."""
        by_name: dict[str, list[float]] = {}
        for trajectory in episode.trajectories:
            by_name.setdefault(trajectory.name, []).append(trajectory.reward or 0.0)
        episode.metrics = {f"{name}_acc": statistics.fmean(rewards) for name, rewards in by_name.items()}

    def postprocess_episode(
        self,
        episode: Episode,
        termination_reason: TerminationReason | None = None,
        error: dict[str, Any] | None = None,
    ) -> Episode:
        """Fill in id, task, rewards, correctness, metrics and termination reason of the episode, and return it."""
        episode.id = self.uid or episode.id
        episode.task = self.task
        for trajectory in episode.trajectories:
            # A step that has no reply yet has no messages.
            if trajectory.steps and not trajectory.steps[-1].chat_completions:
                trajectory.steps.pop()
            self.compute_trajectory_reward(trajectory)
            if len(trajectory.steps) > 1:
                self.adjust_step_rewards(trajectory)
        self.assign_episode_correctness(episode)
        self.collect_metrics(episode)
        if error is not None:
            episode.info["error"] = error
        episode.termination_reason = termination_reason or TerminationReason.UNKNOWN
        return episode

    def reset(self, task: dict[str, Any] | None = None, uid: str | None = None) -> Any:
        """Prepare for another task: clear what was committed, and reset agents and environments on ``self``."""
        self.uid, self.task = uid, task
        self._completed_trajectories = []
        for agent in self._own(BaseAgent):
            agent.reset()
            agent.trajectory.task = task
        for env in self._own(BaseEnv):
            takes_task = "task" in inspect.signature(env.reset).parameters
            env.reset(**({"task": task} if takes_task else {}))

    def is_multithread_safe(self) -> bool:
        return all(env.is_multithread_safe() for env in self._own(BaseEnv))

    async def run_in_executor(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``fn(…)``, which may block, in a worker with the engine's deadline for calls."""
        return await run_blocking(functools.partial(fn, *args, **kwargs), self.executor)

    def _own(self, kind: type) -> Iterator[Any]:
        yield from (value for name, value in sorted(vars(self).items()) if isinstance(value, kind) and name[0] != "_")


class SimpleWorkflow(Workflow):
    """One question, one reply, one reward."""

    def __init__(self, rollout_engine: RolloutEngine, reward_function: RewardFunction, **kwargs: Any) -> None:
        super().__init__(rollout_engine, **kwargs)
        self.reward_function = reward_function

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
        self.reset(task, uid)
        output = await self.rollout_engine.get_model_response(_question(task), application_id=uid, **kwargs)
        action = Action(output.content)
        step = Step(
            chat_completions=[*_question(task), {"role": "assistant", "content": output.content}],
            thought=output.reasoning or "",
            action=action,
            reward=float(self.reward_function(task, action).reward),
            model_output=output,
        )
        self.commit(trajectory=Trajectory(steps=[step]))
        raise TerminationEvent(_after(output, done=True))


class MultiTurnWorkflow(Workflow):
    """An agent in an environment, for at most ``max_steps`` turns."""

    def __init__(
        self,
        agent_cls: type[BaseAgent],
        env_cls: type,
        agent_args: Mapping[str, Any] | None = None,
        env_args: Mapping[str, Any] | None = None,
        max_steps: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.agent = agent_cls(**(agent_args or {}))
        self.env = env_cls(**(env_args or {}))
        self.max_steps = max_steps

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> None:
        observation, info = await self.run_in_executor(self.reset, task=task, uid=uid)
        self.agent.update_from_env(observation, 0, False, info)
        for _ in range(self.max_steps):
            messages = self.agent.chat_completions
            output = await self.rollout_engine.get_model_response(
                messages, application_id=uid, **{**self._limits(), **kwargs}
            )
            self._replied(output)
            action = self.agent.update_from_model(output.text)
            observation, reward, done, info = await self.run_in_executor(self.env.step, action)
            self.agent.update_from_env(observation, reward, done, info)
            if done or output.finish_reason == "length":
                raise TerminationEvent(_after(output, done=done))
        raise TerminationEvent(TerminationReason.MAX_TURNS_EXCEEDED)

    def reset(self, task: dict[str, Any] | None = None, uid: str | None = None) -> Any:
        super().reset(task, uid)
        return self.env.reset(task)

    def _limits(self) -> dict[str, Any]:
        """Return sampling parameters for the next reply."""
        return {}

    def _replied(self, output: ModelOutput) -> None:
        """Called with each reply."""


class CumulativeWorkflow(MultiTurnWorkflow):
    """An agent in an environment, for at most ``max_steps`` turns and ``max_response_length`` tokens of the rollout
    engine after the first prompt: replies and what the environment writes, together.
    """

    _first_prompt: int | None = None
    _used = 0

    def reset(self, task: dict[str, Any] | None = None, uid: str | None = None) -> Any:
        self._first_prompt, self._used = None, 0
        return super().reset(task, uid)

    def _limits(self) -> dict[str, Any]:
        left = self.rollout_engine.max_response_length - self._used
        if left <= 0:
            raise TerminationEvent(TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)
        return {"max_tokens": left}

    def _replied(self, output: ModelOutput) -> None:
        if self._first_prompt is None:
            self._first_prompt = output.prompt_length
        self._used = output.prompt_length + output.completion_length - self._first_prompt


class SingleTurnWorkflow(MultiTurnWorkflow):
    """An agent in an environment, for one turn."""

    def __init__(self, agent_cls: type[BaseAgent], env_cls: type, **kwargs: Any) -> None:
        super().__init__(agent_cls, env_cls, max_steps=1, **kwargs)


def _after(output: Any, *, done: bool) -> TerminationReason:
    if output.finish_reason == "length":
        return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED
    return TerminationReason.ENV_DONE if done else TerminationReason.MAX_TURNS_EXCEEDED


def _question(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    if task.get("messages") is not None:
        return list(task["messages"])
    for key in ("question", "prompt", "problem"):
        if task.get(key) is not None:
            return [{"role": "user", "content": task[key]}]
    raise ValueError(f"this task row has no messages, question, prompt or problem; its keys are {sorted(task)}")
