"""Learners for all sets of trained weights: usually one, or one per adapter if roles have their own adapters.

They share only the model. Each has its own optimizer, value head, gradient norm and token averages, so that the
reply length of one role does not affect the learning rate of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from trainers.algorithms import AlgorithmRun, PerToken, ValueOptions
from trainers.algorithms.advantages import by_samples, select
from trainers.batching.token_count import TokenCount
from trainers.config import OptimizerConfig
from trainers.learner.learner import Learner
from trainers.learner.update_stats import TOKEN_MEANS, RoleStats, UpdateStats
from trainers.model import Policy
from trainers.model.adapters import adapter_of
from trainers.process_group import SINGLE_PROCESS, ProcessGroup
from trainers.samples import Sample


class LearnerSet:
    """Learners by adapter. The arguments are those of :class:`~trainers.learner.Learner`.

    Attributes:
        by_adapter: The learners, in the order of the policy's adapters.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerConfig,
        steps: int,
        value: ValueOptions | None = None,
        ranks: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._policy = policy
        self.by_adapter = {
            adapter: Learner(policy, optimizer, steps, value, ranks, adapter) for adapter in policy.adapters
        }

    def save_before_retry(self, save: Callable[[], None]) -> None:
        """Save before an update is repeated with smaller microbatches: that of the first adapter, before which no
        weights have changed."""
        next(iter(self.by_adapter.values())).before_retry = save

    @property
    def version(self) -> int:
        """Number of optimizer steps that changed any of the weights."""
        return sum(learner.version for learner in self.by_adapter.values())

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """All trained parameters."""
        return [parameter for learner in self.by_adapter.values() for parameter in learner.parameters]

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, the same for all."""
        return next(iter(self.by_adapter.values())).learning_rate(step)

    def signals(self, samples: Sequence[Sample], asked: Collection[str]) -> PerToken:
        """Compute the signals an algorithm requests, for each sample with the weights trained on it."""
        if not asked:
            return {}

        def of_adapter(adapter: str, chosen: Sequence[int]) -> PerToken:
            return self.by_adapter[adapter].signals([samples[index] for index in chosen], asked)

        parts = {adapter: _samples_of(samples, adapter) for adapter in self.by_adapter}
        return by_samples(parts, len(samples), of_adapter)

    def update(
        self,
        step: int,
        samples: Sequence[Sample],
        targets: PerToken,
        algorithm: AlgorithmRun,
        entropy_weights: Mapping[str, float],
        *,
        fresh: bool = False,
    ) -> dict[str, UpdateStats]:
        """Train each set of weights on its samples and return the statistics by adapter; see :meth:`Learner.update`.

        Raises:
            TrainingDiverged: One of the learners had too many consecutive steps that were not finite.
        """
        updates = {}
        for adapter, learner in self.by_adapter.items():
            chosen = _samples_of(samples, adapter)
            mine = [samples[index] for index in chosen]
            weight = entropy_weights[adapter]
            per_token = select(targets, chosen)
            updates[adapter] = learner.update(step, mine, per_token, algorithm, weight, fresh=fresh)
        every, fraction = algorithm.options.reference_sync or (0, 0.0)
        if every and not (step + 1) % every:
            self._policy.move_reference(fraction)
        return updates

    def state_dict(self) -> dict[str, Any]:
        own = {adapter: learner.state_dict() for adapter, learner in self.by_adapter.items()}
        parameters = {name: value for state in own.values() for name, value in state.pop("parameters").items()}
        return {"parameters": parameters, "adapters": own, "reference": self._policy.reference_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state.

        Raises:
            ValueError: The state belongs to another model or other adapters.
        """
        saved = state["adapters"]
        if saved.keys() != self.by_adapter.keys():
            raise ValueError(
                f"the checkpoint has the adapters {_names(saved)} and the run {_names(self.by_adapter)}: resume with "
                "the same roles, or start a new run in another output folder"
            )
        for adapter, learner in self.by_adapter.items():
            mine = {
                name: value
                for name, value in state["parameters"].items()
                if len(saved) == 1 or adapter_of(name) == adapter
            }
            learner.load_state_dict({**saved[adapter], "parameters": mine})
        self._policy.load_reference_state(state["reference"])


def merge_updates(updates: Collection[UpdateStats]) -> UpdateStats:
    """Combine the statistics of several adapters: means over all their tokens, maxima of norms and gaps."""
    parts = list(updates)
    if len(parts) == 1:
        return parts[0]
    total = UpdateStats()
    # Without trained tokens, there may still be measured ones.
    weights = [part.tokens for part in parts]
    if not any(weights):
        weights = [part.forward.padded for part in parts]
    first = [part.first_tokens for part in parts] if any(part.first_tokens for part in parts) else weights
    for name in ("loss", "logprob_difference_mean", "value_loss", *TOKEN_MEANS):
        weight_of = first if name == "logprob_difference_mean" else weights
        values = [getattr(part, name) * weight for part, weight in zip(parts, weight_of, strict=True)]
        setattr(total, name, sum(values) / max(1, sum(weight_of)))
    for name in ("logprob_difference_max", "importance_ratio_max", "grad_norm", "value_grad_norm"):
        setattr(total, name, max(getattr(part, name) for part in parts))
    total.tokens = sum(part.tokens for part in parts)
    total.first_tokens = sum(part.first_tokens for part in parts)
    total.skipped = sum(part.skipped for part in parts)
    total.forward = sum((part.forward for part in parts), TokenCount())
    for part in parts:
        for role, tally in part.roles.items():
            total.roles[role] = total.roles.get(role, RoleStats()) + tally
    return total


def _samples_of(samples: Sequence[Sample], adapter: str) -> list[int]:
    return [index for index, sample in enumerate(samples) if sample.adapter == adapter]


def _names(adapters: Collection[str]) -> str:
    return ", ".join(sorted(adapter or "shared" for adapter in adapters))
