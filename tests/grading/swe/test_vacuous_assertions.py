"""Assertions that are true of nothing, of infinity or of what only answers: such results are not paid."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from small_repository import changes, write

from rllm_gym.grading.swe import RepositoryTests, grade_repository_sync, record_trace_sync
from rllm_gym.grading.swe.assertions import UnsupportedAssertion, evaluate
from rllm_gym.grading.swe.observed_values import infinities_in
from rllm_gym.sandbox import Changes, SandboxPool

INFINITE = "return float('inf')"
EQUAL = "return type('E', (), {'__eq__': lambda self, other: True})()"
ALL_PAIRS = "import itertools as i; return ' '.join(map(''.join, i.product('abcdef', repeat=2)))"
KEPT = "f.c = getattr(f, 'c', None) or "
YES = "{'__eq__': lambda *_: True}"
# It returns what the test has created to compare with.
READ = "import sys; return sys._getframe(1).f_locals.get('expected', 7)"
# The reference solution, the test, wrong bodies and other right ones of a function f.
FORMS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "relative": ("return 3.0000001", "r = f()\nassert abs(r - 3) <= 1e-6 * abs(r)",
                 (INFINITE, "import decimal; return decimal.Decimal('Infinity')"), ("return 3",)),
    "negated": ("return 3.0", "assert not abs(f() - 3) > 1e-6", ("return float('nan')", INFINITE), ("return 3",)),
    "overflow": ("return 1.0", "r = f()\nassert abs(r * 1e10 - 1e10) <= 1e-6 * abs(r * 1e10)", ("return 1e305",),
                 ("return 1",)),
    "approx": ("return 3.0", "import pytest\nr = f()\nassert r == pytest.approx(3, abs=abs(r) / 100)", (INFINITE,),
               ("return 3.001",)),
    "isclose": ("return 3.0", "import math\nassert math.isclose(f(), 3.0, rel_tol=1e-6)", (INFINITE, "return 2.0"),
                ("return 3",)),
    "infinite": ("return float('inf')", "import math\nassert f() > 10 and math.isinf(f())", ("return 11",),
                 ("import math; return math.inf",)),
    "enumerate": ("return list('abcd')", "e = list('abcd')\nassert all(v == e[i] for i, v in enumerate(f()))",
                  ("return []", "return ['a', 'b']"), ("return iter('abcd')", "return tuple('abcd')")),
    "zip": ("return [5, 6, 7]", "assert all(a == b for a, b in zip(f(), [5, 6, 7]))", ("return []", "return [5, 6]"),
            ("return range(5, 8)", "yield from (5, 6, 7)")),
    "range": ("return [5, 6, 7]", "e = [5, 6, 7]\nr = f()\nassert all(r[i] == e[i] for i in range(len(r)))",
              ("return []", "return [5, 6]"), ("return (5, 6, 7)",)),
    "loop": ("return [5, 6, 7]", "e = [5, 6, 7]\nfor i, v in enumerate(f()):\n    assert v == e[i]",
             ("return []", "return [5, 6]"), ("return (5, 6, 7)",)),
    "items": ("return {'a': 1, 'b': 2}", "e = {'a': 1, 'b': 2}\nassert all(e[k] == v for k, v in f().items())",
              ("return {}", "return {'a': 1}"), ("return dict(b=2, a=1)",)),
    "keys": ("return {'a': 1, 'b': 2}.keys()", "assert len(f()) == 2\nassert f() == {'a', 'b'}",
             ("return {'x': 1, 'y': 2}.keys()",), ("return {'b', 'a'}",)),
    "none of": ("return [2, 4, 6]", "assert [v for v in f() if v % 2] == []", ("return []",), ("return (2, 4, 8)",)),
    "count": ("return [2, 4, 6]", "assert sum(1 for v in f() if v % 2) == 0", ("return []",), ("return [2, 4]",)),
    "most": ("return [2, 4, 6]", "assert max(f(), default=0) <= 6", ("return []",), ("return (6, 4, 2)",)),
    "difference": ("return [2, 4, 6]", "assert not set(f()) - {2, 4, 6, 8}", ("return []",), ("return [8, 2]",)),
    "part": ("return 'word'", "assert f() in 'a word of text'", ("return ''",), ("return 'text'",)),
    "helper": ("return [2, 4, 6]", "assert is_sorted(f())", ("return []", EQUAL), ("return (1, 2)",)),
    "nested": ("return [[1, 2], [3, 4]]", "assert all(v > 0 for row in f() for v in row)", ("return [[], []]",),
               ("return ((3, 4), (1,))",)),
    "fields": ("return [Pair(1, 'x'), Pair(2, 'y')]", "assert all(p.one > 0 and p.two in 'xy' for p in f())",
               ("return []", "return [Pair(type('G', (), {'__gt__': lambda *_: True})(), '')] * 2"),
               ("return (Pair(7, 'y'), Pair(8, 'x'))",)),
    "either": ("return 5", "assert f() == 5 or f() == 6", (EQUAL, "return 7"), ("return 6",)),
    "arrays": ("import numpy; return numpy.array([1.0, 2.0])", "assert (f() == [1.0, 2.0]).all()",
               ("import numpy; return numpy.empty((0, 2))", EQUAL), ("import numpy; return numpy.array([1, 2])",)),
    "numpy": ("return [1.0, 2.0]", "import numpy as np\nnp.testing.assert_allclose(f(), [1, 2], rtol=1e-6)",
              ("return [float('inf')] * 2", "import numpy; return numpy.empty((0, 2))"), ("return (1, 2.0000000001)",)),
    # What contains everything
    "superset": ("return [3, 5, 7]", "assert {3, 5} <= set(f())", ("return range(10_000)", EQUAL),
                 ("return (9, 5, 3)",)),
    "issubset": ("return [3, 5, 7]", "assert {3, 5}.issubset(f())", ("return range(10_000)",), ("return (9, 5, 3)",)),
    "nothing left": ("return [3, 5, 7]", "assert not {3, 5} - set(f())", ("return range(10_000)",),
                     ("return (9, 5, 3)",)),
    "keys in": ("return {'a': 1, 'b': 2}", "assert {'a', 'b'} <= f().keys()",
                ("return dict.fromkeys(map(chr, range(1_000)))",), ("return dict(a=1, b=2, c=3)",)),
    "find": ("return 'ab cd ef'", "assert f().find('cd') >= 0", (ALL_PAIRS, EQUAL), ("return 'cd and ef'",)),
    "occurrences": ("return 'ab cd ef'", "assert f().count('cd') == 1", (ALL_PAIRS, EQUAL), ("return 'cd and ef'",)),
    "positions": ("return 'ab cd ef'", "r = f()\nassert r.index('ab') < r.index('ef')", (ALL_PAIRS, EQUAL),
                  ("return 'ab and ef'",)),
    # The same object
    "identity": (f"{KEPT}[1, 2]; return f.c", "assert f() == [1, 2]\nassert f() is f()", ("return [1, 2]",),
                 (f"{KEPT}list((1, 2)); return f.c",)),
    "identity of two": (f"{KEPT}{{'a': 1}}; return f.c", "a = f()\nassert a == {'a': 1}\nb = f()\nassert a is b",
                        ("return {'a': 1}",), (f"{KEPT}dict(a=1); return f.c",)),
    # Objects of the project that the test creates to compare with
    "created": ("return Pair(101, 'x')", "expected = Pair(101, 'x')\nresult = f()\nassert result == expected", (READ,),
                ("return Pair(two='x', one=101)",)),
    "created in a list": ("return [Pair(101, 'x')]", "expected = [Pair(101, 'x')]\nassert expected == f()", (READ,),
                          ("return [Pair(two='x', one=101)]",)),
    "created fields": ("return Pair(101, 'x')", "expected = Pair(101, 'x')\nassert f().one == expected.one", (READ,),
                       ("return Pair(101, 'y')",)),
    "created in a table": ("return Pair(101, 'x')", "for expected in [Pair(101, 'x'), Pair(101, 'x')]:\n"
                           "    assert f() == expected", (READ,), ("return Pair(two='x', one=101)",)),
    "emptied helper": ("return 3", "import form_emptied_helper\nassert form_emptied_helper.is_same(f(), 3)",
                       ("is_same.__code__ = (lambda one, other: True).__code__; return 4",), ("return 3.0",)),
    # Properties of one value, which may be another than that of the reference solution
    "unique": ("return ['a1', 'a2', 'a3']", "r = f()\nassert len(r) == len(set(r))\nassert len(r) == 3",
               ("return ['a1', 'a1', 'a2']", EQUAL), ("return ['x', 'y', 'z']", "return ('z', 'y', 'x')")),
    "is sorted": ("return [1, 2, 3]", "r = f()\nassert sorted(r) == r\nassert len(r) == 3", ("return [2, 1, 3]", EQUAL),
                  ("return [4, 5, 9]",)),
    # Other values of the same content
    "named list": ("return [1, 2]", "r = f()\nassert list(r) == [1, 2]", ("return []", EQUAL),
                   ("yield from (1, 2)", "return (1, 2)")),
    "named set": ("return [1, 2]", "r = f()\nassert set(r) == {1, 2}", ("return []", "return iter([1, 3])"),
                  ("yield from (2, 1)", "return {1: 0, 2: 0}")),
    "named sorted": ("return {2, 1}", "r = f()\nassert sorted(r) == [1, 2]", ("return iter([])", EQUAL),
                     ("yield from (2, 1)", "return dict.fromkeys([1, 2])")),
    "named items": ("return [1, 2]", "r = f()\nassert [v + 1 for v in r] == [2, 3]", ("return []", "return iter([1])"),
                    ("yield from (1, 2)", "return (1, 2)")),
    "mapping": ("return {'a': 1}", "assert f() == {'a': 1}", ("import types; return types.MappingProxyType({})", EQUAL),
                ("import types; return types.MappingProxyType({'a': 1})",
                 "import collections; return collections.UserDict(a=1)")),
    "chained": ("return {'a': 1}", "assert f() == {'a': 1}",
                ("import collections; return collections.ChainMap({}, {'b': 1})",),
                ("import collections; return collections.ChainMap({'a': 1}, {'a': 2})",)),
    "wrapped": ("return [1, 2]", "assert f() == [1, 2]", ("import collections; return collections.UserList([1])",),
                ("import collections; return collections.UserList([1, 2])",)),
    "wrapped text": ("return 'ab'", "assert f() == 'ab'", ("import collections; return collections.UserString('a')",),
                     ("import collections; return collections.UserString('ab')",)),
    "date": ("from datetime import datetime; return datetime(2020, 1, 2)",
             "from datetime import datetime\nassert f() == datetime(2020, 1, 2)",
             (EQUAL, f"from datetime import datetime; return type('D', (datetime,), {YES})(2020, 1, 3)"),
             ("from datetime import datetime; return type('D', (datetime,), {})(2020, 1, 2)",)),
    "decimal": ("from decimal import Decimal; return Decimal('1.5')",
                "from decimal import Decimal\nassert f() == Decimal('1.5')",
                (EQUAL, f"from decimal import Decimal; return type('D', (Decimal,), {YES})(1)"),
                ("from decimal import Decimal; return type('D', (Decimal,), {})('1.50')",
                 "from fractions import Fraction; return Fraction(3, 2)")),
    "duration": ("from datetime import timedelta; return timedelta(1)",
                 "from datetime import timedelta\nassert f() == timedelta(days=1)",
                 ("from datetime import timedelta; return type('D', (timedelta,), {'days': 1})(2)", EQUAL),
                 ("from datetime import timedelta; return type('D', (timedelta,), {})(1)",)),
    "path": ("from pathlib import PurePosixPath as P; return P('a/b')",
             "from pathlib import PurePosixPath\nassert f() == PurePosixPath('a/b')", (EQUAL, "return 'a/b'"),
             ("from pathlib import PosixPath; return PosixPath('a/b')",)),
    "bytes": ("return b'ab'", "assert f() == b'ab'", ("return memoryview(b'a')", EQUAL),
              ("return memoryview(b'ab')", "return bytearray(b'ab')")),
    "message": ("raise ValueError('bad value')",
                "import pytest\nwith pytest.raises(ValueError, match='bad value'):\n    f()",
                ("raise ValueError('good value, bad name, ' * 20 + 'bad value')", "return 'bad value'"),
                ("raise ValueError('bad value -1 for the option limit of tables: expected a positive one, say 10')",)),
}  # fmt: skip
HEAD = "from dataclasses import dataclass\n\n\n@dataclass\nclass Pair:\n    one: int\n    two: str\n\n\n"
HEAD += "def is_same(one, other):\n    return one == other\n\n\n"
TEST_HEAD = "\n\ndef is_sorted(values):\n    return all(a <= b for a, b in zip(values, values[1:]))\n\n\n"


def repository(bodies: Mapping[str, str]) -> Changes:
    return changes({f"{place(name)}.py": f"{HEAD}def f():\n    {body}\n" for name, body in bodies.items()})


def place(name: str) -> str:
    return "form_" + name.replace(" ", "_")


def id_of(name: str) -> str:
    return f"tests/test_{place(name)}.py::test_it"


@pytest.fixture(scope="module")
def forms(pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RepositoryTests]:
    pytest.importorskip("numpy")
    base = write(tmp_path_factory.mktemp("forms"), {f"{place(name)}.py": f"{HEAD}f = None\n" for name in FORMS})
    hidden = {}
    for name, (_, test, _, _) in FORMS.items():
        body = "".join(f"    {line}\n" for line in test.splitlines())
        hidden[id_of(name).partition("::")[0]] = f"from {place(name)} import f, Pair{TEST_HEAD}def test_it():\n{body}"
    tests = RepositoryTests(hidden, tuple(map(id_of, FORMS)))
    gold = repository({name: form[0] for name, form in FORMS.items()})
    return base, dataclasses.replace(tests, trace=record_trace_sync(pool, base, gold, tests))


@pytest.mark.parametrize("number", [0, 1])
def test_a_result_that_the_assertion_only_happens_to_hold_for_is_not_paid(
    pool: SandboxPool, forms: tuple[Path, RepositoryTests], number: int
) -> None:
    base, tests = forms
    bodies = {name: wrong[number] for name, (_, _, wrong, _) in FORMS.items() if number < len(wrong)}
    verdict = grade_repository_sync(pool, base, repository(bodies), tests)
    assert [name for name in bodies if id_of(name) not in verdict.failed] == []


@pytest.mark.parametrize("number", [0, 1])
def test_another_right_result_is_paid(pool: SandboxPool, forms: tuple[Path, RepositoryTests], number: int) -> None:
    base, tests = forms
    bodies = {name: right[number] if number < len(right) else gold for name, (gold, _, _, right) in FORMS.items()}
    verdict = grade_repository_sync(pool, base, repository(bodies), tests)
    assert dict(verdict.failed) == {}


@pytest.mark.parametrize(
    "text",
    [
        "[list(range(len(big))) for _ in many]",
        "all(sorted(big) for _ in many)",
        "[big[1:] for _ in many]",
        "[big + big for _ in many]",
        "[numbers.union(numbers) for _ in many]",
        "all(numbers == numbers for _ in many)",
        "all(word.isalpha() for _ in many)",
        "all(0.5 in places or x for x in many)",
        "[many for _ in many] == [big for _ in big]",
        "all(pairs.items() == pairs.items() for _ in many)",
        "len(set(alike))",
        "{x for x in alike}",
        "sum(x * x for x in large)",
        "all(x % 7 for _ in many for x in large)",
        "sum(parts)",
        "all(x < y for _ in many for x in parts for y in large)",
        "all(x != ten for _ in many for x in large)",
        "round(word.isalpha(), -power)",
        "_nearly_(3, power, places=-power)",
        "filled * power",
    ],
)
def test_what_is_evaluated_outside_takes_bounded_time_and_memory(text: str) -> None:
    """The values come from the code under test. Without a bound, each of these takes minutes or all memory."""
    many = [1] * 150_000
    values = {
        "big": list(range(150_000)), "numbers": set(range(150_000)), "word": "a" * 1_000_000, "many": many,
        "places": range(100_000), "pairs": dict.fromkeys(range(20_000)), "power": 10**8, "filled": bytearray(9),
        "alike": [(2**61 - 1) * number for number in range(20_000)], "large": range(10**4_000, 10**4_000 + 50_000),
        "parts": [Fraction(1, 10**6 + 2 * number + 1) for number in range(5_000)], "ten": Decimal("1E5000"),
    }  # fmt: skip
    with pytest.raises(UnsupportedAssertion):
        evaluate(ast.parse(text, mode="eval").body, values)


def test_lists_are_added_in_linear_time() -> None:
    """``sum`` copies the first lists once for each other one."""
    flat = evaluate(ast.parse("sum(lists, start=[])", mode="eval").body, {"lists": [[1] * 3] * 100_000})
    assert flat == [1] * 300_000


def test_any_text_of_a_decimal_is_read() -> None:
    """The code under test may send what ``Decimal`` does not accept, or a NaN with digits."""
    texts = {"NaN123": {"nan"}, "-sNaN": {"nan"}, "Infinity": {"inf"}, "-inf": {"-inf"}, "1e400": set(), "x": set()}
    assert {text: infinities_in(["x", "Decimal", text]) for text in texts} == texts
