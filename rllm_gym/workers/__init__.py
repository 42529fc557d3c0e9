"""One killable pool: work with a deadline, in threads or processes. What the work *is* never lives here."""

from rllm_gym.workers.background_loop import BackgroundLoop
from rllm_gym.workers.errors import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError, WorkerStartFailed
from rllm_gym.workers.pool import Actor, WorkerPool

__all__ = [
    "Actor",
    "BackgroundLoop",
    "DeadlineExceeded",
    "MemoryExceeded",
    "WorkerDied",
    "WorkerError",
    "WorkerPool",
    "WorkerStartFailed",
]
