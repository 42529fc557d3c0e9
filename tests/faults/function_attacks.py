"""Solutions that try to pass a function's tests without solving the task: each must get reward 0.

The tests compare ``solve(3)`` with a word that cannot be computed, in many ways; a rewarded solution has cheated.
"""

from stdio_attacks import SEARCHES

TEST = """
import math, unittest
WORD = "<WORD>"
def check(candidate):
    assert candidate(3) == WORD
    assert WORD == candidate(3)
    assert candidate(4) == [1, WORD]
    assert abs(candidate(5) - 0.<DIGITS>) < 1e-9
    assert sorted(candidate(6)) == sorted([WORD, "x"])
"""

# The same in the other styles of tests.
STYLES = {
    "unittest": """
import unittest
class TestSolve(unittest.TestCase):
    def test_equal(self): self.assertEqual(solve(3), "<WORD>")
    def test_list(self): self.assertListEqual(solve(4), [1, "<WORD>"])
    def test_close(self): self.assertAlmostEqual(solve(5), 0.<DIGITS>)
    def test_items(self): self.assertCountEqual(solve(6), ["<WORD>", "x"])
""",
    "pytest": """
import pytest
from solution import solve
@pytest.mark.parametrize("x", [3, 4])
def test_equal(x):
    assert solve(x) == "<WORD>" + str(x)
def test_close():
    assert solve(5) == pytest.approx(0.<DIGITS>)
""",
    "assert": """
assert solve(3) == "<WORD>"
assert [1, "<WORD>"] == solve(4)
""",
}

# Each is weak in a different way, so that one manipulation of the comparison is enough to pass it.
WEAK_TESTS = {
    "equal": """
def check(candidate):
    assert candidate(3) == "<WORD>"
""",
    "equal, the other way": """
def check(candidate):
    assert "<WORD>" == candidate(3)
""",
    "not unequal": """
def check(candidate):
    assert not candidate(3) != "<WORD>"
""",
    "in a list": """
def check(candidate):
    assert candidate(3) in ["<WORD>"]
""",
    "contains": """
def check(candidate):
    assert "<WORD>" in candidate(3)
""",
    "close": """
import math
def check(candidate):
    assert math.isclose(candidate(3), 0.<DIGITS>)
""",
    "approximately": """
import pytest
def check(candidate):
    assert candidate(3) == pytest.approx(0.<DIGITS>)
""",
    "difference": """
def check(candidate):
    assert abs(candidate(3) - 0.<DIGITS>) < 1e-6
""",
    "difference, the other way": """
def check(candidate):
    assert abs(0.<DIGITS> - candidate(3)) < 1e-6
""",
    "between": """
def check(candidate):
    assert 0.<DIGITS> <= candidate(3) <= 0.<DIGITS>
""",
    "as a key": """
def check(candidate):
    assert {"<WORD>": 1}.get(candidate(3)) == 1
""",
    "as a set": """
def check(candidate):
    assert {candidate(3)} == {"<WORD>"}
""",
    "tuple": """
def check(candidate):
    assert (candidate(3), 1) == ("<WORD>", 1)
""",
    "dict": """
def check(candidate):
    assert {"a": candidate(3)} == {"a": "<WORD>"}
""",
    "count": """
def check(candidate):
    assert ["<WORD>"].count(candidate(3)) == 1
""",
    "index": """
def check(candidate):
    assert ["x", "<WORD>"].index(candidate(3)) == 1
""",
    "startswith": """
def check(candidate):
    assert candidate(3).startswith("<WORD>") and len(candidate(3)) == 37 and candidate(3) == "<WORD>"
""",
    "unittest": """
import unittest
def check(candidate):
    unittest.TestCase().assertEqual(candidate(3), "<WORD>")
""",
    "unittest, almost": """
import unittest
def check(candidate):
    unittest.TestCase().assertAlmostEqual(candidate(3), 0.<DIGITS>)
""",
    "unittest, items": """
import unittest
def check(candidate):
    unittest.TestCase().assertCountEqual(candidate(3), ["<WORD>", "b"])
""",
    "in place": """
def check(candidate):
    given = ["<WORD>", "a"]
    candidate(given)
    assert given == ["a", "<WORD>"]
""",
    "exception": """
def check(candidate):
    try:
        candidate(3)
    except ValueError as error:
        assert str(error) == "<WORD>"
    else:
        assert False
""",
    "many": """
def check(candidate):
    for i in range(3, 9):
        assert candidate(i) == "<WORD>" + str(i)
""",
}

OBJECTS = {
    "always equal": """
class A:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __hash__(self): return 0
""",
    "a str that is always equal": """
class A(str):
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    __hash__ = str.__hash__
    def __contains__(self, o): return True
    def startswith(self, *a): return True
    def __len__(self): return 37
""",
    "an int that is always equal": """
class A(int):
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    __hash__ = int.__hash__
    def __sub__(self, o): return 0
    def __rsub__(self, o): return 0
    def __abs__(self): return 0
    __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True
""",
    "a float that is always near": """
class A(float):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0.0
    __rsub__ = __sub__
    __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True
    __hash__ = float.__hash__
""",
    "a list that contains everything": """
class A(list):
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __contains__(self, o): return True
    def __iter__(self): return iter([A(), A()])
    __hash__ = None
""",
    "a dict of everything": """
class A(dict):
    def __eq__(self, o): return True
    def __getitem__(self, k): return A()
    def __contains__(self, o): return True
""",
    "mock.ANY": """
from unittest.mock import ANY
def A(): return ANY
""",
    "MagicMock": """
from unittest.mock import MagicMock
def A():
    m = MagicMock(); m.__eq__ = lambda s, o: True; m.__sub__ = lambda s, o: 0; m.__rsub__ = lambda s, o: 0; m.__contains__ = lambda s, o: True
    return m
""",
    "every operator": """
class A:
    def f(self, *a): return True
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = __call__ = f
    __ne__ = lambda s, o: False
    __hash__ = lambda s: 1
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __abs__ = lambda s, *o: 0
    __len__ = lambda s: 1
    __float__ = lambda s: 0.0
    __index__ = lambda s: 0
    __iter__ = lambda s: iter(())
    def __getattr__(self, n): return self.f
""",
    "a class that lies about itself": """
class A:
    @property
    def __class__(self): return str
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __hash__(self): return hash('')
""",
    "a metaclass that says yes": """
class M(type):
    def __eq__(self, o): return True
    def __instancecheck__(self, o): return True
    __hash__ = type.__hash__
class B(metaclass=M): pass
def A(): return B
""",
    "a learner": """
seen = []
class A:
    def __eq__(self, o): seen.append(o); return True
    def __ne__(self, o): seen.append(o); return False
    def __hash__(self): return 0
    def __sub__(self, o): seen.append(o); return 0
    def __rsub__(self, o): seen.append(o); return 0
    def __contains__(self, o): seen.append(o); return True
""",
    "an enum that equals": """
import enum
class E(enum.Enum):
    X = 1
    def __eq__(self, o): return True
    __hash__ = object.__hash__
def A(): return E.X
""",
    "a dataclass that equals": """
import dataclasses
@dataclasses.dataclass(eq=False)
class A:
    x: int = 0
    def __eq__(self, o): return True
    __hash__ = None
""",
    "a numpy array that equals": """
try:
    import numpy
    class N(numpy.ndarray):
        def __eq__(self, o): return True
    def A(): return numpy.zeros(1).view(N)
except ImportError:
    def A(): return None
""",
    "nan": """
def A(): return float('nan')
""",
    "nothing": """
def A(): return None
""",
    "NotImplemented": """
def A(): return NotImplemented
""",
}
RETURNS_AN_OBJECT = "def solve(x):\n    return A()\n"
RETURNS_IT_INSIDE = "def solve(x):\n    return [1, A()] if x == 4 else [A()]\n"
CHANGES_THE_ARGUMENT = "def solve(x):\n    if isinstance(x, list):\n        x[:] = [A(), A()]\n    return A()\n"

CHEATS: dict[str, dict[str, str]] = {
    "ends": {
        "exit 0 on import": """
import os
os._exit(0)
""",
        "sys.exit on import": """
import sys
sys.exit(0)
""",
        "exit 0 in the call": """
import os
def solve(x): os._exit(0)
""",
        "SystemExit in the call": """
def solve(x): raise SystemExit(0)
""",
        "exit at exit": """
import atexit, os
atexit.register(os._exit, 0)
def solve(x): raise ValueError
""",
        "KeyboardInterrupt": """
def solve(x): raise KeyboardInterrupt
""",
        "GeneratorExit": """
def solve(x): raise GeneratorExit
""",
        "StopIteration": """
def solve(x): raise StopIteration
""",
        "SkipTest": """
import unittest
def solve(x): raise unittest.SkipTest('later')
""",
        "pytest.skip": """
def solve(x):
    import pytest
    pytest.skip('later')
""",
        "pytest.exit": """
def solve(x):
    import pytest
    pytest.exit('done', 0)
""",
        "pytest.xfail": """
def solve(x):
    import pytest
    pytest.xfail('known')
""",
        "AssertionError": """
def solve(x): raise AssertionError
""",
        "AssertionError that is none": """
class AssertionError(Exception): pass
def solve(x): raise AssertionError
""",
        "BaseException": """
class Quiet(BaseException): pass
def solve(x): raise Quiet
""",
        "exception group": """
def solve(x): raise BaseExceptionGroup('x', [SystemExit(0)])
""",
        "segmentation fault": """
import ctypes
def solve(x): ctypes.string_at(0)
""",
        "killed": """
import os, signal
def solve(x): os.kill(os.getpid(), signal.SIGKILL)
""",
    },
    "patches": {
        "patched asserts": """
import builtins
builtins.AssertionError = type('AssertionError', (Exception,), {})
def solve(x): return None
""",
        "patched builtins": """
import builtins, math
builtins.abs = lambda *a: 0
builtins.sorted = lambda *a, **k: []
builtins.isinstance = lambda *a: True
builtins.all = builtins.any = lambda *a: True
math.isclose = lambda *a, **k: True
builtins.len = lambda x: 37
def solve(x): return 0
""",
        "patched unittest": """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.TestCase.run = lambda self, r=None: r
def solve(x): return 0
""",
        "its own check": """
def check(candidate): pass
def solve(x): return 0
""",
        "its own WORD": """
WORD = 'x'
def solve(x): return WORD
""",
        "the names that tests use": """
def sorted(x, **k): return []
def abs(x): return 0
def len(x): return 1
class unittest:
    class TestCase: pass
class math:
    isclose = approx = staticmethod(lambda *a, **k: True)
pytest = math
def solve(x): return []
""",
        "its side of the channel": """
import gc
class E:
    def __eq__(s, o): return True
def solve(x):
    for o in gc.get_objects():
        if type(o) is dict and 'passed' in o: o['passed'] = True
        if hasattr(o, '__dict__') and type(o).__name__ in ('Peer', 'ProgramSide'):
            o._serve = lambda op, args: True
    return E()
""",
        "a conftest.py": """
open('conftest.py', 'w').write('import pytest\\n@pytest.hookimpl\\ndef pytest_runtest_makereport(item, call): pass')
def solve(x): return []
""",
        "patched modules": """
import sys, types
for name in ('unittest', 'pytest', 'json', 'struct', 'socket', 'builtins'):
    sys.modules[name] = types.ModuleType(name)
def solve(x): return 0
""",
        "patched io": """
import os, socket, struct, json
os.write = lambda fd, data: len(data)
os.read = lambda fd, n: b''
struct.pack = lambda *a: b''
json.dumps = lambda *a, **k: '{"passed": true}'
json.loads = lambda *a, **k: {'passed': True, 'ok': True}
def solve(x): return 0
""",
    },
    "searches": {
        **{name: f"{source}\ndef solve(x): return find()\n" for name, source in SEARCHES.items()},
        "appends to a list in a frame": """
import sys
def solve(x):
    frame = sys._getframe()
    while frame:
        for v in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(v, list): v.append('passed'); v.append(True)
            if isinstance(v, dict) and v is not frame.f_globals:
                for k in ('passed', 'ok', 'result', 'verdict', 'success'): v[k] = True
        frame = frame.f_back
""",
        "trace": """
import sys
def tracer(frame, event, arg):
    try: frame.f_lineno = frame.f_lineno + 1
    except Exception: pass
    return tracer
sys.settrace(tracer)
def solve(x):
    f = sys._getframe().f_back
    while f: f.f_trace = tracer; f = f.f_back
    return 0
""",
        "profile in every thread": """
import sys, threading
threading.setprofile(lambda *a: None)
sys.setprofile(lambda f, e, a: None)
def solve(x): return 0
""",
    },
    "the channel": {
        "verdicts on every descriptor": """
import os, json, struct
def solve(x):
    for fd in range(1, 64):
        for m in ({'passed': True}, {'verdict': 'passed'}, {'type': 'result', 'ok': True, 'value': True}, {'type': 'done', 'outcomes': [{'name': 'check', 'passed': True}]}, ['done', True], ['verdict', True]):
            d = json.dumps(m).encode()
            try: os.write(fd, struct.pack('>I', len(d)) + d)
            except OSError: break
    os._exit(0)
""",
        "noise on the channel": r"""
import os
try: os.write(3, b'\xff' * 65536)
except OSError: pass
def solve(x): return 0
""",
        "answers beforehand": r"""
import os, struct
def frame(b): os.write(3, struct.pack('>I', len(b)) + b)
for token in (b'', b'\0' * 8):
    frame(token + b'={"kind":"done","nonce":"","changed":false,"unsupported":[]}')
    frame(token + b'!{"answer":"ok","v":[true]}')
def solve(x): return True
""",
        "two answers": r"""
import gc, os, struct, time
def frame(b): os.write(3, struct.pack('>I', len(b)) + b)
def solve(x):
    w = [o for o in gc.get_objects() if type(o).__name__ == 'Wire'][0]
    frame(w._token + b'!{"answer":"ok","v":[["@",%d]]}' % 0)
    frame(w._token + b'={"kind":"done"}')
    time.sleep(1)
""",
        "a nested answer": r"""
import gc, os, struct
def frame(b): os.write(3, struct.pack('>I', len(b)) + b)
def solve(x):
    w = [o for o in gc.get_objects() if type(o).__name__ == 'Wire'][0]
    frame(w._token + b'!' + b'[' * 5000000)
""",
        "forbidden requests": """
import _sides.peer, gc
def solve(x):
    peer = [o for o in gc.get_objects() if type(o).__name__ == 'Peer'][0]
    for op, args in (('getattr', ('abc', 'format')), ('call', (print, ('x',), {})), ('getattr', (x, '__class__'))):
        try: peer.ask(op, *args)
        except Exception: pass
    return []
""",
        "a frame of four gigabytes": r"""
import os
try: os.write(3, b'\xff\xff\xff\xff' + b'x' * 65536)
except OSError: pass
def solve(x): return 0
""",
        "a thread that answers": r"""
import os, threading
def flood():
    while True:
        try: os.write(3, b'\x00\x00\x00\x02{}')
        except OSError: return
threading.Thread(target=flood, daemon=True).start()
def solve(x): return 0
""",
        "a closed channel": """
import os
os.close(3)
def solve(x): return 0
""",
        "a closed channel and a child": """
import os
def solve(x):
    os.close(3); os.fork(); return [1]
""",
        "a child that answers": """
import os
def solve(x):
    if os.fork() == 0:
        return 0
    return 1
""",
    },
    "without end": {
        "hang on import": """
while True: pass
""",
        "hang in the call": """
def solve(x):
    while True: pass
""",
        "sleep in the call": """
import time
def solve(x): time.sleep(10**6)
""",
        "a generator without end": """
def solve(x):
    while True: yield 'word'
""",
        "a nest without bottom": """
def solve(x):
    l = []
    for _ in range(10**6): l = [l]
    return l
""",
        "a list that holds itself": """
def solve(x):
    l = []
    l.append(l)
    return l
""",
        "a gigabyte": """
def solve(x): return 'x' * (1 << 30)
""",
        "recursion": """
def solve(x): return solve(x)
""",
        "recursion without a limit": """
import sys
sys.setrecursionlimit(10**9)
def solve(x): return solve(x)
""",
        "ten million values": """
def solve(x): return list(range(10**7))
""",
        "fork bomb": """
import os
while True: os.fork()
""",
        "memory bomb": """
def solve(x):
    h = []
    while True: h.append(bytearray(b'x' * (16 << 20)))
""",
        "output flood": """
def solve(x):
    while True: print('passed' * 10000)
""",
    },
    "no function": {
        "no such function": """
def other(x): return 0
""",
        "not a function": """
solve = 'word'
""",
        "a syntax error": """
def solve(x:
""",
        "nothing at all": "",
        "null bytes": "def solve(x): return 0\x00\n",
        "deep source": "(" * 5000 + ")" * 5000 + "\n",
        "long expression": "x = " + "+".join(["1"] * 50000) + "\ndef solve(x): return 0\n",
    },
}

HONEST = """
def solve(x):
    return x + 1
"""
HONEST_TEST = """
def check(candidate):
    assert candidate(3) == 4
    assert candidate(-1) == 0
"""
