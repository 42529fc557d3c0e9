"""Creation of tasks from the bug-fix commits of a local clone: one task, or one reason, per commit."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.commits import adds_checks, candidate_commits, open_repository, read_fix, statement_of
from rllm_gym.envs.swe.from_commit import Progress, task_from_commit
from rllm_gym.envs.swe.requirements import read_requirements
from rllm_gym.sandbox import SandboxPool

_MAX_SCANNED = 20_000
_SHOWN_TESTS = 5


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit became.

    Attributes:
        commit: Its full id.
        subject: The first line of its message.
        row: The task, ``None`` if there is none.
        reason: Why there is none, empty if there is one.
    """

    commit: str
    subject: str
    row: dict[str, Any] | None
    reason: str = ""


def tasks_from_repo(
    repo: str | os.PathLike[str],
    *,
    revision: str | None = None,
    limit: int = 50,
    runtime: str | os.PathLike[str] | None = "auto",
    sandbox: str | SandboxPool = "auto",
    repeats: int = 3,
    timeout: float = 300.0,
    skip: Collection[str] = (),
    progress: Progress | None = None,
) -> Iterator[CommitResult]:
    """Yield a task, or the reason why there is none, for the newest commits that change Python sources and tests.

    Args:
        repo: A local clone with its history, or a git bundle.
        revision: The newest commit, ``None`` for ``HEAD``.
        limit: Number of commits tried.
        runtime: As for :func:`~rllm_gym.envs.swe.from_commit.task_from_commit`; by default the environment of each
            commit is created from the project's metadata, which installs packages.
        sandbox: Where tests run.
        repeats: As for ``task_from_commit``.
        timeout: Time limit in seconds for one run of the tests.
        skip: Ids of tasks that exist already; their commits do not count, nor those whose tests check nothing new.
        progress: Called with one line per step.

    Raises:
        TaskError: ``repo`` is not a git repository, or ``limit`` is below 1.
        SandboxUnavailable: There is no such sandbox on this machine.
    """
    if limit < 1:
        raise TaskError(f"limit={limit} must be >= 1")
    with open_repository(repo) as source:
        tried = 0
        for commit in candidate_commits(source, revision, scanned=_MAX_SCANNED):
            parents, message, _ = source.lineage(commit)
            subject = next(iter(message.strip().splitlines()), "")
            try:
                base = prepare(repo, parents[0]).path
                task_id = f"{read_requirements(base).name or _name(repo)}-{commit[:12]}"
                if task_id in skip or not adds_checks(read_fix(repo, commit).tests, base):
                    continue
                tried += 1
                statement = _statement(message)
                row = task_from_commit(
                    repo,
                    commit,
                    runtime=runtime,
                    statement=statement,
                    sandbox=sandbox,
                    repeats=repeats,
                    timeout=timeout,
                    progress=progress,
                )
            except (TaskError, EnvironmentFault) as error:
                yield CommitResult(commit, subject, None, str(error))
            else:
                row |= {"id": task_id, "statement": _with_tests(statement, row), "statement_from": "commit"}
                yield CommitResult(commit, subject, row)
            if tried >= limit:
                return


def kind_of(reason: str) -> str:
    """Return the kind of a reason, for a summary.

    >>> kind_of("1a2b3c of 'slugs' fixes no test: all 12 tests pass before the commit too")
    'no test fails without the fix'
    """
    for pattern, kind in _KINDS.items():
        if re.search(pattern, reason):
            return kind
    return "other"


_KINDS = {
    "fixes no test": "no test fails without the fix",
    "no test passes": "no test passes with the fix (import errors, skipped)",
    "in time": "the tests take longer than the timeout",
    "graded outside the sandbox|cannot be observed": "its tests to fix withhold no value",
    "cannot be graded|in some gradings": "its fix is not accepted by the grader",
    "could not run|before its report": "pytest cannot run",
    "changes only tests|no Python tests": "tests and fix are not in one commit",
    "cannot be installed": "no environment",
}


def _name(repo: str | os.PathLike[str]) -> str:
    return Path(os.path.realpath(repo)).name.removesuffix(".git").removesuffix(".bundle")


def _statement(message: str) -> str:
    try:
        return statement_of(message)
    except TaskError:  # too short: the names of the failing tests are added
        return " ".join(message.split())[:200] or "Fix the failing tests."


def _with_tests(statement: str, row: dict[str, Any]) -> str:
    """Complete a statement that is too short by the names of some tests to fix; their code remains hidden."""
    try:
        return statement_of(statement)
    except TaskError:
        names = [test.partition("::")[2] for test in row["fail_to_pass"][:_SHOWN_TESTS]]
        return f"{statement}\n\nThese tests, which are not part of the repository, fail without it: {', '.join(names)}"
