"""Options for collecting the next step's episodes while the model trains on the current ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.option_checks import idle


@dataclass(frozen=True)
class AsynchronyConfig:
    """Collection of the next step's episodes during the update of the current step. They are sampled with weights
    one update older; the loss corrects for this by the ratio to the sampler's log-probs."""

    steps_ahead: Literal[0, 1] = 0
    """``1`` collects the episodes of step n + 1 during the update of step n. A step then takes as long as the slower
    of the two."""
    max_staleness: int = 1
    """Episodes with a token sampled from weights more than this many weight syncs old are dropped and counted. This
    detects a sampler that missed a weight sync before its episodes are trained on."""


def check_asynchrony(asynchrony: AsynchronyConfig, problems: list[str], *, deterministic: bool) -> None:
    if asynchrony.steps_ahead == 0:
        idle(asynchrony, "asynchrony.", ("max_staleness",), "without asynchrony.steps_ahead", problems)
        return
    if asynchrony.max_staleness < asynchrony.steps_ahead:
        problems.append(
            f"asynchrony.max_staleness={asynchrony.max_staleness} would drop every episode; it must be at least "
            f"asynchrony.steps_ahead={asynchrony.steps_ahead}"
        )
    if deterministic:
        problems.append(
            "asynchrony.steps_ahead=1 with deterministic=True: after a resume the prefetched episodes would be sampled "
            "with other weights than without the interruption; use steps_ahead=0"
        )
