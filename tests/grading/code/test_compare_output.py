"""When two outputs count as equal, as in programming contests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.grading.code.compare import difference

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


SAME = [
    (b"1 2\n", "1 2"),
    (b"1 2", "1 2\n"),
    (b"1 2  \t\n\n\n", "1 2\n"),
    (b"a\r\nb\r\n", "a\nb"),
    (b"", ""),
    (b"\n", ""),
    ("é\n".encode(), "é"),
]
OTHER = [
    (b"1  2", "1 2"),
    (b" 1", "1"),
    (b"1\n\n2", "1\n2"),
    (b"1\n2\n3", "1\n2"),
    (b"1", "1\n2"),
    (b"", "1"),
    (b"1.0", "1"),
    (b"YES", "Yes"),
    (b"\xff", "\xff"),
    (b"1\x00", "1"),
    (b"1\x1f", "1"),
    (b"1\x1c", "1"),
]
# The output, the expected output, and whether they are equal within 1e-5.
WITHIN_TOLERANCE = [
    (b"0.333334", "0.333333", True),
    (b"0.33", "0.333333", False),
    (b"1e-1 x", "0.1 x", True),
    (b"0.1 y", "0.1 x", False),
    (b"1000000.5", "1000000.0", True),
    (b"1000000.5", "1000000", False),
    (b"2000001", "2000000", False),
    (b"1e6", "1000000", True),
    (b"2.000009", "2", True),
    (b"10000000000000001", "10000000000000000", False),
    (b"+5 05", "5 5", True),
    (b"0.5\x1c0.5", "0.5 0.5", False),
    ("0.5\xa00.5".encode(), "0.5 0.5", False),
    (b"nan", "0.1", False),
    (b"nan", "nan", True),
    (b"inf", "1", False),
    (b"1e9999", "1", False),
    (b"1e9999", "1e9998", False),
    (b"0.1 0.1", "0.1", False),
    (b"1_0", "10", False),
    ("١".encode(), "1", False),
    (b"0x1", "1", False),
    (b"1" * 500, "1", False),
    (b"+.5", "0.5", True),
    (b"5.", "5", True),
]


def test_trailing_white_space_is_ignored() -> None:
    assert [case for case in SAME if difference(*case) is not None] == []


def test_all_other_differences_count() -> None:
    assert [case for case in OTHER if difference(*case) is None] == []


def test_with_a_tolerance_numbers_are_compared_by_value() -> None:
    wrong = [case for *case, same in WITHIN_TOLERANCE if (difference(*case, 1e-5) is None) != same]
    assert wrong == []


@given(TEXT)
def test_an_output_equals_itself(text: str) -> None:
    assert difference(text.encode(), text) is None
    assert difference(text.encode() + b" \n\n", text) is None


@given(st.binary(max_size=50), st.binary(max_size=50).map(lambda data: data.decode("latin-1")), st.floats(0, 1))
def test_any_bytes_can_be_compared(output: bytes, expected: str, tolerance: float) -> None:
    difference(output, expected, tolerance)


def test_the_first_difference_is_reported() -> None:
    found = difference(b"1\n2\n4\n", "1\n2\n3\n")
    assert found is not None
    assert (found.line, found.got, found.expected) == (3, "4", "3")
    found = difference(b"1\n", "1\n2\n")
    assert found is not None
    assert (found.line, found.got, found.expected) == (2, "the end of the output", "2")
