"""Options of direct preference optimization (DPO) as one dataclass, and their validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from trainers.config.model import check_model
from trainers.config.offline import FilePaths, OfflineConfig, check_offline
from trainers.config.optimizer import OptimizerConfig
from trainers.option_checks import NonNegativeFloat, PositiveFloat, PositiveInt, Range, raise_if_any


@dataclass(frozen=True)
class PreferenceConfig:
    """Where preference pairs come from and how they are built."""

    file: FilePaths = ""
    """Pairs (``{"prompt": ..., "chosen": ..., "rejected": ...}``, strings or messages) or saved episodes, one per row:
    JSONL, JSON or Parquet files, patterns such as ``runs/rl/episodes/*.jsonl``, or ``hf:repo[:config][@split]``."""
    pairs: Literal["best_worst", "all"] = "best_worst"
    """Pairs built from the episodes of a group of one training step: the best with the worst, or each episode with
    every one of lower reward."""
    strings: Literal["chat", "raw"] = "chat"
    """How to format a prompt and answers that are plain strings: ``chat`` makes them a user message and its reply in
    the model's chat template; ``raw`` concatenates them unchanged."""


@dataclass(frozen=True)
class DpoConfig(OfflineConfig):
    """Options of direct preference optimization: training the model on pairs of a better and a worse answer."""

    output: str = "runs/dpo"
    """Output folder of the run; the model is written to its ``model`` folder."""
    pairs_per_step: PositiveInt = 16
    """Pairs per optimizer step."""
    beta: PositiveFloat = 0.1
    """Strength of the penalty for moving away from the reference: the factor of the log-ratios."""
    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    """``sigmoid``: Rafailov et al. 2023, equation 7. ``ipo``: Azar et al. 2023, equation 17. ``hinge``: Zhao et al.
    2023."""
    label_smoothing: Annotated[float, Range("in [0, 0.5)", lambda value: 0 <= value < 0.5)] = 0.0
    """Assumed fraction of pairs with swapped labels (conservative DPO, Mitchell 2023)."""
    length_normalized: bool | None = None
    """Use the mean log-prob of an answer's tokens instead of their sum; none for the mean with ``ipo`` and the sum
    otherwise."""
    rpo_alpha: NonNegativeFloat = 0.0
    """Weight of the chosen answer's negative log-likelihood per token, added to the preference loss (Pang et al.
    2024)."""
    reference: str = ""
    """Folder or hub id of the reference model; empty for the model before the first step."""
    preferences: PreferenceConfig = field(default_factory=PreferenceConfig)
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=2e-5), kw_only=True)


def validate_dpo(config: DpoConfig) -> None:
    """Check the options of a DPO run.

    Raises:
        ConfigError: An option is impossible; the message lists all problems.
    """
    problems: list[str] = []
    if not config.preferences.file:
        problems.append("preferences.file is missing: pairs or saved episodes (see `rllm-gym dpo --help`)")
    check_model(config.model, problems, required=True)
    if config.length.too_long == "cut_left":
        problems.append("length.too_long=cut_left would cut the prompt that both answers share; use drop or cut_right")
    check_offline(config, problems)
    raise_if_any(problems)
