"""What can happen to work that somebody else does: it is late, it dies, or its exception cannot travel."""

from __future__ import annotations


class DeadlineExceeded(TimeoutError):
    """The work was not done in time. A process worker has been killed, a thread worker abandoned."""


class WorkerDied(RuntimeError):
    """The worker ended in the middle of the work, or before it: killed, crashed, closed. Names the exit status."""


class MemoryExceeded(WorkerDied):
    """The worker needed more memory than its cap and was ended."""


class WorkerStartFailed(WorkerDied):
    """No worker could be started at all: the machine is out of processes or memory, or Python does not start."""


class WorkerError(RuntimeError):
    """The remote code failed in a way that cannot travel as itself; type, message and traceback are in the text."""
