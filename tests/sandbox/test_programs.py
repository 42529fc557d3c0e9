"""Programs in a pool: honest ones work, limits hold and are reported correctly, nothing is left, nothing hangs."""

# ruff: noqa: E501 - programs are written on as few lines as they need

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from parsing.checks import assert_all_raise

from rllm_gym.sandbox import Ended, Limits, Program, ProgramResult, SandboxFault, SandboxPool, Tier, shared_pool
from tests.sandbox.honest_programs import HONEST
from tests.sandbox.program_endings import ENDS, SLEEP, SPIN
from tests.sandbox.users import needs
from tests.sandbox.waiting import alive, processes_below
from tests.waiting import until


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[Tier, SandboxPool]]:
    """Return one pool per tier for all tests here: what one program leaves behind would show in the next."""
    found: dict[Tier, SandboxPool] = {}
    try:
        yield found
    finally:
        for pool in found.values():
            pool.close()


def pool_of(pools: dict[Tier, SandboxPool], tier: Tier) -> SandboxPool:
    if tier not in pools:
        needs(tier)
        pools[tier] = SandboxPool(tier)
    return pools[tier]


def run_all(pool: SandboxPool, programs: Mapping[str, Program], at_a_time: int) -> dict[str, ProgramResult | Exception]:
    """Return the result of each program, or the exception that it raised."""

    def run(program: Program) -> ProgramResult | Exception:
        try:
            return pool.run_sync(program)
        except Exception as error:  # the others are checked all the same
            return error

    with ThreadPoolExecutor(at_a_time) as threads:
        return dict(zip(programs, threads.map(run, programs.values())))


def values_of(result: ProgramResult | Exception, *names: str) -> object:
    """Return these attributes of a result, or the exception in its place."""
    return result if isinstance(result, Exception) else tuple(getattr(result, name) for name in names)


# Honest programs


def test_honest_programs_work(pools: dict[Tier, SandboxPool], any_tier: Tier) -> None:
    results = run_all(pool_of(pools, any_tier), {name: program for name, (program, _) in HONEST.items()}, 2)
    wrong = {
        name: (
            values_of(result, "ended", "exit_code", "tier"),
            values_of(result, "stdout"),
            values_of(result, "stderr"),
        )
        for name, result in results.items()
        if values_of(result, "ended", "exit_code", "stdout", "tier")
        != (Ended.EXITED, 0, HONEST[name][1], any_tier.value)
    }
    assert not wrong, {name: [str(words)[-2000:] for words in output] for name, output in wrong.items()}


def test_honest_programs_work_for_an_ordinary_user(ordinary_user: Any) -> None:
    source = """
from rllm_gym.sandbox import SandboxPool, Tier
from tests.sandbox.honest_programs import HONEST
with SandboxPool(Tier.NAMESPACES, max_workers=2) as pool:
    for name, (program, expected) in HONEST.items():
        result = pool.run_sync(program)
        if result.exit_code != 0 or result.stdout != expected:
            print(name, result)
"""
    needs(Tier.NAMESPACES)
    done = ordinary_user(source, timeout=240)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# Endings


def test_endings_are_reported_correctly(any_tier: Tier) -> None:
    programs = {name: Program(source, limits=limits) for name, (source, limits, *_) in ENDS.items()}
    # Few workers and many programs: after each ending the same worker gets another program.
    with SandboxPool(any_tier, max_workers=4) as pool:
        results = run_all(pool, programs, 4)
        after = run_all(pool, {str(number): Program(f"print({number})") for number in range(8)}, 4)
    wrong = {}
    for name, (_, _, ended, code, number) in ENDS.items():
        output = values_of(results[name], "ended", "exit_code", "signal")
        # Where no ending is named, any of these is accepted: whichever limit is met first.
        right = [(Ended.CPU, None, None), (Ended.WALL, None, None)] if ended is None else [(ended, code, number)]
        if output not in right:
            wrong[name] = results[name]
    assert not wrong
    assert {name: values_of(result, "stdout") for name, result in after.items()} == {
        str(number): (b"%d\n" % number,) for number in range(8)
    }


def test_a_program_that_ended_over_its_limit_is_reported(pools: dict[Tier, SandboxPool], any_tier: Tier) -> None:
    source = "import time\nwhile time.process_time() < 0.3: pass\nprint('done')"
    assert pool_of(pools, any_tier).run_sync(Program(source, limits=Limits(cpu_s=0.1))).ended is Ended.CPU


def test_shared_pages_are_counted_once(pools: dict[Tier, SandboxPool], confined_tier: Tier) -> None:
    source = (
        "import os, time\nx = bytearray(b'x') * (60 << 20)\nfor _ in range(3): os.fork()\ntime.sleep(0.5)\nprint(1)"
    )
    result = pool_of(pools, confined_tier).run_sync(Program(source, limits=Limits(memory_mb=128)))
    assert result.ended is Ended.EXITED, result


def test_scratch_files_count_as_memory(pools: dict[Tier, SandboxPool]) -> None:
    source = "import time\nx = bytearray(b'x') * (30 << 20)\nopen('f', 'wb').write(x)\nopen('g', 'wb').write(x)\ntime.sleep(1000)"
    limits = Limits(memory_mb=80, scratch_mb=64, wall_s=100)
    result = pool_of(pools, Tier.NAMESPACES).run_sync(Program(source, limits=limits))
    assert result.ended is Ended.MEMORY, result


FULL = {
    "working directory": "for i in range(100): open(f'f{i}', 'wb').write(bytes(1 << 20))",
    "/tmp": "for i in range(100): open(f'/tmp/f{i}', 'wb').write(bytes(1 << 20))",
    "/dev/shm": "for i in range(100): open(f'/dev/shm/f{i}', 'wb').write(bytes(1 << 20))",
    "files without a name": "import os\nfor i in range(100):\n    f = open('f', 'wb')\n    os.unlink('f')\n    f.write(bytes(1 << 20))\n    globals()[f'x{i}'] = f",
}


def test_all_scratch_space_has_one_limit(pools: dict[Tier, SandboxPool]) -> None:
    programs = {
        name: Program(
            "try:\n    " + source.replace("\n", "\n    ") + "\nexcept OSError as e:\n    print(e.errno)",
            limits=Limits(scratch_mb=16),
        )
        for name, source in FULL.items()
    }
    results = run_all(pool_of(pools, Tier.NAMESPACES), programs, 1)
    wrong = {name: result for name, result in results.items() if values_of(result, "stdout") != (b"28\n",)}  # ENOSPC
    assert not wrong


def test_the_number_of_files_is_limited(pools: dict[Tier, SandboxPool]) -> None:
    source = (
        "import os\ntry:\n    for i in range(10_000): os.mkdir(str(i))\nexcept OSError as e:\n    print(e.errno, i)"
    )
    result = pool_of(pools, Tier.NAMESPACES).run_sync(Program(source, limits=Limits(scratch_files=500)))
    assert result.stdout == b"28 500\n", result


def test_processes_and_threads_are_limited(pools: dict[Tier, SandboxPool]) -> None:
    begins = {
        "processes": "if os.fork() == 0: time.sleep(1000)",
        "threads": "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    }
    source = "import os, threading, time\nn = 1\ntry:\n    for n in range(2, 100):\n        {}\nexcept (OSError, RuntimeError):\n    print(n - 1, flush=True)\nos._exit(0)"
    programs = {kind: Program(source.format(begin), limits=Limits(processes=12)) for kind, begin in begins.items()}
    results = run_all(pool_of(pools, Tier.NAMESPACES), programs, 1)
    wrong = {kind: result for kind, result in results.items() if values_of(result, "stdout") != (b"12\n",)}
    assert not wrong


def test_output_is_truncated_and_counted(pools: dict[Tier, SandboxPool], any_tier: Tier) -> None:
    source = "import sys\nsys.stdout.write('o' * 5000)\nsys.stderr.write('e' * 3000)"
    result = pool_of(pools, any_tier).run_sync(Program(source, limits=Limits(output_bytes=1000)))
    assert (result.exit_code, result.stdout, result.stdout_bytes) == (0, b"o" * 1000, 5000)
    assert (result.stderr, result.stderr_bytes) == (b"e" * 1000, 3000)


def test_cpu_time_of_children_is_counted(pools: dict[Tier, SandboxPool], any_tier: Tier) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.2: pass\n    os._exit(0)\nos.wait()\n"
        "print(sum(os.times()[:4]))"
    )
    result = pool_of(pools, any_tier).run_sync(Program(source))
    assert result.ended is Ended.EXITED, result
    # Counted once, not twice; the reference is what the kernel reports to the program itself.
    assert 0.2 <= result.cpu_s < 1.5 * float(result.stdout) + 0.1


# What a program sees


def test_a_program_sees_nothing_of_the_trainer(pools: dict[Tier, SandboxPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a secret")
    source = """
import json, os, sys
secret = "a sec" + "ret"
env = dict(os.environ)
processes = [name for name in os.listdir("/proc") if name.isdigit()]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
environs = open("/proc/self/environ").read()
modules = sorted(name for name in sys.modules if "rllm" in name)
found = []
for root, directories, files in os.walk("/"):
    if root in ("/proc", "/usr"):
        directories.clear()
    if os.access(root, os.W_OK):
        found.append(root)
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
print(json.dumps([env, processes, fds, environs, modules, found, interfaces, os.getuid(), os.getgroups()]))
"""
    with SandboxPool(Tier.NAMESPACES) as pool:
        result = pool.run_sync(Program(source))
    environment, processes, fds, environ, modules, writable, interfaces, uid, groups = json.loads(result.stdout)
    assert set(environment) <= {
        "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "LANG", "PYTHONHASHSEED", "PYTHONNOUSERSITE", "MALLOC_ARENA_MAX",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    }  # fmt: skip
    assert "a secret" not in environ
    assert processes == ["2"]
    assert fds == [0, 1, 2, 3]  # 3 is the listing itself
    assert modules == []
    assert sorted(writable) == ["/scratch", "/scratch/shm", "/scratch/tmp", "/scratch/work"]
    assert interfaces == ["lo"]
    assert uid == 1000
    assert set(groups) <= {1000, 65534}


def test_unlisted_packages_cannot_be_imported(pools: dict[Tier, SandboxPool]) -> None:
    packages = ("rllm_gym", "trainers", "gymnasium", "torch", "psutil")
    source = "import {0}"
    executed = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', 'import {0}']))"
    programs = {
        f"{package}, {how}": Program(text.format(package))
        for package in packages
        for how, text in (("imported", source), ("by a Python that it executes", executed))
    }
    results = run_all(pool_of(pools, Tier.NAMESPACES), programs, 1)
    wrong = {
        name: result
        for name, result in results.items()
        if isinstance(result, Exception) or result.exit_code != 1 or b"ModuleNotFoundError" not in result.stderr
    }
    assert not wrong


# Nothing is left


_TRAINER = """
import os, sys, threading
from rllm_gym.sandbox import SandboxPool, Program, Limits, Tier
pool = SandboxPool(Tier(sys.argv[1]), max_workers=3)
family = "import os\\nfor _ in range(3):\\n    if os.fork() == 0: os.setsid()\\nimport signal\\nwhile True: signal.pause()"
threads = [threading.Thread(target=pool.run_sync, args=(Program(family, limits=Limits(wall_s=1000)),), daemon=True) for _ in range(3)]
for thread in threads: thread.start()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("started", flush=True)
sys.stdin.read()
"""


def test_a_killed_trainer_leaves_no_process_although_its_fork_holds_the_sockets(confined_tier: Tier) -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, confined_tier.value], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"started\n"
        of_programs = 3 * 8
        assert until(lambda: len(processes_below(trainer.pid)) >= of_programs + 3)
        copies = [
            process
            for process in psutil.Process(trainer.pid).children()
            if process.cmdline()[-2:] == [_TRAINER, confined_tier.value]
        ]
        sandboxed = [process for process in processes_below(trainer.pid) if process not in copies]
        assert len(copies) == 1
        trainer.kill()
        assert until(lambda: not alive(sandboxed)), alive(sandboxed)
    finally:
        trainer.kill()
        trainer.communicate()  # its copy ends with its input


def test_an_unreferenced_pool_ends_its_workers() -> None:
    needs(Tier.NAMESPACES)
    before = set(processes_below(os.getpid()))
    pool = SandboxPool(Tier.NAMESPACES)
    pool.run_sync(Program("print(1)"))
    assert set(processes_below(os.getpid())) - before
    del pool
    gc.collect()
    assert until(lambda: not set(processes_below(os.getpid())) - before)


def test_the_shared_pool_ends_when_the_interpreter_exits(each_user: Any) -> None:
    done = each_user("from rllm_gym.sandbox import *\nprint(shared_pool().run_sync(Program('print(1)')).stdout)")
    assert done.stdout == "b'1\\n'\n", done.stderr


# The pool


def test_waiting_for_a_processor_does_not_count_as_wall_time(pools: dict[Tier, SandboxPool]) -> None:
    pool = pool_of(pools, Tier.NAMESPACES)
    # Alone it takes half its wall limit; all on one processor take twice that.
    one = min(os.sched_getaffinity(0))
    source = (
        f"import os, time\nos.sched_setaffinity(0, {{{one}}})\nwhile time.process_time() < 0.5: pass\nprint('done')"
    )
    with pool.start(*[Program("pass")] * 4):
        pass  # now there are four workers, and the four begin together
    with pool.start(*[Program(source, limits=Limits(cpu_s=2, wall_s=1.0))] * 4) as running:
        results = [program.result_sync() for program in running]
    assert [result.ended for result in results] == [Ended.EXITED] * 4, results


def test_more_programs_than_workers_are_queued() -> None:
    needs(Tier.NAMESPACES)
    before = set(processes_below(os.getpid()))
    with SandboxPool(Tier.NAMESPACES, max_workers=2) as pool, ThreadPoolExecutor(20) as threads:
        outputs = list(threads.map(lambda n: pool.run_sync(Program(f"print({n})")).stdout, range(40)))
        assert outputs == [b"%d\n" % n for n in range(40)]
        # bwrap and worker, twice, once the processes of the last programs have ended.
        assert until(lambda: len(set(processes_below(os.getpid())) - before) == 2 * 2)


def test_time_in_the_queue_does_not_count() -> None:
    needs(Tier.NAMESPACES)
    with SandboxPool(Tier.NAMESPACES, max_workers=1) as pool:
        pool.run_sync(Program("pass"))
        started = time.monotonic()
        with pool.start(Program("import time\ntime.sleep(0.8)")) as (first,):
            second = pool.run_sync(Program(SLEEP, limits=Limits(wall_s=0.6)))
            complete = time.monotonic() - started
            assert first.result_sync().ended is Ended.EXITED
    # It had its full time after the other program, although it had waited for longer than that.
    assert second.ended is Ended.WALL
    assert second.wall_s >= 0.6
    assert complete >= 0.8 + 0.6


def test_other_preloaded_packages_use_other_workers() -> None:
    needs(Tier.NAMESPACES)
    source = "import sys\nprint('numpy' in sys.modules, 'sqlite3' in sys.modules)"
    with SandboxPool(Tier.NAMESPACES, max_workers=1) as pool:
        output = [pool.run_sync(Program(source, preload=names)).stdout for names in ((), ("numpy",), ("sqlite3",), ())]
    assert output == [b"False False\n", b"True False\n", b"False True\n", b"False False\n"]


def test_preloaded_numpy_has_a_fresh_random_state(pools: dict[Tier, SandboxPool]) -> None:
    program = Program("import numpy as np\nprint(np.random.rand())", preload=("numpy", "numpy.random"))
    pool = pool_of(pools, Tier.NAMESPACES)
    assert pool.run_sync(program).stdout != pool.run_sync(program).stdout


def test_a_package_that_cannot_be_preloaded_is_an_error_with_its_name(
    pools: dict[Tier, SandboxPool], any_tier: Tier
) -> None:
    pool = pool_of(pools, any_tier)
    with pytest.raises(ValueError, match="no_such_package"):
        pool.run_sync(Program("print(1)", preload=("no_such_package",)))
    assert pool.run_sync(Program("print(1)")).stdout == b"1\n"


def test_cancelling_a_run_stops_the_program() -> None:
    needs(Tier.NAMESPACES)

    async def main(pool: SandboxPool) -> bytes:
        await pool.run(Program("pass"))
        before = set(processes_below(os.getpid()))
        spin = Program(SPIN, limits=Limits(cpu_s=1e6, wall_s=1e6))
        running = asyncio.create_task(pool.run(spin))
        waiting = asyncio.create_task(pool.run(spin))
        assert await asyncio.to_thread(until, lambda: set(processes_below(os.getpid())) - before)
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return (await asyncio.wait_for(pool.run(Program("print(1)")), 120)).stdout

    with SandboxPool(Tier.NAMESPACES, max_workers=1) as pool:
        assert asyncio.run(main(pool)) == b"1\n"


def test_closing_a_pool_ends_running_programs_and_refuses_queued_ones() -> None:
    needs(Tier.NAMESPACES)
    before = set(processes_below(os.getpid()))
    pool = SandboxPool(Tier.NAMESPACES, max_workers=1)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(pool.run_sync, Program(SPIN)) for _ in range(2)]
        assert until(lambda: len(set(processes_below(os.getpid())) - before) >= 4)
        pool.close()
        for call in calls:
            with pytest.raises(SandboxFault, match="closed"):
                call.result(120)
    assert until(lambda: not set(processes_below(os.getpid())) - before)
    with pytest.raises(RuntimeError, match="closed"):
        pool.run_sync(Program("print(1)"))
    pool.close()


def test_a_worker_that_dies_breaks_one_call_and_is_replaced(confined_tier: Tier) -> None:
    others = set(processes_below(os.getpid()))  # of other pools and servers of this process
    with SandboxPool(confined_tier, max_workers=1) as pool, ThreadPoolExecutor(1) as threads:
        pool.run_sync(Program("print(1)"))
        idle = 2 if confined_tier is Tier.NAMESPACES else 1  # bwrap and its worker; the worker
        assert until(lambda: len(set(processes_below(os.getpid())) - others) == idle)
        ours = set(processes_below(os.getpid())) - others
        call = threads.submit(pool.run_sync, Program(SLEEP))
        assert until(lambda: set(processes_below(os.getpid())) - others - ours)
        for worker in ours:
            if worker.ppid() != os.getpid() or confined_tier is Tier.LANDLOCK:
                worker.kill()
        with pytest.raises(SandboxFault, match="worker"):
            call.result(120)
        assert pool.run_sync(Program("print(2)")).stdout == b"2\n"


GARBAGE = [
    b"",
    b"\0\0\0\2\0\0\0\0{}",
    b"\0\0\0\2\0\0\0\0[]",
    b"\xff" * 64,
    b"\0\0\0\1\xff\xff\xff\xff{",
    b'\0\0\0\x0e\0\0\0\0{"op":"ended"}',
    b'\0\0\0\x0c\0\0\0\0{"op":"what"}',
    b"\0\0\0\4\0\0\0\0\xff\xfe\xfd\xfc",
]


def test_a_worker_that_sends_invalid_messages_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    believed = []
    for output in GARBAGE:
        monkeypatch.setattr(
            "rllm_gym.sandbox.worker._BOOT",
            f"import os, sys, time\nos.write(int(sys.argv[1]), {output!r})\ntime.sleep({bool(output)} * 1000)",
        )
        with SandboxPool(Tier.UNSAFE) as pool:
            try:
                believed.append((output, pool.run_sync(Program("print(1)"))))
            except SandboxFault as error:
                if "worker" not in str(error):
                    believed.append((output, error))
            with pool.start(Program("print(1)")) as (running,):
                if running.receive_sync() is not None or not isinstance(running.outcome.exception(), SandboxFault):
                    believed.append((output, "with a channel"))
    assert not believed


def test_a_pool_works_from_any_thread_and_event_loop(pools: dict[Tier, SandboxPool]) -> None:
    pool = pool_of(pools, Tier.NAMESPACES)

    async def several(n: int) -> list[bytes]:
        return [r.stdout for r in await asyncio.gather(*(pool.run(Program(f"print({n})")) for _ in range(3)))]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda n: asyncio.run(several(n)), range(4)))
    assert answers == [[b"%d\n" % n] * 3 for n in range(4)]


def test_a_fork_of_the_trainer_must_make_its_own_sandbox(pools: dict[Tier, SandboxPool]) -> None:
    pool = pool_of(pools, Tier.NAMESPACES)
    pool.run_sync(Program("print(1)"))
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            pool.run_sync(Program("print(1)"))
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        else:
            os.write(writing, b"it ran")
        finally:
            pool.close()  # has no effect
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        assert "create its own" in pipe.read()
    os.waitpid(pid, 0)
    assert pool.run_sync(Program("print(2)")).stdout == b"2\n"


def test_ctrl_c_ends_an_awaited_program() -> None:
    needs(Tier.NAMESPACES)
    source = f"""
import os, psutil, signal, threading
from rllm_gym.sandbox import *
pool = SandboxPool(Tier.NAMESPACES, max_workers=1)
pool.run_sync(Program("pass"))
def below():
    return len(psutil.Process().children(recursive=True))
while below() > 2:  # bwrap, its worker, and the program that has ended
    pass
def interrupt():
    while below() <= 2:
        pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    pool.run_sync(Program({SPIN!r}, limits=Limits(cpu_s=1e6, wall_s=1e6)))
except KeyboardInterrupt:
    print(pool.run_sync(Program("print(1)")).stdout)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "b'1\\n'\n", done.stderr


def test_there_is_one_shared_pool(pools: dict[Tier, SandboxPool]) -> None:
    needs(Tier.NAMESPACES)
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: id(shared_pool("namespaces")), range(8)))
    assert len(found) == 1


REFUSED = [
    (Program("", files={"../x": b""}), "relative"),
    (Program("", files={"/x": b""}), "relative"),
    (Program("", files={"": b""}), "relative"),
    (Program("", files={"x": bytes(1 << 20), "y": b"1"}, limits=Limits(scratch_mb=1)), "scratch_mb=1"),
    (Program("", files={"a": b"", "a/b": b""}), "below it"),
    (Program("", files={"a" * 300: b""}), "relative"),
    (Program("", files={f"{n}/x": b"" for n in range(6)}, limits=Limits(scratch_files=10)), "scratch_files=10"),
    (Program("", limits=Limits(cpu_s=0)), "cpu_s=0"),
    (Program("", limits=Limits(wall_s=float("nan"))), "wall_s=nan"),
    (Program("", limits=Limits(processes=-1)), "processes=-1"),
]


def test_invalid_programs_are_refused(pools: dict[Tier, SandboxPool]) -> None:
    assert_all_raise(ValueError, pool_of(pools, Tier.NAMESPACES).run_sync, REFUSED, plain=True)


def test_invalid_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="max_workers=0"):
        SandboxPool("auto", max_workers=0)
    with pytest.raises(ValueError, match="'firejail'"):
        SandboxPool("firejail")


LONG_ELSEWHERE = [
    Tier.NAMESPACES,
    *(pytest.param(tier, marks=pytest.mark.long) for tier in (Tier.LANDLOCK, Tier.UNSAFE)),
]


@pytest.mark.parametrize("tier", LONG_ELSEWHERE, ids=["A", "B", "C"])
def test_libraries_are_cached_by_content_and_not_by_name(pools: dict[Tier, SandboxPool], tier: Tier) -> None:
    """The worker that keeps them is the same in every tier."""
    pool = pool_of(pools, tier)
    for n in range(80):  # more than a worker keeps
        assert pool.run_sync(
            Program("import lib\nprint(lib.x)", library={"lib": f"x = {n % 70}"})
        ).stdout == b"%d\n" % (n % 70)


def test_a_library_with_a_syntax_error_fails_at_import(pools: dict[Tier, SandboxPool]) -> None:
    pool = pool_of(pools, Tier.NAMESPACES)
    for text in ("def f(:", "\0", "(" * 100_000):
        result = pool.run_sync(Program("print(1, flush=True)\nimport lib", library={"lib": text}))
        assert (result.stdout, result.exit_code) == (b"1\n", 1), result
    assert pool.run_sync(Program("print(2)")).stdout == b"2\n"


# Memory of unused threads


def test_pools_leave_no_threads_or_descriptors() -> None:
    needs(Tier.NAMESPACES)

    def held() -> tuple[set[threading.Thread], int]:
        return set(threading.enumerate()), len(os.listdir("/proc/self/fd"))

    def left() -> bool:
        threads, descriptors = held()
        return not threads <= before[0] or descriptors > before[1]  # fewer when those of earlier tests end meanwhile

    with SandboxPool(Tier.NAMESPACES) as pool:
        pool.run_sync(Program("print(1)"))
    gc.collect()
    before = held()
    for _ in range(3):
        with SandboxPool(Tier.NAMESPACES) as pool, pool.start(Program(SLEEP), Program("print(1)")) as (_, b):
            b.result_sync()
    assert not left(), (before, held())


def test_folders_of_the_lower_tiers_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "import os\nfor _ in range(300):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        for tier in (Tier.LANDLOCK, Tier.UNSAFE):
            needs(tier)
            with SandboxPool(tier, max_workers=1) as pool:
                assert pool.run_sync(Program(deep)).exit_code == 0
                assert os.listdir(folder)
            assert os.listdir(folder) == []
