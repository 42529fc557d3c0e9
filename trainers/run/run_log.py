"""``RunLog``: what a run writes and shows: metrics, their display, warnings and episodes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rllm_gym.core import Episode
from rllm_gym.engine import save_episodes
from trainers.config import DpoConfig, SftConfig, TrainConfig
from trainers.config.mapping import to_mapping
from trainers.run.display import Display
from trainers.run.divergence import DivergenceWatch
from trainers.run.metrics import MetricsLog, PhaseClock
from trainers.run.peak_memory import PeakMemory

_log = logging.getLogger(__name__)


class RunLog:
    """The log of a run. Use it as a context manager. Only the main process writes and shows anything.

    Args:
        config: Options of the run.
        title: Name of the run in the display.
        steps: Number of steps of the whole run.
        columns: Metrics to show, with their captions.
        clock: Seconds of the phases of a step.
        memory: Peak memory of a step.
        done: Number of complete steps.
        keep_until: Logged rows of later steps are deleted, since a resumed run writes them again.
        is_main_process: Whether this process writes files.

    Attributes:
        clock: As given.
    """

    def __init__(
        self,
        config: TrainConfig | SftConfig | DpoConfig,
        title: str,
        steps: int,
        columns: Mapping[str, str],
        clock: PhaseClock,
        memory: PeakMemory,
        *,
        done: int,
        keep_until: int,
        is_main_process: bool,
    ) -> None:
        self.clock = clock
        self._memory = memory
        self._output = Path(config.output)
        self._is_main_process = is_main_process
        shown = config.progress and is_main_process
        self._display = Display(title, steps, columns=columns, done=done, enabled=shown)
        self._watch = DivergenceWatch()
        self._metrics: MetricsLog | None = None
        if is_main_process:
            self._metrics = MetricsLog(
                self._output, keep_until=keep_until, done=done, loggers=config.loggers, config=to_mapping(config)
            )

    def write(self, step: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """Write the metrics of a step with its duration and peak memory, and return them."""
        seconds = self.clock.lap()
        row = {**row, **{f"time/{phase}": value for phase, value in seconds.items()}, **self._memory.lap()}
        if seconds.get("update"):
            row["throughput/train_tokens_per_second"] = row.get("batch/sequence_tokens", 0) / seconds["update"]
        if self._metrics is not None:
            self._metrics.write(step, row)
        self._display.show(step, row)
        return row

    def warn(self, step: int, row: Mapping[str, Any]) -> None:
        """Warn if the metrics show that the run diverges."""
        for warning in self._watch.check(row) if self._is_main_process else ():
            _log.warning("step %d: %s", step, warning)

    def note(self, text: str) -> None:
        """Show a permanent line."""
        self._display.note(text)

    def save_episodes(self, name: str, episodes: Sequence[Episode]) -> None:
        """Write episodes to the run's folder."""
        if self._is_main_process:
            save_episodes(self._output / "episodes" / f"{name}.jsonl", episodes)

    def write_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write the first episodes to the table of completions, and save those that cannot be trained on, each with
        the reason."""
        if self._metrics is not None:
            self._metrics.write_completions(step, episodes)
        dropped = [episode for episode in episodes if not episode.trainable]
        if dropped and self._is_main_process:
            save_episodes(self._output / "dropped" / f"train-{step:06d}.jsonl", dropped)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            if self._metrics is not None:
                opened.callback(self._metrics.close)
            opened.enter_context(self._display)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()
