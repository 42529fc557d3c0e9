"""Ways in which programs end, for the tests of programs."""

# ruff: noqa: E501 - programs are written on as few lines as they need

from __future__ import annotations

import signal

from rllm_gym.sandbox.program import Ended, Limits

SPIN = "while True:\n    pass\n"
SLEEP = "import time\ntime.sleep(1000)\n"

ENDS = {
    "exit code": ("raise SystemExit(7)", Limits(), Ended.EXITED, 7, None),
    "exit code above a byte": ("import sys\nsys.exit(256 + 3)", Limits(), Ended.EXITED, 3, None),
    "exit message": ("raise SystemExit('so')", Limits(), Ended.EXITED, 1, None),
    "os._exit": ("import os\nos._exit(5)", Limits(), Ended.EXITED, 5, None),
    "exception": ("1 / 0", Limits(), Ended.EXITED, 1, None),
    "no Python": ("this is not Python", Limits(), Ended.EXITED, 1, None),
    "null bytes": ("print(1)\0", Limits(), Ended.EXITED, 1, None),
    "lone surrogates": ("print('\ud800')", Limits(), Ended.EXITED, 1, None),
    "deep nesting": ("(" * 100_000, Limits(), Ended.EXITED, 1, None),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", Limits(), Ended.SIGNALLED, None, signal.SIGSEGV),
    "abort": ("import os\nos.abort()", Limits(), Ended.SIGNALLED, None, signal.SIGABRT),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", Limits(), Ended.SIGNALLED, None, signal.SIGKILL),
    "ends by its alarm": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.1)\nwhile True: signal.pause()", Limits(), Ended.SIGNALLED, None, signal.SIGALRM),
    "loop": (SPIN, Limits(cpu_s=0.3), Ended.CPU, None, None),
    "loop in C": ("sum(range(10**15))", Limits(cpu_s=0.3), Ended.CPU, None, None),
    "loop that ignores signals": (
        "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        + SPIN, Limits(cpu_s=0.3), Ended.CPU, None, None,
    ),
    "loops in four children": (
        "import os\nfor _ in range(2): os.fork()\n" + SPIN, Limits(cpu_s=0.5), Ended.CPU, None, None,
    ),
    "loops in children that are not waited for": (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n"
        "    try: child = os.fork() == 0\n    except OSError: child = False\n    if child:\n        t = time.process_time()\n        while time.process_time() < t + 0.1: pass\n        os._exit(0)\n"
        "    time.sleep(0.1)", Limits(cpu_s=0.5, wall_s=2), None, None, None,
    ),
    "sleep": (SLEEP, Limits(wall_s=0.5), Ended.WALL, None, None),
    "stopped by itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", Limits(wall_s=0.5), Ended.WALL, None, None),
    "memory": ("x = []\nwhile True: x.append(bytearray(b'x') * (1 << 20))", Limits(memory_mb=64), Ended.MEMORY, None, None),
    "memory of children": (
        "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(b'x') * (20 << 20)\ntime.sleep(1000)",
        Limits(memory_mb=100, wall_s=100), Ended.MEMORY, None, None,
    ),
    "memory all at once": ("x = bytearray(1 << 40)", Limits(memory_mb=64), Ended.EXITED, 1, None),
    "flood": ("while True: print('x' * 10_000)", Limits(output_bytes=1000), Ended.OUTPUT, None, None),
    "flood of errors": ("import os\nwhile True: os.write(2, b'x' * 10_000)", Limits(output_bytes=1000), Ended.OUTPUT, None, None),
}  # fmt: skip
"""Source, limits, and the expected ending: reason (``None``: a limit), exit code, signal."""
