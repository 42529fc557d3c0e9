"""Options shared by all fine-tuning on files: input files, example length and held-out data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.option_checks import positive

FilePaths = str | tuple[str, ...]
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
    """Evaluation on held-out examples: loss and perplexity. None without ``fraction`` or ``file``."""

    fraction: float = 0.0
    """Fraction of the tasks (or prompts) of the files that is held out; all examples of a task are on the same side."""
    file: FilePaths = ""
    """Files with held-out examples, as an alternative to ``fraction``; same formats as the training files."""
    every: int = 25
    """Steps between evaluations. There is one before the first step and one after the last."""
    best: bool = False
    """Write the model with the lowest held-out loss to ``best_model``, in addition to the final model."""


def check_length(length: LengthConfig, problems: list[str]) -> None:
    positive(length, "length.", ("max_length",), problems)


def check_held_out(validation: HeldOutConfig | None, problems: list[str]) -> None:
    if validation is None:
        return
    if not 0 <= validation.fraction < 1:
        problems.append(f"validation.fraction={validation.fraction} must be in [0, 1)")
    if bool(validation.fraction) == bool(validation.file):
        problems.append(
            f"validation.fraction={validation.fraction} and validation.file={validation.file!r}: set one, and only one"
        )
    positive(validation, "validation.", ("every",), problems)
