"""Pools, loops and locks of a process: one for all threads, and new ones in a forked child."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from rllm_gym.core.per_process import PerProcess


def in_child(value) -> str:
    """Return what a forked child gets from ``value()``."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(value()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(pid, 0)
    return found


def test_all_threads_get_one_object() -> None:
    barrier = threading.Barrier(8)
    made = []
    shared = PerProcess(lambda: made.append(object()) or made[-1])

    def get(_: int) -> object:
        barrier.wait(60)
        return shared()

    with ThreadPoolExecutor(8) as pool:
        found = set(map(id, pool.map(get, range(8))))
    assert found == {id(made[0])}
    assert len(made) == 1


def test_a_forked_child_creates_its_own() -> None:
    shared = PerProcess(os.getpid)
    assert shared() == os.getpid()
    assert in_child(lambda: shared() == os.getpid()) == "True"
    assert shared() == os.getpid()


def test_a_lock_that_a_thread_held_at_the_fork_is_free_in_the_child() -> None:
    lock = PerProcess(threading.Lock)
    with lock():
        assert in_child(lambda: lock().acquire(blocking=False)) == "True"
        assert lock().locked()


def test_a_fork_while_the_object_is_created_does_not_block_the_child() -> None:
    found = []

    def create() -> int:
        if not found:
            found.append("")
            found[0] = in_child(shared)  # the lock is held here
        return os.getpid()

    shared = PerProcess(create)
    assert shared() == os.getpid()
    assert found[0].isdigit()
    assert int(found[0]) != os.getpid()


def test_an_object_that_was_closed_is_replaced() -> None:
    closed = set()
    shared = PerProcess(object, is_usable=lambda item: id(item) not in closed)
    first = shared()
    assert shared() is first
    closed.add(id(first))
    assert shared() is not first
