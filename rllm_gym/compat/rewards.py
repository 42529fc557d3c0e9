"""rLLM's reward functions, ``reward_fn(task_info=, action=) -> RewardOutput``, on top of ``rllm_gym.grading``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rllm_gym.agents import Action


@dataclass(slots=True, kw_only=True)
class RewardOutput:
    """The result of a reward function."""

    reward: float
    metadata: dict[str, Any] = field(default_factory=dict)
    is_correct: bool | None = None


class RewardFunction(Protocol):
    def __call__(self, task_info: dict[str, Any], action: Any) -> Any: ...


def zero_reward(task_info: dict[str, Any], action: Any) -> RewardOutput:
    """Return reward 0."""
    return RewardOutput(reward=0.0)


def math_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """Return reward 1 if the reply gives the answer in ``task_info["ground_truth"]`` (or ``"answer"``), else 0.

    The reference answer is a text or a list of texts. The answer of the reply is the last ``\\boxed{}``, or, as in
    rLLM's documentation, the plain answer alone.
    """
    from rllm_gym.grading import grade_math
    from rllm_gym.parsing.boxed import last_boxed

    text = str(action.action if isinstance(action, Action) else action or "")
    truths = task_info.get("ground_truth", task_info.get("answer"))
    if truths is None:
        raise ValueError(f"this task row has no 'ground_truth' and no 'answer'; its keys are {sorted(task_info)}")
    extracted = None
    for truth in truths if isinstance(truths, list | tuple) else [truths]:
        gold = str(truth)
        gold = (last_boxed(gold) if "\\boxed" in gold else None) or gold
        verdict = grade_math(text, gold, extract="any")
        extracted = verdict.extracted
        if verdict.correct:
            return RewardOutput(reward=1.0, metadata={"extracted": extracted}, is_correct=True)
    return RewardOutput(reward=0.0, metadata={"extracted": extracted}, is_correct=False)
