r"""The mathematics environments: the model gives its answer in ``\boxed{}``; a mathematically equal answer is right."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rllm_gym.core import InvalidAction, Outcome, Task, TaskSource
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs.math.answer_form import RULES
from rllm_gym.envs.math.calculator import TOOLS, CalculatorError, calculate
from rllm_gym.envs.math.families import FAMILIES, MULTI_STEP_FAMILIES, MathTaskMixture
from rllm_gym.envs.math.feedback import answer_outcome, grader_fault
from rllm_gym.envs.math.rows import gold_answer, row_to_math_task
from rllm_gym.envs.math.tool_calls import CLOSE, EXAMPLE, OPEN, expressions_asked
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.envs.task_selection import HIGHEST_DIFFICULTY, choose_tasks, difficulty_range, families_at
from rllm_gym.grading import grade_math
from rllm_gym.parsing.boxed import strip_thinking


class MathEnv(QuestionEnv):
    r"""Solve a math problem in one reply.

    ## Description
    Problems come from built-in families (arithmetic, linear systems, algebra, number theory, word problems and more;
    unlimited, without a download), from a file, or from the Hugging Face hub. Answers are graded by mathematical
    equality (:func:`rllm_gym.grading.grade_math`). An angle may be given in degrees (with the mark) or radians unless
    the problem names either.

    ## Action space
    Any text. The answer is the content of the last ``\boxed{}`` after the last closed ``</think>``. Boxes that are
    joined (``\boxed{1} and \boxed{2}``) are one list. A reply whose ``<think>`` is never closed has no answer.

    ## Observation space
    Text. First the problem and the answer format; then whether the answer was right. The right answer is never shown.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed. Nothing else is random.

    ## Rewards
    ``correct``: 1 for a right answer, 0 for a wrong one. A reply without an answer gets 0 minus
    ``invalid_action_penalty``. Answers to built-in problems must also be *finished*: if the answer is a number, one
    number, not a calculation that equals it. No answer may repeat a formula of the problem. An answer that makes the
    grader exceed its time limit is wrong. If the grader itself fails, :class:`~rllm_gym.core.EnvironmentFault` is
    raised.

    ## Episode end
    Terminates after the single reply: ``success``, ``failure``, or ``invalid_action`` if it contains no answer.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``extracted: str``, the graded answer (its first 1,000 characters;
    ``""`` if there was none).

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Math-v0", families=["linear"], difficulty=(1, 2), split="train")
    >>> observation, info = env.reset(seed=0)

    Args:
        tasks: ``None`` for the built-in problems; ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``,
            the name of a data set (``"gsm8k"``, ``"math500"``, ``"aime25"``, …; ``docs/data.md`` lists them), a list of
            rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows have the format of GSM8K (``question``,
            ``answer`` ending in ``#### 18``) or of MATH (``problem``, ``solution``, ``answer``), or have one of
            ``question``, ``problem``, ``prompt`` and one of ``answer``, ``gold``, ``ground_truth``; with an optional
            ``tolerance``, the largest absolute error of an answer that is one number.
        families: Built-in families to draw from, ``None`` for all: ``arithmetic``, ``fractions``, ``linear``,
            ``algebra``, ``number_theory``, ``word_problems``, ``sequences``, ``combinatorics``, ``geometry``,
            ``statistics``, ``counting``, ``sorting``. Difficulties 6 to 8 have ``algebra``, ``number_theory``,
            ``word_problems``, ``sequences``, ``combinatorics``, ``geometry``, ``probability`` and ``chains``.
        difficulty: Of built-in problems: 1 (easy) to 5, 6 to 8 for problems of several steps, a pair ``(lowest,
            highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``. The split of a problem is decided by its content; no two
            splits share a problem. ``None`` means ``"train"`` for built-in problems and every row of a file.
        task_seed: A different seed gives different built-in problems.
        num_tasks: Number of tasks: the first rows of a file, or built-in problems (1,000,000 by default).
        max_turns: 1; use ``rllm/MathMultiTurn-v0`` for more turns.
        grading_timeout: Processor time in seconds for grading one answer; if it needs more, it is wrong.
        invalid_action_penalty: Subtracted from the reward if a reply contains no answer.
        max_observation_chars: Bound of the observation space.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the problem, replies and verdicts) or ``None``.

    Raises:
        TaskError: The tasks are unusable; the message names the file, the row and a solution.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        families: str | Iterable[str] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 1,
        grading_timeout: float = 2.0,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if max_turns != 1 and type(self) is MathEnv:
            raise ValueError(f"max_turns={max_turns!r}: rllm/Math-v0 has a single turn; use rllm/MathMultiTurn-v0")
        if not (math.isfinite(grading_timeout) and grading_timeout > 0):
            raise ValueError(f"grading_timeout={grading_timeout!r} must be a finite number of seconds > 0")
        super().__init__(
            tasks=choose_math_tasks(tasks, families, difficulty, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.grading_timeout = grading_timeout

    def _question(self, task: Task) -> str:
        self._gold = gold_answer(task)
        return f"{task.content}\n\n{self._rule()}"

    def _rule(self) -> str:
        return RULES[self._gold.form]

    def _act(self, action: str) -> Outcome:
        try:
            gold = self._gold
            verdict = grade_math(
                action, gold.text, timeout=self.grading_timeout, tolerance=gold.tolerance, degrees=gold.degrees
            )
        except (OSError, RuntimeError) as error:
            raise grader_fault(self.task.task_id, error) from error
        return answer_outcome(verdict, action, gold=gold.text, form=gold.form, problem=self.task.content)

    def _add_info(self, info: dict[str, Any]) -> None:
        info["extracted"] = ""  # the outcome of a graded answer overwrites it


class MathMultiTurnEnv(MathEnv):
    r"""Solve a math problem; a wrong answer may be revised.

    ## Description
    As ``rllm/Math-v0``, in several turns: the environment says that an answer is wrong (never what the right one is),
    and the model may answer again. With ``calculator=True`` it may use a calculator first.

    ## Action space
    Any text, read as in ``rllm/Math-v0``. With the calculator, a reply may call it with
    ``<tool_call>{"name": "calculator", "arguments": {"expression": "2 * (3 + 4)"}}</tool_call>``, up to eight times;
    if a reply contains both a call and an answer, the last one counts.

    ## Observation space
    Text. First the problem, the number of turns and the answer format; then that the answer is wrong and how many
    turns are left, an error message for a reply without an answer, or the results of the calculator.

    ## Starting state
    As ``rllm/Math-v0``.

    ## Rewards
    ``correct``: 1 on the turn with the right answer, else 0. A reply with neither an answer nor a well-formed call
    costs ``invalid_action_penalty``.

    ## Episode end
    Terminates with the right answer; truncated (``max_turns``) when no turns are left. Every reply is a turn, also a
    call of the calculator.

    ## Information
    As ``rllm/Math-v0``. With the calculator, ``tools`` from ``reset`` contains its JSON schema.

    ## Arguments
    Those of :class:`MathEnv`, and:

    Args:
        max_turns: Number of replies.
        calculator: Whether the model may use a calculator. Its arithmetic is exact, and it parses its own grammar;
            no code is executed.
        **arguments: See :class:`MathEnv`.

    ## Version history
    v0: first release.
    """

    def __init__(self, *, max_turns: int = 3, calculator: bool = False, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **arguments)
        self.calculator = bool(calculator)

    def _tools(self) -> str:
        return TOOLS if self.calculator else "[]"

    def _rule(self) -> str:
        turns = f"You have {self.max_turns} turn{'s' * (self.max_turns > 1)}; a wrong answer may be revised."
        tool = f"\nA reply may use the calculator instead of answering: {EXAMPLE}" if self.calculator else ""
        return f"{super()._rule()} {turns}{tool}"

    def _act(self, action: str) -> Outcome:
        if self.calculator and (calls := _calls_in(action)) is not None:
            return Outcome(self._calculated(calls), {"correct": 0.0})
        turns_left = self._turns_left("revise it and give the answer in \\boxed{}.")
        try:
            outcome = super()._act(action)
        except InvalidAction as error:
            raise InvalidAction(f"{error} {turns_left}") from error
        if outcome.success:
            return outcome
        return replace(outcome, observation=f"{outcome.observation} {turns_left}", terminated=False)

    def _calculated(self, expressions: list[str]) -> str:
        lines = []
        for number, expression in enumerate(expressions, start=1):
            try:
                lines.append(f"{expression} = {calculate(expression)}")
            except CalculatorError as error:
                if error.malformed:
                    raise InvalidAction(f"Tool call {number} cannot be read: {error} of its expression.") from error
                lines.append(f"{expression} has no value: {error}")
        return "\n".join(lines)


def _calls_in(action: str) -> list[str] | None:
    """Return the expressions of the reply's calculator calls, ``None`` if it gives an answer or has no call."""
    text = strip_thinking(action)
    if text is None or OPEN not in text or text.rfind("\\boxed") > max(text.rfind(OPEN), text.rfind(CLOSE)):
        return None
    return expressions_asked(text)


def math_tasks(
    *,
    families: str | Iterable[str] | None = None,
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
) -> ProceduralTaskset:
    """Return the built-in problems as a task set.

    Args:
        families: Names of families, ``None`` for all.
        difficulty: 1 to 8, a pair ``(lowest, highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: A different seed gives different problems.
        size: Number of tasks, 1,000,000 by default.

    Raises:
        TaskError: A family or a difficulty does not exist; the message names those that do.

    >>> math_tasks(families="counting", difficulty=1, split="test")[5].task_id
    'math.counting.d1-1/test/0/5'
    """
    levels = difficulty_range(difficulty, HIGHEST_DIFFICULTY)
    mixture = MathTaskMixture(families_at(families, levels, (FAMILIES, MULTI_STEP_FAMILIES)), *levels)
    return ProceduralTaskset(mixture, name=mixture.name, split=split, seed=seed, size=size or 1_000_000)


choose_math_tasks = functools.partial(choose_tasks, math_tasks, row_to_math_task, "math")
"""Returns the tasks that an environment's arguments describe; see :func:`rllm_gym.envs.task_selection.choose_tasks`."""
