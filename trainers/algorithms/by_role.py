"""Applies an algorithm to each role separately, so that rewards of different roles are never compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.algorithms.advantages import PerToken, by_samples, select
from trainers.algorithms.algorithm import AlgorithmRun
from trainers.samples import Sample


def targets_by_role(algorithm: AlgorithmRun, samples: Sequence[Sample], signals: PerToken) -> PerToken:
    """Compute the targets of each sampled token; batch baselines and standard deviations are computed per role."""

    def of_role(role: str, chosen: Sequence[int]) -> PerToken:
        return algorithm.targets([samples[index] for index in chosen], select(signals, chosen))

    return by_samples(_by_role(samples), len(samples), of_role)


def target_metrics_by_role(algorithm: AlgorithmRun, samples: Sequence[Sample], targets: PerToken) -> dict[str, float]:
    """Return the metrics of the targets: means over the roles and, with the suffix ``/{role}``, those of each role."""
    by_role = {
        role: algorithm.target_metrics([samples[index] for index in chosen], select(targets, chosen))
        for role, chosen in _by_role(samples).items()
    }
    if len(by_role) < 2:
        return next(iter(by_role.values()), {})
    suffixed = {f"{name}/{role}": value for role, metrics in by_role.items() for name, value in metrics.items()}
    names = dict.fromkeys(name for metrics in by_role.values() for name in metrics)
    means = {name: float(np.mean([metrics[name] for metrics in by_role.values() if name in metrics])) for name in names}
    return suffixed | means


def _by_role(samples: Sequence[Sample]) -> dict[str, list[int]]:
    roles = sorted({sample.role for sample in samples})
    return {role: [index for index, sample in enumerate(samples) if sample.role == role] for role in roles}
