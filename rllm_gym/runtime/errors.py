"""Errors of work in a worker: it was late, the worker died, or its exception cannot be pickled."""

from __future__ import annotations


class DeadlineExceeded(TimeoutError):
    """The work was not done in time. A process worker has been killed, a thread worker abandoned."""


class WorkerDied(RuntimeError):
    """The worker ended during the work or before it: killed, crashed, closed. The message has the exit status."""


class MemoryExceeded(WorkerDied):
    """The worker exceeded its memory limit and was ended."""


class CpuTimeExceeded(WorkerDied):
    """The work used more CPU time than it had set itself with ``signal.setitimer(signal.ITIMER_PROF, …)``."""


class WorkerStartFailed(WorkerDied):
    """No worker could be started: the machine is out of processes or memory, or Python does not start."""


class WorkerError(RuntimeError):
    """The remote code failed with an exception that cannot be pickled; the text has type, message and traceback."""
