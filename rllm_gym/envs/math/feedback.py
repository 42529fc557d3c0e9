"""Conversion of a grader's verdict to the outcome of a turn."""

from __future__ import annotations

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome
from rllm_gym.envs.math.answer_form import MISSING, AnswerFormat, is_finished, repeats_problem
from rllm_gym.grading import MathVerdict
from rllm_gym.parsing.boxed import strip_thinking

_EXTRACTED_CHARS = 1_000


def answer_outcome(
    verdict: MathVerdict, reply: str, *, gold: str, form: str, problem: str, answer_format: AnswerFormat = "boxed"
) -> Outcome:
    """Return the outcome of a reply with an answer, which ends the task; ``success`` if the answer is right.

    Args:
        verdict: The grader's verdict on the reply.
        reply: The reply.
        gold: The right answer, which is never shown.
        form: Form of the right answer, as defined in :mod:`rllm_gym.envs.math.answer_form`.
        problem: The text of the problem.
        answer_format: Where in the reply the answer is.

    Raises:
        InvalidAction: The reply contains no answer.
    """
    if not verdict.extracted:
        raise InvalidAction(_no_answer(reply, answer_format))
    info = {"extracted": verdict.extracted[:_EXTRACTED_CHARS]}
    if not verdict.correct:
        feedback = "That is not correct."
    elif verdict.extracted != gold and not is_finished(verdict.extracted, form):
        what = "a polynomial" if form == "polynomial" else "one number"
        feedback = f"That is not a finished answer: work it out to {what}."
    elif verdict.extracted != gold and repeats_problem(verdict.extracted, gold, problem):
        feedback = "That is not a finished answer: it repeats the problem."
    else:
        return Outcome("Correct.", {"correct": 1.0}, terminated=True, success=True, info=info)
    return Outcome(feedback, {"correct": 0.0}, terminated=True, info=info)


def grader_fault(task_id: str, error: Exception) -> EnvironmentFault:
    """Return the ``EnvironmentFault`` for a grader that failed, independent of the answer."""
    return EnvironmentFault(f"the grader failed on task {task_id!r} ({type(error).__name__}: {error})", kind="grader")


def _no_answer(reply: str, answer_format: AnswerFormat) -> str:
    text = strip_thinking(reply)
    if text is None:
        return "There is no answer: the reply opens <think> and never closes it with </think>."
    if answer_format != "boxed" or "\\boxed" not in text:
        return f"There is no answer: {MISSING[answer_format]}."
    return "There is no answer: the \\boxed{} of the reply is empty or never closed."
