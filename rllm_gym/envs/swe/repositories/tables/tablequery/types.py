"""The types of cells, found from their text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MISSING = {"", "na", "n/a", "null"}
_BOOLEAN = {"true": True, "yes": True, "false": False, "no": False}

Cell = int | float | bool | date | str | None


def is_missing(text: str) -> bool:
    """Whether a cell says nothing."""
    return text.strip().lower() in _MISSING


def _integer(text: str) -> int | None:
    # 007 is a code and no number.
    if not _INTEGER.fullmatch(text) or re.match(r"[+-]?0\d", text):
        return None
    return int(text)


def _number(text: str) -> float | None:
    if not _NUMBER.fullmatch(text) or re.match(r"[+-]?0\d", text):
        return None
    return float(text)


def _boolean(text: str) -> bool | None:
    return _BOOLEAN.get(text.lower())


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    except ValueError:
        return None


# The first type that fits every cell of a column is taken.
READERS: tuple[Callable[[str], Cell], ...] = (_integer, _number, _boolean, _date)


def convert_column(texts: Sequence[str]) -> list[Cell]:
    """The cells of a column, all of one type; text where nothing else fits all of them."""
    present = [text.strip() for text in texts if not is_missing(text)]
    for reader in READERS:
        if present and all(reader(text) is not None for text in present):
            return [None if is_missing(text) else reader(text.strip()) for text in texts]
    return [None if is_missing(text) else text for text in texts]


def show(cell: Cell) -> str:
    """A cell as text: what :func:`convert_column` reads again."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return f"{cell:.10g}"
    return str(cell)
