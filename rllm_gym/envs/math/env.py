r"""The mathematics environments: the model gives its answer in ``\boxed{}``; a mathematically equal answer is right."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rllm_gym.argument_checks import check_int
from rllm_gym.core import InvalidAction, Outcome, Task, TaskError, TaskSource
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs.math.answer_form import ANSWER_FORMATS, AnswerFormat, answer_rule, example_reply
from rllm_gym.envs.math.calculator import TOOLS, CalculatorError, calculate
from rllm_gym.envs.math.families import LEVELS, MathTaskMixture
from rllm_gym.envs.math.feedback import answer_outcome, grader_fault
from rllm_gym.envs.math.rows import GoldAnswer, gold_answer, row_to_math_task
from rllm_gym.envs.math.tool_calls import CLOSE, EXAMPLE, OPEN, expressions_asked
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.envs.task_selection import HIGHEST_DIFFICULTY, choose_tasks, difficulty_range, families_at
from rllm_gym.grading import grade_math
from rllm_gym.parsing.boxed import strip_thinking


def _is_read_as_number(gold: GoldAnswer) -> bool:
    """Return whether a reply that consists of the answer would be right with ``answer_format="last_number"``."""
    return gold.form != "polynomial" and grade_math(gold.text, gold.text, extract="last_number", timeout=60.0).correct


_MAX_REPEATED_EXAMPLES = 20
"""How many examples are left out because they repeat the problem or each other before there are fewer of them."""


class MathEnv(QuestionEnv):
    r"""Solve a math problem in one reply.

    ## Description
    Problems come from built-in families (arithmetic, linear systems, algebra, number theory, word problems and more;
    unlimited, without a download), from a file, or from the Hugging Face hub. Answers are graded by mathematical
    equality (:func:`rllm_gym.grading.grade_math`). An angle may be given in degrees (with the mark) or radians unless
    the problem names either.

    ## Action space
    Any text. The answer is the content of the last ``\boxed{}`` after the last closed ``</think>``, or what
    ``answer_format`` names instead. Boxes that are joined (``\boxed{1} and \boxed{2}``) are one list. A reply whose
    ``<think>`` is never closed has no answer.

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
            ``word_problems``, ``sequences``, ``combinatorics``, ``geometry``, ``probability`` and ``chains``;
            difficulty 0 has ``arithmetic``, ``word_problems`` and ``sequences``.
        difficulty: Of built-in problems: 1 (easy) to 5, 0 for one step on small numbers (models of 100 million
            parameters), 6 to 8 for problems of several steps (designed for models of one billion parameters and more;
            no success rate of a model has been measured), a pair ``(lowest, highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``. The split of a problem is decided by its content; no two
            splits share a problem. ``None`` means ``"train"`` for built-in problems and every row of a file.
        task_seed: A different seed gives different built-in problems.
        num_tasks: Number of tasks: the first rows of a file, or built-in problems (1,000,000 by default).
        answer_format: Where in the reply the answer is: ``"boxed"``, ``"answer_line"`` (the last line ``Answer: ...``)
            or ``"last_number"``, for models that do not write ``\boxed{}``. The prompt says so.
        examples: Number of solved built-in problems in the prompt: of the same families and difficulty, from the
            training split, chosen by the task.
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
        answer_format: AnswerFormat = "boxed",
        examples: int = 0,
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
        if answer_format not in ANSWER_FORMATS:
            raise ValueError(f"answer_format={answer_format!r} must be one of {', '.join(map(repr, ANSWER_FORMATS))}")
        check_int("examples", examples, least=0)
        if examples and tasks is not None:
            raise TaskError(f"examples={examples!r} are built-in problems; with tasks=, put examples into the rows")
        super().__init__(
            tasks=choose_math_tasks(tasks, families, difficulty, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.grading_timeout = grading_timeout
        self.answer_format = answer_format
        self.examples = examples
        self._solved = math_tasks(families=families, difficulty=difficulty, seed=task_seed) if examples else None

    def _question(self, task: Task) -> str:
        self._gold = gold = gold_answer(task)
        if self.answer_format == "last_number" and not _is_read_as_number(gold):
            raise TaskError(
                f"task {task.task_id!r} has the answer {gold.text!r:.80}, which is no number, but "
                "answer_format='last_number' needs one: use 'answer_line' or 'boxed', or other families"
            )
        return f"{self._solved_examples(task)}{task.content}\n\n{self._rule()}"

    def _rule(self) -> str:
        return answer_rule(self._gold.form, self.answer_format)

    def _solved_examples(self, task: Task) -> str:
        if self._solved is None:
            return ""
        first = int.from_bytes(hashlib.sha256(task.task_id.encode()).digest()[:4], "big")
        others = (self._solved[(first + offset) % len(self._solved)] for offset in itertools.count())
        chosen: dict[str, str] = {}
        for other in itertools.islice(others, self.examples + _MAX_REPEATED_EXAMPLES):
            if other.content != task.content and len(chosen) < self.examples:
                chosen[other.content] = example_reply(other.data["gold"], self.answer_format)
        solved = "".join(f"Problem: {problem}\nReply: {reply}\n\n" for problem, reply in chosen.items())
        return f"Solved problems:\n\n{solved}Your problem:\n\n"

    def _act(self, action: str) -> Outcome:
        try:
            gold = self._gold
            verdict = grade_math(
                action,
                gold.text,
                extract=self.answer_format,
                timeout=self.grading_timeout,
                tolerance=gold.tolerance,
                degrees=gold.degrees,
            )
        except (OSError, RuntimeError) as error:
            raise grader_fault(self.task.task_id, error) from error
        return answer_outcome(
            verdict,
            action,
            gold=gold.text,
            form=gold.form,
            problem=self.task.content,
            answer_format=self.answer_format,
        )

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
        if calculator and self.answer_format != "boxed":
            raise ValueError(f"answer_format={self.answer_format!r} with calculator=True; the calculator needs 'boxed'")
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
        turns_left = self._turns_left("revise the answer.")
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
        difficulty: 0 to 8, a pair ``(lowest, highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: A different seed gives different problems.
        size: Number of tasks, 1,000,000 by default.

    Raises:
        TaskError: A family or a difficulty does not exist; the message names those that do.

    >>> math_tasks(families="counting", difficulty=1, split="test")[5].task_id
    'math.counting.d1-1/test/0/5'
    """
    levels = difficulty_range(difficulty, HIGHEST_DIFFICULTY, lowest=0)
    mixture = MathTaskMixture(families_at(families, levels, LEVELS), *levels)
    return ProceduralTaskset(mixture, name=mixture.name, split=split, seed=seed, size=size or 1_000_000)


choose_math_tasks = functools.partial(choose_tasks, math_tasks, row_to_math_task, "math")
"""Returns the tasks that an environment's arguments describe; see :func:`rllm_gym.envs.task_selection.choose_tasks`."""
