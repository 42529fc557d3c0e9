"""The progress bar of a run. Does nothing if no progress bar was requested."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rllm_gym.engine.stats import EngineStats

if TYPE_CHECKING:
    from rich.progress import Progress


class RunProgress:
    """A progress bar on stderr with the finished episodes, the mean reward and the number of faults since its creation.

    Args:
        shown: Whether to show it.
        total: Number of episodes of the run; ``None`` if unknown.
        stats: The counters of the engine.

    Raises:
        ModuleNotFoundError: It is to be shown, and rich is missing: ``pip install 'rllm-gym[cli]'``.
    """

    def __init__(self, shown: bool, total: int | None, stats: EngineStats) -> None:
        self._stats, self._before, self._began = stats, stats.copy(), time.perf_counter()
        self._bar: Progress | None = None
        if shown:
            self._bar = _progress_bar()
            self._task = self._bar.add_task("", total=total)

    def advance(self) -> None:
        """Update the bar after an episode has finished."""
        if self._bar is None:
            return
        stats = self._stats.since(self._before)
        kept = max(1, stats.episodes - stats.dropped)
        turns_per_second = stats.turns / (time.perf_counter() - self._began)  # ``stats.wall`` lacks this run
        text = f"reward {stats.rewards / kept:.3f} · {turns_per_second:.0f} turns/s"
        if faults := sum(stats.faults.values()):
            text += f" · {faults} faults"
        self._bar.update(self._task, advance=1, description=text)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _progress_bar() -> Progress:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("progress=True needs rich: pip install 'rllm-gym[cli]'", name="rich") from error
    return Progress(
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
