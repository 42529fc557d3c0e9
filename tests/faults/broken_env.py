"""An environment whose faults are determined by its task, on every attempt, so that tests can count exactly."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import gymnasium

from rllm_gym.core import EnvironmentFault, StopReason, Text

KINDS = ("raise", "hang_step", "hang_close", "garbage", "die")
REPORTED_AS = {
    "raise": ("raise", "exception"),
    "hang_step": ("step_deadline",),
    "hang_close": ("close_deadline",),
    "garbage": ("invalid_result",),
    "die": ("worker_died",),
}

FOREVER = threading.Event()
"""Hanging calls wait for this event; a test in the same process sets it at its end, so that no thread outlives it."""

_GARBAGE: list[Any] = [
    None,
    ("only", 1.0, True),
    (b"bytes", 0.0, False, False, {}),
    ("text", float("nan"), False, False, {}),
    ("text", float("inf"), False, False, {}),
    ("text", "1.0", False, False, {}),
    ("text", 0.0, "no", False, {}),
    ("text", 0.0, False, None, {}),
    ("text", 0.0, False, False, None),
    ("text", None, False, False, {}),
]


def kind_of(task: int, kinds: tuple[str, ...] = KINDS) -> str | None:
    """Return the fault of this task's episode: every fifth task has one, each kind equally often."""
    return kinds[task // 5 % len(kinds)] if task % 5 == 0 else None


def check_episodes(engine: Any, episodes: list[Any], kinds: tuple[str, ...], retries: int, *, turns: int) -> int:
    """Assert that each fault was counted under its kind and none is trained on; return how often each kind occurred.

    The number of episodes is a multiple of 5 times the number of kinds.
    """
    count = len(episodes)
    assert [episode.task_id for episode in episodes] == [str(task) for task in range(count)]
    for task, episode in enumerate(episodes):
        if kind_of(task, kinds) is None:
            assert (episode.stop_reason, episode.trainable) == (StopReason.SUCCESS, True)
            assert (episode.reward, episode.num_turns, episode.attempts) == (1.0, turns, 1)
        else:
            assert (episode.stop_reason, episode.attempts) == (StopReason.FAULT, 1 + retries)
            assert episode.fault
            assert (episode.reward, episode.success, episode.trainable) == (0.0, False, False)
    stats, broken = engine.stats, count // 5
    each = broken // len(kinds) * (1 + retries)
    counted = {kind: sum(stats.faults[name] for name in REPORTED_AS[kind]) for kind in kinds}
    assert counted == dict.fromkeys(kinds, each)
    assert sum(stats.faults.values()) == broken * (1 + retries)
    assert stats.stop_reasons == {"success": count - broken, "fault": broken}
    assert (stats.dropped, stats.retries, stats.rewards) == (broken, broken * retries, count - broken)
    return each


class BrokenEnv(gymnasium.Env[str, str]):
    """Three turns, reward 1 at the end, unless the task requests a fault."""

    def __init__(self, kinds: tuple[str, ...] = KINDS) -> None:
        self.observation_space = Text(100)
        self.action_space = Text(100)
        self._kinds = kinds
        self._kind: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert options is not None
        self._number = options["task"]
        self._kind = kind_of(self._number, self._kinds)
        self._turn = 0
        return "begin", {"task_id": str(self._number)}

    def step(self, action: str) -> Any:
        self._turn += 1
        if self._turn == 2:
            match self._kind:
                case "raise":
                    if self._number % 2:
                        raise EnvironmentFault("the server went away", kind="raise")
                    raise ZeroDivisionError("a bug in the environment")
                case "hang_step":
                    FOREVER.wait()
                case "garbage":
                    return _GARBAGE[self._number // 25 % len(_GARBAGE)]
                case "die":
                    os._exit(3)
        return f"turn {self._turn}", 1.0 if self._turn == 3 else 0.0, self._turn == 3, False, {}

    def close(self) -> None:
        if self._kind == "hang_close":
            FOREVER.wait()


class BreaksIn(gymnasium.Env[str, str]):
    """Has a fault in one phase, for the task ``"broken"``; in the second construction, if the phase is ``make``."""

    made: ClassVar[set[tuple[str, str]]] = set()

    def __init__(self, phase: str, how: str) -> None:
        self.observation_space = Text(100)
        self.action_space = Text(100)
        self._phase, self._how = phase, how
        self._task = "well"
        # A process worker serves both episodes here, so it remembers as a thread does.
        if (phase, how) in self.made:
            self.made.remove((phase, how))
            self._break("make")
        elif phase == "make":
            self.made.add((phase, how))

    def _break(self, phase: str) -> Any:
        if phase != self._phase or (phase != "make" and self._task != "broken"):
            return None
        match self._how:
            case "hang":
                FOREVER.wait()
            case "raise":
                raise OSError("no space left")
            case "memory":
                return ("x" * 2**30, {})
        return "garbage"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._task = (options or {})["task"]
        return self._break("reset") or ("begin", {"task_id": self._task})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "end", 1.0, True, False, {}

    def close(self) -> None:
        self._break("close")
