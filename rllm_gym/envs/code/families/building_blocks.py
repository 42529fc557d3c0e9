"""The components of built-in problems: kinds of values, sources that a problem begins with, and steps.

The functions of steps and sources compute the expected results, and their source text is the reference solution. So
the two cannot differ, and no text is executed. Each function is self-contained.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ParameterValues = Mapping[str, Sequence[Any]]
"""Parameter by name -> its possible values."""


@dataclass(frozen=True)
class ValueKind:
    """A kind of value, in Python and as text.

    Attributes:
        noun: Its name in the statement, for example ``"a list of integers"``.
        line: Description of its format in the input.
        printed: Description of its format in the output.
        read: Function that takes the value from the front of the remaining input lines.
        shown: Function that formats a value as text.
    """

    noun: str
    line: str
    printed: str
    read: Callable[[list[str]], Any]
    shown: Callable[[Any], str]


@dataclass(frozen=True)
class Op:
    """One instruction of a problem.

    Attributes:
        function: ``function(value, **parameters)``.
        takes: Kind of its value.
        gives: Kind of its result.
        says: The instruction, with the parameters in braces.
        options: Possible values of the parameters.
        level: 1 for a step of one line of Python, 2 for a step that needs more thought.
    """

    function: Callable[..., Any]
    takes: str
    gives: str
    says: str
    options: ParameterValues = field(default_factory=dict)
    level: int = 1

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True)
class Source:
    """The start of a problem: its inputs, and the first value computed from them.

    Attributes:
        function: ``function(*inputs, **parameters)``.
        inputs: Name and kind of each input.
        gives: Kind of the result.
        input_description: Description of the inputs.
        says: The first instruction, with the parameters in braces; ``""`` if the input itself is the result.
        draw: Draws random inputs of about a size, 1 to 5.
        edges: Edge cases that programs often miss.
        options: Possible values of the parameters.
        level: 1 (easy) to 4, or the difficulty 6 to 8 of a source with ``large``.
        large: Draws random inputs so large that a program of a higher complexity does not finish in time; ``None`` for
            most sources. Problems of a source with ``large`` have no steps, and read and write text.
    """

    function: Callable[..., Any]
    inputs: tuple[tuple[str, str], ...]
    gives: str
    input_description: str
    says: str
    draw: Callable[[random.Random, int], tuple[Any, ...]]
    edges: tuple[tuple[Any, ...], ...]
    options: ParameterValues = field(default_factory=dict)
    level: int = 1
    large: Callable[[random.Random], tuple[Any, ...]] | None = None

    @property
    def name(self) -> str:
        return self.function.__name__


def read_number(lines):  # type: ignore[no-untyped-def]
    return int(lines.pop(0))


def read_numbers(lines):  # type: ignore[no-untyped-def]
    return [int(word) for word in lines.pop(0).split()]


def read_text(lines):  # type: ignore[no-untyped-def]
    return lines.pop(0)


def read_words(lines):  # type: ignore[no-untyped-def]
    return lines.pop(0).split()


def read_rows(lines):  # type: ignore[no-untyped-def]
    count = int(lines.pop(0))
    return [lines.pop(0) for _ in range(count)]


def read_lists(lines):  # type: ignore[no-untyped-def]
    count = int(lines.pop(0))
    return [[int(word) for word in lines.pop(0).split()] for _ in range(count)]


def show_value(value):  # type: ignore[no-untyped-def]
    return str(value)


def show_spaced(values):  # type: ignore[no-untyped-def]
    return " ".join(str(value) for value in values)


def show_rows(rows):  # type: ignore[no-untyped-def]
    return "\n".join([str(len(rows)), *rows])


def show_lists(lists):  # type: ignore[no-untyped-def]
    return "\n".join([str(len(lists)), *(" ".join(str(value) for value in values) for values in lists)])


_ON_ONE_LINE = "on one line, separated by spaces (an empty line for an empty list)"
_ONE_PER_LINE = "a line with their number, then each on a line of its own"

KINDS: dict[str, ValueKind] = {
    "number": ValueKind("an integer", "a line with the integer", "the integer", read_number, show_value),
    "numbers": ValueKind(
        "a list of integers",
        "a line with the integers, separated by spaces (it may be empty)",
        f"the integers {_ON_ONE_LINE}",
        read_numbers,
        show_spaced,
    ),
    "text": ValueKind("a string", "a line with the string (it may be empty)", "the string", read_text, show_value),
    "words": ValueKind(
        "a list of strings",
        "a line with the strings, separated by spaces (it may be empty)",
        f"the strings {_ON_ONE_LINE}",
        read_words,
        show_spaced,
    ),
    "rows": ValueKind("a list of strings", _ONE_PER_LINE, _ONE_PER_LINE, read_rows, show_rows),
    "grid": ValueKind("a list of strings of equal length", _ONE_PER_LINE, _ONE_PER_LINE, read_rows, show_rows),
    "lists": ValueKind(
        "a list of lists of integers",
        "a line with their number, then each on a line, separated by spaces",
        "their number on a line, then each on a line, separated by spaces",
        read_lists,
        show_lists,
    ),
}
"""Kinds by the names that steps and sources use."""
