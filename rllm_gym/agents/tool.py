"""The agent that calls tools, in the notation that its model was trained on."""

from __future__ import annotations

from typing import Any, Literal

from rllm_gym.agents.chat import ChatAgent


class ToolAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for tool calls. The model's own chat template renders the schemas that
    the environment offers. The calls are part of the raw reply, which the environment parses.

    Args:
        system_prompt: Replaces the default system prompt.
        results: Role of the messages with the results of calls: ``"user"``, which every template and endpoint
            accepts, or ``"tool"``, for models whose template supports it.
        **arguments: See :class:`ChatAgent`.

    Raises:
        ValueError: ``results`` is neither.
    """

    system_prompt = (
        "You solve tasks with tools. Think about what you need to know, call tools to find it out or to work it out, "
        "and read their results before you go on. When you know the answer, give it in the form that is asked for."
    )

    def __init__(
        self, system_prompt: str | None = None, *, results: Literal["user", "tool"] = "user", **arguments: Any
    ) -> None:
        if results not in ("user", "tool"):
            raise ValueError(f"results={results!r} is not one of 'user', 'tool'")
        self.results = results
        super().__init__(system_prompt, **arguments)

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        super().update_from_env(observation, reward, done, info, **kwargs)
        if self._trajectory.steps:
            self._messages[-1] = {**self._messages[-1], "role": self.results}
