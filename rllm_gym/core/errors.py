"""The exceptions of the package. They separate failures of an environment from wrong answers of a model."""

from __future__ import annotations


class RllmGymError(Exception):
    """Base class of every exception that this package raises on purpose."""


class EnvironmentFault(RllmGymError):
    """A failure of the environment itself, such as a dead worker, a lost server or a passed deadline.

    A fault is never a reward. The engine retries the episode on a fresh environment. When its retries are used up, it
    excludes the episode from training and counts the fault under :attr:`kind`.

    Args:
        message: What failed, with the value involved and how to fix it.
        kind: A short stable name by which faults are counted, such as ``"worker_died"``.
    """

    def __init__(self, message: str, *, kind: str = "environment") -> None:
        super().__init__(message, kind)
        self.message = message
        self.kind = kind

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Faults are pickled between processes. The default __reduce__ would call ``cls(message, kind)`` positionally.
        return _rebuild_fault, (type(self), self.message, self.kind)


def _rebuild_fault(cls: type[EnvironmentFault], message: str, kind: str) -> EnvironmentFault:
    return cls(message, kind=kind)


class TaskError(RllmGymError, ValueError):
    """Raised for a task row, task id or index that cannot be used. The message names the row and the fix."""
