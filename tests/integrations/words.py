"""An environment for the tests of trainers, which records its resets and can be made to fail."""

from __future__ import annotations

from typing import ClassVar

from rllm_gym.core import EnvironmentFault, Outcome, Task, TextEnv
from rllm_gym.data import Taskset

TASKS = Taskset.from_rows([Task(f"words-{index}", f"say word {index}") for index in range(6)])


class Words(TextEnv):
    """Three turns; the reward counts letters, so that different replies have different rewards.

    Args:
        talkative: Number of words added to each observation.
    """

    closed = 0
    seen: ClassVar[list[tuple[str, int]]] = []
    breaks: ClassVar[set[str]] = set()

    def __init__(self, talkative: int = 0) -> None:
        super().__init__(tasks=TASKS, max_turns=3)
        self._more = " word" * talkative

    def _begin(self, task: Task) -> str:
        rng = int(self.np_random.integers(1_000_000_000))
        type(self).seen.append((task.task_id, rng))
        return f"{task.content} ({rng}){self._more}"

    def _act(self, action: str) -> Outcome:
        if self.task.task_id in self.breaks:
            raise EnvironmentFault("the environment is gone", kind="test")
        over = "stop" in action
        return Outcome(f"go on{self._more}", {"letters": len(action) / 100}, terminated=over, success=over)

    def close(self) -> None:
        type(self).closed += 1
