"""Small environments to train on in seconds, and the options that go with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

from rllm_gym.core import InvalidAction, Outcome, Task, TextEnv, stream_seed
from trainers.config import TrainConfig
from trainers.settings import from_mapping
from trainers.tiny_model import make_tiny_model


class Letters:
    """Tasks: a letter of four. A split of 30 tasks each."""

    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(index)
        letter = "abcd"[stream_seed(self.split, index) % 4]
        return Task(f"letters/{self.split}/{index}", f"{self.split} {index} {letter}", {"letter": letter})

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def find(self, task_id: str) -> Task:
        return next(task for task in self if task.task_id == task_id)


class EchoEnv(TextEnv):
    """Say a letter: reward for any token that begins with a letter of the first half of the alphabet.

    A model without any training meets it now and then, so that reinforcement learning has something to begin with.
    Two turns; the reward is the share of turns that met it.
    """

    def __init__(self, split: str = "train") -> None:
        super().__init__(tasks=Letters(split), max_turns=2)

    def _begin(self, task: Task) -> str:
        self._hits = 0
        return f"say {task.data['letter']}"

    def _act(self, action: str) -> Outcome:
        word = action.strip().lower()
        if not word:
            raise InvalidAction("say something")
        hit = "a" <= word[0] <= "m"
        self._hits += hit
        last = self._turn == 1
        return Outcome("again", {"hit": hit / 2}, terminated=last, success=last and self._hits == 2)


if "test/Echo-v0" not in gymnasium.registry:
    gymnasium.register("test/Echo-v0", entry_point=EchoEnv)


def echo_config(folder: Path, **sections: Any) -> TrainConfig:
    """Options of a run of seconds in ``folder``; ``sections`` are laid over them."""
    model = folder / "tiny"
    if not model.exists():
        make_tiny_model(model, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    options: dict[str, Any] = {
        "output": str(folder / "run"),
        "steps": 4,
        "progress": False,
        "env": {"id": "echo_world:test/Echo-v0"},
        "model": {"path": str(model), "tuning": "full"},
        "sampling": {"max_tokens": 3},
        "algorithm": {"group_size": 4, "groups_per_step": 4},
        "optimizer": {"lr": 0.003, "warmup_steps": 1},
        "validation": {"every": 2, "tasks": 6, "samples": 2},
        "checkpoint": {"every": 1},
    }
    for name, value in sections.items():
        options[name] = {**options.get(name, {}), **value} if isinstance(value, dict) else value
    return from_mapping(TrainConfig, options)
