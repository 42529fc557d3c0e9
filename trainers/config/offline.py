"""What fine-tuning on files has in common, whatever its loss: which files, how long, how much of it is held back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.config.checks import idle, positive
from trainers.config.model import ModelConfig

Files = str | tuple[str, ...]
"""One or several paths, patterns or names of data sets."""


@dataclass(frozen=True)
class LengthConfig:
    """How long an example may be, and what becomes of a longer one. How many were too long is always said."""

    max_tokens: int | None = None
    """Longest example in tokens, prompt and replies together; none for what the model was made for."""
    too_long: Literal["error", "drop", "cut_left", "cut_right"] = "error"
    """Stop, leave the example out, or take tokens away at its beginning or at its end."""


@dataclass(frozen=True)
class HeldOutConfig:
    """Measuring on examples that are not trained on: loss and perplexity."""

    fraction: float = 0.0
    """Share of the tasks (or prompts) of the files that is held back; all examples of a task go to the same side."""
    file: Files = ""
    """In place of a fraction: files like those trained on."""
    every: int = 25
    """Steps between two measurements. The first comes before the first step, the last after the last."""


@dataclass(frozen=True)
class KeepConfig:
    """What survives a crash, and which model is kept."""

    every: int = 100
    """Steps between checkpoints; 0 for none."""
    keep: int = 2
    """Newest checkpoints kept."""
    best: bool = False
    """Write the model whose held-out loss was the lowest to `best_model`, beside the last one."""


def check_length(length: LengthConfig, problems: list[str]) -> None:
    positive(length, "length.", ("max_tokens",), problems)


def check_held_out(validation: HeldOutConfig, problems: list[str]) -> None:
    if not 0 <= validation.fraction < 1:
        problems.append(f"validation.fraction={validation.fraction} is a share, in [0, 1)")
    if validation.fraction and validation.file:
        problems.append("validation.fraction and validation.file both say what is held back; give one of them")
    if not validation.fraction and not validation.file:
        unless = "without validation.fraction or validation.file"
        idle(validation, "validation.", ("every",), unless, problems)
    positive(validation, "validation.", ("every",), problems)


def check_keep(checkpoint: KeepConfig, validation: HeldOutConfig, problems: list[str], *, resume: bool) -> None:
    if checkpoint.every == 0:
        idle(checkpoint, "checkpoint.", ("keep",), "without checkpoints", problems)
        if resume:
            problems.append("resume=True with checkpoint.every=0: nothing would be left to resume from next time")
    elif checkpoint.every < 0 or checkpoint.keep < 1:
        problems.append("checkpoint.every must be 0 (never) or more, and checkpoint.keep at least 1")
    if not validation.fraction and not validation.file:
        unless = "without validation.fraction or validation.file"
        idle(checkpoint, "checkpoint.", ("best",), unless, problems)


def check_no_reference(model: ModelConfig, problems: list[str]) -> None:
    """Neither loss keeps a second model beside the one that learns."""
    idle(model, "model.", ("reference",), "without a KL term", problems)
