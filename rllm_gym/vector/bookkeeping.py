"""Bookkeeping of a vector environment: the state of each environment, its next command, and the effect of a result."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import AutoresetMode

from rllm_gym.core import EnvironmentFault, StopReason
from rllm_gym.runtime.env_host import StepResult
from rllm_gym.runtime.fault_log import count_fault
from rllm_gym.vector.env_commands import EnvCommand, EnvResult, fresh_seed

_log = logging.getLogger(__name__)

_FAULT = StopReason.FAULT.value


@dataclass(slots=True)
class VectorStats:
    """Counters of one vector environment since its creation.

    Attributes:
        steps: Steps that environments carried out.
        resets: Episodes that began.
        episodes: Episodes that ended by themselves, terminated or truncated.
        faults: Environment faults by kind; each ended one episode, or prevented one from beginning.
        replaced: Environments that were replaced, including those of repeated resets.
    """

    steps: int = 0
    resets: int = 0
    episodes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    replaced: int = 0


@dataclass(slots=True)
class EnvState:
    """The state of one environment.

    Attributes:
        observation: The last one.
        info: The last one.
        env_name: Name of the active environment, if the slot has several; ``next_env_name`` is that of the
            autoreset in progress.
        episode: Number of episodes since the last seed.
        started: Whether an episode has begun.
        done: Whether it ended; a reset comes next.
        fault: Why an episode could not begin; reported at the next step.
        busy: The operation in progress or not yet fetched; else ``""``.
        seed: The last seed given.
        seeded: Environments whose random numbers already started from it.
        replacements: Number of environments replaced since.
    """

    observation: Any = None
    info: dict[str, Any] = field(default_factory=dict)
    env_name: str = ""
    next_env_name: str = ""
    episode: int = 0
    started: bool = False
    done: bool = False
    fault: EnvironmentFault | None = None
    busy: str = ""
    seed: int | None = None
    seeded: set[str] = field(default_factory=set)
    replacements: int = 0

    def seed_for(self, env_name: str) -> int | None:
        """Return the seed for the next reset: ``None`` where the random numbers continue."""
        if self.seed is None or env_name in self.seeded:
            return None
        return fresh_seed(self.seed, env_name, self.replacements)

    def root(self) -> tuple[int, int] | None:
        return None if self.seed is None else (self.seed, self.replacements)


class EnvSchedule:
    """Chooses the environment for the next episode of each slot: here always the only one."""

    def next_env(self, index: int, state: EnvState) -> str:
        """Return the name of the environment for the next episode of slot ``index``; calling it changes nothing."""
        return ""

    def add_info(self, env_name: str, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of an episode of ``env_name``, with additional keys."""
        return info

    def episode_ended(self, env_name: str, info: dict[str, Any]) -> None:
        """Record that an episode of ``env_name`` ended by itself; not called for faults."""


class Bookkeeping:
    """Turns the caller's requests into commands, and their results into step results.

    Args:
        count: Number of environments.
        mode: When an episode that ended is followed by the next.
        schedule: Chooses the environment of each episode.
        submit: Submits commands.
    """

    def __init__(
        self, count: int, mode: AutoresetMode, schedule: EnvSchedule, submit: Callable[[list[EnvCommand]], None]
    ) -> None:
        self.states = [EnvState() for _ in range(count)]
        self.stats = VectorStats()
        self.empty_observation: Any = None
        """Placeholder for the observation of an environment that has none yet."""
        # An attribute of an enumeration takes longer to look up than one of an object.
        self._next_step = mode is AutoresetMode.NEXT_STEP
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._schedule = schedule
        self._submit = submit

    # Commands

    def reset_command(self, index: int, seed: int | None, options: dict[str, Any] | None) -> EnvCommand:
        state = self.states[index]
        state.busy = "reset"
        if seed is not None:
            state.seed, state.replacements, state.episode = seed, 0, 0
            state.seeded.clear()
        env_name = state.env_name = self._schedule.next_env(index, state)
        if seed is None:
            seed = state.seed_for(env_name)
        return EnvCommand(index, "reset", env_name, seed, state.root(), options)

    def step_command(self, index: int, action: Any) -> EnvCommand | EnvResult:
        """Return the command to submit, or a result that is already known."""
        state = self.states[index]
        if self._same_step:
            if state.fault is not None:
                return self._reset_after(index, state.fault)
            state.busy = "step"
            env_name = state.next_env_name = self._schedule.next_env(index, state)
            return EnvCommand(
                index,
                "step",
                state.env_name,
                root=state.root(),
                action=action,
                autoreset=(env_name, state.seed_for(env_name)),
            )
        if state.done and self._next_step:
            return self.reset_command(index, None, None)
        state.busy = "step"
        if state.fault is not None:
            return EnvResult(index, fault=state.fault)
        return EnvCommand(index, "step", state.env_name, action=action)

    def _reset_after(self, index: int, fault: EnvironmentFault) -> EnvCommand:
        """Reset after a fault with ``SAME_STEP``: the fault ends the episode, and the next begins in the same step."""
        state = self.states[index]
        final = (state.observation, 0.0, False, True, self._fault_info(state, fault))
        command = self.reset_command(index, None, None)
        state.busy, state.next_env_name = "step", command.env_name
        command.final = final
        return command

    # Results

    def resolve(self, result: EnvResult, *, reported: bool) -> StepResult | Exception | None:
        """Return a step's five values (with reward 0 for a reset), an exception to raise, or ``None``.

        ``None`` means that another command had to be submitted.

        Args:
            result: Result of a command, or of :meth:`step_command`.
            reported: Whether the caller receives flags. If so, an episode that could not start is truncated.
        """
        state = self.states[result.index]
        if result.replacements:
            self.stats.replaced += result.replacements
            state.replacements += result.replacements
            state.seeded.clear()
        if result.error is not None:
            if result.step is not None or state.busy == "reset":
                state.started = False
            return result.error
        if result.fault is not None and result.fault is not state.fault:
            self._count(result.index, result.fault)
        if state.busy == "reset":
            return self._resolve_reset(state, result, reported)
        if result.step is None:
            assert result.fault is not None
            state.fault = None
            if self._same_step:
                self._submit([self._reset_after(result.index, result.fault)])
                return None
            state.done = True
            state.info = self._fault_info(state, result.fault)
            return state.observation, 0.0, False, True, state.info
        return self._resolve_step(state, result)

    def _resolve_reset(self, state: EnvState, result: EnvResult, reported: bool) -> StepResult:
        state.started = True
        if result.reset is not None:
            self._begin(state, result.reset, state.env_name)
            return state.observation, 0.0, False, False, state.info
        assert result.fault is not None
        state.done = reported and not self._same_step
        state.fault = None if state.done else result.fault
        if state.observation is None:
            state.observation = self.empty_observation
        state.info = self._fault_info(state, result.fault)
        return state.observation, 0.0, False, True, state.info

    def _resolve_step(self, state: EnvState, result: EnvResult) -> StepResult:
        assert result.step is not None
        observation, reward, terminated, truncated, info = result.step
        done = terminated or truncated
        if "fault_kind" not in info:
            info = self._schedule.add_info(state.env_name, info)
            self.stats.steps += 1
            self.stats.episodes += done
            if done:
                self._schedule.episode_ended(state.env_name, info)
        if not (done and self._same_step):
            state.observation, state.info, state.done = observation, info, done
            return observation, reward, terminated, truncated, info
        ended = {"final_obs": observation, "final_info": info}
        if result.reset is not None:
            self._begin(state, result.reset, state.next_env_name)
            return state.observation, reward, terminated, truncated, ended | state.info
        assert result.fault is not None
        state.fault = result.fault
        state.observation, state.info = observation, self._fault_info(state, result.fault)
        return observation, reward, terminated, truncated, ended | state.info

    def _begin(self, state: EnvState, reset: tuple[Any, dict[str, Any]], env_name: str) -> None:
        self.stats.resets += 1
        state.observation = reset[0]
        state.info = self._schedule.add_info(env_name, reset[1])
        state.env_name = env_name
        state.seeded.add(env_name)
        state.episode += 1
        state.done, state.fault = False, None

    def _count(self, index: int, fault: EnvironmentFault) -> None:
        count_fault(_log, self.stats.faults, fault.kind, f"environment {index}: fault ({fault.kind}): {fault}")

    def _fault_info(self, state: EnvState, fault: EnvironmentFault) -> dict[str, Any]:
        """Return the keys that every text environment has, with their usual types, and the fault."""
        info: dict[str, Any] = {key: state.info[key] for key in ("task_id", "turn") if key in state.info}
        if "stop_reason" in state.info:
            info |= {"invalid_action": False, "success": False, "stop_reason": _FAULT, "reward_components": {}}
        return self._schedule.add_info(state.env_name, info) | {"fault": str(fault), "fault_kind": fault.kind}
