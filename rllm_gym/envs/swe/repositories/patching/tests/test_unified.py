from pathlib import Path

import pytest
from linepatch import FilePatch, Hunk, PatchError, format_patch, make_patch, parse_patch, reverse_patch

DATA = Path(__file__).parent / "data" / "two_files.patch"


def test_a_patch_is_written():
    patch = make_patch("a\nb\nc\n", "a\nB\nc\nd", path="x.txt")
    assert str(patch) == (
        "--- a/x.txt\n+++ b/x.txt\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d\n\\ No newline at end of file\n"
    )
    assert str(make_patch("a\n", "a\n")) == ""


@pytest.mark.parametrize(
    ("old", "new", "header"),
    [
        ("", "a\n", "@@ -0,0 +1 @@"),
        ("a\n", "", "@@ -1 +0,0 @@"),
        ("a\nb\n", "a\nx\nb\n", "@@ -1,0 +2 @@"),
        ("a\nb\nc\n", "a\nc\n", "@@ -2 +1,0 @@"),
    ],
)
def test_ranges(old, new, header):
    patch = make_patch(old, new, context=0)
    assert str(patch).splitlines()[2] == header
    assert parse_patch(str(patch)) == [patch]


def test_a_patch_of_two_files_is_read():
    story, new = parse_patch(DATA.read_text())
    assert (story.old_path, story.new_path) == ("story.txt", "story.txt")
    assert [(hunk.old_start, hunk.new_start) for hunk in story.hunks] == [(0, 0), (7, 7)]
    assert story.hunks[1].body == (("-", "end\n"), ("+", "the end\n"), ("+", "(really)\n"))
    assert new == FilePatch(None, "new.txt", (Hunk(0, 0, (("+", "hello"),)),))


def test_files_that_are_made_or_go():
    text = format_patch(parse_patch(DATA.read_text())[1])
    assert text == "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+hello\n\\ No newline at end of file\n"


def test_times_and_stripped_context():
    text = "--- a/x\t2024-01-01 10:00\n+++ b/x\t2024-01-02 10:00\n@@ -1,3 +1,2 @@\n a\n\n-b\n"
    (patch,) = parse_patch(text)
    assert patch.old_path == patch.new_path == "x"
    assert patch.hunks[0].body == ((" ", "a\n"), (" ", "\n"), ("-", "b\n"))


def test_removed_lines_that_look_like_headers():
    patch = make_patch("-- a\nb\n", "++ c\nb\n")
    assert parse_patch(str(patch)) == [FilePatch("file", "file", patch.hunks)]


@pytest.mark.parametrize(
    "text",
    [
        "@@ -1 +1 @@\n-a\n+b\n",
        "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n",
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n+c\n",
        "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\nb\n",
    ],
)
def test_what_is_no_patch(text):
    with pytest.raises(PatchError):
        parse_patch(text)


def test_a_text_without_patches():
    assert parse_patch("hello\n") == []


def test_reversing():
    assert reverse_patch(make_patch("a\nb\n", "a\nc\n")) == make_patch("a\nc\n", "a\nb\n")
    new = parse_patch(DATA.read_text())[1]
    assert (reverse_patch(new).old_path, reverse_patch(new).new_path) == ("new.txt", None)
