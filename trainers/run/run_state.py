"""``RunState``: everything that determines how a run continues. A checkpoint stores it, and a resumed run starts from
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.algorithms import AlgorithmRun
from trainers.entropy import EntropyBonus
from trainers.learner import LearnerSet, UpdateStats
from trainers.rollouts.collector import RolloutBatch
from trainers.rollouts.curriculum import TaskCurriculum
from trainers.rollouts.opponents import OpponentPool
from trainers.run.metrics import success_by_group
from trainers.run.resume import generator_states, set_generator_states
from trainers.run.rollout_prefetcher import RolloutPrefetcher


@dataclass(slots=True)
class RunState:
    """The state of a run. What a checkpoint stores is the state at the end of the last complete step: a run that was
    stopped within a step repeats that step.

    Attributes:
        learners: The trained weights with their versions and optimizers.
        algorithm: The algorithm.
        curriculum: The position in the training tasks, and which of them are unsolved.
        entropy: The entropy bonus of each adapter.
        opponents: The frozen opponents, if there are any.
        prefetcher: The tasks that were selected and not trained on yet.
        step: Number of complete steps.
        validation: Metrics of the last validation.
        best: Metric, step and value of the best validation; empty before there is one.
        unvalidated: Metrics of a step whose validation was interrupted by a signal; it is repeated on resume.
        empty_steps: Number of consecutive steps without an episode to train on.
    """

    learners: LearnerSet
    algorithm: AlgorithmRun
    curriculum: TaskCurriculum
    entropy: dict[str, EntropyBonus]
    opponents: OpponentPool | None
    prefetcher: RolloutPrefetcher
    step: int = 0
    validation: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    unvalidated: dict[str, Any] = field(default_factory=dict)
    empty_steps: int = 0
    _complete: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def entropy_weights(self) -> dict[str, float]:
        """The entropy weight of each adapter."""
        return {adapter: bonus.weight for adapter, bonus in self.entropy.items()}

    @property
    def best_step(self) -> int | None:
        """The step of the best validation, whose checkpoint and model are kept."""
        return int(self.best["step"]) if self.best else None

    def observe(self, step: int, batch: RolloutBatch, updates: Mapping[str, UpdateStats]) -> None:
        """Update what later steps depend on: the unsolved tasks and the entropy weights."""
        rates = success_by_group(batch.episodes)
        self.curriculum.update({batch.groups[group]: rate for group, rate in rates.items()})
        for adapter, update in updates.items():
            if update.tokens:
                self.entropy[adapter].observe(step, update.entropy)

    def end_step(self, step: int) -> None:
        """Mark this many steps as complete: from now on :meth:`state_dict` returns the state as it is here, except that
        the weights are always the current ones."""
        self.step = step
        self._complete = {
            "curriculum": self.curriculum.state_dict(),
            "prefetcher": self.prefetcher.state_dict(),
            "entropy": {adapter: bonus.state_dict() for adapter, bonus in self.entropy.items()},
            "opponents": {} if self.opponents is None else self.opponents.state_dict(),
            "generators": generator_states(),
            "validation": self.validation,
            "best": self.best,
            "unvalidated": json.dumps(self.unvalidated),
            "empty_steps": self.empty_steps,
        }

    def state_dict(self) -> dict[str, Any]:
        return self._complete | {"learner": self.learners.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state after this many steps.

        Raises:
            ValueError: The state belongs to another model, other adapters or other tasks.
        """
        self.learners.load_state_dict(state["learner"])
        self.curriculum.load_state_dict(state["curriculum"])
        self.prefetcher.load_state_dict(state["prefetcher"])
        for adapter, bonus in self.entropy.items():
            bonus.load_state_dict(state["entropy"][adapter])
        if self.opponents is not None and state["opponents"]:
            self.opponents.load_state_dict(state["opponents"])
        set_generator_states(state["generators"])
        self.validation, self.best = state["validation"], state["best"]
        self.unvalidated = json.loads(state["unvalidated"])
        self.empty_steps = state["empty_steps"]
        self.step = step
