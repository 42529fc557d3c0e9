import itertools

import pytest
from linepatch import ApplyError, apply_patch, apply_with_report, make_patch, parse_patch, reverse_patch

OLD = "".join(f"{number}\n" for number in range(30))
NEW = OLD.replace("5\n", "five\n", 1).replace("20\n", "twenty\n20b\n")


def test_there_and_back_again():
    texts = ["", "a", "a\n", "a\nb\n", "b\na\n", "a\nb\nc\nd\ne\nf\ng\n", "a\nX\nc\nd\ne\nf\nY", "\n\n"]
    for old, new in itertools.product(texts, texts):
        for context in (0, 1, 3):
            patch = make_patch(old, new, context=context)
            assert apply_patch(old, patch) == new
            assert apply_patch(new, reverse_patch(patch)) == old
            for again in parse_patch(str(patch)):
                assert apply_patch(old, again) == new
    (patch,) = parse_patch("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n")
    assert (apply_patch("a\nb\nc", patch), apply_patch("A\nb\nc", reverse_patch(patch))) == ("A\nb\nc", "a\nb\nc")


def test_hunks_are_found_where_lines_have_moved():
    patch = make_patch(OLD, NEW)
    moved = apply_with_report("title\n\n" + OLD, patch)
    assert moved.text == "title\n\n" + NEW
    assert moved.offsets == (2, 2)
    assert apply_with_report(OLD[4:], patch).offsets == (-2, -2)


def test_the_nearest_place_is_taken():
    text = "a\nb\na\nb\na\nb\n"
    patch = make_patch("x\nx\nb\n", "x\nx\nc\n", context=0)
    assert apply_with_report(text, patch).text == "a\nc\na\nb\na\nb\n"
    late = make_patch("x\nx\nx\nx\nb\n", "x\nx\nx\nx\nc\n", context=0)
    assert apply_patch(text, late) == "a\nb\na\nc\na\nb\n"


def test_hunks_keep_their_order():
    patch = make_patch("a\nx\nx\nx\na\n", "b\nx\nx\nx\nc\n", context=0)
    assert apply_patch("a\na\n", patch) == "b\nc\n"
    with pytest.raises(ApplyError, match="hunk 2"):
        apply_patch("a\n", patch)


def test_fuzz_ignores_outer_context():
    patch = make_patch(OLD, NEW)
    changed = OLD.replace("2\n3\n", "2\nthree\n", 1)
    with pytest.raises(ApplyError) as caught:
        apply_patch(changed, patch)
    assert caught.value.hunk == 1
    with pytest.raises(ApplyError):
        apply_patch(changed, patch, fuzz=1)
    assert apply_patch(changed, patch, fuzz=2) == NEW.replace("2\n3\n", "2\nthree\n", 1)


def test_fuzz_does_not_ignore_changes():
    with pytest.raises(ApplyError):
        apply_patch("a\nx\nc\n", make_patch("a\nb\nc\n", "a\nB\nc\n"), fuzz=3)


def test_white_space_can_be_ignored():
    patch = make_patch("  a\n  b\n", "  a\n  c\n")
    text = "\ta\n\tb\n"
    with pytest.raises(ApplyError):
        apply_patch(text, patch)
    assert apply_patch(text, patch, ignore_space=True) == "\ta\n  c\n"


def test_an_error_says_where():
    with pytest.raises(ApplyError, match="hunk 1: its lines are not in the text near line 3"):
        apply_patch("a\n", make_patch(OLD, NEW))
