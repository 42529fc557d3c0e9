"""An algorithm is three small functions: what to sample, rewards to advantages, and a loss. This is their table.

The loop, the model, batching, checkpoints and logging do not know which algorithm runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from trainers.algorithms.advantages import (
    BoolArray,
    FloatArray,
    batch_baseline,
    greedy_baseline,
    group_relative,
    leave_one_out,
    varied,
)
from trainers.algorithms.losses import clipped_surrogate, weighted_reinforce
from trainers.config import AlgorithmConfig
from trainers.samples import Sample

if TYPE_CHECKING:  # those read the targets made here
    from trainers.batching import MicroBatch
    from trainers.model import TokenOutputs


@dataclass(frozen=True, slots=True)
class Draw:
    """One episode to sample for a task."""

    greedy: bool = False


Plan = Callable[[AlgorithmConfig], Sequence[Draw]]
"""What to sample for each task."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the model says of the samples before the update, for algorithms that ask for it.

    Lists have one entry per sample, arrays one value per sampled token, its sequences in order.

    Attributes:
        values: The value head's, at the state in which each token was sampled.
        final_values: And after the last token of each sequence: ``(number of sequences,)`` per sample.
        ref_logp: Log-probs by the reference model.
    """

    values: list[FloatArray] | None = None
    final_values: list[FloatArray] | None = None
    ref_logp: list[FloatArray] | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """What an algorithm makes of a batch of samples.

    Attributes:
        keep_B: Which samples to train on.
        per_token: By name, for each sample one value per sampled token, its sequences in order; ``"adv"`` always.
    """

    keep_B: BoolArray
    per_token: Mapping[str, list[FloatArray]]


Advantages = Callable[[Sequence[Sample], AlgorithmConfig], list[FloatArray]]
"""For each sample one value per sampled token, its sequences in order."""

TokenLoss = Callable[[Tensor, Tensor, Tensor, AlgorithmConfig], tuple[Tensor, Tensor]]
"""``(logp_N, sampler_logp_N, adv_N)`` to the loss per token and 1.0 where the token was clipped."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The three functions, with the options they read."""

    config: AlgorithmConfig
    _plan: Plan
    _advantages: Advantages
    _loss: TokenLoss
    _compares_groups: bool

    def plan(self) -> Sequence[Draw]:
        """What to sample for each task."""
        return self._plan(self.config)

    def targets(self, samples: Sequence[Sample], signals: Signals) -> Targets:
        """Rewards to what each sampled token is to learn."""
        drop = self._compares_groups and self.config.drop_zero_variance
        keep_B = informative(samples, drop_zero_variance=drop)
        return Targets(keep_B, {"adv": self._advantages(samples, self.config)})

    def loss(self, outputs: TokenOutputs, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """The loss per sampled token, and 1.0 where the token was clipped."""
        return self._loss(outputs.logp_N, batch.sampler_logp_N, batch.targets["adv"], self.config)


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm a configuration names."""
    plan, advantages, compares_groups = _ALGORITHMS[config.name]
    return Algorithm(config, plan, advantages, _LOSSES[config.loss], compares_groups)


def informative(samples: Sequence[Sample], *, drop_zero_variance: bool) -> BoolArray:
    """Which samples to train on: none that were greedy or sampled nothing, nor groups without variance if so asked."""
    keep_B = np.array([not sample.greedy and sample.num_sampled > 0 for sample in samples], dtype=bool)
    if drop_zero_variance:
        reward_B, group_B, _ = _columns(samples)
        keep_B &= varied(reward_B, group_B)
    return keep_B


def _group_plan(config: AlgorithmConfig) -> Sequence[Draw]:
    return [Draw()] * config.group_size


def _greedy_twin_plan(config: AlgorithmConfig) -> Sequence[Draw]:
    return [*_group_plan(config), Draw(greedy=True)]


def _grpo(samples: Sequence[Sample], config: AlgorithmConfig) -> list[FloatArray]:
    reward_B, group_B, _ = _columns(samples)
    return _per_token(samples, group_relative(reward_B, group_B, normalize_std=config.normalize_std))


def _rloo(samples: Sequence[Sample], config: AlgorithmConfig) -> list[FloatArray]:
    reward_B, group_B, _ = _columns(samples)
    return _per_token(samples, leave_one_out(reward_B, group_B))


def _remax(samples: Sequence[Sample], config: AlgorithmConfig) -> list[FloatArray]:
    return _per_token(samples, greedy_baseline(*_columns(samples)))


def _reinforce(samples: Sequence[Sample], config: AlgorithmConfig) -> list[FloatArray]:
    return _per_token(samples, batch_baseline(_columns(samples)[0]))


def _clip(logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return clipped_surrogate(logp_N, sampler_logp_N, adv_N, low=config.clip_low, high=config.clip_high)


def _weighted(logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return weighted_reinforce(logp_N, sampler_logp_N, adv_N, cap=config.ratio_cap)


def _columns(samples: Sequence[Sample]) -> tuple[FloatArray, np.ndarray, BoolArray]:
    return (
        np.array([sample.reward for sample in samples], dtype=np.float64),
        np.array([sample.group_id for sample in samples], dtype=object),
        np.array([sample.greedy for sample in samples], dtype=bool),
    )


def _per_token(samples: Sequence[Sample], adv_B: FloatArray) -> list[FloatArray]:
    """Every sampled token of an episode gets the episode's advantage."""
    return [np.full(sample.num_sampled, value) for sample, value in zip(samples, adv_B, strict=True)]


_ALGORITHMS: dict[str, tuple[Plan, Advantages, bool]] = {
    "grpo": (_group_plan, _grpo, True),
    "rloo": (_group_plan, _rloo, True),
    "remax": (_greedy_twin_plan, _remax, True),
    "reinforce": (_group_plan, _reinforce, False),
}

_LOSSES: dict[str, TokenLoss] = {"clip": _clip, "reinforce": _weighted}
