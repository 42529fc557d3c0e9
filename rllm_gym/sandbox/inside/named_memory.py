"""Named semaphores and shared memory in scratch space, where ``/dev/shm`` is inaccessible.

Without a mount namespace, ``/dev/shm`` is shared by the whole machine. Tier B therefore blocks it, and with it the
basis of the locks, queues and pools of ``multiprocessing``. This module implements the same two primitives on files of
the scratch directory, for the worker and all its forks. A Python that a program *executes* uses the ordinary ones,
which are refused. Sent in as source text: standard library only. Sources: sem_overview(7), shm_overview(7), CPython's
``_multiprocessing/semaphore.c``.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import multiprocessing
import multiprocessing.heap
import os
import threading
import time
from typing import Any

_SEM_T = 32  # sizeof(sem_t) in 64-bit glibc and musl
_RECURSIVE = 0
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


directory = ""
"""The directory of this process's named objects."""


def install() -> None:
    """Make ``multiprocessing`` in this process and its forks keep its named objects in :data:`directory`."""

    def path(name: str) -> str:
        plain = name.lstrip("/")
        if not plain or "/" in plain:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
        return os.path.join(directory, plain)

    def shm_open(path_: str, flags: int, mode: int = 0o777) -> int:
        return os.open(path(path_), flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    class Placed(SemLock):
        @staticmethod
        def path(name: str) -> str:
            return path(f"sem.{name.lstrip('/')}")

    # multiprocessing gets its primitives from these two extension modules; no public function replaces them.
    names: dict[str, Any] = {"SemLock": Placed, "sem_unlink": lambda name: os.unlink(Placed.path(name))}
    for name, replacement in names.items():
        setattr(importlib.import_module("_multiprocessing"), name, replacement)
    names = {"shm_open": shm_open, "shm_unlink": lambda path_: os.unlink(path(path_))}
    for name, replacement in names.items():
        setattr(importlib.import_module("_posixshmem"), name, replacement)
    # Without a candidate, values and arrays are in files of the temporary directory. There is no public setting: an
    # arena prefers /dev/shm, the only entry of this attribute, whatever TMPDIR is.
    multiprocessing.heap.Arena._dir_candidates = []  # type: ignore[attr-defined]


def begin(folder: str) -> None:
    """Set the directory of named objects and a new authentication key, in the fork that becomes a program."""
    global directory
    directory = folder
    multiprocessing.current_process().authkey = os.urandom(32)


class SemLock:
    """A replacement of ``_multiprocessing.SemLock``: an unnamed process-shared semaphore in a mapped file."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        memory = -1
        if not unlink:
            memory = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.ftruncate(memory, mmap.PAGESIZE)
        self._keep(kind, maxvalue, None if unlink else name, memory)
        if _libc.sem_init(self._at, 1, ctypes.c_uint(value)) != 0:
            raise _error()

    @staticmethod
    def path(name: str) -> str:
        raise NotImplementedError("SemLock is used through install(), which says where its files are")

    @classmethod
    def _rebuild(cls, handle: int, kind: int, maxvalue: int, name: str) -> SemLock:
        lock = cls.__new__(cls)
        lock._keep(kind, maxvalue, name, os.open(cls.path(name), os.O_RDWR | os.O_CLOEXEC))
        return lock

    def _keep(self, kind: int, maxvalue: int, name: str | None, memory: int) -> None:
        self.kind, self.maxvalue, self.name = kind, maxvalue, name
        self._map = mmap.mmap(memory, mmap.PAGESIZE)
        if memory >= 0:
            os.close(memory)
        self._semaphore = (ctypes.c_char * _SEM_T).from_buffer(self._map)
        self._at = ctypes.byref(self._semaphore)
        self.handle = ctypes.addressof(self._semaphore)
        self._held, self._thread = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        if _libc.sem_trywait(self._at) != 0 and (not block or not self._wait(timeout)):
            return False
        self._held += 1
        self._thread = threading.get_ident()
        return True

    __enter__ = acquire

    def _wait(self, timeout: float | None) -> bool:
        end = None
        if timeout is not None:
            nanoseconds = time.time_ns() + int(max(0.0, timeout) * 1e9)
            end = ctypes.byref(_Timespec(*divmod(nanoseconds, 10**9)))
        while True:
            result = _libc.sem_wait(self._at) if end is None else _libc.sem_timedwait(self._at, end)
            if result == 0:
                return True
            number = ctypes.get_errno()
            if number == errno.ETIMEDOUT:
                return False
            if number not in (errno.EINTR, errno.EAGAIN):
                raise _error()

    def release(self) -> None:
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        if _libc.sem_post(self._at) != 0:
            raise _error()
        self._held -= 1

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._thread == threading.get_ident()

    def _get_value(self) -> int:
        value = ctypes.c_int()
        if _libc.sem_getvalue(self._at, ctypes.byref(value)) != 0:
            raise _error()
        return max(0, value.value)

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
