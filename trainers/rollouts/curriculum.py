"""Selection of the tasks of each step: every training task once per pass, in a shuffled order that needs no memory.

The order is a pure function of (seed, pass), so that a resumed run neither loses nor repeats tasks.
"""

from __future__ import annotations

import random
from collections.abc import Sized
from typing import Any

from rllm_gym.core import stream_seed
from trainers.config import CurriculumConfig


def shuffled(index: int, size: int, key: int) -> int:
    """Return the ``index``-th element of a shuffle of ``range(size)``, without computing the whole shuffle.

    A four-round Feistel network over the next even power of two, iterated until the result is in the range (Black
    and Rogaway 2002). It is a bijection for every key, also for task sets of billions.

    >>> sorted(shuffled(i, 10, key=7) for i in range(10)) == list(range(10))
    True
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            left, right = right, left ^ (stream_seed("shuffle", key, turn, right) & mask)
        index = (left << half) | right
        if index < size:
            return index


# Weight of solved and of hopeless tasks in replay by difficulty; the largest is 1/4 more.
_RARELY = 0.02


class TaskCurriculum:
    """Selects the tasks of each step. Its state is stored in checkpoints.

    Args:
        tasks: The training tasks.
        config: Which earlier tasks are repeated and how often; ``None`` for none.
        seed: Seed of the order.
    """

    def __init__(self, tasks: Sized, config: CurriculumConfig | None, seed: int) -> None:
        self._tasks = tasks
        self._fraction = 0.0 if config is None else config.replay_fraction
        self._by_difficulty = config is not None and config.replay_by == "difficulty"
        self._seed = seed
        self._drawn = 0
        self._rates: dict[int, float] = {}  # success rates of the tasks to repeat, in a fixed order

    def next_tasks(self, step: int, groups: int) -> list[int]:
        """Return the task indices of one step: some earlier tasks again, the rest new ones."""
        generator = random.Random(stream_seed("replay", self._seed, step))
        wanted = min(round(groups * self._fraction), len(self._rates))
        if self._by_difficulty:  # without replacement: Efraimidis and Spirakis 2006
            waits = {index: generator.expovariate(rate * (1 - rate) + _RARELY) for index, rate in self._rates.items()}
            again = sorted(waits, key=lambda index: waits[index])[:wanted]
        else:
            again = generator.sample(list(self._rates), wanted)
        return again + self.next_fresh_tasks(groups - wanted)

    def next_fresh_tasks(self, groups: int) -> list[int]:
        """Return the next tasks of the pass, for a step that needs additional ones."""
        return [self._fresh() for _ in range(groups)]

    def update(self, success_rate: dict[int, float]) -> None:
        """Record the success rate of each task's group in the step."""
        if self._fraction == 0:
            return
        for index, rate in success_rate.items():
            if rate >= 1.0 and not self._by_difficulty:
                self._rates.pop(index, None)
            else:
                self._rates[index] = rate

    def state_dict(self) -> dict[str, Any]:
        return {"dealt": self._drawn, "rates": list(self._rates.items()), "tasks": len(self._tasks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        Raises:
            ValueError: The checkpoint was written with a different number of tasks.
        """
        if state["tasks"] != len(self._tasks):
            raise ValueError(
                f"the checkpoint has {state['tasks']} training tasks and the environment has {len(self._tasks)}: "
                "resume with the same env options, or start a new run in another output folder"
            )
        self._drawn = state["dealt"]
        self._rates = {index: rate for index, rate in state["rates"] if rate < 1 or self._by_difficulty}

    def _fresh(self) -> int:
        size = len(self._tasks)
        epoch, position = divmod(self._drawn, size)
        self._drawn += 1
        return shuffled(position, size, key=stream_seed("order", self._seed, epoch))
