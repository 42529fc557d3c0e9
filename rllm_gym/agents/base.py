"""What every agent does: observations become messages, a reply becomes an action. No environment, no tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from rllm_gym.core import Step, Trajectory


@dataclass(slots=True)
class Action:
    """What an agent hands to the environment, wrapped as rLLM's agents do. A bare string does as well.

    Attributes:
        action: The action: for a text environment the text it parses.
    """

    action: Any = None


class BaseAgent(ABC):
    """One agent in one episode. The engine makes one for every running episode and calls, turn by turn,
    :meth:`update_from_env`, :attr:`chat_completions` and :meth:`update_from_model`.

    The names and their order are rLLM's. A subclass must write :meth:`reset`, the two updates and
    :attr:`chat_completions`; an exception in any of them ends the episode as an agent error, never as a reward.
    Rewriting the history that :attr:`chat_completions` returns is allowed: the trajectory then branches.
    """

    uses_tools: ClassVar[bool] = True
    """Whether the environment's tool schemas are rendered by the chat template. An agent that writes them into
    its own prompt says ``False``."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything: a new episode begins."""

    def receive_task(self, task: Any) -> None:
        """The task of the episode as JSON types, after :meth:`reset` and before the first observation.

        ``None`` where the environment does not tell. Nothing here has to reach the model; gold answers must not.
        """
        return

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        """The messages the model is given next, OpenAI form."""
        return []

    @property
    def trajectory(self) -> Trajectory:
        """What the agent itself remembers of the episode; the engine keeps its own record with the tokens."""
        return Trajectory()

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        """Take in what the environment said.

        Args:
            observation: The text that is new this turn.
            reward: Reward of the last action; 0.0 after the reset.
            done: The episode is over: no reply follows.
            info: The environment's info.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update_from_env(observation, reward, done, info)")

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        """Take in the model's reply and return the action: a string or an :class:`Action`."""
        raise NotImplementedError(f"{type(self).__name__} must define update_from_model(response)")

    def get_current_state(self) -> Step | None:
        """The latest step, or ``None`` before the first."""
        steps = self.trajectory.steps
        return steps[-1] if steps else None
