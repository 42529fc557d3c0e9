import pytest
from pickver import IndexFormatError, Version, read_lock, write_lock
from pickver.lockfile import HEADER


def test_there_and_back_again():
    chosen = {"web": Version(2, 0, 0, ("rc", 1)), "log": Version(1, 2, 3)}
    text = write_lock(chosen)
    assert text == f"{HEADER}\nlog==1.2.3\nweb==2.0.0-rc.1\n"
    assert read_lock(text) == chosen
    assert write_lock({}) == HEADER + "\n"


def test_names_are_normalized():
    assert read_lock("\n# x\nWeb_Kit == 1.0.0\n") == {"web-kit": Version(1, 0, 0)}


@pytest.mark.parametrize(("text", "line"), [("a\n", 1), ("\na==1\n", 2), ("a==1.0.0\nA==1.0.0\n", 2)])
def test_errors_name_the_line(text, line):
    with pytest.raises(IndexFormatError) as caught:
        read_lock(text)
    assert caught.value.line == line
