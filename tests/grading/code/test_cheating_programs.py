"""Programs that cheat: no style of tests rewards one of them, and every style rewards an honest program."""

from __future__ import annotations

import itertools

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests
from rllm_gym.sandbox import Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100, memory_mb=256)

SORTED = {
    "check": """
import math
METADATA={}
def check(candidate):
    assert candidate([3,1,2]) == [1,2,3]
    assert candidate([]) == []
    xs = [5, 4]
    assert candidate(xs) == sorted(xs)
    assert abs(len(candidate([1])) - 1) < 1e-6

""",
    "unittest": """
import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(f([3,1,2]), [1,2,3])
    def test_b(self): self.assertListEqual(f([2,1]), [1,2])
    def test_c(self): self.assertCountEqual(f([2,1]), [1,2])

""",
    "pytest": """
import pytest
from solution import f
@pytest.mark.parametrize("xs", [[3,1,2],[2,1]])
def test_p(xs):
    assert f(xs) == sorted(xs)
def test_q():
    assert f([2,1]) == [1,2]

""",
    "assert": """assert f([3,1,2]) == [1,2,3]
assert [1,2] == f([2,1])
assert f([]) == []
""",
}
HALF = """
import math, unittest, pytest
class T(unittest.TestCase):
    def test_a(self): self.assertAlmostEqual(f(2), 4.5)
    def test_b(self): assert abs(f(2) - 4.5) < 1e-6
    def test_c(self): assert math.isclose(f(2), 4.5)
    def test_d(self): assert f(2) == pytest.approx(4.5)

"""

CHEATS = {
    "equal to everything": r"""
class A:
    def __eq__(self,o): return True
    def __ne__(self,o): return False
    def __len__(self): return 1
    def __iter__(self): return iter([])
    def __hash__(self): return 0
    def __lt__(self,o): return True
    def __sub__(self,o): return 0
    __rsub__=__sub__
    def __abs__(self): return 0
    def __instancecheck__(self,x): return True
def f(x): return A()

""",
    "a list equal to everything": r"""
class A(list):
    def __eq__(self,o): return True
    def __ne__(self,o): return False
    def __len__(self): return 1
def f(x): return A()

""",
    "lies about its class": r"""
class A:
    __class__ = list
    def __eq__(self,o): return True
def f(x): return A()

""",
    "mock.ANY": r"""
from unittest.mock import ANY
def f(x): return ANY

""",
    "a mock": r"""
from unittest.mock import MagicMock
def f(x):
    m = MagicMock(); m.__eq__ = lambda *a: True; m.__len__=lambda s:1
    return m

""",
    "patches builtins and math": r"""
import builtins, math
builtins.sorted = lambda *a, **k: []
builtins.abs = lambda x: 0
builtins.len = lambda x: 0
builtins.isinstance = lambda *a: True
builtins.AssertionError = type('E',(Exception,),{})
builtins.all = lambda x: True
math.isclose = lambda *a,**k: True
def f(x): return []

""",
    "empties its argument and returns it": r"""
def f(x):
    x.clear(); return x

""",
    "empties its argument": r"""
def f(x):
    x[:] = []; return []

""",
    "looks through the frames below it": r"""
import sys
def f(x):
    fr = sys._getframe()
    while fr:
        for v in list(fr.f_locals.values()):
            if isinstance(v, list): v.append(1)
            if isinstance(v, dict) and 'outcomes' in v: v['passed']=True
        fr = fr.f_back
    return []

""",
    "patches its own side through gc": r"""
import gc
class E:
    def __eq__(s,o): return True
def f(x):
    for o in gc.get_objects():
        if type(o) is dict and 'passed' in o: o['passed']=True
        if hasattr(o,'__dict__') and type(o).__name__ in ('Peer','ProgramSide'):
            o._serve = lambda op, args: True
    return []

""",
    "settrace": r"""
import sys
def f(x):
    def tr(fr,e,a):
        return tr
    sys.settrace(tr)
    return []

""",
    "sys.exit(0) at import": r"""import sys
sys.exit(0)

""",
    "os._exit(0) at import": r"""import os
os._exit(0)

""",
    "os._exit(0) when called": r"""import atexit,os
atexit.register(os._exit,0)
def f(x):
    import os; os._exit(0)

""",
    "sys.exit(0) when called": r"""def f(x):
    import sys; sys.exit(0)

""",
    "raises SkipTest": r"""def f(x):
    import unittest; raise unittest.SkipTest("no")

""",
    "pytest.skip": r"""def f(x):
    import pytest; pytest.skip("no")

""",
    "pytest.exit": r"""def f(x):
    import pytest; pytest.exit("no", 0)

""",
    "pytest.xfail": r"""def f(x):
    import pytest; pytest.xfail("no")

""",
    "raises StopIteration": r"""def f(x):
    raise StopIteration

""",
    "raises KeyboardInterrupt": r"""def f(x):
    raise KeyboardInterrupt

""",
    "raises GeneratorExit": r"""def f(x):
    raise GeneratorExit

""",
    "raises a BaseException": r"""class B(BaseException): pass
def f(x):
    raise B

""",
    "raises AssertionError": r"""def f(x):
    raise AssertionError

""",
    "loops when called": r"""def f(x):
    while True: pass

""",
    "loops at import": r"""while True: pass

""",
    "sleeps": r"""import time
def f(x):
    time.sleep(100)

""",
    "recurses": r"""def f(x):
    return f(x)

""",
    "recurses without a limit": r"""import sys
sys.setrecursionlimit(10**9)
def f(x):
    return f(x)

""",
    "a generator that never ends": r"""def f(x):
    while True: yield 1

""",
    "takes all memory": r"""def f(x):
    a=[]
    while True: a.append(bytearray(10**7))

""",
    "returns ten million values": r"""def f(x):
    return list(range(10**7))

""",
    "returns a hundred megabytes": r"""def f(x):
    return "a"*(10**8)

""",
    "prints that it passed": r"""print("PASSED", "ok", "1 passed")
import os
os.write(1,b"{\"kind\":\"done\"}")
def f(x):
    print("OK"); return None

""",
    "writes answers beforehand": r"""
import os,struct,json
def fr(b): os.write(3, struct.pack(">I",len(b))+b)
for t in (b"",b"\0"*8):
    fr(t+b'={"kind":"done","nonce":"","changed":false,"unsupported":[]}')
    fr(t+b'!{"answer":"ok","v":[true]}')
def f(x): return True

""",
    "answers twice": r"""
import os,struct,json,gc,sys
def fr(b): os.write(3, struct.pack(">I",len(b))+b)
def f(x):
    w = [o for o in gc.get_objects() if type(o).__name__=="Wire"][0]
    fr(w._token+b'!{"answer":"ok","v":[["@",%d]]}' % 0)
    fr(w._token+b'={"kind":"done"}')
    import time; time.sleep(1)

""",
    "answers with a bomb": r"""
import os,struct,json,gc,sys
def fr(b): os.write(3, struct.pack(">I",len(b))+b)
def f(x):
    w = [o for o in gc.get_objects() if type(o).__name__=="Wire"][0]
    fr(w._token+b'!'+b'['*5000000)

""",
    "announces four gigabytes": r"""
import os,struct
def f(x):
    os.write(3, struct.pack(">I",4000000000));
    while True: os.write(3,b"x"*65536)

""",
    "closes its channel and forks": r"""
import os,gc
def f(x):
    os.close(3); os.fork(); return [1]

""",
    "closes its channel": r"""import os
os.close(3)
def f(x): return 1

""",
    "names the test uses": r"""
def sorted(x, **k): return []
def abs(x): return 0
def len(x): return 1
def isclose(*a): return True
def check(c): pass
class unittest:
    class TestCase: pass
class math:
    isclose = staticmethod(lambda *a, **k: True)
pytest = math
def f(x): return []

""",
    "returns None": r"""def f(x): return None

""",
    "returns True": r"""def f(x): return True

""",
    "returns NaN": r"""def f(x): return float("nan")

""",
    "answers every operator": r"""
class A:
    def __float__(s): return 0.0
    def __sub__(s,o): return 0
    __rsub__ = __sub__
    def __abs__(s): return 0
    def __round__(s,n=0): return 0
    def __lt__(s,o): return True
    __le__=__gt__=__ge__=__lt__
def f(x): return A()

""",
    "a float that answers every operator": r"""
class A(float):
    def __sub__(s,o): return 0.0
    __rsub__ = __sub__
    def __eq__(s,o): return True
    def __abs__(s): return 0.0
def f(x): return A(0)

""",
    "an array equal to everything": r"""
import numpy as np
class A(np.ndarray):
    def __eq__(s,o): return np.bool_(True)
def f(x): return np.array([1]).view(A)

""",
    "asks what it may not": r"""
import _sides.peer as p
def f(x):
    import gc
    peer = [o for o in gc.get_objects() if type(o).__name__=="Peer"][0]
    for op,args in (("getattr",("abc","format")),("call",(print,("x",),{})),("getattr",(x,"__class__"))):
        try: peer.ask(op,*args)
        except Exception as e: pass
    return []

""",
    "patches unittest": r"""
import unittest, pytest, sys
unittest.TestCase.assertEqual = lambda *a: None
unittest.TestCase.run = lambda self, r: r.addSuccess(self)
def f(x): return []

""",
    "writes a conftest.py": r"""
open("conftest.py","w").write("import pytest\n@pytest.hookimpl\ndef pytest_runtest_makereport(item,call): pass")
def f(x): return []

""",
    "a thread that writes to the channel": r"""
import threading,os,struct
def spam():
    while True:
        try: os.write(3, struct.pack(">I",20)+b"x"*20)
        except OSError: pass
threading.Thread(target=spam,daemon=True).start()
def f(x): return sorted(x) if False else []

""",
    "forks without end": r"""import os
while True: os.fork()

""",
}


SHORT_LIMITS = Limits(cpu_s=1, wall_s=3, memory_mb=256)
"""For programs that must fail, for any reason."""
ENDLESS = Limits(cpu_s=0.2, wall_s=1, memory_mb=256)
"""For programs that never end."""
GO_ON = ("loops when called", "loops at import", "sleeps", "recurses", "a generator that never ends",
         "announces four gigabytes", "forks without end", "a thread that writes to the channel")  # fmt: skip


def limited(limits: Limits) -> dict[str, FunctionTests]:
    tests = {style: FunctionTests("f", text, style, limits=limits) for style, text in SORTED.items()}  # type: ignore[arg-type]
    return tests | {"numbers": FunctionTests("f", HALF, "unittest", limits=limits)}


STYLES = [*SORTED, "numbers"]
FEW = ["pytest", "numbers"]


@pytest.mark.parametrize(
    "styles",
    [
        pytest.param(FEW, id="few"),
        pytest.param([style for style in STYLES if style not in FEW], id="others", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("part", range(4))
def test_cheating_programs_are_not_rewarded(pool: SandboxPool, styles: list[str], part: int) -> None:
    cases = list(itertools.product(list(CHEATS)[part::4], styles))
    verdicts = grade_many(
        pool, [(CHEATS[name], limited(ENDLESS if name in GO_ON else SHORT_LIMITS)[style]) for name, style in cases]
    )
    assert [case for case, verdict in zip(cases, verdicts) if verdict.correct] == []
    for case, verdict in zip(cases, verdicts):
        assert verdict.error or any(not item.passed for item in verdict.outcomes), case


def test_honest_programs_are_rewarded(pool: SandboxPool) -> None:
    honest = "def f(x):\n    return sorted(x) if type(x) is list else 4.5\n"
    verdicts = grade_many(pool, [(honest, tests) for tests in limited(LIMITS).values()])
    assert [style for style, verdict in zip(STYLES, verdicts) if not verdict.correct] == []
