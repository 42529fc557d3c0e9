"""``Loss``: a loss per sampled token with its options, and the losses of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainers.algorithms.options import Aggregation, LossOptions, at_least_0, ratio_above_1
from trainers.option_checks import positive

# torch, which takes seconds to import, is imported only when a loss is computed: the options are also read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from trainers.batching import MicroBatch


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss per sampled token.

    Attributes:
        name: Its name in messages.
        options: A dataclass of exactly the options that it reads; they are set as options of the algorithm.
        function: Called with the policy's log-probs of the N sampled tokens of a microbatch, the microbatch
            (``batch.targets["adv"]`` are the advantages, ``batch.sampler_logp_N`` the log-probs the tokens were
            sampled with) and the options. Returns the loss per token, and which bound limited the token: 1.0 the upper
            one (its ratio is too large), -1.0 the lower one, 0.0 none.
        aggregation: How the tokens are weighted, unless the algorithm or the option ``aggregation`` decides.
    """

    name: str
    options: type[LossOptions]
    function: Callable[[Tensor, MicroBatch, Any], tuple[Tensor, Tensor]]
    aggregation: Aggregation = "token-mean"


@dataclass(frozen=True)
class CappedOptions(LossOptions):
    """Options of losses that are proportional to the ratio."""

    importance_cap: float | None = None
    """Largest ratio to the sampler's probabilities that is used in full; a larger one is truncated to it (truncated
    importance sampling). None for no limit."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        ratio_above_1(self, ("importance_cap",), problems)


@dataclass(frozen=True)
class ClipOptions(CappedOptions):
    """Options of PPO's clipped objective."""

    clip_low: float = 0.2
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative."""
    clip_high: float = 0.28
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive."""
    dual_clip: float | None = None
    """With a negative advantage, ratios above this value get no gradient either; 3 is common."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        _check_bounds(self, problems)
        ratio_above_1(self, ("dual_clip",), problems)


@dataclass(frozen=True)
class GspoOptions(CappedOptions):
    """Options of GSPO; the ratios are those of sequences."""

    clip_low: float = 3e-4
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative."""
    clip_high: float = 4e-4
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        _check_bounds(self, problems)


@dataclass(frozen=True)
class CispoOptions(LossOptions):
    """Options of CISPO."""

    clip_low: float = 1.0
    """The smallest weight of a token is 1 - clip_low; 1 for no bound."""
    clip_high: float = 4.0
    """The largest weight of a token is 1 + clip_high."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        at_least_0(self, ("clip_low", "clip_high"), problems)


@dataclass(frozen=True)
class DppoOptions(CappedOptions):
    """Options of DPPO."""

    dppo_threshold: float = 0.2
    """Largest difference between a token's probability and the sampler's before the token is dropped."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        positive(self, "algorithm.", ("dppo_threshold",), problems)


@dataclass(frozen=True)
class ReinforceOptions(LossOptions):
    """Options of REINFORCE with importance weights."""

    importance_cap: float = 2.0
    """Largest importance weight of a token; a larger one is truncated to it."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        ratio_above_1(self, ("importance_cap",), problems)


def _check_bounds(options: ClipOptions | GspoOptions, problems: list[str]) -> None:
    at_least_0(options, ("clip_low", "clip_high"), problems)
    if options.clip_low >= 1:
        problems.append(
            f"algorithm.clip_low={options.clip_low} never clips, since ratios are positive; use a value below 1"
        )


def _clip(logp_N: Tensor, batch: MicroBatch, options: ClipOptions) -> tuple[Tensor, Tensor]:
    from trainers.algorithms.losses import clipped_surrogate, token_ratio

    old_N, adv_N = batch.sampler_logp_N, batch.targets["adv"]
    found = clipped_surrogate(
        logp_N, old_N, adv_N, low=options.clip_low, high=options.clip_high, dual=options.dual_clip
    )
    return _capped(found, token_ratio(logp_N, old_N), options.importance_cap)


def _gspo(logp_N: Tensor, batch: MicroBatch, options: GspoOptions) -> tuple[Tensor, Tensor]:
    from trainers.algorithms.losses import sequence_ratio, sequence_surrogate

    old_N, adv_N, sequence_N = batch.sampler_logp_N, batch.targets["adv"], batch.sequence_N
    found = sequence_surrogate(logp_N, old_N, adv_N, sequence_N, low=options.clip_low, high=options.clip_high)
    return _capped(found, sequence_ratio(logp_N, old_N, sequence_N), options.importance_cap)


def _cispo(logp_N: Tensor, batch: MicroBatch, options: CispoOptions) -> tuple[Tensor, Tensor]:
    from trainers.algorithms.losses import clipped_weight

    old_N, adv_N = batch.sampler_logp_N, batch.targets["adv"]
    return clipped_weight(logp_N, old_N, adv_N, low=options.clip_low, high=options.clip_high)


def _dppo(logp_N: Tensor, batch: MicroBatch, options: DppoOptions) -> tuple[Tensor, Tensor]:
    from trainers.algorithms.losses import divergence_masked, token_ratio

    old_N, adv_N = batch.sampler_logp_N, batch.targets["adv"]
    found = divergence_masked(logp_N, old_N, adv_N, threshold=options.dppo_threshold)
    return _capped(found, token_ratio(logp_N, old_N), options.importance_cap)


def _reinforce(logp_N: Tensor, batch: MicroBatch, options: ReinforceOptions) -> tuple[Tensor, Tensor]:
    from trainers.algorithms.losses import token_ratio, weighted_reinforce

    old_N = batch.sampler_logp_N
    found = weighted_reinforce(logp_N, old_N, batch.targets["adv"])
    return _capped(found, token_ratio(logp_N, old_N), options.importance_cap)


def _capped(found: tuple[Tensor, Tensor], ratio_N: Tensor, cap: float | None) -> tuple[Tensor, Tensor]:
    """Limit the ratio that a loss is proportional to."""
    if cap is None:
        return found
    from trainers.algorithms.losses import importance_factor

    loss_N, bound_N = found
    factor_N = importance_factor(ratio_N, cap)
    capped_N = (factor_N < 1).to(factor_N.dtype)
    return factor_N * loss_N, bound_N.where(bound_N != 0, capped_N)


CLIP = Loss("clip", ClipOptions, _clip)
GSPO = Loss("gspo", GspoOptions, _gspo, aggregation="sequence-mean")
CISPO = Loss("cispo", CispoOptions, _cispo)
DPPO = Loss("dppo", DppoOptions, _dppo)
REINFORCE = Loss("reinforce", ReinforceOptions, _reinforce)
