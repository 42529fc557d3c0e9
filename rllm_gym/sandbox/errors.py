"""Sandbox errors that are not caused by the program."""

from __future__ import annotations

from rllm_gym.core import EnvironmentFault, RllmGymError


class SandboxUnavailable(RllmGymError):
    """The requested sandbox is not available here. The message says what was tried, what failed and how to fix it."""


class SandboxFault(EnvironmentFault):
    """The sandbox itself failed, for example a worker died. Never caused by the program and never a reward."""

    def __init__(self, message: str, *, kind: str = "sandbox") -> None:
        super().__init__(message, kind=kind)
