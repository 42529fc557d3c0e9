"""Count and log the faults of environments, of which there may be very many."""

from __future__ import annotations

import logging
from collections import Counter

MAX_LOGGED = 20
"""Number of faults of a kind, or of other repeated events, that are logged as warnings."""


def log_repeated(log: logging.Logger, count: int, text: str, what: str) -> None:
    """Log an event: the first ones as warnings, further ones at debug level.

    Args:
        log: The caller's logger.
        count: How often it has happened, with this time.
        text: The message.
        what: What further events are called in the last warning.
    """
    more = f"; further {what} are counted, but not logged" if count == MAX_LOGGED else ""
    log.log(logging.WARNING if count <= MAX_LOGGED else logging.DEBUG, "%s%s", text, more)


def count_fault(log: logging.Logger, faults: Counter[str], kind: str, text: str) -> None:
    """Count a fault by its kind, and log it."""
    faults[kind] += 1
    log_repeated(log, faults[kind], text, "faults of this kind")
