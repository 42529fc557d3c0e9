"""Ending tasks of somebody else's code: cancelled, cancelled again where they catch it, and left behind at last."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import Collection
from typing import Any

_log = logging.getLogger(__name__)

_TIMES = 10


async def end_tasks(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Cancel tasks until they are done, ``seconds`` at most; what they raise comes too late for anybody.

    A bare ``except:`` in a loop outlives one cancellation, and often not the next. A task that outlives all of them is
    told of in the log and left behind.
    """
    left = {task for task in tasks if not task.done()}
    for _ in range(_TIMES):
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=seconds / _TIMES)
    for task in tasks:
        if task in left:
            _log.warning("%r catches every cancellation and is left behind; let CancelledError through", task)
            # asyncio.run would wait for it without end; and once collected its loop would spin, as it catches
            # GeneratorExit, too. So it is hidden from the one and kept from the other.
            asyncio.tasks._unregister_task(task)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
        elif not task.cancelled():
            task.exception()  # read, so that nobody is told of it
