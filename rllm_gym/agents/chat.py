"""A plain chat agent: a system prompt, observations as user messages, and raw replies as actions."""

from __future__ import annotations

from typing import Any, Literal

from rllm_gym.agents.base import BaseAgent
from rllm_gym.core import Step, Trajectory

_END_OF_THOUGHT = "</think>"


class ChatAgent(BaseAgent):
    """Keeps the conversation and passes the model's raw reply to the environment, which parses it.

    Args:
        system_prompt: First message of the conversation; ``""`` for none.
        history: ``"full"`` gives the model the whole conversation, ``"latest"`` only the system prompt and the newest
            observation (for environments whose observations contain the whole state).
        keep_thoughts: ``False`` removes the text before the last ``</think>`` from all replies except the newest.
            Each turn that does so starts a new branch of the trajectory.
    """

    system_prompt: str = ""

    def __init__(
        self,
        system_prompt: str | None = None,
        *,
        history: Literal["full", "latest"] = "full",
        keep_thoughts: bool = True,
    ) -> None:
        if history not in ("full", "latest"):
            raise ValueError(f"history={history!r} is not one of 'full', 'latest'")
        if system_prompt is not None:
            self.system_prompt = system_prompt
        self.history = history
        self.keep_thoughts = keep_thoughts
        self.reset()

    def reset(self) -> None:
        self._head: list[dict[str, Any]] = (
            [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        )
        self._messages: list[dict[str, Any]] = []
        self._observation = ""
        self._trajectory = Trajectory()

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self._head + (self._messages if self.history == "full" else self._messages[-1:])

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        steps = self._trajectory.steps
        if steps:
            steps[-1].reward, steps[-1].done, steps[-1].info = reward, done, info
            self._trajectory.reward += reward
        if not self.keep_thoughts:
            self._messages = [_without_thought(message) for message in self._messages]
        self._observation = observation
        self._messages.append({"role": "user", "content": observation})

    def update_from_model(self, response: str, **kwargs: Any) -> str:
        shown = self.chat_completions
        self._messages.append({"role": "assistant", "content": response})
        thought, _, _ = response.rpartition(_END_OF_THOUGHT)
        action = self.act(response)
        self._trajectory.steps.append(
            Step(self._observation, shown, response, thought.removeprefix("<think>").strip(), action)
        )
        return action

    def act(self, response: str) -> str:
        """Return the action for a reply, by default the reply itself. Override it to send something else."""
        return response


def _without_thought(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] != "assistant" or _END_OF_THOUGHT not in content:
        return message
    return {**message, "content": content.rpartition(_END_OF_THOUGHT)[2].lstrip()}
