"""``Algorithm``: three functions, which define what to sample, the advantages and the loss.

The training loop, model, batching, checkpoints and logging do not depend on the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from trainers.algorithms import losses
from trainers.algorithms.advantages import ADVANTAGES, AdvantageBatch
from trainers.algorithms.estimators import BoolArray, FloatArray, explained_variance, has_variance, kl_cost
from trainers.algorithms.greedy_baselines import GreedyBaselineCache
from trainers.config import AlgorithmConfig, SamplingConfig, ValueConfig
from trainers.samples import Sample

if TYPE_CHECKING:  # these import the targets defined here
    from trainers.batching import MicroBatch
    from trainers.model import TokenOutputs


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One episode to sample for a task."""

    greedy: bool = False


@dataclass(frozen=True, slots=True)
class ModelSignals:
    """The model's outputs for the samples before the update, for algorithms that request them.

    Lists have one entry per sample, arrays one value per sampled token, its sequences in order.

    Attributes:
        values: The value head's value of the state in which each token was sampled.
        ref_logp: Log-probs under the reference model.
    """

    values: list[FloatArray] | None = None
    ref_logp: list[FloatArray] | None = None

    def select(self, chosen: Sequence[int]) -> ModelSignals:
        """Return the signals of the chosen samples."""
        return ModelSignals(_chosen(self.values, chosen), _chosen(self.ref_logp, chosen))


SignalName = Literal["values", "ref_logp"]
"""What an algorithm can request to be computed before the update; the fields of :class:`ModelSignals`."""


@dataclass(frozen=True, slots=True)
class TokenTargets:
    """What an algorithm computes from a batch of samples.

    Attributes:
        keep_B: Which samples to train on.
        per_token: By name, for each sample one value per sampled token, its sequences in order. Always ``"adv"``;
            with a value head also ``"value"``, ``"return"`` and ``"decision"``, which is 1.0 at tokens with a value
            target.
        metrics: Metrics to log.
    """

    keep_B: BoolArray
    per_token: Mapping[str, list[FloatArray]]
    metrics: Mapping[str, float] = field(default_factory=dict)

    def select(self, chosen: Sequence[int]) -> TokenTargets:
        """Return the targets of the chosen samples, without the numbers."""
        per_token = {name: [values[index] for index in chosen] for name, values in self.per_token.items()}
        return TokenTargets(self.keep_B[list(chosen)], per_token)


def _chosen(values: list[FloatArray] | None, chosen: Sequence[int]) -> list[FloatArray] | None:
    return None if values is None else [values[index] for index in chosen]


class Algorithm:
    """An algorithm with its options. Its state is stored in checkpoints.

    Args:
        config: Options of the algorithm.
        value: Options of the value head; used only by PPO.
        max_tokens: Maximum number of sampled tokens per episode: the constant of ``aggregation=constant``.

    Attributes:
        required_signals: Signals that the algorithm needs before the update.
        aggregation: How the token losses are weighted.
    """

    def __init__(self, config: AlgorithmConfig, value: ValueConfig, max_tokens: int) -> None:
        self.config = config
        self.value = value if config.name == "ppo" else None
        self.max_tokens = max_tokens
        asks: set[SignalName] = {"values"} if self.value is not None else set()
        if config.kl and config.kl_in == "reward":
            asks.add("ref_logp")
        self.required_signals = frozenset(asks)
        self.aggregation = config.aggregation or _default_aggregation(config)
        self._loss = _LOSSES[config.loss]
        self._greedy = GreedyBaselineCache() if config.name == "remax" else None

    def rollout_plan(self) -> Sequence[RolloutRequest]:
        """Return what to sample for a task without cached episodes."""
        drawn = [RolloutRequest()] * self.config.group_size
        return [*drawn, RolloutRequest(greedy=True)] if self._greedy is not None else drawn

    def rollout_plans(self, tasks: Sequence[int], version: int) -> list[Sequence[RolloutRequest]]:
        """Return what to sample for each task: the plan without greedy episodes that are cached for this weight
        version.
        """
        plan = self.rollout_plan()
        without = [draw for draw in plan if not draw.greedy]
        greedy = self._greedy
        return [without if greedy is not None and greedy.has(task, version) else plan for task in tasks]

    def with_cached_baselines(self, samples: Sequence[Sample], groups: Mapping[str, int], version: int) -> list[Sample]:
        """Add the cached episodes that :meth:`rollout_plans` omitted to the samples of a round.

        Args:
            samples: The samples of the round.
            groups: The task of each group of the round.
            version: Version of the weights they were sampled with.
        """
        return list(samples) if self._greedy is None else self._greedy.with_cached(samples, groups, version)

    def trainable_mask(self, samples: Sequence[Sample]) -> BoolArray:
        """Return which samples to train on.

        Excluded are greedy samples, samples without sampled tokens, truncated samples if ``overlong=mask``, and
        groups without variance if only differences within groups carry a learning signal."""
        keep_B = np.array([not sample.greedy and sample.num_sampled > 0 for sample in samples], dtype=bool)
        if self.config.overlong == "mask":
            keep_B &= ~np.array([sample.overlong for sample in samples], dtype=bool)
        if self.compares_groups and self.config.drop_zero_variance:
            reward_B = np.array([sample.reward for sample in samples], dtype=np.float64)
            group_B = np.array([sample.group_id for sample in samples], dtype=object)
            keep_B &= has_variance(reward_B, group_B)
        return keep_B

    @property
    def compares_groups(self) -> bool:
        """Whether advantages are differences within a group."""
        return self.config.name in ("grpo", "dr-grpo", "rloo", "remax")

    def targets(self, samples: Sequence[Sample], signals: ModelSignals) -> TokenTargets:
        """Compute the targets of each sampled token from the rewards.

        Raises:
            ValueError: A signal that the algorithm needs is missing.
        """
        for name in self.required_signals:
            if getattr(signals, name) is None:
                raise ValueError(f"algorithm {self.config.name!r} needs {name} of the samples, which were not computed")
        keep_B = self.trainable_mask(samples)
        batch = AdvantageBatch(samples, keep_B, self._cost(samples, signals), signals.values)
        per_token = ADVANTAGES[self.config.name](batch, self.config)
        return TokenTargets(keep_B, per_token, _metrics(keep_B, per_token))

    def loss(self, outputs: TokenOutputs, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Compute the loss per sampled token, and the bound that removed its gradient or limited its weight.

        The bound is 1.0 for the upper one, -1.0 for the lower one and 0.0 for none.
        """
        config = self.config
        loss_N, clipped_N = self._loss(outputs.logp_N, batch, config)
        cap = config.importance_cap or (_REINFORCE_CAP if config.loss == "reinforce" else None)
        if cap is None:
            return loss_N, clipped_N
        factor_N, capped_N = losses.importance_factor(
            outputs.logp_N,
            batch.sampler_logp_N,
            batch.sequence_N,
            cap=cap,
            mode=config.importance_mode,
            by_sequence=config.loss == "gspo",
        )
        return factor_N * loss_N, clipped_N.where(clipped_N != 0, capped_N)

    def value_loss(self, outputs: TokenOutputs, batch: MicroBatch) -> Tensor:
        """Compute the value head's loss per sampled token; 0 at tokens without a value target.

        Raises:
            ValueError: The model has no value head.
        """
        if self.value is None or outputs.value_N is None:
            raise ValueError(f"algorithm {self.config.name!r} has no value head to train")
        targets = batch.targets
        error_N = losses.clipped_value_loss(outputs.value_N, targets["value"], targets["return"], clip=self.value.clip)
        return targets["decision"] * error_N

    def state_dict(self) -> dict[str, Any]:
        return {"greedy": None if self._greedy is None else self._greedy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._greedy is not None and state["greedy"] is not None:
            self._greedy.load_state_dict(state["greedy"])

    def _cost(self, samples: Sequence[Sample], signals: ModelSignals) -> list[FloatArray]:
        """Return the KL cost of each sampled token, if it is part of the reward."""
        if signals.ref_logp is None:
            return [np.zeros(sample.num_sampled) for sample in samples]
        return [
            self.config.kl * kl_cost(_sampler_logp(sample), ref_logp_N, self.config.kl_estimator)
            for sample, ref_logp_N in zip(samples, signals.ref_logp, strict=True)
        ]


def make_algorithm(
    config: AlgorithmConfig, value: ValueConfig | None = None, sampling: SamplingConfig | None = None
) -> Algorithm:
    """Create the algorithm of a configuration; sections that are ``None`` get their defaults."""
    limits = sampling or SamplingConfig()
    return Algorithm(config, value or ValueConfig(), limits.max_response_tokens or limits.max_tokens)


def _default_aggregation(config: AlgorithmConfig) -> Literal["token-mean", "sequence-mean", "constant"]:
    if config.name == "dr-grpo":
        return "constant"
    return "sequence-mean" if config.loss == "gspo" else "token-mean"


_REINFORCE_CAP = 2.0

TokenLoss = Callable[[Tensor, "MicroBatch", AlgorithmConfig], tuple[Tensor, Tensor]]
"""A function from the log-probs of a microbatch's tokens to the loss per token and the bound that clipped it."""


def _bounds(config: AlgorithmConfig, low: float, high: float) -> dict[str, float]:
    """Return the clip bounds: those of the options, else these defaults."""
    return {
        "low": low if config.clip_low is None else config.clip_low,
        "high": high if config.clip_high is None else config.clip_high,
    }


def _clip(logp_N: Tensor, batch: MicroBatch, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return losses.clipped_surrogate(
        logp_N, batch.sampler_logp_N, batch.targets["adv"], **_bounds(config, 0.2, 0.28), dual=config.dual_clip
    )


def _gspo(logp_N: Tensor, batch: MicroBatch, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return losses.sequence_surrogate(
        logp_N, batch.sampler_logp_N, batch.targets["adv"], batch.sequence_N, **_bounds(config, 3e-4, 4e-4)
    )


def _cispo(logp_N: Tensor, batch: MicroBatch, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return losses.clipped_weight(logp_N, batch.sampler_logp_N, batch.targets["adv"], **_bounds(config, 1.0, 4.0))


def _dppo(logp_N: Tensor, batch: MicroBatch, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return losses.divergence_masked(logp_N, batch.sampler_logp_N, batch.targets["adv"], threshold=config.dppo_threshold)


def _reinforce(logp_N: Tensor, batch: MicroBatch, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    return losses.weighted_reinforce(logp_N, batch.sampler_logp_N, batch.targets["adv"])


_LOSSES: dict[str, TokenLoss] = {
    "clip": _clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "dppo": _dppo,
    "reinforce": _reinforce,
}


def _sampler_logp(sample: Sample) -> FloatArray:
    if not sample.sequences:
        return np.zeros(0)
    return np.concatenate(
        [np.asarray(sequence.logprobs)[np.asarray(sequence.mask) == 1] for sequence in sample.sequences]
    )


def _metrics(keep_B: BoolArray, per_token: Mapping[str, list[FloatArray]]) -> dict[str, float]:
    """Compute diagnostics of the advantages and, with a value head, of the values."""
    kept = {
        name: np.concatenate([np.zeros(0), *(values[i] for i in np.flatnonzero(keep_B))])
        for name, values in per_token.items()
    }
    adv_N = kept["adv"]
    if not len(adv_N):
        return {}
    numbers = {
        "advantages/mean": float(adv_N.mean()),
        "advantages/std": float(adv_N.std()),
        "advantages/max": float(np.abs(adv_N).max()),
    }
    if "value" in kept:
        judged = kept["decision"] > 0
        value_N, return_N = kept["value"][judged], kept["return"][judged]
        numbers |= {
            "value/mean": float(value_N.mean()),
            "value/return_mean": float(return_N.mean()),
            "value/explained_variance": explained_variance(value_N, return_N),
        }
    return numbers
