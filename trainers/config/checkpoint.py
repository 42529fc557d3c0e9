"""Options of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.config.checks import idle


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
        idle(checkpoint, "checkpoint.", ("keep", "best"), "without checkpoints", problems)
        if resume:
            problems.append("resume=True with checkpoint.every=0: nothing would be left to resume from next time")
    elif checkpoint.every < 0 or checkpoint.keep < 1:
        problems.append("checkpoint.every must be 0 (never) or more, and checkpoint.keep at least 1")
    elif not validates:
        idle(checkpoint, "checkpoint.", ("best",), "without validations", problems)
    elif checkpoint.best and not checkpoint.best.startswith("validation/"):
        problems.append(
            f"checkpoint.best={checkpoint.best!r} is no metric of the validations; theirs begin with validation/"
        )
