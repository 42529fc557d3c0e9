"""Mutated tests fail exactly at the mutated line and expose values that are equal to everything."""

from __future__ import annotations

import ast
import random
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.mutated_tests import mutate_tests, sentinel_file, with_sentinel
from rllm_gym.grading.swe.test_source import TestSource, function_key

BODIES = [
    "assert f(2) == 4",
    "assert 4 == f(2)",
    "assert f(2) == 4, 'four'",
    "assert f(-2) == -4",
    "assert [f(1), f(2)] == [2, 4]",
    "assert {'a': f(1), 'b': [f(2)]} == {'a': 2, 'b': [4]}",
    "assert str(f(21)) == '42'",
    "assert f(1.5) == 3.0",
    "assert f('a') == 'aa'",
    "assert f(b'a') == b'aa'",
    "assert f('') == ''",
    "assert f([]) == []",
    "assert f('- ') == '- - '",
    "assert (f(1) == 2) == True",
    "wanted = 4\n    assert f(2) == wanted",
    "assert f(2) == f(1) + f(1)",
    "assert f(2) in (4, 5)",
    "assert f(2) in range(5)",
    "assert f(2) not in (3, 5)",
    "assert f(2) is not None",
    "assert f(None) is None",
    "assert f(2) > 3",
    "assert 3 < f(2) < 5",
    "assert f(2)",
    "assert not f(0)",
    "assert not(f(0))",
    "assert f(2) and f(3)",
    "assert f(1) and f(2) == 4 and f(3)",
    "assert f(2) == 4 or f(3) == 7",
    "assert (\n        f(2)\n        == 4\n    )",
    "assert (\n        f(2)\n    ), (\n        'text'\n    )",
    "assert any(f(x) for x in (0, 1))",
    "x = f(2)\n    with open('/dev/null') as stream:\n        assert x == 4",
    "for x, wanted in [(1, 2), (2, 4)]:\n        assert f(x) == wanted",
    "for x in range(0):\n        assert f(x) == 1",
    "if f(2) == 4:\n        assert f(3) == 6",
    "if f(2) == 5:\n        return\n    assert f(2) == 4",
    "try:\n        assert f(2) == 4\n    finally:\n        pass",
    "check(f(2), 4)",
    "with raises(TypeError):\n        f()",
    "raises(TypeError, f)",
    "pass",
]

PRELUDE = """
def f(x):
    return None if x is None else x + x


def check(value, wanted):
    assert value == wanted


class raises:
    def __init__(self, kind, call=None):
        self.kind = kind
        if call:
            with self:
                call()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None
        return issubclass(kind, self.kind)


"""


def run(text: str, key: str) -> list[int] | None:
    """Return the lines of the file in the traceback of a test, or ``None`` if it passes."""
    names: dict[str, object] = {}
    exec(compile(text, "<test>", "exec"), names)  # noqa: S102 - texts of this file
    owner, _, name = key.rpartition("::")
    function = getattr(names[owner](), name) if owner else names[name]  # type: ignore[operator]
    try:
        function()  # type: ignore[operator]
    except BaseException as error:
        return [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<test>"]
    return None


def test_a_mutated_test_fails_at_the_mutated_line_and_nowhere_else() -> None:
    for body in BODIES:
        text = PRELUDE + f"def test_it():\n    {body}\n\n\ndef test_after():\n    assert f(1) == 2\n"
        assert run(text, "test_it") is None, body
        for seed in range(12):
            copy = mutate_tests(TestSource(text), ["test_it"], random.Random(seed))
            if body.startswith("if f(2) == 5"):
                assert not copy.mutated  # what follows may never be reached
                continue
            span = copy.mutated["test_it"]
            lines = run(copy.text, "test_it")
            assert lines is not None, copy.text
            assert any(span.first <= line <= span.last for line in lines), copy.text
            assert run(copy.text, "test_after") is None, copy.text


def test_a_value_equal_to_everything_passes_the_mutated_test_and_is_detected() -> None:
    forged = PRELUDE.replace("return None if x is None else x + x", "return Any()") + (
        "class Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n\n\n"
    )
    bodies = [body for body in BODIES if body.startswith("assert") and "== 4" in body and " or " not in body]
    assert len(bodies) > 3
    for body in bodies:
        text = forged + f"def test_it():\n    {body}\n"
        assert run(text, "test_it") is None, body
        for seed in range(8):
            copy = mutate_tests(TestSource(text), ["test_it"], random.Random(seed))
            assert run(copy.text, "test_it") is None, copy.text


def test_all_functions_of_a_file_are_mutated_at_once_and_line_numbers_are_kept() -> None:
    functions = [f"def test_{n}():\n    {body}\n" for n, body in enumerate(BODIES) if "return" not in body]
    text = PRELUDE + "\n\n".join(functions)
    source = TestSource(text)
    keys = [key for key in source.functions if key.startswith("test_")]
    copy = mutate_tests(source, keys, random.Random(3))
    assert set(copy.mutated) == set(keys)
    for key in keys:
        lines = run(copy.text, key)
        assert lines is not None
        assert any(copy.mutated[key].first <= line <= copy.mutated[key].last for line in lines), key


def test_each_compared_parameter_is_mutated() -> None:
    text = (
        "import pytest\n\n@pytest.mark.parametrize(('x', 'wanted'), [(1, 2), (2, 4), pytest.param(3, 6, id='three')])\n"
        "def test_f(x, wanted):\n    assert f(x) == wanted\n"
    )
    copy = mutate_tests(TestSource(text), ["test_f"], random.Random(0))
    decorator = parse_python(copy.text).body[1].decorator_list[0]  # type: ignore[attr-defined]
    rows = [ast.literal_eval(row) for row in decorator.args[1].elts[:2]]
    assert [row[0] for row in rows] == [1, 2]
    assert all(row[1] != 2 * row[0] for row in rows)
    assert "param(3, 6," not in copy.text
    assert set(copy.mutated) == {"test_f"}


def test_tests_that_may_catch_a_failure_are_not_mutated() -> None:
    for decorator in ("@pytest.mark.xfail", "@raises(ValueError)", "@unittest.expectedFailure"):
        text = f"{decorator}\ndef test_it():\n    assert f(1) == 2\n"
        assert mutate_tests(TestSource(text), ["test_it"], random.Random(0)).mutated == {}, decorator


def test_a_sentinel_fails_and_looks_like_a_test_of_the_file() -> None:
    text = PRELUDE + (
        "def test_first_thing():\n    assert f(1) == 2\n\n\nclass TestMore:\n    def test_other_thing(self):\n"
        "        assert f(2) == 4\n\n\ndef test_last_thing():\n    assert f(3) == 6\n"
    )
    source = TestSource(text)
    names = set()
    for seed in range(30):
        for beside in ("test_first_thing", "TestMore::test_other_thing"):
            created = with_sentinel(source, beside, random.Random(seed))
            assert created is not None
            changed, key, span = created
            assert key not in source.functions
            assert key.rpartition("::")[0] == beside.rpartition("::")[0]
            assert run(changed, key) == [span.first]
            assert all(run(changed, other) is None for other in source.functions if "test" in other)
            names.add(key)
    assert len(names) > 20


def test_a_sentinel_in_a_file_of_its_own_fails() -> None:
    for seed in range(10):
        text, key, span = sentinel_file(random.Random(seed))
        assert run(text, key) == [span.first]


@given(st.text(max_size=300), st.integers(0, 100))
def test_any_text_is_parsed_or_refused(text: str, seed: int) -> None:
    try:
        source = TestSource(text)
    except (ValueError, UnicodeEncodeError):
        return
    assert source.edited(()) == text
    mutate_tests(source, list(source.functions), random.Random(seed))


def test_text_nested_too_deep_is_refused() -> None:
    for text in ("(" * 5000 + ")" * 5000, "x = " + "-" * 200_000 + "1", "\x00", "\ud800"):
        with pytest.raises((ValueError, UnicodeEncodeError)):
            TestSource(text)


def test_node_ids_have_keys() -> None:
    assert function_key("a.py::T::t[x::y[1]]") == ("a.py", "T::t")
    assert function_key("a.txt") == ("a.txt", "")


def test_a_parameter_that_is_also_an_input_is_not_mutated() -> None:
    """With a different value on both sides the test would pass."""
    text = """import pytest


@pytest.mark.parametrize("text", ["x + 1", "y * 2"])
def test_what_must_stay(text):
    assert simplified(text) == text
"""
    for seed in range(20):
        copy = mutate_tests(TestSource(text), ["test_what_must_stay"], random.Random(seed))
        assert "simplified(text) == text\n" not in copy.text
        assert '["x + 1", "y * 2"]' in copy.text
