"""An environment whose rewards always differ within a group: the share of vowels in the reply."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rllm_gym.core import Outcome, Task, TextEnv
from rllm_gym.data import Taskset


class Vowels(TextEnv):
    def __init__(self, **arguments: Any) -> None:
        rows = [{"question": f"Say {number} words with many vowels."} for number in range(2, 10)]
        super().__init__(tasks=Taskset.from_rows(rows), max_turns=1, **arguments)

    def _begin(self, task: Task) -> str:
        return task.content

    def _act(self, action: str) -> Outcome:
        share = sum(letter in "aeiou" for letter in action) / max(1, len(action))
        return Outcome("Thank you.", {"vowels": share}, terminated=True)


gym.register("test/Vowels-v0", entry_point=Vowels)
