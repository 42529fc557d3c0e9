"""Programs that use the pool leave no process behind, however they end; run as real scripts and really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import psutil
import pytest
from worker_waiting import LONG, gone

from tests.waiting import is_alive

# Starts three workers: an idle one, one hung in C code that ignores signals, and one with children of its own.
BUSY = """
import os, signal, subprocess, sys, threading, time
from rllm_gym.runtime import WorkerPool

def tell(*pids):
    # One write: what print writes in pieces, another process may write into.
    os.write(2, f"pid {' '.join(map(str, pids))}\\n".encode())

def deaf():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tell(os.getpid())
    return 7 ** (10**9)

def family():
    child = subprocess.Popen(["sleep", "300"])
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    # A daemon: its parent is gone, its session is its own.
    daemon = subprocess.run(["setsid", "-f", "sh", "-c", "echo pid $$ >&2; exec sleep 300"], check=True)
    tell(os.getpid(), child.pid, other.pid)
    child.wait()

pool = WorkerPool(max_workers=3)
tell(pool.run(os.getpid, timeout=120))
for work in (deaf, family):
    threading.Thread(target=lambda work=work: pool.run(work, timeout=600), daemon=True).start()
"""


def started(program, expected):
    """Run the program until it has written ``expected`` pids to stderr, or kill it at the deadline."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    pids, output = [], []
    too_late = threading.Timer(LONG, process.kill)
    too_late.start()
    while len(pids) < expected:
        line = process.stderr.readline()
        output.append(line)
        # An exception in one of its threads is only printed: the missing pids would never be written.
        if not line or line.startswith(("Traceback", "Exception")):
            process.kill()
            pytest.fail(f"the program wrote too little: {''.join([*output, *process.stderr])}")
        if line.startswith("pid"):
            pids += map(int, line.split()[1:])
    too_late.cancel()
    template = psutil.Process(pids[0]).parent()
    return process, [*pids, template.pid]


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
def test_nothing_is_left_after_the_owners_death(ending):
    process, pids = started(BUSY + "\nwhile True: time.sleep(1)", expected=6)
    assert all(is_alive(pid) for pid in pids)
    os.kill(process.pid, getattr(signal, ending))
    process.wait(LONG)
    assert gone(pids)


def test_ctrl_c_ends_the_program_and_everything_it_started():
    process, pids = started(BUSY + "\npool.run(time.sleep, 300, timeout=600)", expected=6)
    os.kill(process.pid, signal.SIGINT)
    _, reported = process.communicate(timeout=LONG)
    assert "KeyboardInterrupt" in reported
    assert gone(pids)


def test_the_interpreter_exits_with_an_open_pool_and_leaves_no_process():
    process, pids = started(BUSY + "\nsys.stdin.read()", expected=6)
    process.stdin.close()
    assert process.wait(LONG) == 0
    assert gone(pids)


def test_a_fork_of_the_owner_that_outlives_it_keeps_no_worker_alive():
    program = BUSY + "\nif os.fork() == 0:\n    tell(os.getpid())\nwhile True: time.sleep(1)"
    process, pids = started(program, expected=7)
    forked = next(
        child.pid for child in psutil.Process(process.pid).children() if child.pid in pids and child.pid != pids[-1]
    )
    process.kill()
    process.wait(LONG)
    try:
        assert gone([pid for pid in pids if pid != forked])
        assert is_alive(forked)
    finally:
        os.kill(forked, signal.SIGKILL)


def run(program, *arguments, as_file=None):
    command = [sys.executable, "-c", textwrap.dedent(program)]
    if as_file is not None:
        as_file.write_text(textwrap.dedent(program))
        command = [sys.executable, str(as_file)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=LONG)


PLAIN = """
    from rllm_gym.runtime import WorkerPool

    class Mine(Exception):
        pass

    class Thing:
        def twice(self, x):
            if x < 0:
                raise Mine("negative")
            return 2 * x

    pool = WorkerPool(max_workers=2)
    print(pool.run(lambda x: Thing().twice(x), 21, timeout=120))
    actor = pool.actor(Thing, timeout=120)
    try:
        actor.call("twice", -1, timeout=120)
    except Mine as error:
        print("caught", error)
"""


def test_scripts_and_interactive_code_need_no_main_guard(tmp_path):
    for as_file in (None, tmp_path / "script.py"):
        done = run(PLAIN, as_file=as_file)
        assert done.stdout.split("\n") == ["42", "caught negative", ""], done.stderr
        assert done.returncode == 0
        assert done.stderr == ""


def test_a_fork_that_exits_does_not_affect_the_owner(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    done = run(
        """
        import os, sys, threading
        from pathlib import Path
        from rllm_gym.runtime import WorkerPool
        pool = WorkerPool(max_workers=2)
        actor = pool.actor(dict, timeout=120)
        pool.run(abs, -1, timeout=120)
        results = []
        work = Path(sys.argv[1]).read_text
        thread = threading.Thread(target=lambda: results.append(pool.run(work, timeout=120)))
        thread.start()
        with open(sys.argv[1], "w") as fifo:  # opens when the work has opened it: the call is running
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            fifo.write("done")
        thread.join()
        print(results, actor.call("get", 1, timeout=120), pool.killed)
        """,
        str(tmp_path / "fifo"),
    )
    assert done.stdout == "['done'] None 0\n", done.stderr


def test_a_hung_thread_does_not_keep_the_interpreter_from_exiting():
    done = run("""
        import threading
        from rllm_gym.runtime import DeadlineExceeded, WorkerPool
        pool = WorkerPool("thread", max_workers=1)
        try:
            pool.run(threading.Event().wait, timeout=0.1)
        except DeadlineExceeded:
            print(pool.abandoned)
    """)
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_a_python_that_does_not_start_is_reported_at_once():
    done = run("""
        import sys
        from rllm_gym.runtime import WorkerPool, WorkerStartFailed
        for broken in ("/nonexistent/python", "/bin/false"):
            sys.executable = broken
            with WorkerPool(max_workers=1) as pool:
                try:
                    pool.run(abs, -1, timeout=120)
                except WorkerStartFailed as error:
                    print("reported")
    """)
    assert done.stdout == "reported\nreported\n", done.stderr
