import pytest
from pickver import Version, VersionError, parse_version

# From semver.org, in order.
ORDERED = [
    "1.0.0-1",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1-0",
    "1.0.1",
    "1.2.0",
    "1.10.0",
    "2.0.0",
]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.2.3", Version(1, 2, 3)),
        ("v1.2.3", Version(1, 2, 3)),
        (" 0.0.0 ", Version(0, 0, 0)),
        ("1.2.3-rc.1", Version(1, 2, 3, ("rc", 1))),
        ("1.2.3-0a.x-y", Version(1, 2, 3, ("0a", "x-y"))),
        ("1.2.3-a+b.5", Version(1, 2, 3, ("a",), "b.5")),
    ],
)
def test_versions_are_read(text, version):
    found = parse_version(text)
    assert found == version
    assert (found.pre, found.build) == (version.pre, version.build)
    assert str(found) == text.strip().removeprefix("v")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.x", "a"]
)
def test_other_text_is_refused(text):
    with pytest.raises(VersionError):
        parse_version(text)


def test_the_order():
    versions = [parse_version(text) for text in ORDERED]
    places = range(len(ORDERED))
    assert [[first < second for second in versions] for first in versions] == [[i < j for j in places] for i in places]
    assert [[first >= second for second in versions] for first in versions] == [
        [i >= j for j in places] for i in places
    ]


def test_build_metadata_does_not_count():
    first, second = parse_version("1.0.0+a"), parse_version("1.0.0+b")
    assert [first == second, hash(first) == hash(second), first < second] == [True, True, False]


def test_next_versions():
    version = parse_version("1.2.3-rc.1+x")
    assert [str(version.next_major()), str(version.next_minor())] == ["2.0.0", "1.3.0"]
    assert str(version.next_patch()) == "1.2.3"
    assert str(parse_version("1.2.3").next_patch()) == "1.2.4"
    assert version.is_prerelease
    assert not Version(1, 0, 0).is_prerelease
