"""Conditions on rows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tablequery.table import Row
from tablequery.types import Cell

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda cell, value: str(value).lower() in str(cell).lower(),
}


@dataclass(frozen=True)
class Test:
    """``name operator value``. Missing cells and cells of another type than the value never pass."""

    __test__ = False  # not a test case of pytest

    name: str
    operator: str
    value: Cell

    def __call__(self, row: Row) -> bool:
        cell = row[self.name]
        if cell is None:
            return False
        try:
            return bool(_OPERATORS[self.operator](cell, self.value))
        except TypeError:
            return False


@dataclass(frozen=True)
class Missing:
    """``name is missing``, or ``is not missing`` where ``wanted`` is false."""

    name: str
    wanted: bool = True

    def __call__(self, row: Row) -> bool:
        return (row[self.name] is None) == self.wanted


@dataclass(frozen=True)
class Every:
    parts: tuple[Condition, ...]

    def __call__(self, row: Row) -> bool:
        return all(part(row) for part in self.parts)


@dataclass(frozen=True)
class Some:
    parts: tuple[Condition, ...]

    def __call__(self, row: Row) -> bool:
        return any(part(row) for part in self.parts)


Condition = Test | Missing | Every | Some


def names_in(condition: Condition) -> set[str]:
    """The columns a condition looks at."""
    if isinstance(condition, Test | Missing):
        return {condition.name}
    return {name for part in condition.parts for name in names_in(part)}
