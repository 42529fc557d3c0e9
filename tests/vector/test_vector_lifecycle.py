"""A vector environment releases its threads, processes and files, also when garbage-collected or interrupted."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError
from vector_environments import LONG, AsyncEcho, ClosesSlowly, Counting, Gate

from rllm_gym.vector import TextVectorEnv
from tests.waiting import is_alive, until

HERE = Path(__file__).parent


def settled(count, *, of):
    """Return whether ``of()`` decreases to ``count``: ending threads and processes need a moment."""
    return until(lambda: of() <= count)


def children():
    return len(psutil.Process().children(recursive=True))


def threads_and_processes():
    """Return a set: while those of earlier tests end, a count may not grow."""
    return {*threading.enumerate(), *psutil.Process().children(recursive=True)}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "kind", [pytest.param("thread", marks=pytest.mark.long), "process", pytest.param("asyncio", marks=pytest.mark.long)]
)
def test_closing_releases_all_resources(kind, tmp_path):
    closed = tmp_path / "closed"
    env = AsyncEcho if kind == "asyncio" else Counting

    def use():
        envs = TextVectorEnv(4, env_id=env, workers=kind, deadlines={"step": 90.0})
        if kind != "asyncio":
            envs.set_attr("closed_file", str(closed))
        envs.reset(seed=0)
        envs.step(["a", "fault", "a", "a"])
        envs.close()
        envs.close()

    use()  # caches filled on first use are kept
    gc.collect()
    threads, processes, files = threading.active_count(), children(), descriptors()
    closed.unlink(missing_ok=True)
    use()
    gc.collect()
    assert settled(threads, of=threading.active_count)
    assert settled(processes, of=children)
    assert settled(files, of=descriptors)
    if kind != "asyncio":
        assert closed.read_text() == "closed\n" * 4


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_an_environment_with_a_fault_is_closed_even_if_all_are_closed_immediately_after(kind, tmp_path):
    envs = TextVectorEnv(2, env_id=ClosesSlowly, workers=kind)
    envs.set_attr("closed_file", str(tmp_path / "closed"))
    envs.reset(seed=0)
    envs.step(["fault", "a"])
    envs.close()
    assert until(lambda: (tmp_path / "closed").read_text() == "closed\n" * 2)


@pytest.mark.parametrize(
    "kind", [pytest.param("thread", marks=pytest.mark.long), "process", pytest.param("asyncio", marks=pytest.mark.long)]
)
def test_garbage_collection_closes_the_environments(kind):
    threads, processes = threading.active_count(), children()
    before = threads_and_processes()
    envs = TextVectorEnv(3, env_id=AsyncEcho if kind == "asyncio" else Counting, workers=kind)
    envs.reset(seed=0)
    envs.step(["a"] * 3)
    assert threads_and_processes() - before
    del envs
    gc.collect()
    assert settled(threads, of=threading.active_count)
    assert settled(processes, of=children)


@pytest.mark.parametrize("kind", ["thread", "asyncio"])
def test_garbage_collection_in_the_thread_of_its_own_event_loop(kind):
    """Any allocation there may collect it. If closing waited for the loop, it would last as long as the deadline."""
    threads = threading.active_count()
    gc.disable()
    try:
        envs = TextVectorEnv(
            2, env_id=AsyncEcho if kind == "asyncio" else Counting, workers=kind, deadlines={"close": 10 * LONG}
        )
        envs.reset(seed=0)
        envs.cycle = envs
        loop = envs._executor._loop
        del envs
        loop.call_soon(gc.collect)
        assert settled(threads, of=threading.active_count)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_closing_during_pending_steps(kind, tmp_path):
    """The pending step never ends by itself: if closing waited for it, it would not return."""
    processes = children()
    envs = TextVectorEnv(3, env_id=Counting, workers=kind, deadlines={"close": 0.5})
    envs.reset(seed=0)
    gate = Gate(tmp_path / "gate")
    envs.send(["a", gate.action, "a"])
    with gate:
        envs.close()
        assert settled(processes, of=children)
    again = TextVectorEnv(1, env_id=Counting, workers=kind)
    again.reset(seed=0)
    gate = Gate(tmp_path / "another")
    again.step_async([gate.action])
    with gate:
        again.close(terminate=True)


@pytest.mark.parametrize("env_id", [Counting, "rllm/FrozenLake-v0"])
def test_closing_logs_one_line_for_all_threads_that_are_still_in_a_step(env_id, caplog):
    """An environment of a user has a thread of its own; those of this package share the threads of the pool."""
    go_on, entered = threading.Event(), threading.Barrier(4)

    class Waits(gymnasium.Wrapper):
        def step(self, action):
            entered.wait(LONG)
            go_on.wait(LONG)
            return super().step(action)

    envs = TextVectorEnv(3, env_id=env_id, env_wrappers=[Waits])
    try:
        envs.reset(seed=0)
        envs.send(["a"] * 3)
        entered.wait(LONG)
        envs.close(terminate=True)
        lines = [line for line in caplog.messages if "abandoned" in line]
        assert len(lines) == 1
        assert lines[0].startswith("'step' was not waited for")
        assert "3 thread(s) of pool 'vector'" in lines[0]
    finally:
        go_on.set()


@pytest.mark.long
def test_a_failed_construction_leaves_nothing_behind():
    def make(constructed=[]):  # noqa: B006 - counts the constructions
        constructed.append(1)
        if len(constructed) == 3:
            raise OSError("no room for the third")
        return Counting()

    threads = threading.active_count()
    with pytest.raises(OSError, match="no room"):
        TextVectorEnv(4, env_id=make)
    gc.collect()
    assert settled(threads, of=threading.active_count)


SCRIPT = """
import os, sys, time
sys.path.insert(0, {here!r})
from vector_environments import Counting
from rllm_gym.vector import TextVectorEnv
envs = TextVectorEnv(2, env_id=Counting, workers={kind!r}, deadlines={{"step": 60.0}})
envs.set_attr("closed_file", {closed!r})
envs.reset(seed=0)
pids = envs.call("process_id")
{then}
"""


def script(kind, then, closed):
    text = SCRIPT.format(here=str(HERE), kind=kind, then=then, closed=str(closed))
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_program_that_exits_without_closing_leaves_no_workers(kind, tmp_path):
    closed = tmp_path / "closed"
    with script(kind, "envs.step(['a', 'a']); print('done')", closed) as process:
        out, error = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (0, "done\n"), error
    assert error == ""
    assert closed.read_text() == "closed\n" * 2


def test_workers_end_when_their_program_is_killed(tmp_path):
    with script("process", "print(*pids, flush=True); envs.step(['sleep 600'] * 2)", tmp_path / "closed") as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
        process.wait(LONG)
    assert settled(0, of=lambda: sum(map(is_alive, pids)))


def all_threads_sleep(pid):
    """Return whether no thread of the process runs: a thread that waits for the interpreter's lock sleeps, too."""
    try:
        tasks = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # one of them ended meanwhile
        return False
    return {stat.rpartition(")")[2].split()[0] for stat in tasks} == {"S"}


@pytest.mark.parametrize("waiting", [0, 1])
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_ctrl_c_ends_the_wait_and_no_result_is_lost(kind, waiting, tmp_path):
    gate = Gate(tmp_path / "gate")
    actions = ["a", "a"]
    actions[waiting] = gate.action
    then = f"""
envs.step_async({actions!r})
try:
    print("waiting", flush=True)
    envs.step_wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(envs.step_wait()[1].tolist(), flush=True)
"""
    with script(kind, then, tmp_path / "closed") as process:
        assert process.stdout.readline() == "waiting\n"
        with gate:
            assert until(lambda: all_threads_sleep(process.pid))
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
        out, error = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (0, "[1.0, 1.0]\n"), error


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_fork_does_not_close_the_parents_environments(kind):
    envs = TextVectorEnv(2, env_id=Counting, workers=kind)
    try:
        envs.reset(seed=0)
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(LONG))  # its workers are not in this process: waiting for them would never end
            refused = False
            try:
                envs.step(["a", "a"])
            except ClosedEnvironmentError as error:
                refused = f"process {os.getppid()}" in str(error)
            finally:
                envs.close()
                gc.collect()
                os._exit(0 if refused else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert envs.step(["a", "a"])[1].tolist() == [1, 1]
    finally:
        envs.close()


def test_importing_the_package_does_not_import_vector():
    code = "import sys, rllm_gym; print('rllm_gym.vector' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=True)
    assert done.stdout == "False\n"
