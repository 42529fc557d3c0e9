import pytest
from linepatch import Hunk, make_hunks

OLD = [f"{number}\n" for number in range(20)]


def changed(*places):
    return ["x\n" if place in places else line for place, line in enumerate(OLD)]


def test_a_change_has_context():
    (hunk,) = make_hunks(OLD, changed(10), 2)
    assert (hunk.old_start, hunk.new_start) == (8, 8)
    assert hunk.body == ((" ", "8\n"), (" ", "9\n"), ("-", "10\n"), ("+", "x\n"), (" ", "11\n"), (" ", "12\n"))
    assert hunk.old_lines == OLD[8:13]
    assert hunk.new_lines == changed(10)[8:13]


def test_context_stops_at_the_ends():
    (hunk,) = make_hunks(OLD, changed(0), 3)
    assert (hunk.old_start, len(hunk.body)) == (0, 5)
    (hunk,) = make_hunks(OLD, changed(19), 3)
    assert (hunk.old_start, len(hunk.body)) == (16, 5)


@pytest.mark.parametrize(("second", "hunks"), [(9, 1), (11, 1), (12, 1), (13, 2), (15, 2)])
def test_changes_that_are_near_share_a_hunk(second, hunks):
    assert len(make_hunks(OLD, changed(5, second), 3)) == hunks


def test_starts_count_what_came_before():
    first, second = make_hunks(OLD, ["new\n", *changed(15)], 1)
    assert (first.old_start, first.new_start) == (0, 0)
    assert (second.old_start, second.new_start) == (14, 15)


def test_without_context():
    assert make_hunks(["a", "b"], ["a", "c", "b"], 0) == [Hunk(1, 1, (("+", "c"),))]
    assert make_hunks([], ["a"], 3) == [Hunk(0, 0, (("+", "a"),))]


def test_nothing_changed():
    assert make_hunks(OLD, OLD) == []


def test_a_reversed_hunk_removes_first():
    hunk = Hunk(3, 4, ((" ", "a"), ("-", "b"), ("+", "c"), ("+", "d"), (" ", "e"), ("+", "f")))
    assert hunk.reversed() == Hunk(4, 3, ((" ", "a"), ("-", "c"), ("-", "d"), ("+", "b"), (" ", "e"), ("-", "f")))
    assert hunk.reversed().reversed() == hunk


def test_context_is_not_negative():
    with pytest.raises(ValueError):
        make_hunks([], [], -1)
