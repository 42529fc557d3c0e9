"""Ctrl-C, garbage collection and ``close`` at the worst instants of a pool: no call is lost, and none runs twice."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupts import interrupt
from worker_waiting import LONG

from rllm_gym.runtime import DeadlineExceeded, WorkerDied, WorkerPool
from rllm_gym.runtime.request_handler import WorkRequest
from rllm_gym.runtime.thread_worker import ThreadWorker
from rllm_gym.runtime.worker_threads import WorkerThreads
from tests.waiting import until


class Counter:
    def __init__(self):
        self.value = 0

    def add(self):
        self.value += 1


@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_an_actor_whose_call_was_interrupted_has_ended_unless_the_call_never_began(kind):
    """Otherwise the call may still be running, and the next one would run at the same time."""
    outcomes = []
    with WorkerPool(kind, max_workers=1) as pool:
        actor = pool.actor(Counter, timeout=LONG)
        while interrupt(len(outcomes), actor.call, "add", timeout=LONG):
            try:
                assert actor.call("value", timeout=LONG) == 0
                outcomes.append("not called")
            except WorkerDied:
                outcomes.append("ended")
            actor.kill()
            actor = pool.actor(Counter, timeout=LONG, queue_timeout=LONG)  # the only worker is free again
        assert set(outcomes) == {"not called", "ended"}


def test_a_pool_keeps_its_deadlines_after_ctrl_c_while_a_thread_starts():
    release = threading.Event()

    def interrupted(number, caller):
        with WorkerPool("thread", max_workers=3) as pool:
            reached = interrupt(number, pool.run, abs, -1, timeout=LONG)
            assert caller.submit(pool.run, abs, -1, timeout=LONG).result(LONG) == 1
            late = caller.submit(pool.run, release.wait, timeout=0.01)
            assert isinstance(late.exception(LONG), DeadlineExceeded)
            return reached

    with ThreadPoolExecutor(1) as caller:
        try:
            numbers = itertools.takewhile(lambda number: interrupted(number, caller), itertools.count())
            assert len(list(numbers)) > 20
        finally:
            release.set()


def test_a_worker_whose_call_was_interrupted_has_ended_unless_the_call_never_began():
    alive = []
    while True:
        threads = WorkerThreads("interrupted")  # new ones: idle threads would change the number of instants
        worker, counter = ThreadWorker("interrupted", threads), Counter()
        try:
            if not interrupt(len(alive), worker.call, WorkRequest("run", counter.add), LONG):
                break
            alive.append(worker.alive)
            if worker.alive:
                assert worker.call(WorkRequest("run", vars, (counter,)), LONG) == {"value": 0}
        finally:
            threads.close()
    assert set(alive) == {True, False}


def test_a_call_that_arrives_while_its_thread_is_ending_is_carried_out():
    """The thread is idle when the call arrives, but has not looked yet whether it should end."""
    worker = ThreadWorker("closing", WorkerThreads("closing"), own_thread=True)
    done = threading.Event()
    first = worker.prepare(WorkRequest("run", abs, (-1,)), LONG)

    def in_the_thread(_):
        worker.prepare(WorkRequest("run", done.set), LONG).start()
        worker.threads.close()

    first.ended = in_the_thread
    first.start()
    assert done.wait(LONG)
    assert until(lambda: not any(thread.name.startswith("closing") for thread in threading.enumerate()))


def test_a_pool_can_be_garbage_collected_while_its_threads_are_locked():
    """Any allocation of one of its threads may collect it."""
    pools = [WorkerPool("thread", max_workers=1, name="dropped")]
    pools[0].run(abs, -1, timeout=LONG)
    threads = pools[0]._threads

    def collect():
        with threads._lock:
            pools.clear()

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    assert until(lambda: not collecting.is_alive())
    assert until(lambda: not any(thread.name.startswith("dropped") for thread in threading.enumerate()))
