"""Training on high-entropy tokens only (Wang et al. 2025, https://arxiv.org/abs/2506.01939): GRPO whose gradient is
limited to the fifth of the batch's tokens at which the policy was least certain."""

from dataclasses import dataclass

import numpy as np

from trainers.algorithms import ALGORITHMS, AdvantageBatch, Algorithm, PerToken
from trainers.algorithms.grpo import GrpoOptions


@dataclass(frozen=True)
class TopEntropyOptions(GrpoOptions):
    entropy_quantile: float = 0.8
    """Fraction of the tokens, those with the lowest entropy, that get no gradient."""


def advantages(batch: AdvantageBatch, options: TopEntropyOptions) -> PerToken:
    adv, entropy = ALGORITHMS["grpo"].advantages(batch, options)["adv"], batch.signals["entropy"]
    trained = [entropy[index] for index in np.flatnonzero(batch.keep_B)]
    threshold = np.quantile(np.concatenate(trained), options.entropy_quantile) if trained else 0.0
    return {"adv": [adv_N * (entropy_N >= threshold) for adv_N, entropy_N in zip(adv, entropy, strict=True)]}


TOP_ENTROPY = Algorithm("top-entropy", TopEntropyOptions, advantages, signals=("entropy",))
