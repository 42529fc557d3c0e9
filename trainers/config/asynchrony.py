"""Options for collecting the next step's episodes while the model trains on the current ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class AsynchronyConfig:
    """Collection of the next step's episodes during the update of the current step. They are sampled with weights
    one update older; the loss corrects for this by the ratio to the sampler's log-probs."""

    steps_ahead: Literal[0, 1] = 0
    """``1`` collects the episodes of step n + 1 during the update of step n. A step then takes as long as the slower
    of the two. Episodes with a token from weights more than one weight sync old are dropped and counted: this detects a
    sampler that missed a weight sync before its episodes are trained on."""


def check_asynchrony(asynchrony: AsynchronyConfig, problems: list[str], *, deterministic: bool) -> None:
    if deterministic and asynchrony.steps_ahead:
        problems.append(
            "asynchrony.steps_ahead=1 with deterministic=True: after a resume the prefetched episodes would be sampled "
            "with other weights than without the interruption; use steps_ahead=0"
        )
