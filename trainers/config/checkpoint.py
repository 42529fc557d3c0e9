"""Options of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import PositiveInt


@dataclass(frozen=True)
class CheckpointConfig:
    """How often checkpoints are written and which are kept. ``checkpoint: null`` (``--checkpoint none``) for none; a
    run can then still be resumed from those it has."""

    every: PositiveInt = 10
    """Steps between checkpoints."""
    keep: PositiveInt = 2
    """Number of newest checkpoints to keep."""
