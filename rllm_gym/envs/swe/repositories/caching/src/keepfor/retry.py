"""Waiting longer after every failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Retry:
    """Try again after 1, 2, 4, ... times ``first`` seconds.

    Attributes:
        attempts: How often it is tried in all.
        first: Seconds before the second attempt.
        factor: How much longer every further wait is.
        longest: No wait is longer than this.
        on: The errors after which it is tried again; others are raised at once.
    """

    attempts: int = 3
    first: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    on: tuple[type[Exception], ...] = (OSError,)

    def waits(self) -> Iterator[float]:
        """The seconds before each further attempt."""
        wait = self.first
        for _ in range(self.attempts - 1):
            yield min(wait, self.longest)
            wait *= self.factor

    def call(self, function: Callable[[], T], *, sleep: Callable[[float], object] = time.sleep) -> T:
        """Call ``function`` until it succeeds; the error of the last attempt is raised."""
        for wait in self.waits():
            try:
                return function()
            except self.on:
                sleep(wait)
        return function()
