"""Names for headings that can stand in an address."""

from __future__ import annotations

import re
import unicodedata


def slugify(text: str) -> str:
    """Lower-case letters and digits joined by hyphens; accents are dropped.

    A text without any letter or digit is ``"section"``.
    """
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    words = re.findall(r"[^\W_]+", plain.lower())
    return "-".join(words) or "section"


class Slugs:
    """Hands out each slug once: the second ``intro`` becomes ``intro-2``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, text: str) -> str:
        slug = base = slugify(text)
        number = 2
        while slug in self._taken:
            slug = f"{base}-{number}"
            number += 1
        self._taken.add(slug)
        return slug
