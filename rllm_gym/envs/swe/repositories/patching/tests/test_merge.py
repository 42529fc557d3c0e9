import pytest
from linepatch import Merged, merge

BASE = "a\nb\nc\nd\ne\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        (BASE, "a\nB\nc\nd\ne\n", "a\nB\nc\nd\ne\n"),
        ("a\nB\nc\nd\ne\n", BASE, "a\nB\nc\nd\ne\n"),
        ("a\nB\nc\nd\ne\n", "a\nb\nc\nD\ne\n", "a\nB\nc\nD\ne\n"),
        ("a\nB\nc\nd\ne\n", "a\nB\nc\nd\n", "a\nB\nc\nd\n"),
        ("b\nc\nd\ne\n", "a\nb\nc\nd\ne\nf", "b\nc\nd\ne\nf"),
        ("", BASE, ""),
    ],
)
def test_changes_of_different_lines_are_joined(ours, theirs, text):
    assert merge(BASE, ours, theirs) == Merged(text, 0)


def test_different_changes_of_the_same_lines_conflict():
    merged = merge(BASE, "a\nB\nc\nd\ne\n", "a\nbb\nc\nD\ne\n", names=("mine", "yours"))
    assert merged.conflicts == 1
    assert merged.text == "a\n<<<<<<< mine\nB\n=======\nbb\n>>>>>>> yours\nc\nD\ne\n"


def test_a_mark_stands_on_a_line_of_its_own():
    assert merge("a", "b", "c").text == "<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n"


def test_a_line_changed_here_and_removed_there_conflicts():
    merged = merge(BASE, "a\nb\nC\nd\ne\n", "a\nb\nd\ne\n")
    assert (merged.conflicts, "=======\n>>>>>>> theirs" in merged.text) == (1, True)


def test_two_conflicts():
    assert merge(BASE, "1\nb\nc\nd\n2\n", "3\nb\nc\nd\n4\n").conflicts == 2
