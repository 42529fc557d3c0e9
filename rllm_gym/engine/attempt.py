"""What a run needs of one attempt at an episode: its environments, its result, and the record if nothing was run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rllm_gym.agents import BaseAgent
from rllm_gym.core import Episode, StopReason, Task
from rllm_gym.engine.spec import EpisodeSpec


class AgentError(Exception):
    """Raised if the user's own code (an agent or a workflow) raised an exception."""


class EnvLease(Protocol):
    """The environments of one running episode. Used by one episode at a time."""

    async def discard(self) -> None:
        """After a fault: close what is still open, within the deadlines. The next attempt gets new environments."""

    async def aclose(self) -> None:
        """Close the environments and stop the workers."""


class Attempt(Protocol):
    """One attempt at one episode. Can be read at any time, also after a deadline has interrupted it.

    Attributes:
        stop_reason: Why it ended.
        error: The error after which it cannot continue; also set while the attempt is being cleaned up.
        prompt_tokens, sampled_tokens: Number of tokens so far.
        usage: Counts for the record.
        seconds: Waiting time in seconds by phase, so far.
    """

    stop_reason: StopReason
    error: Exception | None
    seconds: dict[str, float]

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def usage(self) -> dict[str, int]: ...

    @property
    def sampled_tokens(self) -> int: ...

    @property
    def agent(self) -> BaseAgent | None:
        """The agent of the attempt, if there is a single one."""

    @property
    def started(self) -> bool:
        """Whether at least one turn is complete."""

    @property
    def conversations(self) -> Iterable[str]:
        """Names of the conversations for which the sampler may hold cache."""

    async def run(self) -> None:
        """Run to the end, then close the environments or keep them for reuse.

        Raises:
            EnvironmentFault: An environment failed.
            AgentError: The user's code raised an exception.
            SamplerError: The sampler failed.
            TaskError: There is no such task.
        """

    def to_episode(
        self, stop_reason: StopReason, message: str | None, *, env_id: str, attempts: int, seconds: float
    ) -> Episode:
        """Return the record of the attempt. A dropped episode keeps its steps, for debugging."""


def empty_episode(
    spec: EpisodeSpec, stop_reason: StopReason, message: str | None, *, env_id: str, attempts: int, seconds: float
) -> Episode:
    """Return the record of a spec for which nothing was run: no steps, no reward."""
    task = spec.task
    return Episode(
        episode_id=spec.episode_id,
        task_id=task.task_id if isinstance(task, Task) else task if isinstance(task, str) else "",
        env_id=env_id,
        seed=spec.seed or 0,
        group_id=spec.group_id,
        greedy=spec.greedy,
        stop_reason=stop_reason,
        fault=message,
        attempts=attempts,
        seconds={"total": seconds},
    )
