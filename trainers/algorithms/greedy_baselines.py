"""Cache of greedy episodes: ReMax's baseline of a task is reused as long as the weights are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rllm_gym.core import TokenSequence
from trainers.samples import Sample


class GreedyBaselineCache:
    """Greedy samples of the current weights, by task. The state is stored in checkpoints."""

    def __init__(self) -> None:
        self._version = -1
        self._by_task: dict[int, list[Sample]] = {}  # one per trained agent

    def has(self, task: int, version: int) -> bool:
        """Return whether there is a greedy episode of the task with these weights."""
        return version == self._version and task in self._by_task

    def with_cached(self, samples: Sequence[Sample], groups: Mapping[str, int], version: int) -> list[Sample]:
        """Add the cached greedy samples to each group without a greedy sample, for the same task and weights.

        Args:
            samples: The samples of one round of rollouts.
            groups: The task of each of its groups.
            version: Version of the weights they were sampled with.
        """
        if version != self._version:
            self._version, self._by_task = version, {}
        greedy: dict[str, list[Sample]] = {}
        for sample in samples:
            if sample.greedy:
                greedy.setdefault(sample.task_group, []).append(sample)
        self._by_task |= {groups[group]: samples for group, samples in greedy.items()}
        cached = [
            replace(sample, group_id=f"{group}/{sample.role}" if sample.role else group)
            for group, task in groups.items()
            if group not in greedy
            for sample in self._by_task.get(task, ())
        ]
        return [*samples, *cached]

    def state_dict(self) -> dict[str, Any]:
        by_task = {task: [_row(sample) for sample in samples] for task, samples in self._by_task.items()}
        return {"version": self._version, "by_task": by_task}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._version = state["version"]
        self._by_task = {task: [_sample(row) for row in rows] for task, rows in state["by_task"].items()}


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(**{**row, "sequences": tuple(TokenSequence(**sequence) for sequence in row["sequences"])})


def _row(sample: Sample) -> dict[str, Any]:
    sequences = tuple(_fields(sequence) for sequence in sample.sequences)
    return {**_fields(sample), "sequences": sequences}


def _fields(record: Sample | TokenSequence) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
