"""Options shared by all fine-tuning on files: input files, example length and held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.option_checks import idle, positive

Files = str | tuple[str, ...]
"""One or several paths, patterns or names of data sets."""


@dataclass(frozen=True)
class LengthConfig:
    """Maximum length of an example, and how longer ones are handled. The number of too long examples is always
    reported.
    """

    max_length: int | None = None
    """Maximum length of a sequence in tokens, prompt and replies together; none for the context length of the model.
    Each branch of a saved episode is a sequence, and so are the chosen and the rejected response of a pair."""
    too_long: Literal["error", "drop", "cut_left", "cut_right"] = "error"
    """Raise an error, drop the example, or cut tokens at its beginning or its end."""


@dataclass(frozen=True)
class HeldOutConfig:
    """Evaluation on held-out examples: loss and perplexity."""

    fraction: float = 0.0
    """Fraction of the tasks (or prompts) of the files that is held out; all examples of a task are on the same side."""
    file: Files = ""
    """Files with held-out examples, as an alternative to ``fraction``; same formats as the training files."""
    every: int = 25
    """Steps between evaluations. There is one before the first step and one after the last."""


@dataclass(frozen=True)
class KeepConfig:
    """Checkpoints, and which model is kept."""

    every: int = 100
    """Steps between checkpoints; 0 for none."""
    keep: int = 2
    """Number of newest checkpoints to keep."""
    best: bool = False
    """Write the model with the lowest held-out loss to ``best_model``, in addition to the final model."""


def check_length(length: LengthConfig, problems: list[str]) -> None:
    positive(length, "length.", ("max_length",), problems)


def check_held_out(validation: HeldOutConfig, problems: list[str]) -> None:
    if not 0 <= validation.fraction < 1:
        problems.append(f"validation.fraction={validation.fraction} must be in [0, 1)")
    if validation.fraction and validation.file:
        problems.append("validation.fraction and validation.file are mutually exclusive; set only one")
    if not validation.fraction and not validation.file:
        unless = "without validation.fraction or validation.file"
        idle(validation, "validation.", ("every",), unless, problems)
    positive(validation, "validation.", ("every",), problems)


def check_keep(checkpoint: KeepConfig, validation: HeldOutConfig, problems: list[str], *, resume: bool) -> None:
    if checkpoint.every == 0:
        idle(checkpoint, "checkpoint.", ("keep",), "with checkpoint.every=0", problems)
        if resume:
            problems.append(
                "resume=True with checkpoint.every=0: the run could not be resumed again; set checkpoint.every"
            )
    elif checkpoint.every < 0 or checkpoint.keep < 1:
        problems.append(
            f"checkpoint.every={checkpoint.every} must be 0 (disabled) or more, and checkpoint.keep={checkpoint.keep} "
            "at least 1"
        )
    if not validation.fraction and not validation.file:
        unless = "without validation.fraction or validation.file"
        idle(checkpoint, "checkpoint.", ("best",), unless, problems)
