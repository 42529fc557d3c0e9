"""Isolated execution of model-written programs and workspaces, with a clear record of how each one ended.

This package does not judge correctness; see ``rllm_gym.grading``. Start with :mod:`rllm_gym.sandbox.pool`.
"""

from rllm_gym.sandbox.errors import SandboxFault, SandboxUnavailable
from rllm_gym.sandbox.pool import SandboxPool, shared_pool
from rllm_gym.sandbox.program import Ended, Limits, Program, ProgramResult
from rllm_gym.sandbox.running_program import RunningProgram
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.session import ExecResult, SandboxSession, SessionLimits
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import Changes, TreeFile, TreeTooLarge

__all__ = [
    "Changes",
    "Ended",
    "ExecResult",
    "Limits",
    "Program",
    "ProgramResult",
    "RunningProgram",
    "Runtime",
    "SandboxFault",
    "SandboxPool",
    "SandboxSession",
    "SandboxUnavailable",
    "SessionLimits",
    "Tier",
    "TreeFile",
    "TreeTooLarge",
    "shared_pool",
]
