"""Applies an algorithm to each role separately, so that rewards of different roles are never compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.algorithms.advantages import PerToken, select
from trainers.algorithms.algorithm import AlgorithmRun, TokenTargets
from trainers.array_types import FloatArray
from trainers.samples import Sample


def targets_by_role(algorithm: AlgorithmRun, samples: Sequence[Sample], signals: PerToken) -> TokenTargets:
    """Compute the targets of each sampled token; batch baselines and standard deviations are computed per role.

    The logged numbers are means over the roles and, with the suffix ``/{role}``, the numbers of each role.
    """
    roles = sorted({sample.role for sample in samples})
    if len(roles) < 2:
        return algorithm.targets(samples, signals)
    keep_B = np.zeros(len(samples), dtype=bool)
    per_token: dict[str, list[FloatArray]] = {}
    numbers: dict[str, float] = {}
    means: dict[str, list[float]] = {}
    for role in roles:
        chosen = [index for index, sample in enumerate(samples) if sample.role == role]
        targets = algorithm.targets([samples[index] for index in chosen], select(signals, chosen))
        keep_B[chosen] = targets.keep_B
        for name, values in targets.per_token.items():
            column = per_token.setdefault(name, [np.zeros(0)] * len(samples))
            for index, value_N in zip(chosen, values, strict=True):
                column[index] = value_N
        for name, number in targets.metrics.items():
            numbers[f"{name}/{role}"] = number
            means.setdefault(name, []).append(number)
    return TokenTargets(keep_B, per_token, numbers | {name: float(np.mean(own)) for name, own in means.items()})
