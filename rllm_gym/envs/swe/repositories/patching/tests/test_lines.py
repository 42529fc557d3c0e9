import pytest
from linepatch.lines import same_but_for_space, split_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\n", ["a\n"]),
        ("a\n\nb", ["a\n", "\n", "b"]),
        ("a\r\nb\x0cc\u2028d\n", ["a\r\n", "b\x0cc\u2028d\n"]),
    ],
)
def test_only_line_feeds_end_a_line(text, lines):
    assert split_lines(text) == lines
    assert "".join(split_lines(text)) == text


def test_white_space():
    pairs = [("a  b\n", "a b"), ("  a\n", "\ta\n"), ("ab\n", "a b\n"), (" a\n", "a\n")]
    assert [same_but_for_space(first, second) for first, second in pairs] == [True, True, False, False]
