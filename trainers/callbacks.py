"""``Callback``: methods that a training run calls, for your own logging or early inspection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.core import Episode


class Callback:
    """Override the methods you need and pass an instance to ``trainers.train(config, callbacks=[...])``.

    They are called in the main process only, in the thread of the training loop: the run waits for them, and an
    exception ends it. Steps count from 1.
    """

    def on_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Called with the episodes of a step before the model is trained on them."""

    def on_validation(self, step: int, metrics: Mapping[str, float], episodes: Sequence[Episode]) -> None:
        """Called after a validation; step 0 is the validation before training."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Called after a step with its row of ``metrics.jsonl``."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called after a checkpoint was written to ``folder``."""

    def on_end(self, output: Path, *, interrupted: bool) -> None:
        """Called at the end of the run with its folder, also if a signal interrupted it, but not after an error."""
