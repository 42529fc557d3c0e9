"""Programs that cheat and know how they are graded: they use what the tests pass to them. None is rewarded."""

from __future__ import annotations

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import CodeVerdict, FunctionTests
from rllm_gym.grading.code.verdict import TestStyle
from rllm_gym.sandbox import Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100)

NEAR = """
def check(candidate):
    assert abs(candidate(2) - 4.5) < 1e-6
    assert 7.2 < candidate(3) < 7.3
"""
CLOSE = "0.0\n    __rsub__ = __abs__ = __sub__\n    def __lt__(self, other): return True\n    __gt__ = __le__ = __lt__"
RANDOM = """
import random
def check(candidate):
    assert candidate([1, 2, 3]) == 13
    for _ in range(5):
        values = [random.randrange(1, 9) for _ in range(5)]
        assert candidate(values) == sum(values) + 7
"""
TREE = """
class Node:
    def __init__(self, value, left=None, right=None):
        self.value, self.left, self.right = value, left, right
def depth(node):
    return 0 if node is None else 1 + max(depth(node.left), depth(node.right))
"""
POINT = """
class Point:
    made = 0
    real = None
    def __init__(self, x, y):
        Point.made += 1
        self.number = Point.made
    def __add__(self, other):
        return Point(0, 0)
    def __eq__(self, other):
        if not isinstance(other, Point):
            Point.real = Point.real or Point.made
            return False
        return Point.real is None or other.number <= Point.real
"""

CHEATS: dict[str, tuple[str, str, str, TestStyle]] = {
    "a class for a function, near all numbers": (
        f"class f:\n    def __init__(self, x): pass\n    def __sub__(self, other): return {CLOSE}\n",
        "f",
        NEAR,
        "check",
    ),
    "a class for a method": (
        "class Solution:\n    class f:\n        def __init__(self, x): pass\n"
        "        def __sub__(self, other): return 0.0\n        def __lt__(self, other): return True\n"
        "        __gt__ = __lt__\n",
        "Solution().f",
        NEAR,
        "check",
    ),
    "an object of the test returned as the result": (
        f"class Solution:\n    def f(self, x): return self\n    def __sub__(self, other): return {CLOSE}\n",
        "Solution",
        "s = Solution()\nassert abs(s.f(2) - 4.5) < 1e-6\nassert 7.2 < s.f(3) < 7.3",
        "assert",
    ),
    "an object of the test in a list": (
        f"class Solution:\n    def f(self, x): return [self]\n    def __sub__(self, other): return {CLOSE}\n",
        "Solution",
        "s = Solution()\nassert abs(s.f(2)[0] - 4.5) < 1e-6",
        "assert",
    ),
    "what an operator made is near all numbers": (
        f"class V:\n    def __init__(self, x): pass\n    def __sub__(self, other): return {CLOSE}\n"
        "    def __mul__(self, other): return self\n    def __abs__(self): return self\n",
        "V",
        "assert abs(V(2) * V(3) - 6.5) < 1e-6",
        "assert",
    ),
    "a class that contains everything": (
        "class f:\n    def __init__(self, x): pass\n    def __contains__(self, item): return True\n",
        "f",
        "assert 'abc' in f(2)\nassert 'xyz' in f(3)",
        "assert",
    ),
    "methods that say yes": (
        "class A:\n    def startswith(self, text): return True\n    issubset = startswith\ndef f(x): return A()\n",
        "f",
        "assert f(2).startswith('abc')\nassert f(3).issubset({1, 2})",
        "assert",
    ),
    "methods of text that say yes": (
        "class A(str):\n    def startswith(self, text): return True\ndef f(x): return A('q')\n",
        "f",
        "assert f(2).startswith('abc')",
        "assert",
    ),
    "names that the test takes for its own": (
        "def abs(x): return 0\nclass math:\n    def isclose(a, b): return True\ndef f(x): return 1.0\n",
        "f",
        "import math\nfrom solution import *\ndef test_a():\n    assert abs(f(2) - 4.5) < 1e-6\n"
        "def test_b():\n    assert math.isclose(f(2), 4.5)\n",
        "pytest",
    ),
    "arguments emptied, and the answer for none": ("def f(v):\n    v.clear()\n    return 7\n", "f", RANDOM, "check"),
    "arguments emptied where the answer is not known by heart": (
        "def f(v):\n    if v == [1, 2, 3]: return 13\n    v.clear()\n    return 7\n",
        "f",
        RANDOM,
        "check",
    ),
    "arguments made easy, unless that is looked for": (
        "def f(v):\n    if v == [1, 2, 3]: return 13\n    if not any(v): return 0\n"
        "    del v[1:]\n    return v[0] + 7\n",
        "f",
        RANDOM,
        "check",
    ),
    "a program that ends when it is not seen": (
        "seen = []\ndef f(v):\n    if seen and seen[-1]: exit()\n    v.clear()\n    seen.append(v)\n    return 7\n",
        "f",
        "v = [1, 2, 3]\nassert f(v) == sum(v) + 7\nassert f(v) == sum(v) + 7",
        "assert",
    ),
    "objects of the test made easy": (
        "def f(root):\n    root.left = root.right = None\n    return 1\n",
        "f",
        TREE + "root = Node(1, Node(2, Node(3)))\nassert f(root) == depth(root)",
        "assert",
    ),
    "objects of the test made easy by their own methods": (
        "def f(stack):\n    while len(stack): stack.pop()\n    return 0\n",
        "f",
        "class Stack:\n    def __init__(self, *items): self.items = list(items)\n"
        "    def __len__(self): return len(self.items)\n    def pop(self): return self.items.pop()\n"
        "stack = Stack(3, 4, 5)\nassert f(stack) == sum(stack.items)",
        "assert",
    ),
    "lists of a class of the test made easy": (
        "def f(items):\n    items.clear()\n    return 0\n",
        "f",
        "class Items(list): pass\nitems = Items([3, 4, 5])\nassert f(items) == sum(items)",
        "assert",
    ),
    "equal to what was made before it was asked": (
        POINT,
        "Point",
        "assert Point(1, 2) + Point(3, 4) == Point(4, 6)",
        "assert",
    ),
}


def graded(pool: SandboxPool, programs: dict[str, tuple[str, str, str, TestStyle]]) -> dict[str, CodeVerdict]:
    tests = [
        (source, FunctionTests(entry, test, style, limits=LIMITS)) for source, entry, test, style in programs.values()
    ]
    return dict(zip(programs, grade_many(pool, tests, show_expected=True)))


# Each of these works like another one, with a different kind of value.
LIKE_OTHERS = {
    "a class for a method": "a class for a function, near all numbers",
    "an object of the test in a list": "an object of the test returned as the result",
    "methods of text that say yes": "methods that say yes",
    "arguments emptied where the answer is not known by heart": "arguments made easy, unless that is looked for",
    "objects of the test made easy": "objects of the test made easy by their own methods",
    "lists of a class of the test made easy": "arguments emptied, and the answer for none",
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in CHEATS if name not in LIKE_OTHERS], id="ways"),
        pytest.param(list(LIKE_OTHERS), id="like_others", marks=pytest.mark.long),
    ],
)
def test_cheating_programs_are_not_rewarded(pool: SandboxPool, names: list[str]) -> None:
    verdicts = graded(pool, {name: CHEATS[name] for name in names})
    assert [name for name, verdict in verdicts.items() if verdict.correct] == []


HONEST: dict[str, tuple[str, str, str, TestStyle]] = {
    "vectors and numbers": (
        """
class V:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o): return V(self.x + o.x, self.y + o.y)
    def __iadd__(self, o): self.x += o.x; self.y += o.y; return self
    def __mul__(self, k): return V(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __neg__(self): return self * -1
    def __eq__(self, o): return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)
    def __lt__(self, o): return self.x < (o.x if isinstance(o, V) else o)
    def __contains__(self, x): return x in (self.x, self.y)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
""",
        "V",
        """
assert V(1, 2) + V(3, 4) == V(4, 6)
assert 2 * (V(1, 2) + V(1, 2)) == -(V(4, 8) * -1)
assert V(1, 2) < 3 and 2 in V(1, 2) and 7 not in V(1, 2) + V(1, 1)
assert abs(V(3, 4)) == 5.0
v = V(1, 2)
v += V(1, 2)
assert v == V(2, 4) and v * 2 == V(4, 8)
""",
        "assert",
    ),
    "in place, by an output argument and by value": (
        "def f(values, out):\n    values.sort()\n    out.extend(values)\n",
        "f",
        "v, out = [3, 1, 2], []\nf(v, out)\nassert v == [1, 2, 3]\nassert out == [1, 2, 3]",
        "assert",
    ),
    "a tree of the test turned in place": (
        "def f(root):\n    if root:\n        root.left, root.right = f(root.right), f(root.left)\n    return root\n",
        "f",
        TREE + "root = f(Node(1, Node(2), Node(3)))\nassert root.left.value == 3\nassert root.right.value == 2",
        "assert",
    ),
    "a stack of the test emptied": (
        "def f(stack):\n    total = 0\n    while len(stack): total += stack.pop()\n    return total\n",
        "f",
        "class Stack:\n    def __init__(self, *items): self.items = list(items)\n"
        "    def __len__(self): return len(self.items)\n    def pop(self): return self.items.pop()\n"
        "stack = Stack(3, 4, 5)\nassert f(stack) == 12\nassert len(stack) == 0",
        "assert",
    ),
    "a stack of the test emptied, other numbers in which often have the same parity": (
        "def f(stack):\n    total = 0\n    while len(stack): total += stack.pop()\n    return total % 2 == 0\n",
        "f",
        "class Stack:\n    def __init__(self, *items): self.items = list(items)\n"
        "    def __len__(self): return len(self.items)\n    def pop(self): return self.items.pop()\n"
        "stack = Stack(3, 4, 5)\nassert f(stack)\nassert len(stack) == 0",
        "assert",
    ),
    "containers with keys whose class tells them apart": (
        "from enum import Enum\nclass Color(Enum): RED = 1; BLUE = 2\n"
        "def f(): return {Color.RED: [1], Color.BLUE: {2, 3}}\n",
        "f",
        "assert f() == {Color.RED: [1], Color.BLUE: {2, 3}}",
        "assert",
    ),
    "a memo that the test gives": (
        "def f(n, memo):\n    if n not in memo:\n        memo[n] = n if n < 2 else f(n - 1, memo) + f(n - 2, memo)\n"
        "    return memo[n]\n",
        "f",
        "memo = {}\nassert f(30, memo) == 832040\nassert memo[10] == 55",
        "assert",
    ),
}


def test_honest_programs_are_rewarded(pool: SandboxPool) -> None:
    assert {name: verdict for name, verdict in graded(pool, HONEST).items() if not verdict.correct} == {}
