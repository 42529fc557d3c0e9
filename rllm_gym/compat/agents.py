"""rLLM's math agent, and an adapter that runs an agent written for rLLM."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rllm_gym import core
from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.types import Step, Trajectory


class MathAgent(BaseAgent):
    """Reads ``observation["question"]``. ``accumulate_thinking=False`` removes the reasoning of earlier replies."""

    def __init__(self, accumulate_thinking: bool = True) -> None:
        self.accumulate_thinking = accumulate_thinking
        self.reset()

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = []

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if observation is None or observation == {}:
            if self._trajectory.steps:
                step = self._trajectory.steps[-1]
                step.reward, step.done, step.info = reward, done, info
            return
        question = observation["question"] if isinstance(observation, Mapping) else observation
        if not isinstance(question, str):
            raise ValueError(
                f"an observation must be a str or a dict with a 'question'; got {type(observation).__name__}"
            )
        self.messages.append({"role": "user", "content": question})
        self._trajectory.steps.append(Step(observation=question))

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.messages.append({"role": "assistant", "content": response})
        thought, closed, answer = response.rpartition("</think>")
        step = self._trajectory.steps[-1]
        step.chat_completions = self.chat_completions
        step.model_response = response
        step.thought = thought + closed
        action = Action((answer if closed else response).strip())
        step.action = action
        return action

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return shown_messages(self.messages, accumulate_thinking=self.accumulate_thinking)

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


def shown_messages(messages: Sequence[Mapping[str, Any]], *, accumulate_thinking: bool) -> list[dict[str, Any]]:
    """Return a copy of a conversation for the next prompt; without ``accumulate_thinking`` earlier replies lose their
    reasoning.
    """
    shown = [dict(message) for message in copy.deepcopy(messages)]
    if not accumulate_thinking:
        for message in shown[:-1]:
            if message["role"] == "assistant":
                message["content"] = message["content"].rpartition("</think>")[2]
    return shown


class LegacyAgentAdapter(BaseAgent):
    """Runs an agent written for rLLM with the calls that rLLM's engine made.

    Args:
        agent: The agent.
        new_environment: Whether the environment is a text environment. The agent then receives the task row with the
            observation as ``"question"``, and an empty observation at the end of the episode.
        max_steps: The value of ``info["max_steps"]``.
    """

    uses_tools: ClassVar[bool] = False  # rLLM's agents write tools into their own prompts

    def __init__(self, agent: BaseAgent, *, new_environment: bool, max_steps: int | None) -> None:
        self.agent = agent
        self._new_environment = new_environment
        self._max_steps = max_steps
        self._row: dict[str, Any] = {}
        self._replied: core.Step | None = None

    def reset(self) -> None:
        self._replied = None
        self.agent.reset()

    def receive_task(self, task: Any) -> None:
        self._row = row_of(task)
        self.agent.trajectory.task = self._row

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self.agent.chat_completions

    @property
    def trajectory(self) -> core.Trajectory:
        return self.agent.trajectory

    def get_current_state(self) -> core.Step | None:
        return self.agent.get_current_state()

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if self._new_environment:
            seen = {**self._row, "question": observation}
            observation = TerminalObservation(seen) if done else seen
        if self._max_steps is not None:
            info = {**info, "max_steps": self._max_steps}
        self.agent.update_from_env(observation=observation, reward=reward, done=done, info=info)
        if self._replied is not None:
            # The reward belongs to the step of the last reply, even if the agent has already started the next step.
            self._replied.reward, self._replied.done = reward, done
            self._replied.info = {**(self._replied.info or {}), **info}

    def update_from_model(self, response: str, **kwargs: Any) -> Any:
        action = self.agent.update_from_model(response)
        self._replied = self.agent.get_current_state()
        return action


class TerminalObservation(dict[str, Any]):
    """An empty dict, as at the end of an episode in rLLM, in which ``observation["question"]`` still works."""

    def __init__(self, seen: Mapping[str, Any]) -> None:
        super().__init__()
        self._seen = seen

    def __missing__(self, key: str) -> Any:
        return self._seen[key]


def row_of(task: Any) -> dict[str, Any]:
    """Return the row that an rLLM agent sees: a mapping unchanged, a task as its data with its id."""
    if isinstance(task, Mapping) and set(task) == {"task_id", "content", "data"}:
        return {**task["data"], "task_id": task["task_id"]}
    return dict(task) if isinstance(task, Mapping) else {}
