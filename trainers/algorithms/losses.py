"""``Loss``: a loss per sampled token with its options, and the losses of this package: PPO's clip, GSPO, CISPO, DPPO,
REINFORCE, the loss of the value head and the KL divergence from the reference.

N is the number of sampled tokens, S of sequences. Token weights are determined during batching; tokens without
gradient (for example clipped ones) still count in the mean. The old log-probs are ``batch.old_logp_N``.

The module only calls methods of tensors: importing torch takes seconds, and the options are also read without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trainers.algorithms.options import (
    Aggregation,
    LossOptions,
    check_parts,
    option_if,
    ratio_bound,
)
from trainers.option_checks import AT_LEAST_0

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
            (``batch.targets["adv"]`` are the advantages, ``batch.old_logp_N`` the log-probs under the old policy,
            ``batch.sampler_logp_N`` those the tokens were sampled with) and the options. Returns the loss per token,
            and which bound limited the token: 1.0 the upper one (its ratio is too large), -1.0 the lower one, 0.0
            none.
        aggregation: How the tokens are weighted, unless the algorithm or the option ``aggregation`` decides.
        teacher_kl: Whether it reads ``batch.targets["teacher_kl"]``, the KL divergence from the teacher over the
            vocabulary, with its gradient.
    """

    name: str
    options: type[LossOptions]
    function: Callable[[Tensor, MicroBatch, Any], tuple[Tensor, Tensor]]
    aggregation: Aggregation = "token-mean"
    teacher_kl: bool = False

    def __post_init__(self) -> None:
        check_parts(f"loss {self.name!r}", {"function": self.function}, self.aggregation)


def checked_loss(returned: Any, logp_N: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    """Return what a loss function returned: for each sampled token its loss, and the bound that limited it.

    Args:
        returned: What it returned.
        logp_N: The log-probs it was called with.
        owner: Its loss, for messages.

    Raises:
        ValueError: It did not return two tensors of the shape of ``logp_N``, or the loss has no gradient.
    """
    import torch  # see the module docstring

    expected = f"expected (loss_N, bound_N), two tensors with shape {tuple(logp_N.shape)}, one value per sampled token"
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        raise ValueError(f"{owner} returned {what}; {expected}")
    for name, value in zip(("loss_N", "bound_N"), returned, strict=True):
        if not isinstance(value, torch.Tensor) or value.shape != logp_N.shape:
            is_tensor = isinstance(value, torch.Tensor)
            what = f"a tensor with shape {tuple(value.shape)}" if is_tensor else f"a {type(value).__name__}"
            raise ValueError(f"{owner} returned {what} as {name}; {expected}")
    loss_N, bound_N = returned
    if logp_N.requires_grad and not loss_N.requires_grad:
        raise ValueError(f"{owner} returned a loss_N without gradient; compute it from logp_N without detach()")
    return loss_N, bound_N


def _recomputes(values: Mapping[str, Any]) -> bool:
    return values.get("old_logprobs") == "trainer"


@dataclass(frozen=True)
class CorrectionOptions(LossOptions):
    """Options of losses whose importance weights to the sampler can be limited. A loss of yours gets them by deriving
    its options from these.
    """

    importance_cap: float | tuple[float, float] | None = None
    """Bounds of the ratio to the sampler's probability: the upper one, or both, for example 0.5 5. The ratio is that of
    the old log-probs if these are the trainer's, else the current one. None for no bounds, or for 2 if the old
    log-probs are the trainer's."""
    importance_mode: Literal["token-truncate", "token-mask", "sequence-truncate", "sequence-mask"] = option_if(
        lambda values: _recomputes(values) or str(values["importance_cap"]).lower() not in ("none", "null"),
        "algorithm.importance_cap=BOUND or algorithm.old_logprobs=trainer",
        "token-truncate",
    )
    """What the bounds limit, and how: the weight of a token by its own ratio, or by the product of the ratios of its
    sequence; truncated to the nearer bound (truncated importance sampling, Yao et al. 2025), or 0 outside the bounds
    (by token: IcePop, Ling Team 2025; by sequence: masked importance sampling, Liu et al. 2025). If the ratios of the
    loss itself are those to the sampler, ``sequence-truncate`` multiplies the tokens of a sequence outside the bounds
    by the bound divided by its ratio."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        cap = self.importance_cap
        bounds = cap if isinstance(cap, tuple) else (0.0, math.inf if cap is None else cap)
        if len(bounds) != 2 or not 0 <= bounds[0] < 1 < bounds[1]:
            problems.append(f"algorithm.importance_cap={cap} must be one bound above 1, or two around 1")


@dataclass(frozen=True)
class ClipOptions(CorrectionOptions):
    """Options of PPO's clipped objective."""

    clip_low: Annotated[float, AT_LEAST_0] = ratio_bound(0.2)
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative."""
    clip_high: Annotated[float, AT_LEAST_0] = ratio_bound(0.28)
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        _check_bounds(self, problems)


@dataclass(frozen=True)
class GspoOptions(CorrectionOptions):
    """Options of GSPO; the ratios are those of sequences."""

    importance_cap: float | tuple[float, float] | None = option_if(_recomputes, "algorithm.old_logprobs=trainer", None)
    """Bounds of the ratio of the trainer's old log-probs to the sampler's: the upper one, or both, for example 0.5 5;
    none for 2. The ratios of the loss itself, those of sequences, have ``clip_low`` and ``clip_high``."""
    clip_low: Annotated[float, AT_LEAST_0] = ratio_bound(3e-4)
    """A ratio below 1 - clip_low gets no gradient where the advantage is negative."""
    clip_high: Annotated[float, AT_LEAST_0] = ratio_bound(4e-4)
    """A ratio above 1 + clip_high gets no gradient where the advantage is positive."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        _check_bounds(self, problems)


@dataclass(frozen=True)
class CispoOptions(LossOptions):
    """Options of CISPO."""

    clip_low: Annotated[float, AT_LEAST_0] = ratio_bound(1.0)
    """The smallest weight of a token is 1 - clip_low; 1 for no bound."""
    clip_high: Annotated[float, AT_LEAST_0] = ratio_bound(4.0)
    """The largest weight of a token is 1 + clip_high."""


@dataclass(frozen=True)
class DppoOptions(CorrectionOptions):
    """Options of DPPO."""

    clip_low: Annotated[float, AT_LEAST_0] = ratio_bound(0.2)
    """A token with a negative advantage is dropped if its probability is smaller than the old one by more than this."""
    clip_high: Annotated[float, AT_LEAST_0] = ratio_bound(0.2)
    """A token with a positive advantage is dropped if its probability is larger than the old one by more than this."""


@dataclass(frozen=True)
class ReinforceOptions(CorrectionOptions):
    """Options of REINFORCE with importance weights."""

    importance_cap: float | tuple[float, float] | None = 2.0
    """Bounds of the ratio to the sampler's probability: the upper one, or both, for example 0.5 5. If the old log-probs
    are the trainer's, their ratio to the sampler's is limited, and the current ratio to them by the upper bound."""


def _check_bounds(options: ClipOptions | GspoOptions, problems: list[str]) -> None:
    if options.clip_low >= 1:
        problems.append(
            f"algorithm.clip_low={options.clip_low} never clips, since ratios are positive; use a value below 1"
        )


def _clip(logp_N: Tensor, batch: MicroBatch, options: ClipOptions) -> tuple[Tensor, Tensor]:
    """PPO's clipped ratio."""
    old_N, adv_N = batch.old_logp_N, batch.targets["adv"]
    return clipped_surrogate(logp_N, old_N, adv_N, low=options.clip_low, high=options.clip_high)


def _gspo(logp_N: Tensor, batch: MicroBatch, options: GspoOptions) -> tuple[Tensor, Tensor]:
    """The clipped ratio of the whole sequence.

    To the power of one over its length, in the per-token form (Zheng et al. 2025, equation 14, GSPO-token): the value
    of the sequence's ratio with the gradient of the token's log-prob. With one advantage per sequence and equally
    weighted sequences it is equation 5.
    """
    ratio_N = sequence_ratio(logp_N, batch.old_logp_N, batch.sequence_N) * (logp_N - logp_N.detach()).exp()
    return _clipped(ratio_N, batch.targets["adv"], options.clip_low, options.clip_high)


def _cispo(logp_N: Tensor, batch: MicroBatch, options: CispoOptions) -> tuple[Tensor, Tensor]:
    """The clipped ratio as a weight, so that every token keeps a gradient.

    ``-clip(ratio, 1 - low, 1 + high) * A * logp``, without gradient through the weight: MiniMax-M1 2025, equation 4.
    """
    ratio_N = (logp_N - batch.old_logp_N).exp().detach()
    weight_N = ratio_N.clamp(1 - options.clip_low, 1 + options.clip_high)
    return -weight_N * batch.targets["adv"] * logp_N, (ratio_N - weight_N).sign()


def _dppo(logp_N: Tensor, batch: MicroBatch, options: DppoOptions) -> tuple[Tensor, Tensor]:
    """Drops tokens by how far their probability changed.

    ``-ratio * A`` without tokens whose probability has risen by more than ``clip_high`` with a positive advantage, or
    fallen by more than ``clip_low`` with a negative one (total variation of the token alone; Qi et al. 2026).
    """
    old_N, adv_N = batch.old_logp_N, batch.targets["adv"]
    moved_N = (logp_N.exp() - old_N.exp()).detach()
    dropped_N = ((adv_N > 0) & (moved_N > options.clip_high)) | ((adv_N < 0) & (moved_N < -options.clip_low))
    # Not multiplied by a mask: the ratio of a dropped token may be infinite, and so its gradient.
    log_ratio_N = (logp_N - old_N).masked_fill(dropped_N, 0.0)
    loss_N = (-log_ratio_N.exp() * adv_N).masked_fill(dropped_N, 0.0)
    return loss_N, moved_N.sign().masked_fill(~dropped_N, 0.0)


def _reinforce(logp_N: Tensor, batch: MicroBatch, options: ReinforceOptions) -> tuple[Tensor, Tensor]:
    """The ratio as a truncated weight.

    ``-ratio * A * logp``, without gradient through the weight.
    """
    log_ratio_N = (logp_N - batch.old_logp_N).detach()
    loss_N, nothing_N = -log_ratio_N.exp() * batch.targets["adv"] * logp_N, logp_N.new_zeros(len(logp_N))
    bounds = _bounds(options)
    if "old_logp" not in batch.targets or bounds is None:
        return loss_N, nothing_N  # the ratio is that to the sampler, which `corrected` limits
    return loss_N * (math.log(bounds[1]) - log_ratio_N).clamp(max=0.0).exp(), nothing_N


# The largest importance weight for a difference between trainer and sampler, unless ``importance_cap`` has another.
_CORRECTION_CAP = 2.0
# Limits a factor of tokens that the policy gives up, whose ratio is near 0.
_MAX_LOG_FACTOR = 20.0


def corrected(loss: Loss, logp_N: Tensor, batch: MicroBatch, options: Any) -> tuple[Tensor, Tensor]:
    """Compute a loss with its importance weights to the sampler limited as :class:`CorrectionOptions` say.

    If the old log-probs are the trainer's, the loss is weighted with the limited ratio of these to the sampler's
    (decoupled PPO, Hilton et al. 2021). Otherwise its own ratio is that to the sampler: the loss is multiplied by what
    the limit makes of it.
    """
    owner = f"loss {loss.name!r}"
    recomputed = "old_logp" in batch.targets
    bounds = _bounds(options) or ((0.0, _CORRECTION_CAP) if recomputed else None)
    if bounds is None:
        return checked_loss(loss.function(logp_N, batch, options), logp_N, owner)
    low, high = bounds
    mode = options.importance_mode if isinstance(options, CorrectionOptions) else "token-truncate"
    log_ratio_N = (batch.old_logp_N if recomputed else logp_N.detach()) - batch.sampler_logp_N
    if mode.startswith("sequence"):
        log_ratio_N = sequence_sum(log_ratio_N, batch.sequence_N)
    log_limited_N = log_ratio_N.clamp(math.log(low) if low else -math.inf, math.log(high))
    outside_N = (log_ratio_N - log_limited_N).sign()
    weight_N = (log_limited_N if recomputed else (log_limited_N - log_ratio_N).clamp(max=_MAX_LOG_FACTOR)).exp()
    if mode.endswith("mask"):
        # The loss sees a ratio of 1 there: that of a masked token may be infinite, and so its gradient.
        logp_N = logp_N.where(outside_N == 0, batch.old_logp_N)
        weight_N = weight_N.where(outside_N == 0, 0.0)
    loss_N, bound_N = checked_loss(loss.function(logp_N, batch, options), logp_N, owner)
    return weight_N * loss_N, bound_N.where(bound_N != 0, outside_N)


def _bounds(options: Any) -> tuple[float, float] | None:
    cap = options.importance_cap if isinstance(options, CorrectionOptions) else None
    return cap if isinstance(cap, tuple | None) else (0.0, cap)


CLIP = Loss("clip", ClipOptions, _clip)
GSPO = Loss("gspo", GspoOptions, _gspo, aggregation="sequence-mean")
CISPO = Loss("cispo", CispoOptions, _cispo)
DPPO = Loss("dppo", DppoOptions, _dppo)
REINFORCE = Loss("reinforce", ReinforceOptions, _reinforce)


def clipped_surrogate(
    logp_N: Tensor, old_logp_N: Tensor, adv_N: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped objective, negated, with the ratio to the old policy.

    ``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)`` (Schulman et al. 2017, equation 7; separate bounds: DAPO,
    Yu et al. 2025).

    Returns:
        Loss per token, and the bound that removed its gradient: 1.0, -1.0 or 0.0.
    """
    return _clipped((logp_N - old_logp_N).exp(), adv_N, low, high)


def sequence_ratio(logp_N: Tensor, old_logp_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Return for each token the ratio of its whole sequence, to the power of one over its length (GSPO, equation 7),
    without gradient.
    """
    return sequence_mean((logp_N - old_logp_N).detach(), sequence_N).exp()


def sequence_sum(value_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Return for each token the sum over the tokens of its sequence (``batch.sequence_N``), with gradient."""
    index_N: Tensor = sequence_N.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    return value_N.new_zeros(len(value_N)).index_add(0, index_N, value_N)[index_N]


def sequence_mean(value_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Return for each token the mean over the tokens of its sequence, with gradient."""
    return sequence_sum(value_N, sequence_N) / sequence_sum(value_N.new_ones(len(value_N)), sequence_N)


VALUE_CLIP = 0.2
"""How far a value may move from its value before the update until it gets no gradient."""


def clipped_value_loss(value_N: Tensor, old_value_N: Tensor, return_N: Tensor, *, clip: float) -> Tensor:
    """Compute half the squared error of the value, clipped around the old value.

    A value that has moved further than ``clip`` from the old one gets no gradient towards the return, unless it
    moved away from the return. 0 for no limit. ``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``:
    the PPO of OpenAI Baselines (2017).
    """
    error_N = (value_N - return_N).square()
    if clip > 0:
        near_N = old_value_N + (value_N - old_value_N).clamp(-clip, clip)
        error_N = error_N.maximum((near_N - return_N).square())
    return 0.5 * error_N


def kl_to_reference(logp_N: Tensor, ref_logp_N: Tensor) -> Tensor:
    """Estimate KL(policy || reference) per token from the policy's own samples: Schulman's k3, ``exp(-x) - 1 + x`` for
    the log-ratio x ("Approximating KL", 2020). It is never negative, and what GRPO uses.
    """
    log_ratio_N = logp_N - ref_logp_N
    return (-log_ratio_N).exp() - 1 + log_ratio_N


def _clipped(ratio_N: Tensor, adv_N: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    loss_N = -(ratio_N * adv_N).minimum(ratio_N.clamp(1 - low, 1 + high) * adv_N)
    too_high_N, too_low_N = (ratio_N > 1 + high) & (adv_N > 0), (ratio_N < 1 - low) & (adv_N < 0)
    return loss_N, too_high_N.to(ratio_N.dtype) - too_low_N.to(ratio_N.dtype)
