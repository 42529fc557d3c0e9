"""Objects that each process creates for itself, such as pools, event loops and locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Call it for the object of this process, which is created on the first call.

    A forked child creates its own: it has none of its parent's threads, and a lock may be held by one of them.

    Args:
        create: Returns a new object.
        is_usable: Whether the object can still be used; a new one is created if not.

    >>> lock = PerProcess(threading.Lock)
    >>> with lock():
    ...     lock().locked()
    True
    """

    def __init__(self, create: Callable[[], T], *, is_usable: Callable[[T], bool] = lambda existing: True) -> None:
        self._create, self._is_usable = create, is_usable
        self._lock = threading.Lock()
        self._objects: list[T] = []  # none or one
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> T:
        with self._lock:
            if not self._objects or not self._is_usable(self._objects[0]):
                self._objects = [self._create()]
            return self._objects[0]

    def _forget(self) -> None:
        self._lock, self._objects = threading.Lock(), []
