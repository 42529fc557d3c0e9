from pathlib import Path

from linepatch import change_counts, make_patch, parse_patch, reverse_patch, similarity


def test_counts():
    patches = parse_patch((Path(__file__).parent / "data" / "two_files.patch").read_text())
    assert change_counts(patches) == {"story.txt": (3, 2), "new.txt": (1, 0)}
    assert change_counts([reverse_patch(patch) for patch in patches]) == {"story.txt": (2, 3), "new.txt": (0, 1)}
    twice = [make_patch("a\n", "b\n", path="x"), make_patch("b\n", "c\nd\n", path="x")]
    assert change_counts(twice) == {"x": (3, 2)}


def test_similarity():
    assert similarity("a\nb\n", "a\nb\n") == 1
    assert similarity("", "") == 1
    assert similarity("a\n", "b\n") == 0
    assert similarity("a\nb\n", "a\nc\n") == 0.5
    assert similarity("a\nb\nc\n", "a\n") == 0.5
