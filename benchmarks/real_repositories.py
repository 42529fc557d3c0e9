"""Convert commits of public projects to repository tasks, and grade each task with its fix and with no change.

``FOLDER`` contains local clones. Of each one the newest ``--limit`` commits that change sources and tests are tried,
as by ``rllm-gym swe from-repo FOLDER/NAME --limit N --repeats R``, which installs packages. Results are kept in
``--rows``, one file per project: a second run grades the tasks that are there, and ``--again`` records them again.
The fix of a commit has to get reward 1 in every grading, and no change 0.

    python benchmarks/real_repositories.py FOLDER --rows ROWS [--limit 5] [--repeats 1] [--again] [--write]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.swe.checkout import MAX_BYTES
from rllm_gym.envs.swe.from_repo import kind_of, tasks_from_repo
from rllm_gym.envs.swe.patch import apply_patch
from rllm_gym.envs.swe.rows import read_task, swe_task
from rllm_gym.grading.swe import grade_repository_sync
from rllm_gym.sandbox import Changes, Runtime, SandboxPool, TreeFile

RESULT = Path(__file__).resolve().parent / "results" / "real_repositories.md"
GOLD_GRADINGS = 3
TIMEOUT_S = 900.0


@dataclass
class Commit:
    """What a commit became, and the rewards of its task."""

    commit: str
    subject: str
    reason: str
    to_fix: int = 0
    to_keep: int = 0
    gold: int = 0
    empty: int = 0
    problem: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", action="append", help="name of a clone")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.rows.mkdir(parents=True, exist_ok=True)
    clones = sorted(path for path in options.folder.iterdir() if (path / ".git").exists())
    with SandboxPool() as pool:
        for clone in clones:
            if options.only and clone.name not in options.only:
                continue
            file = options.rows / f"{clone.name}.jsonl"
            if options.again or not file.exists():
                record(clone, file, options.limit, options.repeats, pool)
            graded = [asdict(grade(result, pool)) for result in read(file)]
            revision = subprocess.run(
                ["git", "-C", str(clone), "log", "-1", "--format=%h, %cs"], capture_output=True, text=True, check=True
            ).stdout.strip()
            summary = {"project": clone.name, "revision": revision, "commits": graded}
            file.with_suffix(".json").write_text(json.dumps(summary, indent=1))
    text = page([json.loads(file.read_text()) for file in sorted(options.rows.glob("*.json"))], options)
    print(text)
    if options.write:
        RESULT.write_text(text)


def record(clone: Path, file: Path, limit: int, repeats: int, pool: SandboxPool) -> None:
    """Write one line per commit: its task, or the reason why there is none. An interrupted project is started again."""
    unfinished = file.with_suffix(".unfinished")
    with unfinished.open("w") as lines:
        for result in tasks_from_repo(clone, limit=limit, repeats=repeats, sandbox=pool, progress=log):
            lines.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
            lines.flush()
            log(f"{clone.name} {result.commit[:12]}: {result.reason[:200] or 'task'}")
    unfinished.replace(file)


def read(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        yield json.loads(line)


def grade(result: dict[str, Any], pool: SandboxPool) -> Commit:
    """Grade a task as an environment does that gets its row."""
    commit = Commit(result["commit"][:12], result["subject"], kind_of(result["reason"]) if result["reason"] else "")
    if (row := result["row"]) is None:
        return commit
    commit.to_fix, commit.to_keep = len(row["fail_to_pass"]), len(row["pass_to_pass"])
    began = time.monotonic()
    try:
        task = read_task(swe_task(row, row["id"]), {})
        checkout = task.checkout()
        tests = task.tests(checkout, TIMEOUT_S)
        runtime = None if task.runtime is None else Runtime.of_python(task.runtime)
        written, removed = {}, set()
        for path, patched in apply_patch(row["patch"], lambda path: checkout.read(path, MAX_BYTES)).items():
            if patched.data is None:
                removed.add(path)
            else:
                written[path] = TreeFile("file", patched.data, bool(patched.executable))
        for _ in range(GOLD_GRADINGS):
            verdict = grade_repository_sync(
                pool, checkout.path, Changes(written, frozenset(removed)), tests, runtime=runtime
            )
            commit.gold += verdict.correct
            commit.problem = commit.problem or ("" if verdict.correct else verdict.reason[:300])
        nothing = grade_repository_sync(pool, checkout.path, Changes({}, frozenset()), tests, runtime=runtime)
        commit.empty = int(nothing.correct)
    except (TaskError, EnvironmentFault, ValueError) as error:
        commit.problem = f"{type(error).__name__}: {error}"[:300]
    log(f"{row['id']}: gold {commit.gold}, empty {commit.empty}, {time.monotonic() - began:.0f} s {commit.problem}")
    return commit


def page(projects: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """Return the result page."""
    lines = [
        "# Tasks from commits of public projects",
        "",
        f"By `python benchmarks/real_repositories.py FOLDER --rows ROWS --limit {options.limit} --repeats "
        f"{options.repeats} --write` with Python {platform.python_version()}. *Gold*: accepted gradings of the "
        f"commit's fix, {GOLD_GRADINGS} per task. *Empty*: accepted gradings of no change.",
        "",
        "| project | newest commit | commits tried | tasks | tests to fix | tests to keep | gold | empty |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    every = []
    for project in projects:
        commits = [Commit(**commit) for commit in project["commits"]]
        every += commits
        lines.append(_row(project["project"], project["revision"], commits))
    lines += [
        _row("all", "", every),
        "",
        "## Commits",
        "",
        "| project | commit | subject | result |",
        "|---|---|---|---|",
    ]
    for project in projects:
        for commit in (Commit(**commit) for commit in project["commits"]):
            right = "graded right" if (commit.gold, commit.empty) == (GOLD_GRADINGS, 0) else "graded wrong"
            outcome = commit.reason and f"no task: {commit.reason}"
            outcome = outcome or f"{commit.to_fix} to fix, {commit.to_keep} to keep; {commit.problem or right}"
            cells = (project["project"], commit.commit, commit.subject[:70], outcome)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    reasons = Counter(commit.reason for commit in every if commit.reason)
    lines += ["", "Reasons:", ""] if reasons else []
    lines += [f"- {reason}: {count}" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def _row(name: str, revision: str, commits: list[Commit]) -> str:
    tasks = [commit for commit in commits if not commit.reason]
    cells = (
        *(name, revision, len(commits), len(tasks)),
        *(sum(commit.to_fix for commit in tasks), sum(commit.to_keep for commit in tasks)),
        f"{sum(commit.gold for commit in tasks)} of {GOLD_GRADINGS * len(tasks)}",
        f"{sum(commit.empty for commit in tasks)} of {len(tasks)}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
