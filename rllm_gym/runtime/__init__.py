"""A pool of killable workers: any work with a deadline, in threads, processes or Ray actors."""

from rllm_gym.runtime.errors import (
    CpuTimeExceeded,
    DeadlineExceeded,
    MemoryExceeded,
    WorkerDied,
    WorkerError,
    WorkerStartFailed,
)
from rllm_gym.runtime.pool import KINDS, Actor, Kind, WorkerPool

__all__ = [
    "KINDS",
    "Actor",
    "CpuTimeExceeded",
    "DeadlineExceeded",
    "Kind",
    "MemoryExceeded",
    "WorkerDied",
    "WorkerError",
    "WorkerPool",
    "WorkerStartFailed",
]
