"""rLLM's reward functions, ``reward_fn(task_info=, action=) -> RewardOutput``, on top of ``rllm_gym.grading``."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from rllm_gym.agents import Action
from rllm_gym.core import TaskError
from rllm_gym.grading import short_text


@dataclass(slots=True, kw_only=True)
class RewardOutput:
    """The result of a reward function."""

    reward: float
    metadata: dict[str, Any] = field(default_factory=dict)
    is_correct: bool | None = None


@runtime_checkable
class RewardFunction(Protocol):
    def __call__(self, task_info: dict[str, Any], action: Any) -> Any: ...


def zero_reward(task_info: dict[str, Any], action: Any) -> RewardOutput:
    """Return reward 0."""
    return RewardOutput(reward=0.0)


class RewardType(Enum):
    """Kinds of tasks; rewards do not depend on them."""

    MATH = "MATH"
    CODE = "CODE"
    WEB = "WEB"
    UNK = "UNK"


@dataclass(slots=True)
class RewardConfig:
    """Rewards of the classes below.

    Attributes:
        apply_format_reward: Whether a reply of :class:`RewardMathFn` without ``</think>`` has a wrong format.
        correct_reward, incorrect_reward: Rewards of right and wrong answers.
        format_error_reward: Reward of a reply without an answer in the required form.
        toolcall_bonus: Added by :class:`RewardMathFn` to a correct answer if the task row's ``has_toolcall`` is set.
    """

    apply_format_reward: bool = False
    correct_reward: float = 1.0
    incorrect_reward: float = 0.0
    format_error_reward: float = 0.0
    toolcall_bonus: float = 0.5


@dataclass(slots=True, kw_only=True)
class RewardInput:
    """The argument of :class:`RewardSearchFn`."""

    task_info: dict[str, Any]
    action: Any


class RewardMathFn:
    """Grades the last ``\\boxed{}`` of a reply with the answer in ``task_info["ground_truth"]`` (or ``"answer"``), a
    text or a list of texts of which one suffices.
    """

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = config or RewardConfig()

    def __call__(self, task_info: Mapping[str, Any], action: Any) -> RewardOutput:
        """Return the reward.

        Raises:
            TaskError: The row has no answer, which is no fault of the model.
        """
        from rllm_gym.grading import grade_math
        from rllm_gym.parsing.boxed import last_boxed

        text = text_of(action)
        if self.config.apply_format_reward and "</think>" not in text:
            return RewardOutput(reward=self.config.format_error_reward, is_correct=False)
        extracted = None
        for truth in ground_truths(task_info):
            gold = (last_boxed(truth) if "\\boxed" in truth else None) or truth
            verdict = grade_math(text, gold)
            extracted = verdict.extracted
            if verdict.correct:
                bonus = self.config.toolcall_bonus if task_info.get("has_toolcall") else 0.0
                reward = self.config.correct_reward + bonus
                return RewardOutput(reward=reward, metadata={"extracted": extracted}, is_correct=True)
        wrong = self.config.format_error_reward if extracted is None else self.config.incorrect_reward
        return RewardOutput(reward=wrong, metadata={"extracted": extracted}, is_correct=False)


class RewardSearchFn:
    """Grades a short answer by exact match and token F1, with the normalization of SQuAD and HotpotQA.

    The answer is the last ``\\boxed{}``, or the last text in ``**``, or what follows "answer is", or the whole reply.
    The references are ``task_info["ground_truth"]`` (or ``"answer"``): a text or a list of texts, of which the best
    match counts.
    """

    F1_THRESHOLD = 0.3

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = config or RewardConfig()

    def __call__(self, input: RewardInput) -> RewardOutput:
        """Return the correct reward for an exact match, its product with F1 from the threshold on, else the incorrect
        one.

        Raises:
            TaskError: The row has no answer.
        """
        answer = self.extract_answer_from_response(text_of(input.action))
        scores = [(self.exact_match_score(answer, gold), *self.f1_score(answer, gold), gold)
                  for gold in ground_truths(input.task_info)]  # fmt: skip
        exact, f1, precision, recall, best = max(scores, key=lambda score: score[:2])
        correct = exact or f1 >= self.F1_THRESHOLD
        metadata = {
            "extracted_answer": answer,
            "best_match": best,
            "exact_match": exact,
            "f1_score": f1,
            "precision": precision,
            "recall": recall,
        }
        share = 1.0 if exact else f1
        reward = self.config.correct_reward * share if correct else self.config.incorrect_reward
        return RewardOutput(reward=reward, metadata=metadata, is_correct=correct)

    @staticmethod
    def extract_answer_from_response(response: str) -> str:
        """Return the answer of a reply; ``""`` if it has only reasoning."""
        from rllm_gym.parsing.boxed import last_boxed, strip_thinking

        text = (strip_thinking(response) or "").strip()
        boxed = last_boxed(text)
        if boxed is not None:
            return boxed.strip()
        bold = text.split("**")[1::2]
        if bold and (last := bold[-1].strip()):
            return last
        _, stated, rest = text.lower().rpartition("answer is")
        return text[len(text) - len(rest) :].strip(" :") if stated and rest.strip(" :") else text

    @staticmethod
    def normalize_answer(s: str) -> str:
        """See :func:`rllm_gym.grading.short_text.normalize_answer`."""
        return short_text.normalize_answer(s)

    def exact_match_score(self, prediction: str, ground_truth: str) -> bool:
        return self.normalize_answer(prediction) == self.normalize_answer(ground_truth)

    def f1_score(self, prediction: str, ground_truth: str) -> tuple[float, float, float]:
        """Return F1, precision and recall of the words. A yes or no only matches itself."""
        said, gold = self.normalize_answer(prediction), self.normalize_answer(ground_truth)
        if said != gold and {said, gold} & {"yes", "no", "noanswer"}:
            return 0.0, 0.0, 0.0
        words, wanted = said.split(), gold.split()
        common = sum((Counter(words) & Counter(wanted)).values())
        if not common:
            return 0.0, 0.0, 0.0
        precision, recall = common / len(words), common / len(wanted)
        return 2 * precision * recall / (precision + recall), precision, recall


def math_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """Return reward 1 if the reply gives the answer in ``\\boxed{}``, else 0; see :class:`RewardMathFn`."""
    return RewardMathFn()(task_info, action)


def search_reward_fn(task_info: dict[str, Any], action: Any) -> RewardOutput:
    """Return reward 1 for an exact match, F1 if that is 0.3 or more, else 0; see :class:`RewardSearchFn`."""
    return RewardSearchFn()(RewardInput(task_info=task_info, action=action))


def f1_reward_fn(task_info: dict[str, Any], action: Any) -> RewardOutput:
    """Return the token F1 of the answer."""
    output = search_reward_fn(task_info, action)
    return RewardOutput(reward=output.metadata["f1_score"], metadata=output.metadata, is_correct=output.is_correct)


def countdown_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """Return reward 1 if the last ``<answer>`` is an arithmetic expression that uses each of ``task_info["nums"]`` once
    and equals ``task_info["target"]``, else 0.

    Raises:
        TaskError: The row has no ``target`` or no ``nums``.
    """
    target, nums = task_info.get("target"), task_info.get("nums")
    if target is None or not nums:
        raise TaskError(f"a countdown row needs 'target' and 'nums'; its keys are {sorted(map(str, task_info))}")
    before, closed, _ = text_of(action).rpartition("</answer>")
    _, opened, expression = before.rpartition("<answer>")
    found = "incorrect_solution"
    if opened and closed:
        found = "partial_credit"
        result = _arithmetic(expression.strip(), sorted(int(number) for number in nums))
        if result is not None and abs(result - Fraction(float(target))) < Fraction(1, 100_000):
            found = "correct_solution"
    correct = found == "correct_solution"
    return RewardOutput(reward=float(correct), metadata={"validation": found}, is_correct=correct)


def text_of(action: Any) -> str:
    """Return the text of an action, of a model output, or of a text itself."""
    action = action.action if isinstance(action, Action) else action
    return str(getattr(action, "text", action) or "")


def ground_truths(task_info: Mapping[str, Any]) -> list[str]:
    """Return the reference answers of a task row, at least one.

    Raises:
        TaskError: The row has none.
    """
    truths = task_info.get("ground_truth")
    truths = task_info.get("answer") if truths is None else truths
    texts = [str(truth) for truth in (truths if isinstance(truths, list | tuple) else [truths]) if truth is not None]
    if not texts:
        raise TaskError(
            f"this task row has no 'ground_truth' and no 'answer'; its keys are {sorted(map(str, task_info))}"
        )
    return texts


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _arithmetic(expression: str, numbers: list[int]) -> Fraction | None:
    """Return the value of an expression of whole numbers, ``+ - * /`` and parentheses that uses exactly these numbers;
    ``None`` for any other text. Nothing is evaluated as code.
    """
    if len(expression) > 20 * len(numbers) + 100 or not re.fullmatch(r"[0-9+\-*/() \t\n]+", expression):
        return None
    if sorted(map(int, re.findall("[0-9]+", expression))) != numbers:
        return None
    try:
        return _value(ast.parse(" ".join(expression.split()), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")
