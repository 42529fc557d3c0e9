"""Values that the code under test sends out: they cannot make their evaluation take long."""

import pytest

from rllm_gym.grading.swe.assertions import UnsupportedAssertion, searches
from rllm_gym.grading.swe.observed_values import NotPlain, decode


def test_a_text_made_against_a_pattern_is_given_up() -> None:
    assert searches("b+c", "abbc")
    assert not searches("^c", "abbc")
    with pytest.raises(UnsupportedAssertion):  # 2 ** 5000 ways to divide the text
        searches("(a+)+b", "a" * 5000)


def test_a_range_counts_as_many_values() -> None:
    assert decode(["x", "range", [0, 10, 3]]) == range(0, 10, 3)
    for stop in (10**15, 10**30):
        with pytest.raises(NotPlain):
            decode(["x", "range", [0, stop, 1]])
