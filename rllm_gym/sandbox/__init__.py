"""Running what models write: programs and whole workspaces behind walls, and a clear word on how they ended.

What is right or wrong is not judged here; see ``rllm_gym.grading``.
"""

from rllm_gym.sandbox.errors import SandboxBroke, SandboxUnavailable
from rllm_gym.sandbox.pool import SandboxPool, shared_pool
from rllm_gym.sandbox.program import Ended, Limits, Program, Result
from rllm_gym.sandbox.running import Running
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier

__all__ = [
    "Ended",
    "Limits",
    "Program",
    "Result",
    "Running",
    "Runtime",
    "SandboxBroke",
    "SandboxPool",
    "SandboxUnavailable",
    "Tier",
    "shared_pool",
]
