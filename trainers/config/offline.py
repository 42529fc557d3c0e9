"""Options shared by all fine-tuning on files, and their validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.checkpoint import CheckpointConfig
from trainers.config.loggers import check_loggers
from trainers.config.mapping import switched_by
from trainers.config.model import MODEL_VARIANTS, LoraModelConfig, ModelConfig
from trainers.config.optimizer import OptimizerConfig
from trainers.option_checks import Fraction, PositiveInt, check_ranges

FilePaths = str | tuple[str, ...]
"""One or several paths, patterns or names of data sets."""


@dataclass(frozen=True)
class LengthConfig:
    """Maximum length of an example, and how longer ones are handled. The number of too long examples is always
    reported.
    """

    max_length: PositiveInt | None = None
    """Maximum length of a sequence in tokens, prompt and replies together; none for the context length of the model.
    Each branch of a saved episode is a sequence, and so are the chosen and the rejected response of a pair."""
    too_long: Literal["error", "drop", "cut_left", "cut_right"] = "error"
    """Raise an error, drop the example, or cut tokens at its beginning or its end."""


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """Evaluation on held-out examples: loss and perplexity."""

    every: PositiveInt = 25
    """Steps between evaluations. There is one before the first step and one after the last."""
    best: bool = False
    """Write the model with the lowest held-out loss to ``best_model``, in addition to the final model."""


@dataclass(frozen=True)
class HeldOutConfig(ValidationOptions):
    """Evaluation on held-out examples: loss and perplexity. With ``file``, on those of other files."""

    fraction: Fraction = 0.05
    """Fraction of the tasks (or prompts) of the files that is held out; all examples of a task are on the same side. Of
    the tasks of a policy at most 256."""


@dataclass(frozen=True)
class HeldOutFilesConfig(ValidationOptions):
    """Evaluation on examples of other files: loss and perplexity."""

    file: FilePaths = ""
    """Files with held-out examples, instead of a ``fraction``; same formats as the training files."""


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """The options that all fine-tuning on files has."""

    steps: PositiveInt | None = None
    """Maximum number of optimizer steps. Without ``steps`` and ``epochs``: 250 for demonstrations, one pass over
    preferences."""
    epochs: PositiveInt | None = None
    """Maximum number of passes over the examples of the files, or over the training tasks of a policy."""
    seed: int = 0
    resume: bool = False
    """Resume from the newest complete checkpoint in ``output``; start from the beginning if there is none."""
    model: ModelConfig = field(default_factory=LoraModelConfig, metadata={"variants": MODEL_VARIANTS})
    length: LengthConfig = field(default_factory=LengthConfig)
    validation: HeldOutFilesConfig | HeldOutConfig | None = field(
        default=None,
        metadata={"variants": switched_by("file", HeldOutConfig, HeldOutFilesConfig, "validation")},
    )
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig | None = field(default_factory=lambda: CheckpointConfig(every=100))
    loggers: tuple[str, ...] | None = ("tensorboard",)
    """Trackers that get the metrics, besides the files in ``output``: ``tensorboard``, ``wandb``,
    ``trackio`` and ``mlflow``, configured by their environment variables such as ``WANDB_PROJECT``; none for none."""
    progress: bool = True


def check_offline(config: OfflineConfig, problems: list[str]) -> None:
    check_ranges(config, problems)
    check_loggers(config.loggers, problems)
