"""Make text of a model or an environment safe to show in a terminal."""

from __future__ import annotations

import unicodedata

_BIDI_CONTROLS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def visible(text: str) -> str:
    """Return ``text`` with control characters made visible, so that no escape sequence reaches the terminal.

    Line feeds and tabs stay. C0 controls become their Unicode pictures; other controls, direction overrides and lone
    surrogates (which no terminal can encode) become their code points.

    >>> visible("a\\x1b[31m\\n")
    'a␛[31m\\n'
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code in _BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Cs"):
        return f"\\u{code:04x}"
    return character
