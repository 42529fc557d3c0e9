"""What people type into the forms of an office, read strictly: a day, a time, an amount of money."""

from __future__ import annotations

import re
from datetime import date

from rllm_gym.sites.errors import Refused
from rllm_gym.sites.wording import long_date, weekday

MOST_CENTS = 1_000_000_000


def day_of(text: str, label: str = "The date") -> date:
    """``2025-03-04``, as a date field sends it, in the years 2000 to 2099.

    Raises:
        Refused: It is no such date.
    """
    if re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", text.strip()):
        try:
            return date.fromisoformat(text.strip())
        except ValueError:
            pass
    raise Refused(f"{label} must be a date such as 2025-03-04, not {text[:40]!r}.")


def day_or(text: str, default: date) -> date:
    """The day that a query names, else the default: a mangled link still shows a page."""
    try:
        return day_of(text)
    except Refused:
        return default


def minutes_of(text: str, label: str = "The time") -> int:
    """``14:30`` as minutes after midnight.

    Raises:
        Refused: It is no such time.
    """
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(:00)?", text.strip())
    if match is None:
        raise Refused(f"{label} must be a time such as 14:30, not {text[:40]!r}.")
    return int(match[1]) * 60 + int(match[2])


def cents_of(text: str, label: str = "The amount") -> int:
    """``1,234.50`` or ``1234.5`` as cents.

    Raises:
        Refused: It is no amount, is below zero or above ten million, or has more than two decimals.
    """
    match = re.fullmatch(r"\$? ?([0-9]{1,9})(?:\.([0-9]{1,2}))?", text.strip().replace(",", ""))
    cents = int(match[1]) * 100 + int((match[2] or "").ljust(2, "0")) if match else -1
    if not 0 <= cents <= MOST_CENTS:
        raise Refused(f"{label} must be an amount such as 1234.50, not {text[:40]!r}.")
    return cents


def amount(cents: int) -> str:
    """``1234.50``: how an amount stands in a field."""
    return f"{cents // 100}.{cents % 100:02d}"


def clock(minutes: int) -> str:
    """``14:30``."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def full_date(day: date) -> str:
    """``Tuesday, 4 March 2025``."""
    return f"{weekday(day)}, {long_date(day)}"
