"""Groups of episodes: B episodes, of which those with equal labels in ``group_B`` form a group."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainers.array_types import BoolArray, FloatArray, LabelArray


def groups(group_B: LabelArray) -> Iterator[BoolArray]:
    """Yield for each group which episodes belong to it."""
    for label in dict.fromkeys(group_B.tolist()):
        yield group_B == label


def has_variance(reward_B: FloatArray, group_B: LabelArray) -> BoolArray:
    """Return for each episode whether the rewards of its group differ; otherwise the group carries no learning
    signal.
    """
    varied_B = np.zeros(len(reward_B), dtype=bool)
    for members in groups(group_B):
        varied_B[members] = np.ptp(reward_B[members]) > 0
    return varied_B
