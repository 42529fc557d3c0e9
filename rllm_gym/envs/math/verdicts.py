"""What a verdict on an answer means for the model: that it is right, or what is wrong with it, in words."""

from __future__ import annotations

from rllm_gym.core import EnvironmentFault, InvalidAction
from rllm_gym.envs.math.form import is_finished
from rllm_gym.grading import MathVerdict
from rllm_gym.parsing.boxed import strip_thinking


def fault_in(verdict: MathVerdict, reply: str, *, gold: str, form: str) -> str | None:
    """What is wrong with the answer that was graded; ``None``: it is right.

    Args:
        verdict: What the grader says of the reply.
        reply: The reply.
        gold: The right answer, never shown.
        form: Of the right answer, as :mod:`rllm_gym.envs.math.form` has them.

    Raises:
        InvalidAction: There is no answer in the reply.
    """
    if not verdict.extracted:
        raise InvalidAction(_no_answer(reply))
    if not verdict.correct:
        return "That is not correct."
    if verdict.extracted != gold and not is_finished(verdict.extracted, form):
        what = "a polynomial" if form == "polynomial" else "one number"
        return f"That is not a finished answer: work it out to {what}."
    return None


def broken_grader(task_id: str, error: Exception) -> EnvironmentFault:
    """The fault for a grader that broke, whatever the answer was."""
    return EnvironmentFault(f"the grader broke on task {task_id!r} ({type(error).__name__}: {error})", kind="grader")


def _no_answer(reply: str) -> str:
    text = strip_thinking(reply)
    if text is None:
        return "There is no answer: the reply opens <think> and never closes it with </think>."
    if "\\boxed" not in text:
        return "There is no answer: the reply has no \\boxed{}."
    return "There is no answer: the \\boxed{} of the reply is empty or never closed."
