"""Options of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import idle


@dataclass(frozen=True)
class CheckpointConfig:
    """How often checkpoints are written and which are kept."""

    every: int = 10
    """Steps between checkpoints; 0 for none."""
    keep: int = 2
    """Number of newest checkpoints to keep."""
    best: str = "validation/success"
    """Validation metric; the checkpoint of the step with its largest value is kept regardless of age, and its model
    is written to ``best_model``. Empty for none."""


def check_checkpoint(checkpoint: CheckpointConfig, problems: list[str], *, resume: bool, validates: bool) -> None:
    if checkpoint.every == 0:
        idle(checkpoint, "checkpoint.", ("keep", "best"), "with checkpoint.every=0", problems)
        if resume:
            problems.append(
                "resume=True with checkpoint.every=0: the run could not be resumed again; set checkpoint.every"
            )
    elif checkpoint.every < 0 or checkpoint.keep < 1:
        problems.append(
            f"checkpoint.every={checkpoint.every} must be 0 (disabled) or more, and checkpoint.keep={checkpoint.keep} "
            "at least 1"
        )
    elif not validates:
        idle(checkpoint, "checkpoint.", ("best",), "with validation.every=0", problems)
    elif checkpoint.best and not checkpoint.best.startswith("validation/"):
        problems.append(
            f"checkpoint.best={checkpoint.best!r} is not a validation metric; their names begin with validation/"
        )
