"""What can go wrong with a sandbox that is not the program's doing."""

from __future__ import annotations

from rllm_gym.core import EnvironmentFault, RllmGymError


class SandboxUnavailable(RllmGymError):
    """No sandbox of the wanted kind can be made on this machine. Says what was tried, what failed and the way out."""


class SandboxBroke(EnvironmentFault):
    """The sandbox itself failed: its worker died or could not be reached. Never the program's doing, never a reward."""

    def __init__(self, message: str, *, kind: str = "sandbox") -> None:
        super().__init__(message, kind=kind)
