"""What can go wrong, named so that nobody mistakes a broken world for a wrong answer."""

from __future__ import annotations


class RllmGymError(Exception):
    """Base of every error this package raises on purpose."""


class EnvironmentFault(RllmGymError):
    """The *world* broke: a worker died, a server went away, a deadline passed inside the environment.

    A fault is never a reward. The engine retries the episode on a fresh environment and, past its limit,
    drops the episode from training and counts it under :attr:`kind`.

    Args:
        message: What broke, with the value involved and the way out.
        kind: A short stable name that counters are grouped by, such as ``"worker_died"``.
    """

    def __init__(self, message: str, *, kind: str = "environment") -> None:
        super().__init__(message, kind)
        self.message = message
        self.kind = kind

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Faults cross process boundaries; the default would call ``cls(message, kind)`` positionally.
        return _rebuild_fault, (type(self), self.message, self.kind)


def _rebuild_fault(cls: type[EnvironmentFault], message: str, kind: str) -> EnvironmentFault:
    return cls(message, kind=kind)


class TaskError(RllmGymError, ValueError):
    """A task row, task id or index that cannot be used, with the row and the way out named."""
