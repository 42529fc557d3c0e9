"""Strict parsers for form fields: dates, times and amounts of money, and their formatters."""

from __future__ import annotations

import re
from datetime import date

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.wording import long_date, weekday

MAX_CENTS = 1_000_000_000


def day_of(text: str, label: str = "The date") -> date:
    """Parse a date such as ``2025-03-04``, as a date field sends it, in the years 2000 to 2099.

    Raises:
        FormError: The text is not such a date.
    """
    if re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", text.strip()):
        try:
            return date.fromisoformat(text.strip())
        except ValueError:
            pass
    raise FormError(f"{label} must be a date such as 2025-03-04, not {text[:40]!r}.")


def day_or(text: str, default: date) -> date:
    """Parse the date in a query, or return the default, so that a malformed link still shows a page."""
    try:
        return day_of(text)
    except FormError:
        return default


def minutes_of(text: str, label: str = "The time") -> int:
    """Convert a time such as ``14:30`` to minutes after midnight.

    Raises:
        FormError: The text is not such a time.
    """
    match = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(:00)?", text.strip())
    if match is None:
        raise FormError(f"{label} must be a time such as 14:30, not {text[:40]!r}.")
    return int(match[1]) * 60 + int(match[2])


def cents_of(text: str, label: str = "The amount") -> int:
    """Convert an amount such as ``1,234.50`` or ``1234.5`` to cents.

    Raises:
        FormError: The text is not an amount, is below zero or above ten million, or has more than two decimals.
    """
    match = re.fullmatch(r"\$? ?([0-9]{1,9})(?:\.([0-9]{1,2}))?", text.strip().replace(",", ""))
    cents = int(match[1]) * 100 + int((match[2] or "").ljust(2, "0")) if match else -1
    if not 0 <= cents <= MAX_CENTS:
        raise FormError(f"{label} must be an amount such as 1234.50, not {text[:40]!r}.")
    return cents


def amount(cents: int) -> str:
    """Format cents as ``1234.50``, as in a form field."""
    return f"{cents // 100}.{cents % 100:02d}"


def clock(minutes: int) -> str:
    """Format minutes after midnight as ``14:30``."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def full_date(day: date) -> str:
    """Format a date as ``Tuesday, 4 March 2025``."""
    return f"{weekday(day)}, {long_date(day)}"
