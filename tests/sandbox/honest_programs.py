"""Programs as people write them. Each must exit with code 0 and print the expected text in every tier."""

# ruff: noqa: E501 - programs are written on as few lines as they need

from __future__ import annotations

from rllm_gym.sandbox.program import Limits, Program

_BIG = b"a line of input\n" * 200_000


def _case(source: str, expected: str, **options: object) -> tuple[Program, bytes]:
    return Program(source, **options), expected.encode()  # type: ignore[arg-type]


HONEST: dict[str, tuple[Program, bytes]] = {
    "input": _case("print(int(input()) + int(input()))", "5\n", stdin=b"2\n3\n"),
    "sys.stdin": _case("import sys\nprint(sum(map(int, sys.stdin)))", "6\n", stdin=b"1\n2\n3\n"),
    "sys.stdin.buffer": _case("import sys\nprint(len(sys.stdin.buffer.read()))", "3\n", stdin=b"\xff\xfe\n"),
    "open(0)": _case("print(open(0).read().split())", "['a', 'b']\n", stdin=b"a b"),
    "/dev/stdin": _case("print(open('/dev/stdin').read())", "a\n", stdin=b"a"),
    "no input": _case("try:\n    input()\nexcept EOFError:\n    print('end')", "end\n"),
    "sys.exit(0)": _case("import sys\nprint(1)\nsys.exit(0)", "1\n"),
    "exit()": _case("print(1)\nexit()", "1\n"),
    "argv": _case("import sys\nprint(sys.argv[1:])", "['a', 'b c']\n", args=("a", "b c")),
    "__main__": _case("if __name__ == '__main__':\n    print(__file__.endswith('main.py'))", "True\n"),
    "unicode": _case("print('žluťoučký 🐎', input())", "žluťoučký 🐎 ß\n", stdin="ß\n".encode()),
    "end without newline": _case("print('x', end='')", "x"),
    "deep recursion": _case(
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 28)\n"
        "def depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
        "t = threading.Thread(target=lambda: print(depth(100_000)))\nt.start()\nt.join()",
        "100000\n",
    ),
    "recursion error": _case(
        "def f():\n    f()\ntry:\n    f()\nexcept RecursionError:\n    print('caught')", "caught\n"
    ),
    "threads": _case(
        "from concurrent.futures import ThreadPoolExecutor as E\n"
        "with E(8) as e:\n    print(sum(e.map(lambda x: x * x, range(100))))",
        "328350\n",
    ),
    "a thread that outlives the main one": _case(
        "import threading\nmain = threading.main_thread()\n"
        "threading.Thread(target=lambda: (main.join(), print('late'))).start()\nprint('early')",
        "early\nlate\n",
    ),
    "multiprocessing.Pool": _case(
        "import multiprocessing as m\ndef f(x):\n    return x * x\n"
        "if __name__ == '__main__':\n    with m.Pool(2) as p:\n        print(p.map(f, range(5)))",
        "[0, 1, 4, 9, 16]\n",
    ),
    "multiprocessing, spawned": _case(
        "import multiprocessing as m\ndef f(pipe):\n    pipe.send(6 * 7)\n"
        "if __name__ == '__main__':\n    c = m.get_context('spawn')\n    a, b = c.Pipe()\n"
        "    p = c.Process(target=f, args=(b,))\n    p.start()\n    print(a.recv())\n    p.join()",
        "42\n",
    ),
    "ProcessPoolExecutor": _case(
        "from concurrent.futures import ProcessPoolExecutor as E\n"
        "if __name__ == '__main__':\n    with E(2) as e:\n        print(list(e.map(abs, [-1, 2, -3])))",
        "[1, 2, 3]\n",
    ),
    "shared memory": _case(
        "from multiprocessing import shared_memory, Process\n"
        "def f(name):\n    s = shared_memory.SharedMemory(name)\n    s.buf[0] = 7\n    s.close()\n"
        "s = shared_memory.SharedMemory(create=True, size=4096)\np = Process(target=f, args=(s.name,))\n"
        "p.start()\np.join()\nprint(s.buf[0])\ns.close()\ns.unlink()",
        "7\n",
    ),
    "subprocess": _case(
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(6*7)'], capture_output=True, "
        "text=True, check=True).stdout.strip(), subprocess.check_output('echo $((1+1))', shell=True, text=True).strip())",
        "42 2\n",
    ),
    "python3 by name": _case(
        "import subprocess\nprint(subprocess.check_output(['python3', '-c', 'print(1)'], text=True).strip())", "1\n"
    ),
    "os.fork": _case(
        "import os\npid = os.fork()\nif pid == 0:\n    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "3\n",
    ),
    "os.pipe": _case(
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'hi')\n    os._exit(0)\n"
        "os.wait()\nprint(os.read(r, 9))",
        "b'hi'\n",
    ),
    "files": _case(
        "from pathlib import Path\nPath('a/b').mkdir(parents=True)\nPath('a/b/c.txt').write_text('x')\n"
        "print(sorted(map(str, Path('.').rglob('*'))), Path('data.txt').read_text())",
        "['a', 'a/b', 'a/b/c.txt', 'data.txt'] given\n",
        files={"data.txt": b"given"},
    ),
    "a module beside it": _case("import beside\nprint(beside.x)", "1\n", files={"beside.py": b"x = 1"}),
    "a package beside it": _case(
        "from p.q import x\nprint(x)", "1\n", files={"p/q.py": b"x = 1", "p/__init__.py": b""}
    ),
    "library": _case(
        "import lib.part\nprint(lib.part.f())", "9\n", library={"lib": "", "lib.part": "def f(): return 9"}
    ),
    "source of a library": _case(
        "import inspect, lib\nprint(inspect.getsource(lib.f))",
        "def f(): return 9\n\n",
        library={"lib": "def f(): return 9\n"},
    ),
    "tempfile": _case(
        "import tempfile, os\nwith tempfile.NamedTemporaryFile('w+') as f, tempfile.TemporaryDirectory() as d:\n"
        "    f.write('x')\n    f.seek(0)\n    print(f.read(), os.listdir(d))",
        "x []\n",
    ),
    "file locks between processes": _case(
        "import fcntl, multiprocessing\ndef taken(kind):\n    with open('lock', 'w') as f:\n        try:\n"
        "            kind(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            return False\n        except OSError:\n            return True\n"
        "if __name__ == '__main__':\n    f = open('lock', 'w')\n    fcntl.flock(f, fcntl.LOCK_EX)\n    fcntl.lockf(f, fcntl.LOCK_EX)\n"
        "    with multiprocessing.Pool(1) as pool:\n        print(pool.map(taken, [fcntl.flock, fcntl.lockf]))",
        "[True, True]\n",
    ),
    "sqlite with a write-ahead log": _case(
        "import sqlite3\na, b = sqlite3.connect('db'), sqlite3.connect('db')\nprint(a.execute('pragma journal_mode=wal').fetchall())\n"
        "a.execute('create table t(x)')\na.execute('insert into t values (1)')\na.commit()\nprint(b.execute('select * from t').fetchall())",
        "[('wal',)]\n[(1,)]\n",
    ),
    "sqlite": _case(
        "import sqlite3\nfor name in ':memory:', 'db':\n    c = sqlite3.connect(name)\n    c.execute('create table t(x)')\n"
        "    c.execute('insert into t values (1)')\n    c.commit()\n    print(c.execute('select * from t').fetchall())",
        "[(1,)]\n[(1,)]\n",
    ),
    "asyncio": _case(
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.01)\n    return x\n"
        "async def main():\n    return await asyncio.gather(*map(f, range(5)))\nprint(asyncio.run(main()))",
        "[0, 1, 2, 3, 4]\n",
    ),
    "asyncio subprocess": _case(
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n"
        "    return (await p.communicate())[0]\nprint(asyncio.run(main()))",
        "b'hi\\n'\n",
    ),
    "signals": _case(
        "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *a: print('handled'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nsignal.alarm(0)\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('interrupted')",
        "handled\ninterrupted\n",
    ),
    "atexit": _case("import atexit\natexit.register(print, 'bye')\nprint('hello')", "hello\nbye\n"),
    "__del__ at the end": _case(
        "class A:\n    def __del__(self):\n        print('gone')\na = A()\na.me = a\nprint('here')", "here\ngone\n"
    ),
    "a file of its own on descriptor 1": _case("f = open(1, 'w', closefd=False)\nf.write('kept')", "kept"),
    "stdout replaced": _case(
        "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, write_through=False)\nprint('x')", "x\n"
    ),
    "print after os.dup2": _case("import os\nprint('a', flush=True)\nos.dup2(1, 2)\nos.write(2, b'b')", "a\nb"),
    "ctypes": _case("import ctypes\nprint(ctypes.CDLL(None).abs(-3))", "3\n"),
    "printf": _case("import ctypes\nctypes.CDLL(None).printf(b'from C\\n')", "from C\n"),
    "locale": _case("import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint(f'{1234567.5:n}')", "1.23457e+06\n"),
    "getsource": _case(
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), end='')", "def f():\n    return 1\n"
    ),
    "traceback": _case(
        "import traceback\ndef f():\n    raise ValueError('x')\ntry:\n    f()\nexcept ValueError:\n"
        "    print(\"raise ValueError('x')\" in traceback.format_exc())",
        "True\n",
    ),
    "dataclass": _case(
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list)\n"
        "print(P(1), P(1) < P(2))",
        "P(x=1, y=[]) True\n",
    ),
    "typing.get_type_hints": _case(
        "from __future__ import annotations\nimport typing\ndef f(x: int) -> str: ...\nprint(typing.get_type_hints(f)['x'])",
        "<class 'int'>\n",
    ),
    "no future of the worker's": _case("def f(x: int): ...\nprint(f.__annotations__)", "{'x': <class 'int'>}\n"),
    "pickle": _case(
        "import pickle, copy\nclass A:\n    def __init__(self): self.x = 1\nprint(pickle.loads(pickle.dumps(A())).x, copy.deepcopy(A()).x)",
        "1 1\n",
    ),
    "unittest": _case(
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(1, 1)\n"
        "r = unittest.main(exit=False, argv=['x'])\nprint(r.result.testsRun)",
        "1\n",
    ),
    "who it is": _case(
        "import getpass, os, pathlib, platform\nprint(bool(getpass.getuser()), os.path.isdir(pathlib.Path.home()), platform.system())",
        "True True Linux\n",
    ),
    "urandom": _case(
        "import os, secrets, uuid\nprint(len(os.urandom(8)), len(secrets.token_hex(4)), uuid.uuid4().version)",
        "8 8 4\n",
    ),
    "cpu count": _case(
        "import os, multiprocessing\nprint(os.cpu_count() > 0, multiprocessing.cpu_count() > 0)", "True True\n"
    ),
    "much input": _case("import sys\nprint(len(sys.stdin.read()))", f"{len(_BIG)}\n", stdin=_BIG),
    "much output": _case(
        "import sys\nsys.stdout.write('x' * 3_000_000)", "x" * 3_000_000, limits=Limits(output_bytes=4_000_000)
    ),
    "input that nobody reads": _case("print('done')", "done\n", stdin=_BIG),
    "input read by a child": _case("import subprocess\nsubprocess.run(['wc', '-l'])", "200000\n", stdin=_BIG),
    "100 MB of memory": _case("x = bytearray(b'x') * 100_000_000\nprint(len(x))", "100000000\n"),
    "a socket to itself": _case(
        "import socket\na, b = socket.socketpair()\na.sendall(b'x')\nprint(b.recv(1))", "b'x'\n"
    ),
    "resource": _case("import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_utime >= 0)", "True\n"),
    "site": _case(
        "import sys\nprint('site' in sys.modules, exit, quit)",
        "True Use exit() or Ctrl-D (i.e. EOF) to exit Use quit() or Ctrl-D (i.e. EOF) to exit\n",
    ),
    "numpy": _case(
        "import numpy as np\nprint(np.arange(6).reshape(2, 3).sum(), np.linalg.inv(np.eye(2))[0, 0])", "15 1.0\n"
    ),
    "numpy, preloaded": _case("import numpy as np\nprint(np.arange(6).sum())", "15\n", preload=("numpy",)),
    "pytest": _case(
        "import pytest\nprint(int(pytest.main(['-qq', '-p', 'no:cacheprovider', '--no-summary', 'test_it.py'])))",
        ".                                                                        [100%]\n0\n",
        files={"test_it.py": b"def test(): assert 1"},
    ),
    "an interactive loop": _case(
        "for i in range(3):\n    print(input()[::-1], flush=True)", "ba\ndc\nfe\n", stdin=b"ab\ncd\nef\n"
    ),
    "a comment with an encoding": _case("# -*- coding: latin-1 -*-\nprint(len('é'))", "1\n"),
    "carriage returns": _case("print(1)\r\nprint(2)\r\n", "1\n2\n"),
    "a byte order mark": _case("\ufeffprint(1)", "1\n"),
    "warnings": _case("import warnings\nwarnings.warn('careful')\nprint(1)", "1\n"),
    "mmap": _case("import mmap\nm = mmap.mmap(-1, 10)\nm[:2] = b'ab'\nprint(m[:2])", "b'ab'\n"),
    "os.popen": _case("import os\nprint(os.popen('echo a').read().strip(), os.system('true'))", "a 0\n"),
}
