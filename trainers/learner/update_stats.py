"""Statistics of one update: summed during it, and averaged at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trainers.batching.token_count import TokenCount

TOKEN_MEANS = ("entropy", "importance_ratio_mean", "clipped_low", "clipped_high", "kl")
"""Fields of :class:`UpdateStats` that are means per trained token; during an update they are sums."""

_ROLE_MEANS = ("entropy", "clipped_low", "clipped_high", "kl")


@dataclass(slots=True)
class UpdateStats:
    """Statistics of one update, averaged over the sampled tokens that were trained on and all passes over them.

    Attributes:
        loss: The total loss, including KL and entropy terms.
        entropy: Entropy of the policy in nats per token.
        logprob_difference_mean: Mean of the trainer's log-prob minus the sampler's in the first optimizer step, before
            the weights change; its negative estimates the KL divergence from the sampler to the trainer.
        logprob_difference_max: Largest absolute value of this difference.
        first_tokens: Number of sampled tokens in the first optimizer step.
        importance_ratio_mean: Mean ratio of the trainer's probability to the sampler's over all optimizer steps.
        importance_ratio_max: Largest such ratio.
        clipped_low: Fraction of tokens whose gradient was removed or weight limited because their ratio was too small.
        clipped_high: The same for ratios that were too large.
        kl: KL divergence from the reference, if it is part of the loss.
        grad_norm: Gradient norm of the policy before clipping; the maximum over the optimizer steps.
        value_loss: Mean over the decisions with a value target, and over the optimizer steps.
        value_grad_norm: Gradient norm of the value head before clipping.
        tokens: Number of sampled tokens trained on, each counted once.
        forward: Number of tokens in forward passes.
        skipped: Number of optimizer steps skipped because loss or gradient were not finite.
        roles: Statistics of each role's tokens, if there are roles.
    """

    loss: float = 0.0
    entropy: float = 0.0
    logprob_difference_mean: float = 0.0
    logprob_difference_max: float = 0.0
    first_tokens: int = 0
    importance_ratio_mean: float = 0.0
    importance_ratio_max: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    kl: float = 0.0
    grad_norm: float = 0.0
    value_loss: float = 0.0
    value_grad_norm: float = 0.0
    tokens: int = 0
    skipped: int = 0
    forward: TokenCount = field(default_factory=TokenCount)
    roles: dict[str, RoleStats] = field(default_factory=dict)

    def merge(self, parts: Sequence[UpdateStats]) -> None:
        """Combine the statistics of the ranks' own microbatches, before averaging."""
        for name in (*TOKEN_MEANS, "logprob_difference_mean", "first_tokens", "value_loss", "tokens"):
            setattr(self, name, sum(getattr(part, name) for part in parts))
        self.forward = sum((part.forward for part in parts), TokenCount())
        names = sorted({name for part in parts for name in part.roles})
        self.roles = {name: sum((part.roles.get(name, RoleStats()) for part in parts), RoleStats()) for name in names}
        for name in ("logprob_difference_max", "importance_ratio_max"):
            setattr(self, name, max(getattr(part, name) for part in parts))


@dataclass(frozen=True, slots=True)
class RoleStats:
    """Sums over a role's tokens that were trained on; fields as in :class:`UpdateStats`."""

    tokens: int = 0
    first_tokens: int = 0
    entropy: float = 0.0
    logprob_difference_mean: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    kl: float = 0.0

    def __add__(self, other: RoleStats) -> RoleStats:
        return RoleStats(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def means(self) -> dict[str, float]:
        """Return the means per token of all fields except the numbers of tokens."""
        means = {name: getattr(self, name) / max(1, self.tokens) for name in _ROLE_MEANS}
        return means | {"logprob_difference_mean": self.logprob_difference_mean / max(1, self.first_tokens)}

    def per_pass(self, passes: int) -> RoleStats:
        """Return the sums per pass over the batch."""
        means = {name: getattr(self, name) / passes for name in _ROLE_MEANS}
        return replace(self, tokens=self.tokens // passes, **means)


def numbers_of(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalar tensors as numbers, in one transfer: each one makes the CPU wait for the GPU."""
    return dict(zip(tensors, torch.stack([tensor.double() for tensor in tensors.values()]).tolist(), strict=True))
