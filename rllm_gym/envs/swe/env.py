"""The repository environment: an agent with a shell and an editor changes a repository; hidden tests grade it."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from rllm_gym.argument_checks import check_int
from rllm_gym.core import AsyncTextEnv, InvalidAction, Outcome, Task, TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.envs.swe.actions import MAX_COMMAND_TIMEOUT_S, TOOLS, Bash, Submit, parse_action
from rllm_gym.envs.swe.checkout import CACHES, Checkout
from rllm_gym.envs.swe.editor import EditError, Editor
from rllm_gym.envs.swe.images import ImagePool
from rllm_gym.envs.swe.patch import file_diff
from rllm_gym.envs.swe.repositories import swe_tasks
from rllm_gym.envs.swe.rows import RepositoryTask, read_task, swe_task
from rllm_gym.envs.swe.text_display import cut, output_block, printable, printable_name, terminal_text
from rllm_gym.grading.swe import RepositoryTests, RepositoryVerdict, grade_repository
from rllm_gym.grading.swe.change_filter import allowed_changes
from rllm_gym.grading.swe.suspicious import special_cases
from rllm_gym.grading.swe.test_run import runs_our_pytest
from rllm_gym.sandbox import SandboxPool, Tier, shared_pool
from rllm_gym.sandbox.runtime import Runtime, require_pytest, require_regex
from rllm_gym.sandbox.session import ExecResult, SandboxSession, SessionLimits
from rllm_gym.sandbox.session_process import WORKDIR
from rllm_gym.sandbox.tree import Changes, TreeTooLarge

MAX_PATCH_CHARS = 100_000
_LISTED = 60
_FRAME_CHARS = 8_000
"""Maximum length of the first observation without the statement, in characters."""
_LIST_TIMEOUT_S = 30.0
# The hidden tests run more than once, with other values or in another order; a run that is late is the last one.
_MAX_TEST_RUNS = 10
_ENVIRONMENT = {
    # The tree belongs to a different user than the one that runs commands; git refuses that without this setting.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    # If the sandbox hides the host's files, git treats an unreadable system configuration as an error.
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "MANPAGER": "cat",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PIP_PROGRESS_BAR": "off",
    "TQDM_DISABLE": "1",
}


class SWEEnv(AsyncTextEnv):
    """Change a repository so that hidden tests pass: fix a bug, add a small feature.

    ## Description
    Every task is a repository at one commit and an issue statement. The agent works on a copy in a sandbox without
    network, with a shell and an editor, and then submits. The changes are read from outside of the sandbox and graded
    on a new copy with tests the agent never saw. Tasks come from built-in repositories, from your own rows (a
    directory, a git bundle), or from SWE-bench, SWE-smith and R2E-Gym.

    ## Action space
    Any text with exactly one action in it. Either a fenced block labelled ``bash`` with a command (as mini-swe-agent),
    or one function call, in XML (``<function=bash><parameter=command>…</parameter></function>``, as SWE-agent,
    OpenHands and Qwen3-Coder) or JSON (``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, with or without the
    tag, or OpenAI's ``tool_calls``). The tools are ``bash(command, timeout)``, ``str_replace_editor(command, path, …)``
    with the commands ``view``, ``create``, ``str_replace``, ``insert`` and ``undo_edit``, and ``submit()``. The command
    ``submit`` alone in a turn submits as well. Text up to ``</think>`` is ignored.

    ## Observation space
    Text. First the statement, the location of the repository, its top-level files, and how to act. Then the exit code
    and output of the command (its beginning and end, with a note on what was cut), or the editor's answer. Unprintable
    characters are escaped.

    ## Starting state
    The task's files as one new commit. The sandbox contains no other history of the repository and no hidden test.

    ## Rewards
    ``resolved``: 1 if the submitted changes make every listed hidden test pass, exactly once, 0 otherwise and on all
    other turns. ``invalid_action``: minus ``invalid_action_penalty`` for a reply with no action, several, or a
    malformed one.

    ## Episode end
    Terminates with the submission. Truncated (``max_turns``) when no turns are left; the work is then not graded,
    unless ``grade_on_truncation`` is set.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``sandbox_tier: str``; ``resolved: bool``; ``patch: str``, the
    changes as a unified diff, at the end of the episode (at most 100,000 characters, ``""`` before); ``dropped_changes:
    list[str]``, changes that were not graded, each with the reason (test infrastructure, caches); ``verdict: str``, one
    line on the grading; ``suspicious: list[str]``, what in the changes accesses what runs them: it decides nothing,
    training counts it (``env/suspicious_fraction``). ``tools`` from ``reset`` contains the JSON schemas of the tools.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/SWE-v0", split="train", max_turns=10)
    >>> env.unwrapped.max_turns
    10

    Args:
        tasks: ``None`` for the built-in repositories; a file (``.jsonl``, ``.parquet``),
            ``"hf:repo[:config][@split]"``, a list of rows or tasks, or a task set. ``docs/swe.md`` describes rows.
        repositories: With rows that name a repository (``"psf/requests"``): a mapping of such names to local clones.
            With the built-in tasks: names of built-in repositories to draw from, ``None`` for all.
        split: ``"train"``, ``"validation"`` or ``"test"``, by the content of the task. ``None`` means ``"train"`` for
            built-in tasks and every row of a file.
        task_seed: A different seed gives different built-in tasks.
        num_tasks: Number of tasks: the first rows of a file, or built-in tasks. By default every built-in change of the
            split once; more tasks are changes with renamed identifiers.
        max_turns: Number of replies; invalid ones count.
        sandbox: ``"auto"``, ``"namespaces"``, ``"landlock"``, ``"docker"``, ``"unsafe"``, or your own
            :class:`~rllm_gym.sandbox.SandboxPool`, which you close.
        command_timeout: Time limit in seconds for a command, unless the call asks for a different one.
        grading_timeout: Time limit in seconds for a run of the hidden tests; a longer run has failed.
        grade_on_truncation: Whether the work is graded as if it had been submitted when no turns are left. The
            episode is truncated in either case.
        max_output_chars: Longest shown output of a command or of the editor.
        invalid_action_penalty: Subtracted from the reward for an invalid action.
        max_observation_chars: Bound of the observation space.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the last observation) or ``None``.

    Raises:
        TaskError: The tasks are unusable; the message names the file, the row and a solution. ``reset`` raises it for
            an unusable repository.
        ModuleNotFoundError: By ``reset``: pytest, which runs the tests, or regex, which matches their patterns, is not
            installed: ``pip install 'rllm-gym[swe]'``.
        SandboxUnavailable: This machine has no such sandbox.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    reply_tokens: ClassVar[int] = 1024

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        repositories: Mapping[str, str | os.PathLike[str]] | Iterable[str] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        max_turns: int = 30,
        sandbox: str | SandboxPool = "auto",
        command_timeout: float = 60.0,
        grading_timeout: float = 300.0,
        grade_on_truncation: bool = False,
        max_output_chars: int = 16_000,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        for name, seconds in (("command_timeout", command_timeout), ("grading_timeout", grading_timeout)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name}={seconds!r} must be a finite number of seconds > 0")
        if not isinstance(max_output_chars, int) or not 200 <= max_output_chars <= max_observation_chars - 2_000:
            raise ValueError(
                f"max_output_chars={max_output_chars!r} must be a whole number from 200 to max_observation_chars - "
                f"2000 ({max_observation_chars - 2_000})"
            )
        super().__init__(
            tasks=_choose_tasks(tasks, repositories, split, task_seed, num_tasks),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self.command_timeout = command_timeout
        self.grading_timeout = grading_timeout
        self.max_step_s = MAX_COMMAND_TIMEOUT_S + _MAX_TEST_RUNS * grading_timeout
        self.grade_on_truncation = bool(grade_on_truncation)
        self.max_output_chars = max_output_chars
        self._repositories = dict(repositories) if tasks is not None and isinstance(repositories, Mapping) else {}
        self._pool = sandbox if isinstance(sandbox, SandboxPool) else shared_pool(sandbox)
        self.metadata = {**type(self).metadata, "sandbox_tier": self._pool.tier.value}  # type: ignore[misc]
        self._work: _EpisodeResources | None = None
        self._end_of_work = _GradedEnd()

    # Episode

    async def _async_begin(self, task: Task) -> str:
        await self._async_end()
        self._end_of_work = _GradedEnd()
        problem = read_task(task, self._repositories)
        image: ImagePool | None = None
        if problem.repo is None:
            if problem.image is None or self._pool.tier is not Tier.DOCKER:
                raise await asyncio.to_thread(problem.needs_image)
            image = ImagePool(self._pool, problem.image)
        limit = self.observation_space.max_length - _FRAME_CHARS  # type: ignore[attr-defined]
        if len(task.content) > limit:
            raise TaskError(
                f"task {task.task_id!r} has a statement of {len(task.content)} characters, but at most {limit} fit; "
                "increase max_observation_chars"
            )
        require_regex()
        # The first use of a repository writes its files to disk, which must not block the event loop.
        checkout, tests, runtime = await asyncio.to_thread(_prepare, problem, image, self.grading_timeout)
        if runtime is None and self._pool.tier is not Tier.DOCKER and runs_our_pytest(tests):
            require_pytest()
        environment = _ENVIRONMENT | _for_python(checkout.path, runtime or image)
        limits = SessionLimits(output_bytes=4 * self.max_output_chars)
        pool = image or self._pool
        session = await pool.open_session(checkout.path, limits=limits, runtime=runtime, environment=environment)
        editor = Editor(_SessionWorkspace(session), self.max_output_chars)
        self._work = _EpisodeResources(pool, session, editor, checkout, tests, runtime, problem.statement)
        return _first_observation(problem, session, _outline(checkout.path), self.max_turns)

    async def _async_act(self, action: str) -> Outcome:
        work = self._work
        assert work is not None
        try:
            chosen = parse_action(action)
        except InvalidAction as error:
            raise InvalidAction(f"{error}{self._turns_left()}") from error
        if isinstance(chosen, Submit):
            return await self._submitted(work)
        if isinstance(chosen, Bash):
            timeout = self.command_timeout if chosen.timeout is None else chosen.timeout
            result = await work.session.exec(chosen.command, timeout)
            observation = _show_result(chosen.command, result, timeout, self.max_output_chars)
        else:
            try:
                observation = await work.editor.do(chosen)
            except EditError as error:
                observation = cut(str(error), self.max_output_chars)
        return Outcome(observation + self._turns_left(), {"resolved": 0.0})

    async def async_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run :meth:`step` asynchronously."""
        try:
            observation, reward, terminated, truncated, info = await super().async_step(action)
            if truncated:
                reward, info = await self._out_of_turns(reward, info)
        except BaseException:
            if self._done:  # the session is no longer needed
                await self._async_end()
            raise
        if terminated or truncated:
            await self._async_end()
        return observation, reward, terminated, truncated, info

    async def _async_end(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.session.close()

    # Submission and grading

    async def _submitted(self, work: _EpisodeResources) -> Outcome:
        end = self._end_of_work = await self._graded(work)
        kept = f" Changes that were not graded: {'; '.join(end.dropped)}." if end.dropped else ""
        feedback = (
            "The hidden tests pass." if end.resolved else f"The hidden tests do not all pass. {end.for_the_model}"
        )
        observation = cut(f"Submitted. {feedback.strip()}{kept}", self.max_output_chars)
        return Outcome(observation, {"resolved": float(end.resolved)}, terminated=True, success=end.resolved)

    async def _out_of_turns(self, reward: float, info: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        work = self._work
        assert work is not None
        if self.grade_on_truncation:
            end = self._end_of_work = await self._graded(work)
            reward += float(end.resolved)
            info["reward_components"] = {**info["reward_components"], "resolved": float(end.resolved)}
            info["success"] = end.resolved
        else:
            try:
                changes = await work.session.changes()
                kept = (await asyncio.to_thread(allowed_changes, work.checkout.path, changes, work.tests)).changes
                patch = await asyncio.to_thread(_patch_of, kept, work)
                self._end_of_work = _GradedEnd(patch=patch, verdict="out of turns, not graded")
            except (TreeTooLarge, OSError) as error:
                self._end_of_work = _GradedEnd(verdict=f"out of turns, not graded; {error}")
        self._add_info(info)
        return reward, info

    async def _graded(self, work: _EpisodeResources) -> _GradedEnd:
        try:
            changes = await work.session.changes()
        except (TreeTooLarge, OSError) as error:
            # A solution never writes that much, so this is a failure and not an environment fault.
            advice = " Remove build outputs and downloads before submitting." * isinstance(error, TreeTooLarge)
            return _GradedEnd(
                verdict=f"the changes were not graded: {error}", for_the_model=f"They were not run: {error}.{advice}"
            )
        # All processes of the agent are stopped before anything is graded.
        await self._async_end()
        verdict: RepositoryVerdict = await grade_repository(
            cast(SandboxPool, work.pool), work.checkout.path, changes, work.tests, runtime=work.runtime
        )
        dropped = tuple(printable_name(entry) for entry in verdict.dropped[:50])
        kept = (await asyncio.to_thread(allowed_changes, work.checkout.path, changes, work.tests)).changes
        patch = await asyncio.to_thread(_patch_of, kept, work)
        cases = await asyncio.to_thread(special_cases, work.checkout.path, kept, work.statement)
        suspicious = tuple(printable(entry) for entry in (*verdict.suspicious, *cases))
        return _GradedEnd(verdict.correct, patch, dropped, printable(verdict.reason)[:2_000], suspicious=suspicious)

    # Helpers

    def _turns_left(self) -> str:
        left = self.max_turns - self._turn - 1
        if left != 1:
            return ""
        if self.grade_on_truncation:
            return "\n\n(One turn is left. What is there after it is graded.)"
        return "\n\n(One turn is left: submit with it, or nothing is graded.)"

    def _tools(self) -> str:
        return TOOLS

    def _add_info(self, info: dict[str, Any]) -> None:
        end = self._end_of_work
        info["sandbox_tier"] = self._pool.tier.value
        info["resolved"] = end.resolved
        info["patch"] = end.patch
        info["dropped_changes"] = list(end.dropped)
        info["verdict"] = end.verdict
        info["suspicious"] = list(end.suspicious)

    def _env_state(self) -> dict[str, Any]:
        raise NotImplementedError(
            "SWEEnv cannot save or copy its state: processes and files are in a sandbox. Replay the actions of "
            "the episode in a new environment instead"
        )


@dataclass(frozen=True, slots=True)
class _EpisodeResources:
    """The resources of a running episode."""

    pool: SandboxPool | ImagePool
    session: SandboxSession
    editor: Editor
    checkout: Checkout
    tests: RepositoryTests
    runtime: Runtime | None
    statement: str


@dataclass(frozen=True, slots=True)
class _GradedEnd:
    """The result of the work."""

    resolved: bool = False
    patch: str = ""
    dropped: tuple[str, ...] = ()
    verdict: str = ""
    for_the_model: str = ""
    suspicious: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _SessionWorkspace:
    """Adapts a session to the editor's ``Workspace``."""

    session: SandboxSession

    @property
    def workdir(self) -> str:
        return self.session.workdir

    async def read(self, path: str, max_bytes: int) -> bytes:
        return await self.session.read(path, max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        await self.session.write(path, data)

    async def list_directory(self, path: str) -> list[str]:
        # The listing must show what the agent sees, so it runs a program in the agent's sandbox.
        command = f"LC_ALL=C find {shlex.quote(path)} -maxdepth 2 -not -path '*/.*' -print0 | LC_ALL=C sort -z"
        result = await self.session.exec(command, _LIST_TIMEOUT_S)
        names = result.output.decode("utf-8", "surrogateescape").split("\0")
        return [printable_name(name) for name in names if name]


def _prepare(
    problem: RepositoryTask, image: ImagePool | None, timeout: float
) -> tuple[Checkout, RepositoryTests, Runtime | None]:
    checkout = problem.checkout(image)
    tests = problem.tests(checkout, timeout, image)
    if problem.runtime is None:
        return checkout, tests, None
    try:
        return checkout, tests, Runtime.of_python(problem.runtime)
    except ValueError as error:
        raise TaskError(f"task {problem.task_id!r}: its 'runtime' cannot be used: {error}") from error


def _for_python(root: Path, runtime: Runtime | ImagePool | None) -> dict[str, str]:
    """Return variables with which Python finds the repository's packages uninstalled, as in the hidden tests."""
    variables = {}
    # Relative, because every command starts in the workspace. The package may be installed in a virtual environment
    # from a path that does not exist in the sandbox.
    roots = ["."] * (runtime is not None) + ["src"] * (root / "src").is_dir()
    if roots:
        variables["PYTHONPATH"] = ":".join(roots)
    if runtime is None:
        # The default runtime provides packages but no scripts, and agents write `pytest`.
        variables["BASH_FUNC_pytest%%"] = '() { python -m pytest "$@"; }'
    return variables


# Texts

_HOW = """\
You work in a copy of it, in a sandbox without network, one action a turn; you have {turns}. An action is one shell \
command in a fenced block:
```bash
grep -rn "name" --include=*.py . | head
```
or one call of a tool, `bash` (command), `str_replace_editor` (view, create, str_replace, insert, undo_edit) or \
`submit`, such as
<function=str_replace_editor>
<parameter=command>view</parameter>
<parameter=path>{example}</parameter>
</function>
Every command starts in the repository, in a shell of its own; files and background processes stay. When the work is \
done, submit it: the command `submit` alone in a turn. Hidden tests then run on your changes; changes to tests and to \
test settings do not count."""


def _first_observation(problem: RepositoryTask, session: SandboxSession, outline: list[str], max_turns: int) -> str:
    statement = problem.statement.replace("\r\n", "\n").strip()  # line ends as sent by web forms
    turns = f"{max_turns} turn{'s' * (max_turns > 1)}"
    example = next((name for name in outline if not name.endswith("/")), ".")
    names = "  ".join(outline[:_LISTED]) + (f"  ... ({len(outline) - _LISTED} more)" if len(outline) > _LISTED else "")
    # Without namespaces the path differs every time, but the first observation may depend only on task and seed.
    place = f"at {WORKDIR}" if session.workdir == WORKDIR else "in the directory where your commands start"
    how = _HOW.format(turns=turns, example=example)
    if session.temporary_directory != "/tmp":
        how += " Write temporary files to the directory $TMPDIR, not to /tmp."
    return f"{printable(statement)}\n\nThe repository is {place}: {cut(names, 4_000)}\n\n{how}"


def _outline(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(
            printable_name(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")
            for entry in entries
            if entry.name != ".git"
        )


def _show_result(command: str, result: ExecResult, timeout: float, limit: int) -> str:
    output = _show_output(result, limit).strip("\n")
    if result.timed_out:
        note = (
            f"The command was killed after {timeout:g} seconds, with everything it had started. Run what takes long "
            "in the background (command > log 2>&1 &), or give the bash tool a longer timeout."
        )
    elif result.exit_code is None:
        note = f"The command was ended by the sandbox: {result.ended.value}."
    else:
        note = f"Exit code {result.exit_code}."
    if result.exit_code == 127 and "submit: command not found" in output:
        note += " Nothing was submitted: `submit` must be alone in a turn."
    return output_block(output, note) if output else f"{note} There was no output."


def _show_output(result: ExecResult, limit: int) -> str:
    output = terminal_text(result.output)
    if len(output) <= limit and result.output_bytes <= len(result.output):
        return output
    # If the sandbox itself kept only the beginning and the end, its note is in the middle.
    head, tail = output[: limit // 2], output[max(limit // 2, len(output) - limit // 2) :]
    left_out = result.output_bytes - len(head.encode()) - len(tail.encode())
    hint = "narrow it with grep, head, tail or sed -n"
    return f"{head}\n[... about {left_out} of {result.output_bytes} bytes left out; {hint} ...]\n{tail}"


def _patch_of(kept: Changes, work: _EpisodeResources) -> str:
    """Return the graded changes as a unified diff of bounded length; whole files are omitted beyond that."""
    parts, size, left_out = list[str](), 0, 0
    for path in sorted({*kept.written, *kept.removed}):
        if not CACHES.isdisjoint(path.split("/")):
            continue
        if left_out or len(parts) >= 2_000:
            left_out += 1
            continue
        text = _file_patch(path, kept, work.checkout)
        if size + len(text) > MAX_PATCH_CHARS - 200:
            left_out += 1
            continue
        parts.append(text)
        size += len(text)
    if left_out:
        parts.append(f"# {left_out} more changed files are left out of this diff.\n")
    return "".join(parts)


def _file_patch(path: str, changes: Changes, checkout: Checkout) -> str:
    name = path.encode("utf-8", "backslashreplace").decode()
    old, old_mode = checkout.entry(path)
    written = changes.written.get(path)
    if written is None:
        return file_diff(name, old, None, old_mode=old_mode)
    mode = "120000" if written.kind == "symlink" else "100755" if written.executable else "100644"
    if old is not None and (mode == "120000") != (old_mode == "120000"):
        # A file replaced by a link, or the reverse, is two changes.
        return file_diff(name, old, None, old_mode=old_mode) + file_diff(name, None, written.data, new_mode=mode)
    return file_diff(name, old, written.data, old_mode=old_mode, new_mode=mode)


# Tasks


def _choose_tasks(tasks: Any, repositories: Any, split: str | None, seed: int, num_tasks: int | None) -> TaskSource:
    if num_tasks is not None:
        check_int("num_tasks", num_tasks, otherwise="None for all")
    if tasks is None:
        if isinstance(repositories, Mapping):
            raise TaskError(
                "repositories= maps the names in rows to local clones; pass rows as tasks=, or the names of "
                "built-in repositories as a list"
            )
        return swe_tasks(repositories=repositories, split=split, seed=seed, size=num_tasks)
    if repositories is not None and not isinstance(repositories, Mapping):
        raise TaskError(
            f"repositories={repositories!r:.80}: with tasks= it maps the names in rows to local clones, such as "
            "{'psf/requests': '/home/me/requests'}"
        )
    name = "swe" if not isinstance(tasks, str | os.PathLike) else None
    source = load_tasks(tasks, name=name, split=split, convert=swe_task)
    if num_tasks is None:
        return source
    return (source if isinstance(source, Taskset) else Taskset.from_rows(source)).take(num_tasks)
