"""Exact amounts of money in one currency."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tallybook.errors import MoneyError

# Digits after the decimal point; every other currency has two.
MINOR_DIGITS = {"JPY": 0, "KRW": 0, "KWD": 3, "BHD": 3}

_AMOUNT = re.compile(r"([+-]?)\s*(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?\s*([A-Z]{3})")


def minor_digits(currency: str) -> int:
    """How many digits an amount in ``currency`` has after the point."""
    return MINOR_DIGITS.get(currency, 2)


@dataclass(frozen=True)
class Money:
    """A whole number of minor units (cents) of a currency."""

    units: int
    currency: str

    def __add__(self, other: Money) -> Money:
        return Money(self.units + self._units_of(other), self.currency)

    def __sub__(self, other: Money) -> Money:
        return Money(self.units - self._units_of(other), self.currency)

    def __neg__(self) -> Money:
        return Money(-self.units, self.currency)

    def __lt__(self, other: Money) -> bool:
        return self.units < self._units_of(other)

    def __le__(self, other: Money) -> bool:
        return self.units <= self._units_of(other)

    def __bool__(self) -> bool:
        return self.units != 0

    def __str__(self) -> str:
        digits = minor_digits(self.currency)
        sign = "-" if self.units < 0 else ""
        whole, rest = divmod(abs(self.units), 10**digits)
        fraction = f".{rest:0{digits}d}" if digits else ""
        return f"{sign}{whole:,}{fraction} {self.currency}"

    def split(self, parts: int) -> list[Money]:
        """Divide into ``parts`` amounts that differ by one unit at most and add up to this one; larger ones first."""
        if parts < 1:
            raise MoneyError(f"cannot split {self} into {parts} parts")
        share, rest = divmod(self.units, parts)
        return [Money(share + 1 if place < rest else share, self.currency) for place in range(parts)]

    def _units_of(self, other: Money) -> int:
        if other.currency != self.currency:
            raise MoneyError(f"{self} and {other} are in different currencies")
        return other.units


def parse_money(text: str) -> Money:
    """Read ``"1,250.00 EUR"``.

    Fewer digits after the point than the currency has are filled up; more are an error.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise MoneyError(f"not an amount: {text.strip()!r}")
    sign, whole, fraction, currency = match.groups()
    digits = minor_digits(currency)
    fraction = fraction or ""
    if len(fraction) > digits:
        raise MoneyError(f"{currency} has {digits} digits after the point: {text.strip()!r}")
    units = int(whole.replace(",", "") + fraction.ljust(digits, "0"))
    return Money(-units if sign == "-" else units, currency)
