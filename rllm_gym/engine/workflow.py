"""What a workflow is: an episode of several agents, written as plain Python."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_gym.core import Episode, Task
from rllm_gym.samplers.protocol import SamplingParams

if TYPE_CHECKING:
    from rllm_gym.engine.play import Play

TaskOfSpec = Task | Mapping[str, Any] | int | str | None


@dataclass(frozen=True, slots=True)
class Role:
    """How the agents of a role are played.

    Attributes:
        weights: Which weights of the sampler draw their replies: ``""`` the policy's, or a name they were pushed
            under. Of several names one is chosen for each episode, the same in all episodes of a group: a pool of
            opponents.
        trainable: Whether what they say may be trained on.
        params: How their replies are drawn; ``None``: as the engine's.
        max_response_tokens: Tokens each of them may sample in one episode; ``None``: as the engine's.

    Raises:
        ValueError: The pool is empty, or a limit is below 1.
    """

    weights: str | tuple[str, ...] = ""
    trainable: bool = True
    params: SamplingParams | None = None
    max_response_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str):
            object.__setattr__(self, "weights", tuple(self.weights))
            if not self.weights:
                raise ValueError("weights=() names no weights; give one name, or several to choose from")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise ValueError(f"max_response_tokens={self.max_response_tokens!r} must be at least 1, or None")

    def weights_for(self, role: str, group: str) -> str:
        """The weights of this role in the episodes of ``group``: by SHA-256 of the group and the role.

        >>> Role(weights=("step-20", "step-40")).weights_for("opponent", "task-7@3")
        'step-40'
        """
        if isinstance(self.weights, str):
            return self.weights
        return self.weights[choose(len(self.weights), group, role)]


def choose(options: int, *parts: str) -> int:
    """One of ``options``, by SHA-256 of the parts."""
    digest = hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % options


class Workflow(ABC):
    """An episode, as a coroutine. Write :meth:`run`.

    >>> class Echo(Workflow):
    ...     async def run(self, task, play):
    ...         speaker = play.agent("agent_0", system="Repeat what you hear.")
    ...         reply = await speaker.say(task["text"])
    ...         speaker.reward(float(reply.text == task["text"]))

    One object plays one episode at a time where the engine is given a class or a function that makes it; a single
    object given to the engine plays all of them, and must then keep nothing on itself.
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    """The roles its agents may have. An object may have its own."""

    @abstractmethod
    async def run(self, task: TaskOfSpec, play: Play) -> Episode | None:
        """Play one episode.

        It may start tasks of its own (``asyncio.gather``, ``asyncio.TaskGroup``); those that have asked the play for
        something and are not done when it ends are cancelled. An exception of its own ends the episode as
        ``StopReason.AGENT_ERROR``. Work that blocks belongs into ``await play.call(function, …)``.

        Args:
            task: As the spec names it: a :class:`~rllm_gym.core.Task` or row, an index or id of the environment's
                tasks, or ``None``.
            play: Agents, environments, games; everything that takes time.

        Returns:
            What ``play.finish(…)`` gave; ``None`` is ``play.finish()``.
        """
