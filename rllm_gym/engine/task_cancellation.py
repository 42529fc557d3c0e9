"""Cancel tasks that run user code: cancel, cancel again if they catch the cancellation, and finally abandon them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Collection
from typing import Any

_log = logging.getLogger(__name__)

_MAX_CANCELS = 10


async def cancel_tasks(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Cancel tasks repeatedly until they are done, for at most ``seconds``. Their exceptions are ignored.

    A bare ``except:`` in a loop survives one cancellation, but often not the next one. A task that survives all of
    them is reported in the log and abandoned.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_MAX_CANCELS):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds / _MAX_CANCELS)
    for task in tasks:
        if task in left:
            _log.warning("%r catches every cancellation and was abandoned; do not catch CancelledError", task)
            # asyncio.run would wait for this task forever, so unregister it. If it were garbage-collected, its loop
            # would spin, because it catches GeneratorExit as well, so keep a reference to it.
            asyncio.tasks._unregister_task(task)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        elif not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it
