import pytest
from pickver import RangeError, Version, parse_range, parse_version


def chosen(text, versions):
    allowed = parse_range(text)
    return [version for version in versions.split() if parse_version(version) in allowed]


@pytest.mark.parametrize(
    ("text", "versions", "inside"),
    [
        ("1.2.3", "1.2.2 1.2.3 1.2.3+x 1.2.3-a 1.2.4", "1.2.3 1.2.3+x"),
        ("=1.2", "1.2.0 1.2.1", "1.2.0"),
        (">1.2.3", "1.2.2 1.2.3 1.2.4 2.0.0", "1.2.4 2.0.0"),
        (">= 1.2", "1.1.9 1.2.0 9.0.0", "1.2.0 9.0.0"),
        ("<1.2", "0.0.0 1.1.9 1.2.0", "0.0.0 1.1.9"),
        ("<=1.2", "1.2.0 1.2.1", "1.2.0"),
        ("!=1.2.3", "1.2.2 1.2.3 1.2.4", "1.2.2 1.2.4"),
        ("^1.2.3", "1.2.2 1.2.3 1.9.0 2.0.0", "1.2.3 1.9.0"),
        ("^0.2.3", "0.2.2 0.2.3 0.2.9 0.3.0", "0.2.3 0.2.9"),
        ("^0.0.3", "0.0.2 0.0.3 0.0.4", "0.0.3"),
        ("^0.0", "0.0.0 0.0.9 0.1.0", "0.0.0 0.0.9"),
        ("^0", "0.0.0 0.9.0 1.0.0", "0.0.0 0.9.0"),
        ("^1", "0.9.9 1.0.0 1.9.9 2.0.0", "1.0.0 1.9.9"),
        ("~1.2.3", "1.2.2 1.2.3 1.2.9 1.3.0", "1.2.3 1.2.9"),
        ("~1.2", "1.2.0 1.2.9 1.3.0", "1.2.0 1.2.9"),
        ("~1", "1.0.0 1.9.0 2.0.0", "1.0.0 1.9.0"),
        ("1.2.*", "1.1.9 1.2.0 1.2.9 1.3.0", "1.2.0 1.2.9"),
        ("1.*", "1.0.0 1.9.0 2.0.0", "1.0.0 1.9.0"),
        ("1.*.*", "1.9.0 2.0.0", "1.9.0"),
        ("*", "0.0.0 1.0.0-a 9.9.9", "0.0.0 9.9.9"),
        (">=1.2 <2", "1.1.0 1.2.0 1.9.9 2.0.0", "1.2.0 1.9.9"),
        (">=1.2, <2", "1.1.0 1.2.0 1.9.9 2.0.0", "1.2.0 1.9.9"),
        ("1.2.* || ^3.0", "1.2.5 2.0.0 3.1.0 4.0.0", "1.2.5 3.1.0"),
        ("^v1.2", "1.3.0 2.0.0", "1.3.0"),
    ],
)
def test_what_is_in_a_range(text, versions, inside):
    assert chosen(text, versions) == inside.split()


@pytest.mark.parametrize(
    ("text", "versions", "inside"),
    [
        (
            "^1.2.3-beta.2",
            "1.2.3 1.2.3-beta.1 1.2.3-beta.11 1.2.3-beta.2 1.2.4-beta.3 1.5.0 2.0.0-a",
            "1.2.3 1.2.3-beta.11 1.2.3-beta.2 1.5.0",
        ),
        ("<2.0.0", "1.5.0-a 1.9.0 2.0.0-a", "1.9.0"),
        (">=2.0.0-a <3", "2.0.0-b 2.5.0 2.5.0-b", "2.0.0-b 2.5.0"),
        ("1.0.0-a || >1", "1.0.0-a 1.0.0-b 2.0.0 2.0.0-a", "1.0.0-a 2.0.0"),
    ],
)
def test_prereleases_are_asked_for(text, versions, inside):
    assert chosen(text, versions) == inside.split()


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4", ">", "^1.*", "1.*.3", "1 ||", "1 | 2", ">=1.2-", "^^1", "1.02.3"])
def test_other_text_is_refused(text):
    with pytest.raises(RangeError):
        parse_range(text)


def test_the_best_version():
    versions = [Version(1, 0, 0), Version(1, 10, 0), Version(1, 9, 0), Version(2, 0, 0)]
    assert parse_range("^1.0").best(versions) == Version(1, 10, 0)
    assert parse_range("^3").best(versions) is None


def test_a_range_shows_what_was_written():
    assert str(parse_range(" >=1.2, <2 ")) == ">=1.2, <2"
    assert [str(bound) for bound in parse_range("^0.2").alternatives[0]] == [">=0.2.0", "<0.3.0"]
