"""Cancel tasks that run user code: cancel, cancel again if they catch the cancellation, and finally abandon them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

_log = logging.getLogger(__name__)

_MAX_CANCELS = 10

_abandoned: list[asyncio.Task[Any]] = []


async def cancel_tasks(tasks: Sequence[asyncio.Task[Any]], seconds: float) -> None:
    """Cancel tasks repeatedly until they are done, for at most ``seconds``. Their exceptions are ignored.

    A bare ``except:`` in a loop survives one cancellation, but often not the next one. A task that survives all of
    them is reported in the log and abandoned: it counts as cancelled, and its code never continues.

    Args:
        tasks: The tasks; one that waits for others comes after them.
        seconds: Time to wait, in total.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_MAX_CANCELS):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds / _MAX_CANCELS)
    for task in tasks:
        if not task.done():
            _log.warning("%r catches every cancellation and was abandoned; do not catch CancelledError", task)
            _abandon(task)
            await asyncio.wait(tasks, timeout=0)  # a task that waited only for this one ends now
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieve it, so that asyncio does not log it


def _abandon(task: asyncio.Task[Any]) -> None:
    # Task.cancel raises CancelledError in the task's code. Future.cancel ends the task without asking its code, so
    # that asyncio.run does not wait for it. If the code was about to continue, asyncio logs an InvalidStateError.
    asyncio.Future.cancel(task)
    # If the task were garbage-collected, its code would catch GeneratorExit as well and loop forever. The exit of the
    # interpreter clears every module, but not the frame of a daemon thread.
    if not _abandoned:
        threading.Thread(target=_hold, args=(_abandoned,), name="abandoned tasks", daemon=True).start()
    _abandoned.append(task)


def _hold(_tasks: list[asyncio.Task[Any]]) -> None:
    threading.Event().wait()
