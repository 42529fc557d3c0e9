"""Other values make different objects of an honest class, also where it compares only a part of its data.

The check that a program's objects are not equal to everything makes them of other values. If those left a compared part
unchanged too often, the class would be refused now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rllm_gym.grading.code.inside import argument_mutation

CARDS = ["KS 2H KD 2C AS", "KS", "KH", "AH", "2S", " ", "2H 2C KS KD AS"]


@pytest.mark.parametrize(
    ("constants", "value", "compared"),
    [
        (CARDS, "KH", lambda text: text[0]),
        (CARDS, "KH", lambda text: text[-1]),
        (["KS", "KH", "AH"], "KH", lambda text: text[0]),
        (["bob@x.org", "al@x.org", "al@y.com"], "bob@x.org", lambda text: text.split("@")[-1]),
        (["listen", "silent", "apple"], "listen", sorted),
        (["Ab", "aB", "c"], "Ab", str.lower),
    ],
)
def test_a_compared_part_of_a_text_seldom_stays_the_same(
    constants: list[str], value: str, compared: Callable[[str], Any]
) -> None:
    argument_mutation.seed(0)
    others = [argument_mutation.different_value(value, lambda: constants) for _ in range(400)]
    assert value not in others
    same = sum(compared(other) == compared(value) for other in others) / len(others)
    # A program is refused when nine of twelve other values leave its objects equal: at 0.35, one time in 160.
    assert same <= 0.35
    # Values that the program cannot tell from the test's own: of the test's characters, mostly.
    letters = set("".join(constants))
    assert sum(set(other) <= letters for other in others) / len(others) >= 0.8


def test_a_text_without_others_like_it_gets_a_random_character() -> None:
    argument_mutation.seed(0)
    assert all(
        argument_mutation.different_value(value, list) != value for value in ("", "a", "abc") for _ in range(100)
    )
