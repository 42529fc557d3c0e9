"""rLLM's agent and environment for programming problems in one or more turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.agents import shown_messages
from rllm_gym.compat.environments import MultiTurnEnvironment
from rllm_gym.compat.types import Step, Trajectory
from rllm_gym.core import TaskError

_NO_TESTS = (
    "No test cases found. Please check your solution once more for correctness and efficiency, and then give your "
    "final program."
)
_PASSED = (
    "Your program passes all of these test cases. Please check once more that it handles all cases, and then give your "
    "final program."
)
_FAILED = (
    "Some test cases still fail. Find the cause, change your program so that it handles all of them, and then give the "
    "whole program again."
)
_SHOWN_CHARS = 300


def fetch_live_code_bench_system_prompt(prompt: str, starter_code: str | None = None) -> str:
    """Return a problem with instructions for the form of the program."""
    if starter_code:
        form = f"Complete this code, and give the whole program in one fenced block:\n```python\n{starter_code}\n```"
    else:
        form = (
            "Write a program that reads standard input, solves the problem and prints the answer to standard output. "
            "Give the whole program in one fenced block:\n```python\n# your program\n```"
        )
    task = "You are an expert Python programmer. Solve this problem so that all hidden tests pass."
    return f"{task}\n\n{prompt}\n\n{form}\n"


class CompetitionCodingAgent(BaseAgent):
    """Solves ``observation["question"]`` with a program, and revises it after the ``test_results`` of an observation.

    Args:
        accumulate_thinking: Whether later prompts contain the reasoning of earlier replies.
        max_tests: Number of failed tests that feedback shows.
        public_test_only: Whether feedback shows only tests whose input is part of the question; the first two if there
            are none.
    """

    def __init__(self, accumulate_thinking: bool = False, max_tests: int = 2, public_test_only: bool = False) -> None:
        self.accumulate_thinking = accumulate_thinking
        self.max_tests = max_tests
        self.public_test_only = public_test_only
        self.reset()

    def reset(self) -> None:
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = []

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if not self._trajectory.steps:
            if not isinstance(observation, Mapping) or "question" not in observation:
                raise ValueError(f"the first observation must be a dict with a 'question'; got {observation!r:.200}")
            text = str(observation["question"])
        else:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info
            if "test_results" in observation:
                text = self.format_test_results(observation["test_results"])
            else:
                text = str(observation.get("error", observation) if isinstance(observation, Mapping) else observation)
        if not done:
            self.messages.append({"role": "user", "content": text})
            self._trajectory.steps.append(Step(observation=text))

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        self.messages.append({"role": "assistant", "content": response})
        thought, closed, answer = response.rpartition("</think>")
        step = self._trajectory.steps[-1]
        step.chat_completions, step.model_response = self.chat_completions, response
        step.thought = thought + closed
        action = Action((answer if closed else response).strip())
        step.action = action
        return action

    def format_test_results(self, test_results: Sequence[Mapping[str, Any]]) -> str:
        """Return feedback for the model on the tests of a program."""
        if self.public_test_only:
            test_results = self._public(test_results)
        if not test_results or not self._trajectory.steps:
            return _NO_TESTS
        failed = [(number, test) for number, test in enumerate(test_results, start=1) if not test["passed"]]
        if not failed:
            return _PASSED
        parts = []
        for number, test in failed[: self.max_tests]:
            parts.append(f"### Test {number} failed")
            for title, key in (
                ("Input", "input"),
                ("Expected", "expected"),
                ("Actual", "output"),
                ("Error message", "error_message"),
            ):
                if test.get(key) is not None:
                    parts.append(f"  {title}: {_shortened(test[key])}")
        return "Results on the test cases:\n" + "\n".join(parts) + f"\n\n{_FAILED}"

    def _public(self, test_results: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        question = "".join(str(self._trajectory.steps[0].observation).split()) if self._trajectory.steps else ""

        def shown(test: Mapping[str, Any]) -> bool:
            given = test.get("input")
            parts = given if isinstance(given, list) else str(given).split("\n")
            return "input" in test and all("".join(str(part).split()) in question for part in parts)

        return [test for test in test_results if shown(test)] or test_results[:2]

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return shown_messages(self.messages, accumulate_thinking=self.accumulate_thinking)

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory


class CompetitionCodingEnv(MultiTurnEnvironment):
    """Grades a program after every turn, and returns the results of the tests.

    Args:
        task: The row, see :class:`~rllm_gym.compat.code_reward.RewardCodeFn`.
        max_turns: Number of programs.
        reward_bonus_coeff: Coefficient of the change of the reward since the turn before, which is added to it.
        reward_fn: ``reward_fn(task_info=, action=)``; ``None`` for ``code_reward_fn``.
    """

    def __init__(
        self,
        task: dict[str, Any] | None = None,
        max_turns: int = 2,
        reward_bonus_coeff: float = 0.0,
        reward_fn: Any = None,
    ) -> None:
        from rllm_gym.compat.code_reward import code_reward_fn

        super().__init__(task=task, max_turns=max_turns)
        self.reward_fn = reward_fn or code_reward_fn
        self.reward_bonus_coeff = reward_bonus_coeff
        self.prev_reward: float | None = None

    def reset(self, task: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.prev_reward = None
        return super().reset(task)

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, dict[str, Any]]:
        output = self.reward_fn(task_info=task, action=action)
        change = 0.0 if self.prev_reward is None else output.reward - self.prev_reward
        self.prev_reward = output.reward
        return output.reward + self.reward_bonus_coeff * change, output.metadata

    @staticmethod
    def from_dict(env_args: dict[str, Any]) -> CompetitionCodingEnv:
        row = dict(env_args)
        options = {key: row.pop(key) for key in ("max_turns", "reward_bonus_coeff", "reward_fn") if key in row}
        task = row.get("task", row)
        if not isinstance(task, dict):
            raise TaskError(f"the 'task' of a row is {task!r:.80}; it must be a dict")
        return CompetitionCodingEnv(task=task, **options)


def _shortened(value: Any) -> str:
    text, half = str(value), _SHOWN_CHARS // 2
    return text if len(text) <= _SHOWN_CHARS else f"{text[:half]}...(truncated) ...{text[-half:]}"
