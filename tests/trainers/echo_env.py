"""A small environment for training runs of seconds. It imports no torch: worker processes import it."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium

from rllm_gym.core import InvalidAction, Outcome, Task, TextEnv, stream_seed


class Letters:
    """Tasks: one of four letters; 30 tasks per split."""

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

    An untrained model sometimes gets a reward, so that reinforcement learning has a signal at the start.
    Two turns; the reward is the fraction of turns with such a token.
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
