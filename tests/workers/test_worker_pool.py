"""The worker pool: deadlines, memory caps, exceptions of workers, and concurrent callers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import psutil
import pytest
from worker_waiting import LONG, gone

from rllm_gym.core import EnvironmentFault, InvalidAction
from rllm_gym.runtime import (
    DeadlineExceeded,
    MemoryExceeded,
    WorkerDied,
    WorkerError,
    WorkerPool,
    WorkerStartFailed,
    process_worker,
)
from tests.waiting import until


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=3, name="tested") as pool:
        yield pool


def hang_in_python():
    while True:
        pass


def hang_in_c():
    # One opcode that never checks for signals: only SIGKILL ends it.
    return 7 ** (10**9)


def deaf():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hang_in_python()


def eat_memory():
    hoard = []
    while True:
        hoard.append(bytearray(10_000_000))


class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self, amount=1):
        self.value += amount
        return self.value

    def pid(self):
        return os.getpid()

    def fail(self):
        raise EnvironmentFault("the environment failed", kind="test_kind")

    def hang(self):
        hang_in_python()

    def close(self):
        self.value = -1


def test_results_come_back_and_the_idle_worker_is_reused(pool):
    assert pool.run(pow, 2, 10, timeout=LONG) == 1024
    assert pool.run(os.getpid, timeout=LONG) == pool.run(os.getpid, timeout=LONG) != os.getpid()


@pytest.mark.parametrize("hang", [hang_in_python, hang_in_c, deaf])
def test_work_past_its_deadline_is_killed(pool, hang):
    pid = pool.run(os.getpid, timeout=LONG)
    # Hanging work never ends: if it were not killed, this would not return.
    with pytest.raises(DeadlineExceeded, match=rf"'{hang.__name__}' did not finish within 0.3 s"):
        pool.run(hang, timeout=0.3)
    assert gone([pid])
    assert pool.run(abs, -1, timeout=LONG) == 1  # a new worker replaced it


def test_deadline_exceeded_is_a_timeout_error(pool):
    with pytest.raises(TimeoutError):
        pool.run(time.sleep, 60, timeout=0.1)


class Family:
    def begin(self):
        same_group = subprocess.Popen(["sleep", "300"])
        own_session = subprocess.Popen(["sleep", "300"], start_new_session=True)
        return [same_group.pid, own_session.pid]

    def hang(self):
        hang_in_python()


def test_killing_a_worker_kills_its_child_processes(pool):
    actor = pool.actor(Family, timeout=LONG)
    pids = actor.call("begin", timeout=LONG)
    assert len(pids) == 2
    with pytest.raises(DeadlineExceeded):
        actor.call("hang", timeout=0.3)
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_during_a_call_is_reported_with_its_signal(pool, number):
    with pytest.raises(WorkerDied, match=f"killed by {number.name}"):
        pool.run(lambda: os.kill(os.getpid(), number), timeout=LONG)
    assert pool.run(abs, -1, timeout=LONG) == 1


def test_a_worker_that_exits_is_reported_with_its_status(pool):
    with pytest.raises(WorkerDied, match="exit status 3"):
        pool.run(os._exit, 3, timeout=LONG)


def test_an_idle_worker_killed_from_outside_is_replaced_silently(pool):
    pid = pool.run(os.getpid, timeout=LONG)
    os.kill(pid, signal.SIGKILL)
    assert gone([pid])
    assert pool.run(abs, -1, timeout=LONG) == 1


def test_memory_is_capped_above_the_baseline_and_the_cap_is_named():
    with WorkerPool(max_workers=1, memory_mb=150) as pool:
        assert len(pool.run(bytes, 50_000_000, timeout=LONG)) == 50_000_000
        with pytest.raises(MemoryExceeded, match="150 MB"):
            pool.run(eat_memory, timeout=LONG)
        assert pool.run(abs, -1, timeout=LONG) == 1


def test_a_result_larger_than_the_cap_is_a_clear_error():
    with WorkerPool(max_workers=1, memory_mb=100) as pool, pytest.raises(MemoryExceeded):
        pool.run(lambda: b"x" * 90_000_000, timeout=LONG)


def test_exceptions_are_raised_with_their_type_and_the_remote_traceback(pool):
    for error in (
        EnvironmentFault("it broke", kind="stall"),
        InvalidAction("no"),
        gymnasium.error.ResetNeeded("reset"),
    ):

        def throw(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)) as caught:
            pool.run(throw, timeout=LONG)
        assert "in throw" in "".join(caught.value.__notes__)
        if isinstance(error, EnvironmentFault):
            assert caught.value.kind == "stall"


class CannotTravel(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raise_untravelled():
    raise CannotTravel("this", "that")


def test_unpicklable_values_are_reported_and_the_worker_survives(pool):
    pid = pool.run(os.getpid, timeout=LONG)
    for work, message in (
        (raise_untravelled, "CannotTravel.*this and that"),
        (lambda: (_ for _ in ()), "generator.*cannot be pickled"),
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: next(iter(())), "StopIteration"),
    ):
        with pytest.raises(WorkerError, match=message):
            pool.run(work, timeout=LONG)
        assert pool.run(os.getpid, timeout=LONG) == pid, message


def test_arguments_that_cannot_be_pickled_are_errors_before_any_work(pool):
    with pytest.raises(TypeError, match="'abs' cannot be sent to a worker process"):
        pool.run(abs, threading.Lock(), timeout=LONG)


def test_printed_output_goes_to_stderr_and_does_not_affect_the_result(pool, capfd):
    with WorkerPool(max_workers=1) as fresh:
        assert fresh.run(lambda: print("noise", flush=True) or os.write(1, b"more noise\n"), timeout=LONG) == 11
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "noise" in captured.err
    assert "more noise" in captured.err


def test_no_file_of_the_owner_is_inherited(tmp_path):
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)

    def open_files():
        return [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]

    with WorkerPool(max_workers=1) as pool:
        assert not [path for path in pool.run(open_files, timeout=LONG) if "secret" in path]
    secret.close()


def test_workers_ignore_ctrl_c(pool):
    def survive():
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"

    assert pool.run(survive, timeout=LONG) == "still here"


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_sixty_four_concurrent_callers_from_threads_and_loops(kind):
    with WorkerPool(kind, max_workers=4) as pool:

        async def from_a_loop(start):
            return await asyncio.gather(*[pool.arun(pow, start + i, 2, timeout=LONG) for i in range(16)])

        def from_a_thread(i):
            if i % 16 == 0:
                return asyncio.run(from_a_loop(i * 1000))
            return pool.run(pow, i, 2, timeout=LONG)

        with ThreadPoolExecutor(64) as threads:
            answers = list(threads.map(from_a_thread, range(64)))
    for i, answer in enumerate(answers):
        assert answer == ([(i * 1000 + k) ** 2 for k in range(16)] if i % 16 == 0 else i**2)


def test_waiting_in_the_queue_does_not_count_towards_the_deadline(monkeypatch):
    """An hour passes on the clock of this process while two calls wait for the worker."""
    passed = 0.0
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed)
    with WorkerPool(max_workers=1) as pool, ThreadPoolExecutor(2) as threads:
        actor = pool.actor(Counter, timeout=LONG)
        calls = [threads.submit(pool.run, abs, -1, timeout=LONG) for _ in range(2)]
        assert until(lambda: len(pool._queue) == 2)
        passed = 3600.0
        actor.close()
        assert [call.result() for call in calls] == [1, 1]


@pytest.mark.long
def test_waiting_in_the_queue_for_longer_than_the_deadline():
    with WorkerPool(max_workers=1) as pool, ThreadPoolExecutor(3) as threads:
        pool.run(abs, -1, timeout=LONG)
        calls = [threads.submit(pool.run, time.sleep, 20.0, timeout=55) for _ in range(3)]
        assert [call.result() for call in calls] == [None] * 3  # 60 s of queued work, each within its 55 s


def test_a_full_queue_times_out_with_an_error_that_names_the_fix():
    with WorkerPool("thread", max_workers=1) as pool:
        actor = pool.actor(Counter, timeout=LONG)
        with pytest.raises(DeadlineExceeded, match="held by actors"):
            pool.run(abs, -1, timeout=LONG, queue_timeout=0.1)

        async def wait():
            await pool.arun(abs, -1, timeout=LONG, queue_timeout=0.1)

        with pytest.raises(DeadlineExceeded, match="max_workers"):
            asyncio.run(wait())
        actor.close()
        assert pool.run(abs, -1, timeout=LONG) == 1


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_an_actor_keeps_its_state_and_its_own_worker(kind):
    with WorkerPool(kind, max_workers=2) as pool:
        one, two = pool.actor(Counter, timeout=LONG), pool.actor(Counter, 100, timeout=LONG)
        assert [one.call("add", timeout=LONG), one.call("add", amount=4, timeout=LONG)] == [1, 5]
        assert two.call("add", timeout=LONG) == 101
        assert one.call("value", timeout=LONG) == 5
        with pytest.raises(EnvironmentFault) as caught:
            one.call("fail", timeout=LONG)
        assert caught.value.kind == "test_kind"
        assert one.call("add", timeout=LONG) == 6  # an exception does not end it
        one.close()
        two.close()
        assert not one.alive
        with pytest.raises(WorkerDied, match="create a new actor"):
            one.call("add", timeout=LONG)
        assert pool.run(abs, -1, timeout=LONG) == 1


def test_an_actor_past_its_deadline_is_killed(pool):
    actor = pool.actor(Counter, timeout=LONG)
    pid = actor.call("pid", timeout=LONG)
    assert pid == actor.pid
    with pytest.raises(DeadlineExceeded):
        actor.call("hang", timeout=0.2)
    assert not actor.alive
    assert gone([pid])
    actor.close()


def test_a_hanging_close_is_killed():
    class Sticky:
        def close(self):
            hang_in_python()

    with WorkerPool(max_workers=1) as pool:
        actor = pool.actor(Sticky, timeout=LONG)
        with pytest.raises(DeadlineExceeded):
            actor.close(timeout=0.2)
        assert pool.run(abs, -1, timeout=LONG) == 1  # its slot is free again


def test_a_failed_factory_frees_its_slot():
    with WorkerPool(max_workers=1) as pool:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                pool.actor(lambda: 1 / 0, timeout=LONG)


def test_a_garbage_collected_actor_releases_its_worker():
    with WorkerPool(max_workers=1) as pool:
        pool.actor(Counter, timeout=LONG)
        assert pool.run(abs, -1, timeout=LONG, queue_timeout=LONG) == 1


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_an_actor_can_be_garbage_collected_while_its_pool_is_locked(kind):
    """Any allocation may collect it, also one in the pool's own code."""
    with WorkerPool(kind, max_workers=1) as pool, ThreadPoolExecutor(1) as thread:
        actors = [pool.actor(Counter, timeout=LONG)]
        call = thread.submit(pool.run, abs, -1, timeout=LONG)
        assert until(lambda: len(pool._queue) == 1)

        def collect():
            with pool._lock:
                actors.clear()

        collecting = threading.Thread(target=collect, daemon=True)
        collecting.start()
        assert until(lambda: not collecting.is_alive())
        assert call.result(LONG) == 1


def test_only_workers_that_died_or_did_not_answer_count_as_killed(pool):
    before = pool.killed
    with pytest.raises(ZeroDivisionError):
        pool.actor(lambda: 1 / 0, timeout=LONG)
    closed, killed = pool.actor(Counter, timeout=LONG), pool.actor(Counter, timeout=LONG)
    closed.close()
    killed.kill()
    assert pool.killed == before
    with pytest.raises(DeadlineExceeded):
        pool.run(hang_in_python, timeout=0.2)
    late = pool.actor(Counter, timeout=LONG)
    with pytest.raises(DeadlineExceeded):
        late.call("hang", timeout=0.2)
    late.close()
    assert pool.killed == before + 2


class ReportsHang:
    """Hangs, and reports that by opening a FIFO for writing."""

    def hang(self, fifo):
        with open(fifo, "w"):
            hang_in_python()


def test_cancelling_an_awaited_call_kills_the_worker(pool, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def cancelled():
        actor = await pool.aactor(ReportsHang, timeout=LONG)
        call = asyncio.create_task(actor.acall("hang", fifo, timeout=240))
        with await asyncio.to_thread(open, fifo):  # opens when the work has opened it: the call is running
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        return actor

    actor = asyncio.run(cancelled())
    assert not actor.alive
    assert gone([actor.pid])


def test_a_thread_that_hangs_is_abandoned_counted_and_reported(caplog):
    release = threading.Event()
    with WorkerPool("thread", max_workers=1, name="threads") as pool:
        with pytest.raises(DeadlineExceeded, match="abandoned"):
            pool.run(release.wait, timeout=0.1)
        assert pool.abandoned == 1
        assert "pool 'threads'" in caplog.text
        assert pool.run(abs, -1, timeout=LONG) == 1  # and replaced
        actor = pool.actor(lambda: release, timeout=LONG)
        with pytest.raises(DeadlineExceeded):
            asyncio.run(actor.acall("wait", timeout=0.1))
        assert pool.abandoned == 2
    release.set()


def test_a_call_that_blocks_delays_no_other_call_of_the_loop():
    """All calls of one iteration of an event loop are handed to one thread."""
    opened = threading.Event()

    async def both(pool):
        one, two = await pool.aactor(lambda: opened, timeout=LONG), await pool.aactor(lambda: opened, timeout=LONG)
        return await asyncio.gather(one.acall("wait", timeout=240), two.acall("set", timeout=240))

    with WorkerPool("thread", max_workers=2) as pool:
        assert asyncio.run(both(pool)) == [True, None]


def test_a_call_cancelled_before_it_began_is_not_carried_out_and_abandons_no_thread():
    counter = Counter()

    async def cancelled(pool):
        actor = await pool.aactor(lambda: counter, timeout=LONG)
        call = actor.acall("add", timeout=LONG)
        call.send(None)  # it has asked; the threads get it in the next iteration of the loop, as late as that may be
        with pytest.raises(asyncio.CancelledError):
            call.throw(asyncio.CancelledError())
        assert not actor.alive
        assert await pool.arun(abs, -1, timeout=LONG) == 1  # its worker was replaced

    with WorkerPool("thread", max_workers=1) as pool:
        asyncio.run(cancelled(pool))
        assert pool.abandoned == 0
        assert until(lambda: counter.value == -1)  # closed, and nothing was added


def test_a_thread_pool_that_is_garbage_collected_closes_its_actors():
    counter = Counter()
    pool = WorkerPool("thread", max_workers=1, name="collected")
    actor = pool.actor(lambda: counter, timeout=LONG)
    del pool, actor
    gc.collect()
    assert until(lambda: counter.value == -1)
    assert until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("collected")])


def test_closing_the_pool_wakes_all_waiting_calls_and_leaves_no_process(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pool = WorkerPool(max_workers=1)
    pid = pool.run(os.getpid, timeout=LONG)
    with ThreadPoolExecutor(3) as threads:
        busy = threads.submit(pool.run, ReportsHang().hang, fifo, timeout=240)
        with fifo.open():  # opens when the work has opened it
            waiting = [threads.submit(pool.run, abs, -1, timeout=LONG) for _ in range(2)]
            assert until(lambda: len(pool._queue) == 2)
            pool.close()
        for call in (busy, *waiting):
            with pytest.raises(RuntimeError, match="closed"):
                call.result(LONG)
    assert gone([pid])
    with pytest.raises(RuntimeError, match="'worker' is closed"):
        pool.run(abs, -1, timeout=LONG)
    pool.close()


def test_a_dead_template_is_replaced(pool):
    pid = pool.run(os.getpid, timeout=LONG)
    template = psutil.Process(pid).parent()
    template.kill()
    template.wait(LONG)
    assert gone([pid])  # workers end with it
    assert pool.run(abs, -1, timeout=LONG) == 1


def suspended(template):
    """Stop the template, and wait until it is stopped."""
    template.suspend()
    assert until(lambda: template.status() == psutil.STATUS_STOPPED)


def test_a_slow_template_does_not_block_other_workers(monkeypatch):
    """On a busy machine, ending one worker does not wait for the template's report on another one's death."""
    monkeypatch.setattr(process_worker, "_ANSWER_TIMEOUT", 600.0)
    with WorkerPool(max_workers=3) as pool, ThreadPoolExecutor(1) as thread:
        doomed, ended, other_worker = (pool.actor(list, timeout=LONG) for _ in range(3))
        template = psutil.Process(other_worker.pid).parent()
        suspended(template)
        try:
            os.kill(doomed.pid, signal.SIGKILL)
            call = thread.submit(doomed.call, "__len__", timeout=LONG)
            assert until(lambda: pool._fork_server._reading.locked())
            ended.kill()  # if it waited for the template, it would not return
            assert not call.done()
        finally:
            template.resume()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            call.result(LONG)
        assert other_worker.call("__len__", timeout=LONG) == 0
        assert gone([ended.pid])


def test_ending_workers_does_not_wait_for_a_template_that_reads_nothing():
    with WorkerPool(max_workers=2) as pool:
        actor, other_worker = pool.actor(list, timeout=LONG), pool.actor(list, timeout=LONG)
        template = psutil.Process(other_worker.pid).parent()
        suspended(template)
        try:
            for number in range(20_000):  # more than the socket holds
                pool._fork_server.end(f"unknown-{number}")
            actor.kill()
            assert pool._fork_server._ended
        finally:
            template.resume()
        assert pool.run(abs, -1, timeout=LONG) == 1
        assert gone([actor.pid])
        assert other_worker.call("__len__", timeout=LONG) == 0


def test_a_pool_that_is_closed_while_a_call_starts_a_worker_leaves_no_process():
    pool = WorkerPool(max_workers=1)
    before = psutil.Process().children()
    assert pool._claim() is None  # the permission to start a worker
    pool.close()
    with pytest.raises(WorkerStartFailed, match="closed"):
        pool._start()
    assert psutil.Process().children() == before


def test_a_template_that_times_out_does_not_affect_other_workers(monkeypatch):
    """On a busy machine one worker's death must not end other workers."""
    monkeypatch.setattr(process_worker, "_ANSWER_TIMEOUT", 0.3)
    with WorkerPool(max_workers=3) as pool:
        doomed, _, other_worker = (pool.actor(list, timeout=LONG) for _ in range(3))
        template = psutil.Process(other_worker.pid).parent()
        suspended(template)
        try:
            os.kill(doomed.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied, match="exit status unknown"):
                doomed.call("__len__", timeout=LONG)
        finally:
            template.resume()
        assert other_worker.call("__len__", timeout=LONG) == 0
        assert pool.run(abs, -1, timeout=LONG) == 1
        monkeypatch.setattr(process_worker, "_ANSWER_TIMEOUT", 60.0)
        again = pool.actor(list, timeout=LONG)
        os.kill(again.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):  # not the late answer
            again.call("__len__", timeout=LONG)


def test_a_fork_of_the_owner_can_neither_use_nor_close_the_pool(pool):
    pool.run(abs, -1, timeout=LONG)
    pid = os.fork()
    if pid == 0:
        try:
            pool.run(abs, -1, timeout=LONG)
        except RuntimeError:
            pool.close()
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert pool.run(abs, -1, timeout=LONG) == 1


def test_every_call_requires_a_deadline(pool):
    reported = {}
    for timeout in (0, -1, float("inf"), float("nan")):
        try:
            pool.run(abs, -1, timeout=timeout)
        except ValueError as error:
            reported[str(timeout)] = str(error).split(" ")[0]
    assert reported == {text: f"timeout={text}" for text in ("0", "-1", "inf", "nan")}


def test_invalid_pool_arguments_are_errors():
    for arguments in ({"kind": "fiber"}, {"max_workers": 0}, {"kind": "thread", "memory_mb": 10}, {"memory_mb": 0}):
        with pytest.raises(ValueError):
            WorkerPool(**{"max_workers": 1, **arguments})
