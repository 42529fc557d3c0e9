"""Options of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import positive


@dataclass(frozen=True)
class CheckpointConfig:
    """How often checkpoints are written and which are kept. ``checkpoint: null`` (``--checkpoint none``) for none; a
    run can then still be resumed from those it has."""

    every: int = 10
    """Steps between checkpoints."""
    keep: int = 2
    """Number of newest checkpoints to keep."""


def check_checkpoint(checkpoint: CheckpointConfig | None, problems: list[str]) -> None:
    if checkpoint is not None:
        positive(checkpoint, "checkpoint.", ("every", "keep"), problems)
