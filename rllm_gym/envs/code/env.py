"""Programming as an environment: a problem is posed, the reply is a program, and hidden tests are the reward."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from rllm_gym.core import AsyncTextEnv, InvalidAction, Outcome, Task, TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.envs.code.families import code_tasks
from rllm_gym.envs.code.feedback import about_error, about_hidden, about_public, error_alone
from rllm_gym.envs.code.form import assembled, posed
from rllm_gym.envs.code.rows import MEMORY_LIMITS_MB, TIME_LIMITS_S, code_task, row_to_code_task
from rllm_gym.grading.code import CodeVerdict, FunctionTests, StdioTest, StdioTests, TestOutcome, grade_program
from rllm_gym.parsing.program import program_of
from rllm_gym.sandbox import Ended, Limits, SandboxPool, shared_pool

_RENDERED_CHARS = 4_000
_PROGRAM_CHARS = 10_000

_TESTS_AT_A_TIME = 4
_OUT_OF_TIME = (Ended.CPU, Ended.WALL)

Tests = StdioTests | FunctionTests


class CodeEnv(AsyncTextEnv):
    """Solve a programming problem in one reply.

    **Description**: Problems come from built-in families (lists, texts, words, numbers, graphs, grids, intervals,
    stacks, simulations, parsers and more, without limit and without a download), from rows, from a file, or from the
    Hugging Face hub. A problem asks for a program that reads standard input and writes standard output, or for a
    function or class. The program is run in a sandbox (:class:`rllm_gym.sandbox.SandboxPool`) and graded by
    :func:`rllm_gym.grading.code.grade_program`: the expected results never enter a process that runs it.

    **Action space**: Any text. The program is the last fenced block that is labelled ``python``, or the only block,
    after the last closed ``</think>``. For a task that gives the beginning of a function, as HumanEval does, the
    program may leave out the imports and helpers given, or be the function's body alone.

    **Observation space**: Text. First the problem, the tests that are shown, and how to hand the program in; then
    whether it was right, or that it could not be run. Nothing of a hidden test is ever shown, neither its input nor
    its expected result nor what the program wrote or raised over it.

    **Starting state**: One task, by ``options={"task": index | task_id | Task}``, else drawn with the seed. Nothing
    else is random.

    **Rewards**: ``tests``: 1 if every test passes, else 0. With ``partial=True`` the share of the hidden tests that
    pass (of all, where all are shown). A program that loops, crashes, or uses more than its limits fails the test. A
    reply without a program gets 0, less ``invalid_action_penalty``. Should the sandbox itself break,
    :class:`~rllm_gym.sandbox.SandboxBroke` is raised, a fault and no reward.

    **Episode end**: Terminates on the one reply: ``success``, ``failure``, or ``invalid_action`` where there was no
    program in it.

    **Information**: The keys of :class:`~rllm_gym.core.TextEnv`, and ``program: str``, the program handed in (its
    first 10,000 characters; ``""`` where there was none), ``tests_passed: int`` and ``tests_total: int``, the hidden
    tests that passed and those there are (0 before they were run; without ``partial`` the first failure ends the
    run), and ``sandbox_tier: str``, what confined the program (see :class:`rllm_gym.sandbox.Tier`).

    **Arguments**:

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Code-v0", families=["intervals"], difficulty=(1, 2))  # doctest: +SKIP
    >>> observation, info = env.reset(seed=0)                                      # doctest: +SKIP

    Args:
        tasks: ``None`` for the built-in problems; ``"path.jsonl"``, ``"path.parquet"``, ``"hf:repo[:config][@split]"``,
            a list of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows are
            ``{"id", "prompt", "kind": "stdio", "tests": [{"stdin", "stdout"}]}`` or ``{"id", "prompt", "kind":
            "function", "entry_point", "test", "test_style": "check" | "unittest" | "pytest" | "assert"}``, both with
            ``public_tests`` (how many are shown, or further ones that are), ``float_tolerance``, ``time_limit_s``
            and ``memory_mb`` if wanted; or rows of HumanEval, MBPP, APPS, TACO, LiveCodeBench, CodeContests,
            DeepCoder or KodCode. Of MBPP the first assertion is shown.
        families: Built-in families to draw from, ``None`` for all: see :data:`rllm_gym.envs.code.FAMILIES`.
        difficulty: Of built-in problems: 1 (easy) to 5, a pair ``(lowest, highest)``, or ``None`` for all.
        split: ``"train"``, ``"validation"`` or ``"test"``. Splits are made by the content of a problem and share
            none. ``None`` is ``"train"`` for built-in problems and every row of a file.
        task_seed: Another seed gives other built-in problems.
        num_tasks: Number of tasks: the first so many rows, or built-in problems (1,000,000 by default).
        sandbox: Where programs run: ``"auto"``, the strongest that works here; ``"namespaces"``, ``"landlock"``,
            ``"docker"``; ``"unsafe"`` confines nothing; or a :class:`~rllm_gym.sandbox.SandboxPool` of yours, which
            you close. Environments that name a kind share one pool in a process.
        partial: Whether a program that passes some of the hidden tests gets their share.
        time_limit_s: Seconds of processor time for each run of a program (each test of a program that reads and
            writes; all tests of a function), where the task does not say: 0.1 to 60. A row's own limit is brought
            into these bounds. By the clock a run may take 5 s and three times as long.
        memory_mb: Memory of each run, where the task does not say: 32 to 4,096. Likewise.
        max_turns: 1; for more turns there is ``rllm/CodeMultiTurn-v0``.
        invalid_action_penalty: Taken from the reward where a reply holds no program.
        max_observation_chars: Bound of the observation space.
        max_action_chars: Longest reply that is read.
        render_mode: ``"ansi"`` (the problem, replies and verdicts) or ``None``.

    Raises:
        SandboxUnavailable: That sandbox does not work here; says why and the way out.
        TaskError: The tasks cannot be used; file, row and way out are named.
        ValueError: Another argument is out of range.

    **Version history**: v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    bound_to_loop: ClassVar[bool] = False  # a pool serves every loop

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
        time_limit_s: float = 5.0,
        memory_mb: int = 512,
        max_turns: int = 1,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if max_turns != 1 and type(self) is CodeEnv:
            raise ValueError(f"max_turns={max_turns!r}: rllm/Code-v0 has one turn; use rllm/CodeMultiTurn-v0")
        if num_tasks is not None and (not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1):
            raise ValueError(f"num_tasks={num_tasks!r} must be a whole number of at least 1, or None for all")
        if not isinstance(partial, bool):
            raise ValueError(f"partial={partial!r} must be True or False")
        super().__init__(
            tasks=_choose_tasks(tasks, families, difficulty, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.partial = partial
        self.time_limit_s = _in_bounds("time_limit_s", time_limit_s, TIME_LIMITS_S)
        self.memory_mb = int(_in_bounds("memory_mb", memory_mb, MEMORY_LIMITS_MB))
        self._sandbox = sandbox
        self.metadata = {**type(self).metadata, "sandbox_tier": self._pool().tier.value}  # type: ignore[misc]
        self._log: list[tuple[str, str]] = []
        self._program, self._passed, self._total = "", 0, 0

    def _pool(self) -> SandboxPool:
        # Asked for each time: after a fork, as vector environments make them, the shared pool is another.
        return self._sandbox if isinstance(self._sandbox, SandboxPool) else shared_pool(self._sandbox)

    # The episode -------------------------------------------------------------------------------------------

    async def _async_begin(self, task: Task) -> str:
        task = code_task(task)
        limits = self._read_task(task)
        self._log, self._program, self._passed, self._total = [], "", 0, 0
        observation = self._first_words(task, limits)
        if len(observation) > self.observation_space.max_length:  # type: ignore[attr-defined]
            raise TaskError(
                f"task {task.task_id!r} needs an observation of {len(observation)} characters, too long for "
                f"max_observation_chars={self.observation_space.max_length}; raise it"  # type: ignore[attr-defined]
            )
        return observation

    def _read_task(self, task: Task) -> Limits:
        """Set up what the task is graded by."""
        data = self._data = task.data
        cpu_s = data["time_limit_s"] or self.time_limit_s
        limits = Limits(cpu_s=cpu_s, wall_s=5 + 3 * cpu_s, memory_mb=data["memory_mb"] or self.memory_mb)
        self._public: Tests | None = None
        self._hidden: Tests | None
        if data["kind"] == "stdio":
            tests = tuple(StdioTest(case["stdin"], case["stdout"]) for case in data["tests"])
            shown = self._shown = data["public_tests"]
            everything = StdioTests(tests, data["float_tolerance"], limits)
            self._all: Tests = everything
            self._public = replace(everything, tests=tests[:shown]) if shown else None
            self._hidden = replace(everything, tests=tests[shown:]) if shown < len(tests) else None
        else:
            # Test code is one piece: what is shown stands beside it, and mostly in it too.
            self._shown = 0
            self._all = self._hidden = FunctionTests(
                data["entry_point"], data["test"], data["test_style"], data["setup"], limits
            )
            if data["public_tests"]:
                shown_code = "\n".join(data["public_tests"])
                self._public = FunctionTests(data["entry_point"], shown_code, "assert", data["setup"], limits)
        return limits

    def _first_words(self, task: Task, limits: Limits) -> str:
        return posed(task, time_limit_s=limits.cpu_s, memory_mb=limits.memory_mb)

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._program, self._passed, self._total = "", 0, 0
        result = await super().async_step(action)
        self._log.append((action, result[0]))
        return result

    async def _async_act(self, action: str) -> Outcome:
        source = self._read_reply(action)
        verdict = await self._grade(source, self._all, everything=self.partial)
        share = self._count(verdict, shown=self._shown)
        said = await self._about_hidden(source, verdict)
        return Outcome(said, {"tests": self._reward(verdict, share)}, terminated=True, success=verdict.correct)

    def _read_reply(self, action: str) -> str:
        program = program_of(action)
        self._program = program[:_PROGRAM_CHARS]
        return assembled(program, self._data)

    def _count(self, verdict: CodeVerdict, *, shown: int) -> float:
        """Note how many hidden tests there are and how many passed, and return their share.

        Args:
            shown: How many of the first tests of the verdict were shown.
        """
        outcomes, total = verdict.outcomes[shown:], verdict.total - shown
        if not total:  # all are shown, and count
            outcomes, total = verdict.outcomes, verdict.total
        self._passed, self._total = sum(outcome.passed for outcome in outcomes), max(total, 0)
        return self._passed / self._total if self._total else 0.0

    async def _grade(self, source: str, tests: Tests, *, everything: bool, reveal: bool = False) -> CodeVerdict:
        """Grade with all tests, or (not ``everything``) up to the first that fails."""
        if everything and isinstance(tests, StdioTests):
            return await self._grade_all(source, tests, reveal)
        return await grade_program(
            self._pool(), source, tests, stop_at_first_failure=not everything, show_expected=reveal
        )

    async def _grade_all(self, source: str, tests: StdioTests, reveal: bool) -> CodeVerdict:
        """Grade with all tests, a few at a time, until one uses up its time: the others would most likely do so too,
        and waiting for each of them would take minutes. They count as failed."""
        outcomes: tuple[TestOutcome, ...] = ()
        output = ""
        while len(outcomes) < len(tests.tests) and not any(outcome.ended in _OUT_OF_TIME for outcome in outcomes):
            # The first alone: it tells the most.
            end = len(outcomes) + (_TESTS_AT_A_TIME if outcomes else 1)
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

    async def _about_hidden(self, source: str, verdict: CodeVerdict) -> str:
        if verdict.error:
            # Its text may be the program's own, written when it had seen a hidden test. So it is asked again, alone.
            return about_error(await error_alone(self._pool(), source, self._data["kind"]))
        return about_hidden(verdict, self._passed, self._total, counted=self.partial)

    def _reward(self, verdict: CodeVerdict, share: float) -> float:
        return 1.0 if verdict.correct else share if self.partial else 0.0

    def _add_info(self, info: dict[str, Any]) -> None:
        info["program"] = self._program
        info["tests_passed"] = self._passed
        info["tests_total"] = self._total
        info["sandbox_tier"] = self.metadata["sandbox_tier"]

    def render(self) -> str | np.ndarray | None:
        """The problem, and each reply with what was said about it, for ``render_mode="ansi"``."""
        if self.render_mode != "ansi":
            return None
        lines = [f"Problem {self.task.task_id}", _indent(self.task.content)]
        for turn, (reply, answer) in enumerate(self._log, start=1):
            lines += [f"Reply {turn}", _indent(reply), "Verdict", _indent(answer)]
        return "\n".join(lines)

    def _world_state(self) -> dict[str, Any]:
        return {
            "log": [list(entry) for entry in self._log],
            "program": self._program,
            "passed": self._passed,
            "total": self._total,
        }

    def _restore_world(self, state: dict[str, Any]) -> None:
        self._read_task(code_task(self.task))
        self._log = [(str(reply), str(answer)) for reply, answer in state["log"]]
        self._program, self._passed, self._total = str(state["program"]), int(state["passed"]), int(state["total"])


class CodeMultiTurnEnv(CodeEnv):
    """Solve a programming problem; a program that fails may be revised.

    **Description**: As ``rllm/Code-v0``, in several turns: a program is first run on the tests that are shown, and
    what went wrong comes back; when it passes them all, the hidden tests are run, and the model is told whether it
    passes those, never how it fails them.

    **Action space**: Any text, read as in ``rllm/Code-v0``. Every reply holds a whole program.

    **Observation space**: Text. First the problem, the tests that are shown, the number of turns and how to hand a
    program in; then, of a program that fails: the error that kept it from running, the shown tests that it fails
    (input, expected result, its own, the end of what it wrote to standard error), or that it fails hidden tests, and
    how many turns are left. What is long is cut, which is said.

    **Starting state**: As ``rllm/Code-v0``.

    **Rewards**: ``tests``: 1 on the turn whose program passes every test, else 0. With ``partial=True`` the shares of
    the hidden tests that the programs pass (0 for one that fails a shown test) add up to the best of them: each turn
    gets by how much its share is above those before.

    **Episode end**: Terminates with the program that passes every test; truncated (``max_turns``) when the turns run
    out. Every reply is a turn.

    **Information**: As ``rllm/Code-v0``.

    **Arguments**: Those of :class:`CodeEnv`, and:

    Args:
        max_turns: Replies the model has.
        **arguments: See :class:`CodeEnv`.

    **Version history**: v0: first release.
    """

    def __init__(self, *, max_turns: int = 3, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **arguments)
        self._best = 0.0

    async def _async_begin(self, task: Task) -> str:
        self._best = 0.0
        return await super()._async_begin(task)

    def _first_words(self, task: Task, limits: Limits) -> str:
        turns = f"You have {self.max_turns} turn{'s' * (self.max_turns > 1)}; a program that fails may be revised."
        return f"{super()._first_words(task, limits)} {turns}"

    async def _async_act(self, action: str) -> Outcome:
        try:
            source = self._read_reply(action)
        except InvalidAction as error:
            raise InvalidAction(f"{error} {self._left()}") from error
        if self._public is not None:
            public = await self._grade(source, self._public, everything=True, reveal=True)
            if not public.correct or self._hidden is None:
                if self._hidden is None:
                    self._count(public, shown=0)
                return self._outcome(public, about_public(public))
        assert self._hidden is not None
        hidden = await self._grade(source, self._hidden, everything=self.partial)
        share = self._count(hidden, shown=0)
        return self._outcome(hidden, await self._about_hidden(source, hidden), share)

    def _outcome(self, verdict: CodeVerdict, said: str, share: float = 0.0) -> Outcome:
        reward = self._reward(verdict, share)
        earned, self._best = max(0.0, reward - self._best), max(reward, self._best)
        if verdict.correct:
            return Outcome(said, {"tests": earned}, terminated=True, success=True)
        return Outcome(f"{said}\n\n{self._left()}", {"tests": earned})

    def _left(self) -> str:
        left = self.max_turns - self._turn - 1
        if not left:
            return "No turns are left."
        return f"You have {left} turn{'s' * (left > 1)} left: revise it and reply with the whole program."

    def _world_state(self) -> dict[str, Any]:
        return super()._world_state() | {"best": self._best}

    def _restore_world(self, state: dict[str, Any]) -> None:
        super()._restore_world(state)
        self._best = float(state["best"])


def _in_bounds(name: str, value: float, bounds: tuple[float, float]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{name}={value!r} must be a number from {bounds[0]:g} to {bounds[1]:g}")
    return float(value)


def _indent(text: str) -> str:
    if len(text) > _RENDERED_CHARS:
        text = f"{text[:_RENDERED_CHARS]}… ({len(text)} characters)"
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  (nothing)"


def _choose_tasks(
    tasks: Any, families: Any, difficulty: Any, split: str | None, seed: int, num_tasks: int | None
) -> TaskSource:
    if tasks is None:
        return code_tasks(families=families, difficulty=difficulty, split=split, seed=seed, size=num_tasks)
    for name, value in (("families", families), ("difficulty", difficulty)):
        if value is not None:
            raise TaskError(f"{name}={value!r} chooses among the built-in problems; leave it out where tasks= is given")
    source = load_tasks(tasks, name="code" if not isinstance(tasks, str | os.PathLike) else None, split=split,
                        convert=row_to_code_task)  # fmt: skip
    if num_tasks is None:
        return source
    if not isinstance(source, Taskset):
        source = Taskset.from_rows(source, convert=row_to_code_task)
    return source.take(num_tasks)
