"""Honest programs with tests as in real test suites: each verdict is the same as in a single process."""

from __future__ import annotations

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests, TestStyle
from rllm_gym.sandbox import Limits, SandboxPool, Tier

LIMITS = Limits(cpu_s=10, wall_s=100)

HONEST: dict[str, tuple[str, TestStyle, str, str]] = {
    "every value that can be carried": (
        "f",
        "assert",
        r"""def f(x): return x
""",
        r"""
assert f(None) is None
assert f(True) is True and f(False) is False
assert f(10**5000) == 10**5000
assert f(-0.0) == 0 and str(f(-0.0)) == "-0.0"
import math
assert math.isnan(f(float("nan"))) and f(float("inf")) == float("inf")
assert f(1+2j) == 1+2j
assert f("\ud800x") == "\ud800x"
assert f("\ud83d\ude00") == "\ud83d\ude00" and len(f("\ud83d"+"\ude00"))==2
assert f(b"ab") == b"ab" and f(bytearray(b"x")) == bytearray(b"x")
assert f([1,[2,(3,{4})]]) == [1,[2,(3,{4})]]
assert f({(1,2):[3], None: {"a": 1}}) == {(1,2):[3], None: {"a": 1}}
assert list(f({"b":1,"a":2})) == ["b","a"]
assert f(frozenset({1})) == frozenset({1}) and type(f(frozenset())) is frozenset
assert f(range(3)) == range(3) and f(slice(1,2)) == slice(1,2) and f(...) is ... and f(NotImplemented) is NotImplemented
from collections import *
assert f(deque([1],maxlen=3)) == deque([1]) and f(deque([1],maxlen=3)).maxlen == 3
assert f(Counter("aab")) == Counter("aab") and type(f(Counter())) is Counter
d = defaultdict(list); d[1].append(2)
assert f(d) == d and f(d)[5] == []
assert type(f(OrderedDict(a=1))) is OrderedDict
from decimal import Decimal; from fractions import Fraction; import datetime, uuid, pathlib, re, array
assert f(Decimal("1.50")) == Decimal("1.50") and str(f(Decimal("1.50"))) == "1.50"
assert f(Fraction(1,3)) == Fraction(1,3)
now = datetime.datetime(2020,1,2,3,4,5,6,tzinfo=datetime.timezone.utc)
assert f(now) == now
assert f(now.date()) == now.date()
assert f(now.time()) == now.time()
assert f(now-now) == datetime.timedelta(0)
assert f(uuid.UUID(int=5)) == uuid.UUID(int=5)
assert f(pathlib.Path("/a/b")) == pathlib.Path("/a/b")
assert f(re.compile("a+")).match("aa")
assert f(array.array("i",[1,2])) == array.array("i",[1,2])
x = [1]; x.append(x)
y = f(x)
assert y is x and y[1] is y
a = [0]; r = f([a,a])
assert r[0] is r[1] is a
assert f(int) is int and f(len) is len
assert f({1:2}.keys()) == {1}

""",
    ),
    "several functions of the test": (
        "group",
        "assert",
        """def group(rows, key, *others, total=len):
    groups = {}
    for row in rows:
        groups.setdefault((key(row), *(other(row) for other in others)), []).append(row)
    return {name: total(rows) for name, rows in groups.items()}
""",
        """
rows = [{"c": "x", "n": 1}, {"c": "y", "n": 2}, {"c": "x", "n": 3}]
assert group(rows, lambda r: r["n"] % 2, total=lambda v: sum(r["n"] for r in v)) == {(1,): 4, (0,): 2}
assert group(rows, lambda r: r["c"], *[lambda r: r["n"] > 1]) == {("x", False): 1, ("y", True): 1, ("x", True): 1}

""",
    ),
    "notes of exceptions": (
        "run",
        "assert",
        """class Failed(Exception): pass
def run(*tasks):
    errors = []
    for number, task in enumerate(tasks):
        try: task()
        except Exception as error:
            error.add_note(f"in task {number}")
            errors.append(error)
    failed = Failed("all")
    failed.add_note("a note")
    raise ExceptionGroup("failed", [*errors, failed])
""",
        """
try: run(lambda: 1 // 0, lambda: 1, lambda: {}[0])
except ExceptionGroup as group:
    assert [error.__notes__ for error in group.exceptions] == [["in task 0"], ["in task 2"], ["a note"]]

""",
    ),
    "levels of loggers that the tests set": (
        "work",
        "unittest",
        """import logging
log = logging.getLogger("work")
verbose = logging.getLogger("verbose")
verbose.setLevel(logging.DEBUG)
def work():
    for logger in (log, verbose):
        logger.debug("d")
        logger.info("i")
        logger.error("e")
""",
        """
import logging, unittest
class T(unittest.TestCase):
    def test_root(self):
        with self.assertLogs(level="INFO") as caught:
            work()
        self.assertEqual([record.getMessage() for record in caught.records], ["i", "e", "i", "e"])
    def test_one(self):
        with self.assertLogs("work", "DEBUG") as caught:
            work()
        self.assertEqual(caught.output, ["DEBUG:work:d", "INFO:work:i", "ERROR:work:e"])
        with self.assertLogs("verbose", "DEBUG") as caught:
            work()
        self.assertEqual(len(caught.output), 3)
    def test_none(self):
        logging.disable(logging.ERROR)
        try:
            with self.assertNoLogs("work"):
                work()
        finally:
            logging.disable(logging.NOTSET)

""",
    ),
    "changing in place and returning a number": (
        "dedupe",
        "assert",
        r"""def dedupe(nums):
    k=0
    for x in nums:
        if k==0 or nums[k-1]!=x:
            nums[k]=x; k+=1
    return k
""",
        r"""
nums=[1,1,2]
k = dedupe(nums)
assert k == 2 and nums[:k] == [1,2]

""",
    ),
    "a class": (
        "Stack",
        "pytest",
        r"""
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, x): self.items.append(x)
    def pop(self):
        if not self.items: raise IndexError("pop from empty stack")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __contains__(self, x): return x in self.items
    def __getitem__(self, i): return self.items[i]
    def __eq__(self, o): return isinstance(o, Stack) and self.items == o.items
    def __repr__(self): return f"Stack({self.items})"
    def __bool__(self): return bool(self.items)

""",
        r"""
import pytest
from solution import Stack
def test_all():
    s = Stack()
    assert not s
    s.push(1); s.push(2)
    assert len(s) == 2 and list(s) == [1,2] and 1 in s and 5 not in s
    assert s[0] == 1 and repr(s) == "Stack([1, 2])"
    assert s.pop() == 2
    s.items.append(7)
    assert s.items == [1,7] and s.pop() == 7
    s.pop()
    with pytest.raises(IndexError, match="empty"):
        s.pop()
    assert isinstance(s, Stack) and type(s) is Stack
    assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2])
    assert [Stack([1])] == [Stack([1])]
    s.colour = "red"
    assert s.colour == "red" and not hasattr(s, "nope")

""",
    ),
    "a module of classes": (
        "Shape",
        "unittest",
        r"""
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from collections import namedtuple
from typing import NamedTuple
class Shape(ABC):
    @abstractmethod
    def area(self): ...
class Sq(Shape):
    def __init__(self, s): self.s = s
    def area(self): return self.s**2
    def __lt__(self, o): return self.s < o.s
    @property
    def side(self): return self.s
    @side.setter
    def side(self, v):
        if v < 0: raise NegativeError(v)
        self.s = v
    @classmethod
    def unit(cls): return cls(1)
    @staticmethod
    def name(): return "sq"
class ShapeError(ValueError): pass
class NegativeError(ShapeError):
    def __init__(self, v):
        super().__init__(f"negative: {v}"); self.v = v
@dataclass(order=True, frozen=True)
class P:
    x: int
    y: int = 0
    def __add__(self, o): return P(self.x+o.x, self.y+o.y)
    def __mul__(self, k): return P(self.x*k, self.y*k)
    def __rmul__(self, k): return self*k
    def __abs__(self): return (self.x**2+self.y**2)**.5
    def __neg__(self): return P(-self.x,-self.y)
    __hash__ = None or (lambda self: hash((self.x,self.y)))
class Color(Enum):
    RED = 1
    BLUE = 2
class Lvl(IntEnum):
    LO = 1
    HI = 5
Pt = namedtuple("Pt", "a b")
class Emp(NamedTuple):
    name: str
    age: int = 3
    def older(self): return self._replace(age=self.age+1)
def col(n): return Color(n)
def pt(): return Pt(1, 2)
COUNT = 0
def bump():
    global COUNT
    COUNT += 1
    return COUNT
REG = {}
def reg(k, v): REG[k] = v

""",
        r"""
import unittest, dataclasses
import solution
from solution import *
class T(unittest.TestCase):
    def test_abc(self):
        with self.assertRaises(TypeError): Shape()
        self.assertTrue(issubclass(Sq, Shape)); self.assertIsInstance(Sq(2), Shape)
        self.assertEqual(Sq(3).area(), 9); self.assertEqual(Sq.name(), "sq"); self.assertEqual(Sq.unit().s, 1)
        self.assertEqual([q.s for q in sorted([Sq(3),Sq(1)])], [1,3]); self.assertLess(Sq(1), Sq(2))
        q = Sq(2); q.side = 5; self.assertEqual(q.side, 5)
        with self.assertRaises(NegativeError) as e: q.side = -1
        self.assertEqual(e.exception.v, -1); self.assertIn("negative", str(e.exception))
        with self.assertRaises(ValueError): q.side = -2
        try: q.side = -1
        except ShapeError as e2: self.assertIsInstance(e2, NegativeError)
        else: self.fail()
    def test_dc(self):
        self.assertEqual(P(1,2), P(1,2)); self.assertNotEqual(P(1,2), P(1,3))
        self.assertEqual(P(1,2)+P(1,1), P(2,3))
        self.assertEqual(P(1,2)*3, P(3,6))
        self.assertEqual(3*P(1,2), P(3,6))
        self.assertEqual(abs(P(3,4)), 5.0); self.assertEqual(-P(1,1), P(-1,-1))
        self.assertEqual(repr(P(1,2)), "P(x=1, y=2)"); self.assertEqual(len({P(1,2),P(1,2),P(2,2)}), 2)
        self.assertEqual(dataclasses.asdict(P(1,2)), {"x":1,"y":2})
        self.assertTrue(dataclasses.is_dataclass(P))
        with self.assertRaises(dataclasses.FrozenInstanceError): P(1).x = 3
        self.assertEqual(max(P(1,2),P(0,9)), P(1,2)); self.assertIn(P(1,2), [P(0,0),P(1,2)])
        self.assertEqual({P(1,1): "a"}[P(1,1)], "a")
    def test_enum(self):
        self.assertIs(col(1), Color.RED)
        self.assertEqual(col(2), Color.BLUE)
        self.assertNotEqual(col(2), Color.RED)
        self.assertEqual(Color.RED.value, 1)
        self.assertEqual(Color["RED"].name, "RED")
        self.assertEqual(len(Color), 2)
        self.assertEqual([c.name for c in Color], ["RED","BLUE"]); self.assertEqual(Color(1), Color.RED)
        self.assertEqual(Lvl.HI, 5); self.assertEqual({Color.RED: 1}[col(1)], 1)
        with self.assertRaises(ValueError): Color(7)
    def test_nt(self):
        self.assertEqual(pt(), (1,2))
        self.assertEqual(pt().a, 1)
        self.assertEqual(pt(), Pt(1,2))
        self.assertEqual(Pt(b=1,a=2).b, 1)
        a, b = pt()
        self.assertEqual((a,b),(1,2))
        self.assertEqual(Emp("x").older().age, 4)
        self.assertEqual(pt()._asdict(), {"a":1,"b":2})
        self.assertIsInstance(pt(), tuple)
    def test_state(self):
        bump()
        bump()
        self.assertEqual(solution.COUNT, 2)
        reg("a", 1)
        self.assertEqual(solution.REG, {"a":1})
        self.assertEqual(REG, {"a": 1})

""",
    ),
    "generators and iterators": (
        "gen",
        "assert",
        r"""
def gen(n):
    try:
        for i in range(n): yield i
    finally:
        LOG.append("closed")
LOG = []
def fib():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a+b
def echo():
    x = None
    while True: x = yield x
def mp(xs): return map(str, xs)
class It:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if self.n == 0: raise StopIteration
        self.n -= 1
        return self.n

""",
        r"""
import types, itertools
assert list(gen(3)) == [0,1,2]
assert isinstance(gen(2), types.GeneratorType)
assert list(itertools.islice(fib(), 6)) == [0,1,1,2,3,5]
e = echo(); next(e); assert e.send(5) == 5
g = gen(5); next(g); g.close()
from solution import LOG
assert LOG[-1] == "closed"
assert list(mp([1,2])) == ["1","2"]
assert list(It(3)) == [2,1,0]
assert sum(gen(4)) == 6 and 2 in gen(4)
a = gen(1)
next(a)
try:
    next(a); assert False
except StopIteration: pass

""",
    ),
    "callbacks, decorators, contexts": (
        "apply",
        "assert",
        r"""
import functools
def apply(f, *a, **k): return f(*a, **k)
def compose(*fs): return lambda x: functools.reduce(lambda v, f: f(v), fs, x)
def memo(f):
    c = {}
    @functools.wraps(f)
    def w(*a):
        if a not in c: c[a] = f(*a)
        return c[a]
    w.cache = c
    return w
def retry(f, n):
    for i in range(n):
        try: return f()
        except ValueError as e: last = e
    raise last
def my_map(f, xs): return [f(x) for x in xs]
def total(it): return sum(it)
def readlines(fp): return [l.strip() for l in fp]
def walk(node): return [] if node is None else [node.val] + walk(node.next)
def rev(node):
    prev = None
    while node: node.next, prev, node = prev, node, node.next
    return prev
class timer:
    def __enter__(self): self.on = True; return self
    def __exit__(self, *a): self.on = False; return a[0] is KeyError
def srt(xs, key=None): return sorted(xs, key=key)
def deco(n):
    def d(f):
        def w(*a): return f(*a) * n
        return w
    return d
def squares(xs):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(4) as p: return list(p.map(lambda x: x * x, xs))
def in_place(xs): xs.sort(reverse=True)
def given(a, *rest, b=2, **more): return a, rest, b, more

""",
        r"""
import io
from unittest.mock import Mock
assert apply(lambda a, b=1: a+b, 2, b=3) == 5
assert compose(lambda x: x+1, str)(4) == "5"
calls = []
@memo
def sq(x):
    calls.append(x); return x*x
assert sq(3) == 9 and sq(3) == 9 and calls == [3]
assert sq.__name__ == "sq"
assert len(sq.cache) == 1
n = [0]
def flaky():
    n[0] += 1
    if n[0] < 3: raise ValueError("x")
    return "ok"
assert retry(flaky, 5) == "ok" and n[0] == 3
class MyErr(ValueError): pass
err = MyErr("q")
def bad(): raise err
try: retry(bad, 2); assert False
except MyErr as e: assert e is err
assert my_map(lambda x: x*2, range(3)) == [0,2,4]
assert total(x for x in [1,2,3]) == 6
assert total(iter([1,2])) == 3
assert readlines(io.StringIO("a\nb\n")) == ["a","b"]
class Node:
    def __init__(self, val, next=None): self.val = val; self.next = next
l = Node(1, Node(2, Node(3)))
assert walk(l) == [1,2,3]
r = rev(l)
assert r.val == 3 and r.next.next is l and l.next is None
with timer() as t: assert t.on
assert t.on is False
with timer(): raise KeyError
m = Mock(return_value=3)
assert apply(m, 1, x=2) == 3
m.assert_called_once_with(1, x=2)
assert srt(["bb","a"], key=len) == ["a","bb"]
assert srt([1,2,3], key=lambda x: -x) == [3,2,1]
@deco(3)
def five(): return 5
assert five() == 15
assert squares([1, 2, 3]) == [1, 4, 9]
xs = [3, 1, 2]
assert in_place(xs) is None and xs == [3, 2, 1]
assert given(1, 5, 6, b=3, c=4) == (1, (5, 6), 3, {"c": 4})
def rec(n): return 0 if n == 0 else 1 + apply(rec, n-1)
assert rec(20) == 20

""",
    ),
    "coroutines": (
        "fetch",
        "unittest",
        r"""
import asyncio
async def fetch(x, d=0):
    await asyncio.sleep(d)
    return x * 2
async def gather(fs): return await asyncio.gather(*[f() for f in fs])
async def agen(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i
class Pool:
    async def __aenter__(self): self.o = 1; return self
    async def __aexit__(self, *a): self.o = 0
async def boom(): raise ValueError("no")

""",
        r"""
import asyncio, unittest, inspect
class T(unittest.IsolatedAsyncioTestCase):
    async def test_a(self):
        self.assertEqual(await fetch(3), 6)
        self.assertEqual(await asyncio.gather(fetch(1), fetch(2)), [2, 4])
        async def one():
            await asyncio.sleep(0)
            return 1
        self.assertEqual(await gather([one, one]), [1, 1])
        self.assertEqual([x async for x in agen(3)], [0,1,2])
        p = Pool()
        async with p as q: self.assertEqual(q.o, 1)
        self.assertEqual(p.o, 0)
        with self.assertRaises(ValueError): await boom()
    def test_b(self):
        self.assertEqual(asyncio.run(fetch(4)), 8)
        self.assertTrue(inspect.iscoroutinefunction(fetch))

""",
    ),
    **{
        f"the method {name}": (
            name,
            "check",
            "class Solution:\n    def twoSum(self, nums, t):\n        d = {x: i for i, x in enumerate(nums)}\n"
            "        return next([i, d[t - x]] for i, x in enumerate(nums) if t - x in d)\n",
            "def check(candidate):\n    assert candidate([2, 7, 11], 9) == [0, 1]\n",
        )
        for name in ("Solution().twoSum", "Solution.twoSum", "twoSum")
    },
    "numpy": (
        "np1",
        "assert",
        r"""
import numpy as np
def np1(a): return a * 2
def ip(a): a.sort()
def nb(a): return a.sum() > 3
def obj(): return np.array([{"a":1}, None], dtype=object)

""",
        r"""
import numpy as np
a = np.arange(6.0).reshape(2,3)
np.testing.assert_allclose(np1(a), a*2)
assert np1(a).dtype == a.dtype and np1(a).shape == (2,3)
b = np.array([3,1,2]); ip(b); assert b.tolist() == [1,2,3]
assert nb(b) == True and isinstance(nb(b), np.bool_)
assert isinstance(np1(np.float32(1.5)), np.float32)
assert obj()[0] == {"a":1}
assert (np1(np.array(["a"],dtype=object)) == np.array(["aa"],dtype=object)).all()

""",
    ),
    "printing, warning, exiting, patching": (
        "hello",
        "pytest",
        r"""
import warnings, sys
def hello(n): print("hi", n)
def old(): warnings.warn("gone", DeprecationWarning); return 1
def main(argv): sys.exit(2)
if __name__ == "__main__":
    hello(input())

""",
        r"""
import pytest, solution
from unittest import mock
def test_out(capsys):
    solution.hello("bob"); assert capsys.readouterr().out == "hi bob\n"
def test_warn():
    with pytest.warns(DeprecationWarning): assert solution.old() == 1
def test_exit():
    with pytest.raises(SystemExit) as e: solution.main([])
    assert e.value.code == 2
def test_patch():
    with mock.patch("solution.hello", return_value=5): assert solution.hello(1) == 5
def test_patch2(monkeypatch):
    monkeypatch.setattr(solution, "old", lambda: 7); assert solution.old() == 7
@pytest.fixture
def n(): return 3
class TestC:
    def test_m(self, n): assert n == 3
def test_approx(): assert solution.old() == pytest.approx(1.0)
def test_bare(): assert old() == 1

""",
    ),
    "the program's own assertions": (
        "isp",
        "check",
        r"""def isp(x):
    assert x > 0, 'pos'
    return x
""",
        r"""
def check(candidate):
    try:
        candidate(-1)
    except AssertionError as e:
        assert str(e) == "pos"
    else:
        assert False
    assert candidate(1) == 1

""",
    ),
    "custom equality, subclasses, metaclasses, seeds": (
        "poly",
        "assert",
        r"""
import random
def poly(x): return x
class Frac:
    def __init__(self, n, d): self.n=n; self.d=d
    def __float__(self): return self.n/self.d
    def __eq__(self, o): return isinstance(o, Frac) and self.n*o.d == o.n*self.d
    def __hash__(self): return 1
class L(list):
    def second(self): return self[1]
class D(dict): pass
def mk(): return L([1,2])
class Tree:
    def __init__(self, v): self.v=v; self.kids=[]
    def add(self, t): self.kids.append(t); return t
def root():
    t = Tree(1); t.add(Tree(2)); return t
class Meta(type):
    def __call__(cls,*a):
        if not hasattr(cls,'_i'): cls._i = super().__call__(*a)
        return cls._i
class Single(metaclass=Meta): pass
def dice(): return random.randint(1,1000)

""",
        r"""
import math, random
assert math.isclose(Frac(1,2), 0.5)
assert Frac(1,2) == Frac(2,4) and Frac(1,2) != Frac(1,3)
assert mk() == [1,2] and mk().second() == 2 and len(mk()) == 2 and sorted(mk()) == [1,2]
assert L([3]) == [3] and D(a=1) == {"a":1}
r = root()
assert r.kids[0].v == 2 and r.kids[0] is r.kids[0]
k = r.add(Tree(5)); assert r.kids[1] is k
assert Single() is Single()
random.seed(3); a = dice(); random.seed(3); assert dice() == a

""",
    ),
    "identity and size": (
        "f",
        "assert",
        r"""def f(x): return x
""",
        r"""
import copy
class P:
    def __eq__(self, o): return True
p = P()
assert f(p) is p
assert f(f) is f
assert f([p])[0] is p
big = list(range(200000))
assert f(big) == big
deep = []
for _ in range(3000): deep = [deep]
assert f(deep) is deep

""",
    ),
}


@pytest.mark.parametrize(
    "confined_pool",
    [Tier.NAMESPACES, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)],
    ids=["A", "B"],
    indirect=True,
)
def test_honest_programs_pass_their_tests(confined_pool: SandboxPool) -> None:
    programs = [
        (source, FunctionTests(entry, test, style, limits=LIMITS)) for entry, style, source, test in HONEST.values()
    ]
    for name, verdict in zip(HONEST, grade_many(confined_pool, programs, show_expected=True), strict=True):
        assert verdict.error == "", name
        assert [(name, item.name, item.message) for item in verdict.outcomes if not item.passed] == []
        assert verdict.correct, name
        assert verdict.fraction == 1, name


# Programs, their tests, and whether they pass; arguments that are emptied are in test_adaptive_cheats.py.
CHANGING = [
    ("def f(x):\n    x[0].clear()\n    return 0", "xs = [[1, 2]]\nassert f(xs) == sum(xs[0])", False),
    ("def f(x):\n    x.sort()\n    return x", "xs = [3, 1, 2]\nassert f(xs) == sorted(xs)", True),
    ("def f(x):\n    x.clear()", "xs = [3, 1, 2]\nf(xs)\nassert xs == [1, 2, 3]", False),
    ("def f(x):\n    x.sort()\n    return sum(x)", "xs = [3, 1]\nassert f(xs) == 4\nassert xs == [3, 1]", False),
    ("def f(x):\n    return x.pop(0)", "xs = [1, 2]\nassert f(xs) == 1\nassert f(xs) == 2 and not xs", True),
]


def test_mutating_an_argument_is_allowed_where_it_is_asked_for(pool: SandboxPool) -> None:
    programs = [(program, FunctionTests("f", test, "assert", limits=LIMITS)) for program, test, _ in CHANGING]
    found = [verdict.correct for verdict in grade_many(pool, programs)]
    assert [(*case[:2], right) for case, right in zip(CHANGING, found)] == CHANGING
