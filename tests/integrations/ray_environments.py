"""Environments and actors for Ray's tests: they report where they run, and some exit or hang. Nodes can import this
module.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import ray

from rllm_gym.core import Text


def node() -> str:
    return str(ray.get_runtime_context().get_node_id())


class Located:
    """An actor with several kinds of work."""

    def where(self) -> tuple[str, int]:
        return node(), os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def deaf(self) -> int:
        """Run C code for minutes without releasing the GIL."""
        return len(str(7 ** (10**9)))

    def raises(self) -> None:
        raise LookupError("nothing there")

    def leaves(self) -> None:
        os._exit(3)

    def hoard(self) -> int:
        return len([bytearray(1 << 20) for _ in range(4096)])


class Counting(gymnasium.Env[str, str]):
    """Counts its steps and shows a random number of its seed; ends after three. With ``dies_once``, it kills its own
    process in the second step if that file does not exist, and creates the file.
    """

    def __init__(self, dies_once: str | None = None) -> None:
        self.observation_space = self.action_space = Text()
        self._dies_once = Path(dies_once) if dies_once else None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._dies_once is not None and self._steps == 2 and not self._dies_once.exists():
            self._dies_once.touch()
            os.kill(os.getpid(), 9)
        return self._text(), 0.5, self._steps == 3, False, {}

    def where(self) -> tuple[str, int]:
        return node(), os.getpid()

    def _text(self) -> str:
        return f"step {self._steps}, {self.np_random.integers(1_000_000)}"
