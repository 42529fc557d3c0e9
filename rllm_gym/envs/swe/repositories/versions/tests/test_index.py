import pytest
from pickver import Index, IndexFormatError, Version


def test_versions_are_newest_first(index):
    assert [str(version) for version in index.versions("web")] == ["3.0.0-rc.1", "2.3.0", "2.2.0", "1.9.0"]
    assert index.versions("WEB") == index.versions("web")
    assert index.versions("nothing") == []


def test_withdrawn_versions():
    index = Index.from_text("log 1.4.2\nlog 1.5.0 withdrawn\n")
    assert index.versions("log") == [Version(1, 4, 2)]
    assert index.versions("log", withdrawn=True) == [Version(1, 5, 0), Version(1, 4, 2)]
    assert index.release("log", Version(1, 5, 0)).withdrawn
    assert not index.release("log", Version(1, 4, 2)).withdrawn


def test_what_a_release_needs(index):
    web = index.release("web", Version(2, 3, 0))
    assert [str(need) for need in web.needs()] == ["log ^1.2"]
    assert [str(need) for need in web.needs(["tls", "other"])] == ["log ^1.2", "crypto >=3"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("  log 1.0.0\n", 1), ("a 1.0\n", 1), ("a 1.0.0 gone\n", 1), ("# x\n\na 1.0.0\n  b >=x\n", 4), ("a\n", 1)],
)
def test_errors_name_the_line(text, line):
    with pytest.raises(IndexFormatError) as caught:
        Index.from_text(text)
    assert caught.value.line == line
