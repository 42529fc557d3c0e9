"""Bookkeeping of a vector environment: the state of each environment, its next command, and the effect of a result."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import AutoresetMode

from rllm_gym.core import EnvironmentFault, StopReason
from rllm_gym.vector.orders import Order, Outcome, Stepped, fresh_seed

_log = logging.getLogger(__name__)

_TOLD = 20  # faults per kind that are logged as warnings
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
class Slot:
    """The state of one environment.

    Attributes:
        observation: The last one.
        info: The last one.
        member: Which environment is active, in a suite of several; ``again`` is the one after it.
        episode: Number of episodes since the last seed.
        begun: Whether an episode has begun.
        over: Whether it ended; a reset comes next.
        broken: Why an episode could not begin; reported at the next step.
        busy: The operation in progress or not yet fetched; else ``""``.
        seed: The last seed given.
        seeded: Members whose random numbers already started from it.
        lost: Number of environments replaced since.
    """

    observation: Any = None
    info: dict[str, Any] = field(default_factory=dict)
    member: str = ""
    again: str = ""
    episode: int = 0
    begun: bool = False
    over: bool = False
    broken: EnvironmentFault | None = None
    busy: str = ""
    seed: int | None = None
    seeded: set[str] = field(default_factory=set)
    lost: int = 0

    def seed_for(self, member: str) -> int | None:
        """Return the seed for the next reset: ``None`` where the random numbers continue."""
        if self.seed is None or member in self.seeded:
            return None
        return fresh_seed(self.seed, member, self.lost)

    def root(self) -> tuple[int, int] | None:
        return None if self.seed is None else (self.seed, self.lost)


class Programme:
    """Chooses the environment for the next episode of each place: here always the only one."""

    def next_member(self, index: int, slot: Slot) -> str:
        """Return the member for the next episode of place ``index``; calling it changes nothing."""
        return ""

    def dress(self, member: str, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of an episode of ``member``, with additional keys."""
        return info

    def finished(self, member: str, info: dict[str, Any]) -> None:
        """Record that an episode of ``member`` ended by itself; not called for faults."""


class Ledger:
    """Turns the caller's requests into commands, and their results into step results.

    Args:
        count: Number of environments.
        mode: When an episode that ended is followed by the next.
        programme: Chooses the environment of each episode.
        submit: Submits commands.
    """

    def __init__(
        self, count: int, mode: AutoresetMode, programme: Programme, submit: Callable[[list[Order]], None]
    ) -> None:
        self.slots = [Slot() for _ in range(count)]
        self.stats = VectorStats()
        self.blank: Any = None
        """Placeholder for the observation of an environment that has none yet."""
        self._mode = mode
        self._programme = programme
        self._submit = submit

    # Commands

    def reset_order(self, index: int, seed: int | None, options: dict[str, Any] | None) -> Order:
        slot = self.slots[index]
        slot.busy = "reset"
        if seed is not None:
            slot.seed, slot.lost, slot.episode = seed, 0, 0
            slot.seeded.clear()
        member = slot.member = self._programme.next_member(index, slot)
        if seed is None:
            seed = slot.seed_for(member)
        return Order(index, "reset", member, seed, slot.root(), options)

    def step_order(self, index: int, action: Any) -> Order | Outcome:
        """Return the command to submit, or a result that is already known."""
        slot = self.slots[index]
        if self._mode is AutoresetMode.SAME_STEP:
            if slot.broken is not None:
                return self._reset_after(index, slot.broken)
            slot.busy = "step"
            member = slot.again = self._programme.next_member(index, slot)
            return Order(
                index, "step", slot.member, root=slot.root(), action=action, again=(member, slot.seed_for(member))
            )
        if slot.over and self._mode is AutoresetMode.NEXT_STEP:
            return self.reset_order(index, None, None)
        slot.busy = "step"
        if slot.broken is not None:
            return Outcome(index, fault=slot.broken)
        return Order(index, "step", slot.member, action=action)

    def _reset_after(self, index: int, fault: EnvironmentFault) -> Order:
        """Reset after a fault with ``SAME_STEP``: the fault ends the episode, and the next begins in the same step."""
        slot = self.slots[index]
        final = (slot.observation, 0.0, False, True, self._fault_info(slot, fault))
        order = self.reset_order(index, None, None)
        slot.busy, slot.again = "step", order.member
        order.final = final
        return order

    # Results

    def settle(self, outcome: Outcome, *, told: bool) -> Stepped | Exception | None:
        """Return a step's five values (with reward 0 for a reset), an exception to raise, or ``None``.

        ``None`` means that another command had to be submitted.

        Args:
            outcome: Result of a command, or of :meth:`step_order`.
            told: Whether the caller receives flags, so that an episode that could not begin is reported as truncated.
        """
        slot = self.slots[outcome.index]
        if outcome.lost:
            self.stats.replaced += outcome.lost
            slot.lost += outcome.lost
            slot.seeded.clear()
        if outcome.error is not None:
            if outcome.stepped is not None or slot.busy == "reset":
                slot.begun = False
            return outcome.error
        if outcome.fault is not None and outcome.fault is not slot.broken:
            self._count(outcome.index, outcome.fault)
        if slot.busy == "reset":
            return self._settle_reset(slot, outcome, told)
        if outcome.stepped is None:
            assert outcome.fault is not None
            slot.broken = None
            if self._mode is AutoresetMode.SAME_STEP:
                self._submit([self._reset_after(outcome.index, outcome.fault)])
                return None
            slot.over = True
            slot.info = self._fault_info(slot, outcome.fault)
            return slot.observation, 0.0, False, True, slot.info
        return self._settle_step(slot, outcome)

    def _settle_reset(self, slot: Slot, outcome: Outcome, told: bool) -> Stepped:
        slot.begun = True
        if outcome.begun is not None:
            self._begin(slot, outcome.begun, slot.member)
            return slot.observation, 0.0, False, False, slot.info
        assert outcome.fault is not None
        slot.over = told and self._mode is not AutoresetMode.SAME_STEP
        slot.broken = None if slot.over else outcome.fault
        if slot.observation is None:
            slot.observation = self.blank
        slot.info = self._fault_info(slot, outcome.fault)
        return slot.observation, 0.0, False, True, slot.info

    def _settle_step(self, slot: Slot, outcome: Outcome) -> Stepped:
        assert outcome.stepped is not None
        observation, reward, terminated, truncated, info = outcome.stepped
        done = terminated or truncated
        if "fault_kind" not in info:
            info = self._programme.dress(slot.member, info)
            self.stats.steps += 1
            self.stats.episodes += done
            if done:
                self._programme.finished(slot.member, info)
        if not (done and self._mode is AutoresetMode.SAME_STEP):
            slot.observation, slot.info, slot.over = observation, info, done
            return observation, reward, terminated, truncated, info
        ended = {"final_obs": observation, "final_info": info}
        if outcome.begun is not None:
            self._begin(slot, outcome.begun, slot.again)
            return slot.observation, reward, terminated, truncated, ended | slot.info
        assert outcome.fault is not None
        slot.broken = outcome.fault
        slot.observation, slot.info = observation, self._fault_info(slot, outcome.fault)
        return observation, reward, terminated, truncated, ended | slot.info

    def _begin(self, slot: Slot, begun: tuple[Any, dict[str, Any]], member: str) -> None:
        self.stats.resets += 1
        slot.observation = begun[0]
        slot.info = self._programme.dress(member, begun[1])
        slot.member = member
        slot.seeded.add(member)
        slot.episode += 1
        slot.over, slot.broken = False, None

    def _count(self, index: int, fault: EnvironmentFault) -> None:
        faults = self.stats.faults
        faults[fault.kind] += 1
        # Further faults of a frequent kind are only counted.
        level = logging.WARNING if faults[fault.kind] <= _TOLD else logging.DEBUG
        more = "; further ones of this kind are only counted" if faults[fault.kind] == _TOLD else ""
        _log.log(level, "environment %d: fault (%s): %s%s", index, fault.kind, fault, more)

    def _fault_info(self, slot: Slot, fault: EnvironmentFault) -> dict[str, Any]:
        """Return the keys that every text environment has, with their usual types, and the fault."""
        info: dict[str, Any] = {key: slot.info[key] for key in ("task_id", "turn") if key in slot.info}
        if "stop_reason" in slot.info:
            info |= {"invalid_action": False, "success": False, "stop_reason": _FAULT, "reward_components": {}}
        return self._programme.dress(slot.member, info) | {"fault": str(fault), "fault_kind": fault.kind}
