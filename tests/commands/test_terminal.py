"""Hostile text on a terminal: no escape sequence is printed."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from rllm_gym.commands.terminal import visible


@given(st.text(st.characters(), max_size=200))
@example("\x1b]0;title\x07")
@example("\x9b31m")
@example("\u202egnp.exe")
@example("\ud800")
def test_terminal_control_sequences_are_removed(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    for character in shown:
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
        assert character not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=200))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert visible(text) == text
