"""The base class of question environments that run programs of the model in a sandbox."""

from __future__ import annotations

from typing import Any, ClassVar

from rllm_gym.core import AsyncTextEnv
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.sandbox import SandboxPool, shared_pool


class SandboxedQuestionEnv(QuestionEnv, AsyncTextEnv):
    """A :class:`~rllm_gym.envs.question.QuestionEnv` that runs programs in a sandbox, and reports its isolation.

    Code and ToolMath are such environments. Subclasses write ``_async_act`` and run programs in :meth:`_pool`.

    Args:
        sandbox: Kind of the sandbox, or a pool that the caller closes; see :class:`~rllm_gym.envs.code.CodeEnv`.
        options: The arguments of :class:`~rllm_gym.envs.question.QuestionEnv`.

    Raises:
        SandboxUnavailable: The sandbox does not work on this machine.
    """

    bound_to_loop: ClassVar[bool] = False  # a pool works with every event loop
    max_step_s = 1_800.0  # the runs of a program have a limit together: MAX_RUNS_S of grading.code.timed_pool

    def __init__(self, *, sandbox: str | SandboxPool, **options: Any) -> None:
        super().__init__(**options)
        self._sandbox = sandbox
        self.metadata = {**type(self).metadata, "sandbox_tier": self._pool().tier.value}  # type: ignore[misc]

    def _pool(self) -> SandboxPool:
        # Looked up on every call: after a fork, as in vector environments, the shared pool is a different one.
        return self._sandbox if isinstance(self._sandbox, SandboxPool) else shared_pool(self._sandbox)

    def _add_info(self, info: dict[str, Any]) -> None:
        info["sandbox_tier"] = self.metadata["sandbox_tier"]
