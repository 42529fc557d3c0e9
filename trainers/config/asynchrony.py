"""Playing the next step's episodes while the model learns from this one's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.config.checks import idle


@dataclass(frozen=True)
class AsynchronyConfig:
    """Playing the next step's episodes while the model learns from this one's: they are drawn by weights one update
    older, which the loss corrects for by its ratio to the sampler's log-probs."""

    steps_ahead: Literal[0, 1] = 0
    """`1` plays step n + 1 during the update of step n. A step then takes as long as the slower of the two."""
    max_staleness: int = 1
    """Episodes with a token drawn by weights that more than this many pushes have replaced are dropped and counted:
    a sampler that lost a push is noticed before anything is learnt from it."""


def check_asynchrony(asynchrony: AsynchronyConfig, problems: list[str], *, deterministic: bool) -> None:
    if asynchrony.steps_ahead == 0:
        idle(asynchrony, "asynchrony.", ("max_staleness",), "without asynchrony.steps_ahead", problems)
        return
    if asynchrony.max_staleness < asynchrony.steps_ahead:
        problems.append(
            f"asynchrony.max_staleness={asynchrony.max_staleness} would drop every episode: with asynchrony."
            f"steps_ahead={asynchrony.steps_ahead} all of them are that old"
        )
    if deterministic:
        problems.append(
            "asynchrony.steps_ahead=1 with deterministic=True: after a resume the episodes played ahead would be drawn "
            "by other weights than without the interruption; use steps_ahead=0"
        )
