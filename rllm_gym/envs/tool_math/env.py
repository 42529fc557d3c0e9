r"""The environment of math problems with a Python tool: programs run in the sandbox, answers are in ``\boxed{}``."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_gym.core import InvalidAction, Outcome, Task, TaskSource
from rllm_gym.envs.math.answer_form import answer_rule
from rllm_gym.envs.math.env import choose_math_tasks
from rllm_gym.envs.math.feedback import answer_outcome, grader_fault
from rllm_gym.envs.math.rows import gold_answer
from rllm_gym.envs.program_limits import CPU_LIMITS_S, MEMORY_LIMITS_MB, check_bounds
from rllm_gym.envs.sandboxed_question import SandboxedQuestionEnv
from rllm_gym.envs.tool_math.python_tool import EXAMPLE, TOOLS, code_of, program_for, run_text
from rllm_gym.grading import agrade_math
from rllm_gym.mcp.results import ToolResult
from rllm_gym.parsing.function_calls import FunctionCall
from rllm_gym.parsing.tool_calls import parse_tool_calls
from rllm_gym.sandbox import Limits, SandboxPool

MAX_CALLS = 8
MIN_RESULT_CHARS = 100
MIN_OBSERVATION_CHARS = 10_000

_OUTPUT_BYTES = 200_000


class ToolMathEnv(SandboxedQuestionEnv):
    r"""Solve a math problem with a Python tool.

    ## Description
    The problems of ``rllm/Math-v0``, built-in or from rows, and a tool ``python`` that runs programs in a sandbox
    (:class:`rllm_gym.sandbox.SandboxPool`). Each call is a new process without network access that contains nothing of
    the task. The answer is graded by mathematical equality (:func:`rllm_gym.grading.grade_math`).

    ## Action space
    Any text. A reply calls the tool, with ``<tool_call>{"name": "python", "arguments": {"code": "…"}}</tool_call>`` or
    in any other notation that models are trained with (:func:`rllm_gym.parsing.tool_calls.parse_tool_calls`), up to
    eight times at once; or it gives the answer in the last ``\boxed{}`` after the last closed ``</think>``. A reply
    with a call gives no answer, even if it contains ``\boxed{}``.

    ## Observation space
    Text. First the problem, the tool, the answer format and the number of turns; then what the programs printed (the
    middle of a long output is cut, with a note); then whether the answer was right. The right answer is never shown.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed. Nothing else is random.

    ## Rewards
    ``correct``: 1 for a right answer, 0 for a wrong one and for calls. A reply with neither an answer nor well-formed
    calls costs ``invalid_action_penalty``. If a program loops, crashes, or exceeds its limits, the model gets an error
    message and no penalty. If the sandbox itself fails, :class:`~rllm_gym.sandbox.SandboxFault` is raised: an
    environment fault, for which no reward is given.

    ## Episode end
    Terminates with the answer: ``success`` or ``failure``. Truncated (``max_turns``) when no turns are left.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``extracted: str``, the graded answer (its first 1,000 characters;
    ``""`` until then), ``tools_called: int``, the number of programs run in the episode so far, and
    ``sandbox_tier: str``, the isolation of the programs (see :class:`rllm_gym.sandbox.Tier`). ``tools`` from ``reset``
    contains the tool's JSON schema.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/ToolMath-v0", families=["combinatorics"], difficulty=(3, 5))  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                                              # doctest: +SKIP

    Args:
        tasks: As for ``rllm/Math-v0``: ``None`` for the built-in problems, a path, ``"hf:…"``, rows or a task set.
        families: Built-in families to draw from, ``None`` for all: see :class:`rllm_gym.envs.math.MathEnv`.
        difficulty: Of built-in problems, 0 to 8, a pair ``(lowest, highest)``, or ``None`` for 1 to 5: see
            :class:`rllm_gym.envs.math.MathEnv`.
        split: ``"train"``, ``"validation"`` or ``"test"``; ``None`` means ``"train"`` for built-in problems and every
            row of a file.
        task_seed: A different seed gives different built-in problems.
        num_tasks: Number of tasks: the first rows of a file, or built-in problems (1,000,000 by default).
        sandbox: Where programs run: ``"auto"``, the strongest sandbox available on this machine; ``"namespaces"``,
            ``"landlock"``, ``"docker"``; ``"unsafe"``, without isolation; or your own
            :class:`~rllm_gym.sandbox.SandboxPool`, which you close. Environments of a process that name the same kind
            share one pool.
        cpu_s: CPU time per program in seconds, 0.1 to 60. The wall-clock limit is 5 s plus three times
            as long.
        memory_mb: Memory of each program, 32 to 4,096.
        max_result_chars: Longest output of a program in an observation, at least 100.
        grading_timeout: Processor time in seconds for grading the answer; if it needs more, it is wrong.
        max_turns: Number of replies.
        invalid_action_penalty: Subtracted from the reward for a reply with neither an answer nor well-formed calls.
        max_observation_chars: Bound of the observation space, at least 10,000.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the problem, replies and observations) or ``None``.

    Raises:
        SandboxUnavailable: The sandbox does not work on this machine; the message says why and names a solution.
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
        sandbox: str | SandboxPool = "auto",
        cpu_s: float = 10.0,
        memory_mb: int = 512,
        max_result_chars: int = 4_000,
        grading_timeout: float = 2.0,
        max_turns: int = 8,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if not (math.isfinite(grading_timeout) and grading_timeout > 0):
            raise ValueError(f"grading_timeout={grading_timeout!r} must be a finite number of seconds > 0")
        cpu_s = check_bounds("cpu_s", cpu_s, *CPU_LIMITS_S)
        memory_mb = int(check_bounds("memory_mb", memory_mb, *MEMORY_LIMITS_MB))
        self.max_result_chars = int(check_bounds("max_result_chars", max_result_chars, MIN_RESULT_CHARS, 1_000_000))
        check_bounds("max_observation_chars", max_observation_chars, MIN_OBSERVATION_CHARS)
        super().__init__(
            sandbox=sandbox,
            tasks=choose_math_tasks(tasks, families, difficulty, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.grading_timeout = grading_timeout
        self._limits = Limits(cpu_s=cpu_s, wall_s=5 + 3 * cpu_s, memory_mb=memory_mb, output_bytes=_OUTPUT_BYTES)

    # Episode

    def _question(self, task: Task) -> str:
        self._gold = gold_answer(task)
        self._called = 0
        turns = f"You have {self.max_turns} turn{'s' * (self.max_turns > 1)}; the answer ends the task."
        return (
            f"{task.content}\n\n{answer_rule(self._gold.form, 'boxed')} Before that, a reply may run Python programs "
            f"instead of answering, up to {MAX_CALLS} at once, each in a fresh process that prints its results: "
            f"{EXAMPLE}\n{turns}"
        )

    async def _async_act(self, action: str) -> Outcome:
        calls = parse_tool_calls(action).calls
        if calls:
            return Outcome(await self._run(calls), {"correct": 0.0})
        try:
            gold = self._gold
            verdict = await agrade_math(
                action, gold.text, timeout=self.grading_timeout, tolerance=gold.tolerance, degrees=gold.degrees
            )
        except (OSError, RuntimeError) as error:
            raise grader_fault(self.task.task_id, error) from error
        try:
            return answer_outcome(verdict, action, gold=gold.text, form=gold.form, problem=self.task.content)
        except InvalidAction as error:
            raise InvalidAction(f"{error} Nor does it call the tool.") from error

    async def _run(self, calls: Sequence[FunctionCall]) -> str:
        """Run the programs concurrently; return their results in order."""
        many = len(calls)
        if many > MAX_CALLS:
            raise InvalidAction(f"The reply has {many} tool calls, and at most {MAX_CALLS} are taken; nothing was run.")
        programs = [program_for(code_of(call, number), self._limits) for number, call in enumerate(calls, 1)]
        pool = self._pool()
        running = [asyncio.ensure_future(pool.run(program)) for program in programs]
        try:
            results = await asyncio.gather(*running)
        finally:
            for one in running:
                one.cancel()
        self._called += many
        max_chars = self.observation_space.max_length // many - 40  # type: ignore[attr-defined]
        shown = min(self.max_result_chars, max_chars)
        texts = [ToolResult(run_text(result, self._limits)).shortened(shown) for result in results]
        heads = [f"Result{f' {number} of {many}' * (many > 1)}:" for number in range(1, many + 1)]
        return "\n\n".join(f"{head}\n{text}" for head, text in zip(heads, texts))

    def _tools(self) -> str:
        return TOOLS

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info["extracted"] = ""  # the outcome of a graded answer overwrites it
        info["tools_called"] = self._called

    def _env_state(self) -> dict[str, Any]:
        return super()._env_state() | {"called": self._called}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        super()._restore_env_state(state)
        self._called = int(state["called"])
