"""An algorithm applied to each role by itself, so that it never compares one role's rewards with another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.algorithms.advantages import FloatArray
from trainers.algorithms.table import Algorithm, Signals, Targets
from trainers.samples import Sample


def targets_by_role(algorithm: Algorithm, samples: Sequence[Sample], signals: Signals) -> Targets:
    """What each sampled token is to learn; baselines and deviations of a batch are those of the role alone.

    The numbers to log are means over the roles, and with ``/{role}`` behind their names those of each.
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
        targets = algorithm.targets([samples[index] for index in chosen], signals.of(chosen))
        keep_B[chosen] = targets.keep_B
        for name, values in targets.per_token.items():
            column = per_token.setdefault(name, [np.zeros(0)] * len(samples))
            for index, value_N in zip(chosen, values, strict=True):
                column[index] = value_N
        for name, number in targets.numbers.items():
            numbers[f"{name}/{role}"] = number
            means.setdefault(name, []).append(number)
    return Targets(keep_B, per_token, numbers | {name: float(np.mean(own)) for name, own in means.items()})
