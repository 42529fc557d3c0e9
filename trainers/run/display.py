"""Progress display of a run: a live table on a terminal, otherwise a line every few steps."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_LINE_EVERY = 10


class Display:
    """Shows the metrics of a run. Use it as a context manager.

    Args:
        title: Name of the run.
        steps: Total number of steps.
        done: Number of steps already complete.
        columns: Keys of the metrics to show, with their captions.
        enabled: Whether to show anything.
    """

    def __init__(
        self, title: str, steps: int, *, columns: Mapping[str, str], done: int = 0, enabled: bool = True
    ) -> None:
        self._title = title
        self._steps = steps
        self._columns = columns
        self._enabled = enabled
        self._console = Console(file=sys.stderr)
        self._history: dict[str, list[float]] = {key: [] for key in columns}
        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar = self._progress.add_task(title, total=steps, completed=done)
        self._live: Live | None = None
        if enabled and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)

    def show(self, step: int, row: Mapping[str, Any]) -> None:
        """Add the metrics of a step."""
        for key, history in self._history.items():
            if isinstance(row.get(key), int | float):
                history.append(float(row[key]))
        self._progress.update(self._bar, completed=step)
        if self._enabled and self._live is None and (step % _LINE_EVERY == 0 or step == self._steps):
            numbers = "  ".join(
                f"{caption} {values[-1]:.3g}"
                for key, caption in self._columns.items()
                if (values := self._history[key])
            )
            self._console.print(f"{self._title} {step}/{self._steps}  {numbers}", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a permanent line."""
        if self._enabled:
            self._console.print(text, highlight=False)

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "now", "first", "history"):
            table.add_column(heading, justify="left" if heading in ("", "history") else "right")
        for key, caption in self._columns.items():
            if values := self._history[key]:
                table.add_row(caption, f"{values[-1]:.3g}", f"{values[0]:.3g}", sparkline(values, 48))
        return Group(self._progress, table)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values as bars scaled from minimum to maximum, in at most ``width`` characters.

    >>> sparkline([0, 1, 2, 3], 4)
    '▁▃▆█'
    """
    if len(values) > width:
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        values = [sum(values[low:high]) / (high - low) for low, high in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in values)
