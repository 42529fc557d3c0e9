"""A pool of killable workers: any work with a deadline, in threads, processes or Ray actors."""

from rllm_gym.runtime.errors import (
    CpuTimeExceeded,
    DeadlineExceeded,
    MemoryExceeded,
    WorkerDied,
    WorkerError,
    WorkerStartFailed,
)
from rllm_gym.runtime.pool import WORKER_KINDS, Actor, WorkerKind, WorkerPool

__all__ = [
    "WORKER_KINDS",
    "Actor",
    "CpuTimeExceeded",
    "DeadlineExceeded",
    "MemoryExceeded",
    "WorkerDied",
    "WorkerError",
    "WorkerKind",
    "WorkerPool",
    "WorkerStartFailed",
]
