"""Replaces infinite, undefined and very large numbers of the program, to check that the test notices.

``abs(r - 3) <= 1e-6 * abs(r)`` is true of infinity, and ``not abs(r - 3) > 1e-6`` of NaN, but of no number in place of
them.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

CHANGES = ("sign", "size")
"""How the numbers are changed: minus infinity in place of infinity, or a large number in place of each."""

_EXTREME = 1e150
"""Products of two numbers from this size on may be infinite."""
_LARGE = 8.1e148
_MENTIONED = {
    "infinite": re.compile(r"(?<![a-z])(is_?)?(neg|pos)?(inf|finite)(?![a-z])|infinit|\de\+?\d{3}"),
    "nan": re.compile(
        r"(?<![a-z])((is|equal)_?)?nan(?![a-z])|nan_ok|isfinite|\b(?P<same>\w+(\([^()]*\))?) != (?P=same)"
    ),
}


class ExtremeNumbers:
    """Finds and changes such numbers.

    Args:
        change: One of :data:`CHANGES`, or empty.
    """

    def __init__(self, change: str) -> None:
        self._change = change
        self.found: set[str] = set()

    def unexpected(self, test: str) -> list[str]:
        """Return which of the kinds that were found are not mentioned by the test."""
        return sorted(kind for kind in self.found if not _MENTIONED[kind].search(test.lower()))

    def parsed(self, text: str) -> float:
        return float(self.changed(float(text)))

    def changed(self, value: Any) -> Any:
        """Return the number that the test gets for a ``float``, ``complex`` or ``Decimal``."""
        if type(value) is complex:
            return complex(self.changed(value.real), self.changed(value.imag))
        kind = "nan" if value != value else "infinite" if abs(value) >= _EXTREME else ""
        if not kind:
            return value
        self.found.add(kind)
        if self._change == "sign":
            return value if kind == "nan" else -value
        if self._change == "size":
            return type(value)(-_LARGE if value < 0 else _LARGE)
        return value

    def changed_array(self, array: Any) -> Any:
        """Return the array, or scalar, of numpy that the test gets for another one."""
        if array.dtype.kind not in "fc" or not array.size:
            return array
        np = sys.modules["numpy"]
        size = np.abs(array)
        undefined, infinite = np.isnan(size), size >= _EXTREME
        self.found |= {kind for kind, of in (("nan", undefined), ("infinite", infinite)) if of.any()}
        if self._change == "sign":
            return np.where(infinite, -array, array).astype(array.dtype)
        if self._change == "size":
            large = np.asarray(min(_LARGE, math.sqrt(float(np.finfo(array.dtype).max)))).astype(array.dtype)
            return np.where(undefined | infinite, np.where(array.real < 0, -large, large), array).astype(array.dtype)
        return array
