"""The programming environments: the model replies with a program, and hidden tests decide the reward."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, Task, TaskError, TaskSource
from rllm_gym.envs.code.families import code_tasks
from rllm_gym.envs.code.feedback import error_feedback, error_without_tests, hidden_feedback, public_feedback
from rllm_gym.envs.code.prompt import assemble_source, format_problem
from rllm_gym.envs.code.rows import code_task, row_to_code_task
from rllm_gym.envs.program_limits import CPU_LIMITS_S, MEMORY_LIMITS_MB, check_bounds
from rllm_gym.envs.sandboxed_question import SandboxedQuestionEnv
from rllm_gym.envs.task_selection import choose_tasks
from rllm_gym.grading.code import (
    CodeVerdict,
    FunctionTests,
    StdioTest,
    StdioTests,
    TestOutcome,
    grade_program,
    ungradable_reason,
)
from rllm_gym.parsing.program import program_of
from rllm_gym.sandbox import Ended, Limits, SandboxPool

_PROGRAM_CHARS = 10_000

_BATCH_SIZE = 4
_OUT_OF_TIME = (Ended.CPU, Ended.WALL)

Tests = StdioTests | FunctionTests


class CodeEnv(SandboxedQuestionEnv):
    """Solve a programming problem in one reply.

    ## Description
    Problems come from built-in families (lists, texts, words, numbers, graphs, grids, intervals, stacks, simulations,
    parsers and more; unlimited, without a download), from rows, from a file, or from the Hugging Face hub. A problem
    asks for a program that reads standard input and writes standard output, or for a function or class. The program
    runs in a sandbox (:class:`rllm_gym.sandbox.SandboxPool`) and is graded by
    :func:`rllm_gym.grading.code.grade_program`: the expected results never enter a process that runs the program.

    ## Action space
    Any text. The program is the last fenced block labelled ``python``, or the only block, after the last closed
    ``</think>``. For a task that gives the beginning of a function, as HumanEval does, the program may omit the given
    imports and helpers, or be only the function's body.

    ## Observation space
    Text. First the problem, the public tests, and the answer format; then whether the program was right, or that it
    could not be run. Nothing of a hidden test is ever shown: not its input, not its expected result, and not the
    output or the errors of the program on it.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed. Nothing else is random.

    ## Rewards
    ``tests``: 1 if every test passes, else 0. With ``partial=True`` the fraction of the hidden tests that pass (of all
    tests, if all are public). A program that loops, crashes, or exceeds its limits fails the test. A reply without a
    program gets 0 minus ``invalid_action_penalty``. If the sandbox itself fails,
    :class:`~rllm_gym.sandbox.SandboxFault` is raised, and if a task's tests cannot be run whatever the program, a fault
    of kind ``ungradable_task``: an environment fault, for which no reward is given. No program can cause either.

    ## Episode end
    Terminates after the single reply: ``success``, ``failure``, or ``invalid_action`` if it contains no program.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``program: str``, the submitted program (its first 10,000
    characters; ``""`` if there was none), ``tests_passed: int`` and ``tests_total: int``, the numbers of passed and of
    all hidden tests (0 before they are run; without ``partial``, the run stops at the first failure), and
    ``sandbox_tier: str``, the isolation of the program (see :class:`rllm_gym.sandbox.Tier`).

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Code-v0", families=["intervals"], difficulty=(1, 2))  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                                      # doctest: +SKIP

    Args:
        tasks: ``None`` for the built-in problems; ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``,
            the name of a data set (``"humaneval+"``, ``"mbpp"``, ``"livecodebench"``, …; see ``docs/data.md``), a list
            of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows are
            ``{"id", "prompt", "kind": "stdio", "tests": [{"stdin", "stdout"}]}`` or ``{"id", "prompt", "kind":
            "function", "entry_point", "test", "test_style": "check" | "unittest" | "pytest" | "assert"}``, both with
            optional ``public_tests`` (the number of tests to show, or additional public tests), ``float_tolerance``,
            ``cpu_s`` and ``memory_mb``; or rows of HumanEval, MBPP, APPS, TACO, LiveCodeBench, CodeContests,
            DeepCoder or KodCode. For MBPP the first assertion is shown. Where several outputs are right, ``stdout`` is
            a list of them, or ``checker`` is ``"tokens"`` (words are compared, ``yes`` and ``no`` in any case; the
            default for contests) or the Python source of a checker, see :mod:`rllm_gym.grading.code.checker`. With
            ``stdin_file``, standard input is a regular file.
        families: Built-in families to draw from, ``None`` for all: see :data:`rllm_gym.envs.code.FAMILIES`, for
            difficulties 6 to 8 ``ALGORITHMS``.
        difficulty: Of built-in problems: 1 (easy) to 5, 6 to 8 for algorithms with large hidden tests that a slow
            program does not finish (designed for models of one billion parameters and more; no success rate of a model
            has been measured), a pair ``(lowest, highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``. The split of a problem is decided by its content; no two
            splits share a problem. ``None`` means ``"train"`` for built-in problems and every row of a file.
        task_seed: A different seed gives different built-in problems.
        num_tasks: Number of tasks: the first rows of a file, or built-in problems (1,000,000 by default).
        sandbox: Where programs run: ``"auto"``, the strongest sandbox available on this machine; ``"namespaces"``,
            ``"landlock"``, ``"docker"``; ``"unsafe"``, without isolation; or your own
            :class:`~rllm_gym.sandbox.SandboxPool`, which you close. Environments of a process that name the same kind
            share one pool.
        partial: Whether a program that passes some of the hidden tests is rewarded with their fraction.
        cpu_s: CPU time in seconds for each run of a program (each test of a program that reads and
            writes; all tests of a function) if the task does not specify it: 0.1 to 60. A row's own limit is clamped
            to these bounds. The wall-clock limit of a run is 5 s plus three times as long.
        memory_mb: Memory of each run if the task does not specify it: 32 to 4,096, clamped likewise.
        max_turns: 1; use ``rllm/CodeMultiTurn-v0`` for more turns.
        invalid_action_penalty: Subtracted from the reward if a reply contains no program.
        max_observation_chars: Bound of the observation space.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the problem, replies and verdicts) or ``None``.

    Raises:
        SandboxUnavailable: The sandbox does not work on this machine; the message says why and names a solution.
        TaskError: The tasks are unusable; the message names the file, the row and a solution.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    reply_tokens: ClassVar[int] = 1024

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
        partial: bool = False,
        cpu_s: float = 5.0,
        memory_mb: int = 512,
        max_turns: int = 1,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if max_turns != 1 and type(self) is CodeEnv:
            raise ValueError(f"max_turns={max_turns!r}: rllm/Code-v0 has a single turn; use rllm/CodeMultiTurn-v0")
        if not isinstance(partial, bool):
            raise ValueError(f"partial={partial!r} must be True or False")
        self.partial = partial
        self.cpu_s = check_bounds("cpu_s", cpu_s, *CPU_LIMITS_S)
        self.memory_mb = int(check_bounds("memory_mb", memory_mb, *MEMORY_LIMITS_MB))
        super().__init__(
            sandbox=sandbox,
            tasks=choose_tasks(
                code_tasks, row_to_code_task, "code", tasks, families, difficulty, split, task_seed, num_tasks
            ),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )

    # Episode

    def _question(self, task: Task) -> str:
        task = code_task(task)
        data = self._data = task.data
        everything = tests_of(data, self.cpu_s, self.memory_mb)
        limits = everything.limits
        self._all: Tests = everything
        self._public: Tests | None = None
        self._hidden: Tests | None
        if isinstance(everything, StdioTests):
            shown = self._shown = data["public_tests"]
            self._public = replace(everything, tests=everything.tests[:shown]) if shown else None
            self._hidden = replace(everything, tests=everything.tests[shown:]) if everything.tests[shown:] else None
        else:
            # Test code is not divided: the public assertions are separate, and mostly part of it as well.
            self._shown = 0
            self._check_gradable(task, ungradable_reason(everything))
            self._hidden = everything
            if data["public_tests"]:
                shown_code = "\n".join(data["public_tests"])
                self._public = FunctionTests(data["entry_point"], shown_code, "assert", data["setup"], limits)
        return format_problem(task, cpu_s=limits.cpu_s, memory_mb=limits.memory_mb)

    async def _async_act(self, action: str) -> Outcome:
        program = program_of(action)
        verdict = await self._grade(program, self._all, everything=self.partial)
        return await self._judged(program, verdict, shown=self._shown)

    async def _judged(self, program: str, verdict: CodeVerdict, *, shown: int) -> Outcome:
        """Return the outcome of a program that was graded with the hidden tests.

        Args:
            program: The program in the reply.
            verdict: The verdict.
            shown: How many of its first tests are public.
        """
        passed, total = _count(verdict, shown)
        if verdict.error:
            # The program may have written the error text after it saw a hidden test. So the error is reproduced without
            # one.
            source = assemble_source(program, self._data)
            feedback = error_feedback(await error_without_tests(self._pool(), source, self._data["kind"]))
        else:
            feedback = hidden_feedback(verdict, passed, total, counted=self.partial)
        share = passed / total if self.partial and total else 0.0
        return Outcome(
            feedback,
            {"tests": 1.0 if verdict.correct else share},
            terminated=True,
            success=verdict.correct,
            info=_info_of(program, passed, total),
        )

    async def _grade(self, program: str, tests: Tests, *, everything: bool, reveal: bool = False) -> CodeVerdict:
        """Grade with all tests, or, without ``everything``, up to the first failure."""
        source = assemble_source(program, self._data)
        try:
            if everything and isinstance(tests, StdioTests):
                verdict = await self._grade_all(source, tests, reveal)
            else:
                verdict = await grade_program(
                    self._pool(), source, tests, stop_at_first_failure=not everything, show_expected=reveal
                )
            reason = "" if verdict.correct else verdict.ungradable
        except TaskError as error:
            reason = str(error)
        self._check_gradable(self.task, reason)
        return verdict

    def _check_gradable(self, task: Task, reason: str) -> None:
        if reason:
            raise EnvironmentFault(
                f"task {task.task_id!r} cannot be graded: {reason}; remove it from the task set",
                kind="ungradable_task",
            )

    async def _grade_all(self, source: str, tests: StdioTests, reveal: bool) -> CodeVerdict:
        """Grade with all tests, a few at a time, until one uses up its time limit. The remaining tests count as failed:
        they would most likely use up theirs too, and waiting for each would take minutes."""
        outcomes: tuple[TestOutcome, ...] = ()
        output = ""
        while len(outcomes) < len(tests.tests) and not any(outcome.ended in _OUT_OF_TIME for outcome in outcomes):
            # The first test runs alone: its result is the most informative.
            end = len(outcomes) + (_BATCH_SIZE if outcomes else 1)
            some = replace(tests, tests=tests.tests[len(outcomes) : end])
            verdict = await grade_program(self._pool(), source, some, show_expected=reveal)
            if verdict.error:
                return replace(verdict, outcomes=(), total=len(tests.tests))
            output = verdict.output if not outcomes else output
            outcomes += tuple(
                replace(outcome, name=str(len(outcomes) + number))
                for number, outcome in enumerate(verdict.outcomes, start=1)
            )
        return CodeVerdict(outcomes, len(tests.tests), output=output)

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info.update(_info_of("", 0, 0))  # the outcome of a graded program overwrites it


def tests_of(data: Mapping[str, Any], cpu_s: float, memory_mb: int) -> Tests:
    """Return the tests in the data of a task (:func:`.row_to_code_task`), with these limits if it has none."""
    cpu_s = data["cpu_s"] or cpu_s
    limits = Limits(cpu_s=cpu_s, wall_s=5 + 3 * cpu_s, memory_mb=data["memory_mb"] or memory_mb)
    if data["kind"] == "function":
        return FunctionTests(data["entry_point"], data["test"], data["test_style"], data["setup"], limits)
    tests = tuple(StdioTest(case["stdin"], case["stdout"], tuple(case.get("also", ()))) for case in data["tests"])
    return StdioTests(tests, data["float_tolerance"], limits, checker=data["checker"], stdin_file=data["stdin_file"])


def _count(verdict: CodeVerdict, shown: int) -> tuple[int, int]:
    """Return how many hidden tests passed, and how many there are; ``shown`` of the verdict's first are public."""
    outcomes, total = verdict.outcomes[shown:], verdict.total - shown
    if not total:  # all tests are public, and count
        outcomes, total = verdict.outcomes, verdict.total
    return sum(outcome.passed for outcome in outcomes), max(total, 0)


def _info_of(program: str, passed: int, total: int) -> dict[str, Any]:
    return {"program": program[:_PROGRAM_CHARS], "tests_passed": passed, "tests_total": total}


class CodeMultiTurnEnv(CodeEnv):
    """Solve a programming problem; a program that fails may be revised.

    ## Description
    As ``rllm/Code-v0``, in several turns. A program is first run on the public tests, and the model gets feedback on
    their failures. If it passes them all, the hidden tests are run, and the model learns whether the program passes
    them, never how it fails.

    ## Action space
    Any text, read as in ``rllm/Code-v0``. Every reply contains a complete program.

    ## Observation space
    Text. First the problem, the public tests, the number of turns and the answer format. Then, for a program that
    fails: the error that prevented it from running, the public tests that it fails (input, expected result, actual
    result, the end of its standard error), or that it fails hidden tests, and how many turns are left. Long text is
    cut, with a note.

    ## Starting state
    As ``rllm/Code-v0``.

    ## Rewards
    ``tests``: 1 on the turn whose program passes every test, else 0. With ``partial=True`` each turn's reward is the
    increase of the best fraction of hidden tests passed so far (a program that fails a public test has fraction 0), so
    that the rewards of an episode sum to the best fraction.

    ## Episode end
    Terminates with the program that passes every test; truncated (``max_turns``) when no turns are left. Every reply
    is a turn.

    ## Information
    As ``rllm/Code-v0``.

    ## Arguments
    Those of :class:`CodeEnv`, and:

    Args:
        max_turns: Number of replies.
        **arguments: See :class:`CodeEnv`.

    ## Version history
    v0: first release.
    """

    def __init__(self, *, max_turns: int = 3, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **arguments)

    def _question(self, task: Task) -> str:
        self._best = 0.0
        turns = f"You have {self.max_turns} turn{'s' * (self.max_turns > 1)}; a program that fails may be revised."
        return f"{super()._question(task)} {turns}"

    async def _async_act(self, action: str) -> Outcome:
        turns_left = self._turns_left("revise it and reply with the whole program.")
        try:
            program = program_of(action)
        except InvalidAction as error:
            raise InvalidAction(f"{error} {turns_left}") from error
        outcome = await self._tested(program)
        reward = outcome.rewards["tests"]
        outcome.rewards["tests"], self._best = max(0.0, reward - self._best), max(reward, self._best)
        if outcome.success:
            return outcome
        return replace(outcome, observation=f"{outcome.observation}\n\n{turns_left}", terminated=False)

    async def _tested(self, program: str) -> Outcome:
        if self._public is not None:
            public = await self._grade(program, self._public, everything=True, reveal=True)
            if not public.correct or self._hidden is None:
                return Outcome(
                    public_feedback(public),
                    {"tests": float(public.correct)},
                    terminated=True,
                    success=public.correct,
                    info=_info_of(program, *(_count(public, 0) if self._hidden is None else (0, 0))),
                )
        assert self._hidden is not None
        hidden = await self._grade(program, self._hidden, everything=self.partial)
        return await self._judged(program, hidden, shown=0)

    def _env_state(self) -> dict[str, Any]:
        return super()._env_state() | {"best": self._best}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        super()._restore_env_state(state)
        self._best = float(state["best"])
