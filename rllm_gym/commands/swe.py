"""``rllm-gym swe``: convert bug-fix commits of a local repository to lines of a task file."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rllm_gym.commands.errors import CommandError
from rllm_gym.sandbox.tier import SANDBOXES

_EXAMPLES = """examples:
  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --output tasks.jsonl
  rllm-gym swe from-commit . HEAD --output tasks.jsonl --test-command 'pytest tests/test_core.py'
  rllm-gym swe from-commit ~/src/flask 1f2e3d4 --output tasks.jsonl --runtime auto --statement issue.md

Use the file with gym.make("rllm/SWE-v0", tasks="tasks.jsonl").
"""
_MAX_STATEMENT = 200_000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym swe",
        description="Create repository tasks for rllm/SWE-v0.",
        epilog="examples:\n  rllm-gym swe from-repo ~/src/boltons --limit 50 --output tasks.jsonl\n"
        "  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --output tasks.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_from_commit(commands)
    _add_from_repo(commands)
    options = parser.parse_args(argv)
    return _from_repo(options) if options.command == "from-repo" else _from_commit(options)


def _add_from_commit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "from-commit",
        help="convert a bug-fix commit to a task, without Docker",
        description="Convert a bug-fix commit of a local Python repository to a task. The tests of the commit are\n"
        "hidden from the agent; they run in the sandbox before and after the commit to find the tests that it fixes.\n"
        "The task is appended to the file OUTPUT as one line.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repo", metavar="REPO", type=Path, help="local clone or git bundle")
    parser.add_argument("commit", metavar="COMMIT", help="bug-fix commit: an id, a tag or a branch")
    parser.add_argument("--output", "-o", type=Path, required=True, help="task file (.jsonl) to append to")
    parser.add_argument(
        "--test-command",
        help="command that runs the tests: 'pytest' with options and paths, or another command (default: pytest)",
    )
    parser.add_argument(
        "--runtime",
        help="virtual environment with pytest and the dependencies of the repository, or 'auto' to create one from the "
        "project's metadata, which installs packages",
    )
    parser.add_argument(
        "--statement",
        help="problem statement for the agent, or a file (.md, .txt) that contains it (default: the commit message)",
    )
    parser.add_argument("--id", help="task id (default: repository name and commit)")
    _add_run_options(parser)
    parser.add_argument(
        "--bundle",
        action="store_true",
        help="also write the tree as a git bundle next to OUTPUT, so that the clone is not needed",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sandbox", default="auto", choices=("auto", *SANDBOXES), help="sandbox for the test runs (default: auto)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="test runs before and after the commit (default: 3)")
    parser.add_argument("--timeout", type=float, default=300.0, help="timeout of a test run in seconds (default: 300)")
    parser.add_argument("--quiet", action="store_true", help="do not print progress")


def _add_from_repo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "from-repo",
        help="convert the bug-fix commits of a clone to tasks, without Docker",
        description="Try the newest commits of a local Python repository that change sources and tests. For each one,\n"
        "a virtual environment is created from the project's metadata (this installs packages as of the\n"
        "commit's date), and its tests run in the sandbox. Tasks are appended to the file OUTPUT as they are found;\n"
        "the same command continues an interrupted one. The last lines count why the other commits made no task.",
        epilog="example:\n  rllm-gym swe from-repo ~/src/boltons --limit 50 --output tasks.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repo", metavar="REPO", type=Path, help="local clone with its history, or git bundle")
    parser.add_argument("--revision", help="newest commit to try: an id, a tag or a branch (default: HEAD)")
    parser.add_argument("--limit", type=int, default=50, help="number of commits to try (default: 50)")
    parser.add_argument("--output", "-o", type=Path, required=True, help="task file (.jsonl) to append to")
    parser.add_argument(
        "--runtime", default="auto", help="virtual environment for all commits (default: auto, one from the metadata)"
    )
    _add_run_options(parser)


def _from_repo(options: argparse.Namespace) -> int:
    from rllm_gym.envs.swe.from_repo import kind_of, tasks_from_repo
    from rllm_gym.envs.swe.text_display import printable_name

    out, taken = _output(options)
    kinds: Counter[str] = Counter()
    for result in tasks_from_repo(
        options.repo,
        revision=options.revision,
        limit=options.limit,
        runtime=options.runtime,
        sandbox=options.sandbox,
        repeats=options.repeats,
        timeout=options.timeout,
        skip=taken,
        progress=_progress(options),
    ):
        subject = printable_name(result.subject)[:60]
        if result.row is None:
            kinds[kind_of(result.reason)] += 1
            print(f"{result.commit[:12]} no task ({subject}): {printable_name(result.reason)[:300]}", flush=True)
            continue
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result.row, ensure_ascii=False) + "\n")
        kinds["task"] += 1
        tests = len(result.row["fail_to_pass"]), len(result.row["pass_to_pass"])
        print(f"{result.commit[:12]} task ({subject}): {tests[0]} tests to fix, {tests[1]} to keep", flush=True)
    print(f"{kinds['task']} tasks from {kinds.total()} commits, appended to {out}")
    for kind, count in kinds.most_common():
        print(f"{count:5}  {kind}")
    if kinds["task"]:
        print("the problem statements are commit messages: check them, they may reveal too much or say too little")
    return 0


def _progress(options: argparse.Namespace) -> Callable[[str], None] | None:
    return None if options.quiet else lambda line: print(line, file=sys.stderr, flush=True)


def _output(options: argparse.Namespace) -> tuple[Path, set[str]]:
    """Return the task file, and the ids of the tasks that it has."""
    out: Path = options.output.expanduser()
    if out.suffix not in (".jsonl", ".ndjson"):
        raise CommandError(f"--output {str(out)!r} must end in .jsonl (one task per line)")
    if not out.parent.is_dir():
        raise CommandError(f"--output {str(out)!r}: directory {str(out.parent)!r} does not exist; create it")
    return out, _ids(out)


def _from_commit(options: argparse.Namespace) -> int:
    from rllm_gym.envs.swe.from_commit import task_from_commit

    out, taken = _output(options)
    row = task_from_commit(
        options.repo,
        options.commit,
        test_command=options.test_command,
        runtime=options.runtime,
        statement=_statement(options.statement),
        sandbox=options.sandbox,
        repeats=options.repeats,
        timeout=options.timeout,
        progress=_progress(options),
        bundle=out.parent if options.bundle else None,
    )
    if options.id is not None:
        row["id"] = options.id
    if row["id"] in taken:
        raise CommandError(f"{str(out)!r} already contains a task {row['id']!r}; choose another --id or --output")
    line = json.dumps(row, ensure_ascii=False)
    with out.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"{row['id']}: {len(row['fail_to_pass'])} tests must be fixed, {len(row['pass_to_pass'])} must keep passing")
    if row["evidence"] == "log":
        print(
            "graded by the log of the test command, which the tested code can forge; with pytest, grading is stronger"
        )
    print(f"appended to {out}; use it with gym.make('rllm/SWE-v0', tasks={str(out)!r})")
    if options.statement is None:
        print("the problem statement is the commit message: check it, it may reveal too much or say too little")
    return 0


def _statement(value: str | None) -> str | None:
    """Return the statement itself, or the content of the file of this name."""
    if value is None or "\n" in value or not value.endswith((".md", ".txt")):
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise CommandError(f"--statement {value!r}: no such file")
    return path.read_text(encoding="utf-8")[:_MAX_STATEMENT]


def _ids(out: Path) -> set[str]:
    """Return the ids of the tasks already in the file."""
    if not out.exists():
        return set()
    found = set()
    for number, line in enumerate(out.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise CommandError(
                f"line {number} of {str(out)!r} is not valid JSON; --output must be a task file"
            ) from error
        if isinstance(row, dict):
            found.add(str(row.get("id")))
    return found
