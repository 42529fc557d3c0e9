"""The base class of agents, which convert observations to messages and replies to actions. Uses no tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from rllm_gym.core import Step, Trajectory


@dataclass(slots=True)
class Action:
    """An action wrapped as in rLLM's agents. A bare string works as well.

    Attributes:
        action: The action; for a text environment, the text that the environment parses.
    """

    action: Any = None


class BaseAgent(ABC):
    """One agent in one episode. The engine creates one per running episode and calls, in each turn,
    :meth:`update_from_env`, :attr:`chat_completions` and :meth:`update_from_model`.

    The names and their order are those of rLLM. A subclass must define :meth:`reset`, the two update methods and
    :attr:`chat_completions`. An exception in any of them ends the episode as an agent error; it is never a reward.
    An agent may rewrite the history that :attr:`chat_completions` returns: the trajectory then gets a new branch.
    """

    uses_tools: ClassVar[bool] = True
    """Whether the chat template renders the environment's tool schemas. ``False`` for an agent that writes them into
    its own prompt."""

    @abstractmethod
    def reset(self) -> None:
        """Clear the state for a new episode."""

    def receive_task(self, task: Any) -> None:
        """Receive the task of the episode as JSON types, after :meth:`reset` and before the first observation.

        ``None`` if the environment does not provide it. The model need not see any of it, and must not see reference
        answers.
        """
        return

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        """The messages of the next request to the model, in OpenAI format."""
        return []

    @property
    def trajectory(self) -> Trajectory:
        """The agent's own record of the episode. The engine keeps a separate record with the tokens."""
        return Trajectory()

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        """Process an observation of the environment.

        Args:
            observation: The text that is new in this turn. Keep the last one, too: if a limit truncated the episode,
                :attr:`chat_completions` is the state that PPO predicts the remaining return from.
            reward: Reward of the last action; 0.0 after the reset.
            done: Whether the episode is over, so that no reply follows.
            info: The environment's info.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update_from_env(observation, reward, done, info)")

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        """Process the model's reply and return the action: a string or an :class:`Action`."""
        raise NotImplementedError(f"{type(self).__name__} must define update_from_model(response)")

    def get_current_state(self) -> Step | None:
        """Return the latest step, or ``None`` before the first."""
        steps = self.trajectory.steps
        return steps[-1] if steps else None
