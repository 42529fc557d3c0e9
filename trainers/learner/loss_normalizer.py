"""``LossNormalizer``: by what the losses of the tokens of one optimizer step are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms import AlgorithmRun
from trainers.batching import Row
from trainers.batching.microbatch import TokenWeighting


@dataclass(frozen=True, slots=True)
class LossNormalizer:
    """Normalization constants of one optimizer step. Only tokens that are trained on count.

    Attributes:
        tokens: Number of sampled tokens.
        decisions: Number of decisions with a value target.
        weighting: How the tokens are weighted in the microbatches.
        scale: Factor of the loss of all microbatches.
        roles: Number of each role, by name.
        role_B: The number of each row's role.
    """

    tokens: int
    decisions: float
    weighting: TokenWeighting
    scale: float
    roles: dict[str, int]
    role_B: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], algorithm: AlgorithmRun) -> LossNormalizer:
        tokens = sum(row.num_sampled for row in rows)
        decisions = sum(float(row.targets["decision"].sum()) for row in rows if "decision" in row.targets)
        roles = {name: number for number, name in enumerate(sorted({row.role for row in rows} - {""}))}
        role_B = torch.tensor([roles.get(row.role, -1) for row in rows])
        weighting = algorithm.options.aggregation
        if weighting == "constant":  # Dr. GRPO: convert the mean over sampled tokens to one over the maximum
            scale = tokens / (len({row.sample for row in rows}) * algorithm.max_tokens)
            return cls(tokens, decisions, "token-mean", scale, roles, role_B)
        return cls(tokens, decisions, weighting, 1.0, roles, role_B)
