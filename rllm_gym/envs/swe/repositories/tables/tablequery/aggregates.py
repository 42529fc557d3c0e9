"""One value from the cells of a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tablequery.errors import QueryError
from tablequery.types import Cell


def _mean(cells: Sequence[Any]) -> float | None:
    return sum(cells) / len(cells) if cells else None


AGGREGATES: dict[str, Callable[[Sequence[Any]], Cell]] = {
    "count": len,
    "max": lambda cells: max(cells, default=None),
    "mean": _mean,
    "min": lambda cells: min(cells, default=None),
    "sum": sum,
}


def aggregate(function: str, cells: Sequence[Cell]) -> Cell:
    """The value of an aggregate over the cells that are not missing."""
    present = [cell for cell in cells if cell is not None]
    try:
        return AGGREGATES[function](present)
    except TypeError as error:
        raise QueryError(f"{function} of cells that are no numbers") from error
