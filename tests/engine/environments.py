"""Environments controlled by their task, for the engine's tests, and a clock controlled by the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rllm_gym.core import EnvironmentFault, Episode, Outcome, Task, Text, TextEnv
from rllm_gym.engine import save_episodes


class Clock:
    """The clock of this process, stopped: deadlines pass when the test advances the clock, not on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = time.monotonic
        self._now = self._real()
        self._running = False
        monkeypatch.setattr(time, "monotonic", lambda: self._now + (self._real() if self._running else 0.0))

    def forward(self, seconds: float) -> None:
        self._now += seconds

    def run(self) -> None:
        """Let the clock run."""
        self._now -= self._real()
        self._running = True


def longest(observation: Any, answer: str) -> float:
    """A verifier. Worker processes import its module, which therefore imports little."""
    assert observation.startswith("question 5")
    return float(len(answer))


def append_episodes(path: Path, name: str) -> None:
    """Append fifty episodes, one at a time, as another process does."""
    for number in range(50):
        save_episodes(path, [Episode(f"{name}-{number}", "t", info={"text": "x" * 5000})], append=True)


class Tasks:
    """``count`` tasks named ``task-0``, ``task-1``, …"""

    def __init__(self, count: int = 100) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return Task(f"task-{index}", f"question {index}", {"answer": str(index)})

    def __iter__(self) -> Any:
        return (self[index] for index in range(self._count))

    def find(self, task_id: str) -> Task:
        return self[int(task_id.removeprefix("task-"))]


class Quiz(TextEnv):
    """Solved by saying the task's number; any other reply is a turn. The number after ``dice`` depends on the dynamics
    seed.
    """

    made = 0
    closed = 0

    def __init__(self, max_turns: int = 4) -> None:
        super().__init__(tasks=Tasks(), max_turns=max_turns)
        type(self).made += 1

    def _begin(self, task: Task) -> str:
        return f"{task.content}, dice {self.np_random.integers(1_000_000)}"

    def _act(self, action: str) -> Outcome:
        if action == self.task.data["answer"]:
            return Outcome("right", {"answer": 1.0}, terminated=True, success=True)
        if action == "give up":
            return Outcome("", {"answer": 0.0}, terminated=True)
        return Outcome(f"not {action}", {"answer": 0.125})

    def close(self) -> None:
        type(self).closed += 1


class Gate(gymnasium.Env[str, str]):
    """Its only step of task ``n`` waits until gate ``n`` is opened."""

    def __init__(self, gates: dict[int, threading.Event]) -> None:
        self.observation_space = Text(100)
        self.action_space = Text(100)
        self._gates = gates

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = (options or {})["task"]
        return "wait", {"task_id": str(self._number)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._gates[self._number].wait()
        return "", 1.0, True, False, {"task_id": str(self._number)}


class BreaksOnce(gymnasium.Env[str, str]):
    """The first attempt of each task raises a fault; the reset seeds of later attempts are recorded."""

    def __init__(self, seeds: dict[int, list[int]]) -> None:
        self.observation_space = Text(100)
        self.action_space = Text(100)
        self._seeds = seeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number = (options or {})["task"]
        self._seeds.setdefault(self._number, []).append(seed or 0)
        return f"dice {self.np_random.integers(1_000_000)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if len(self._seeds[self._number]) == 1:
            raise EnvironmentFault("the server hiccuped", kind="hiccup")
        return "", 1.0, True, False, {}
