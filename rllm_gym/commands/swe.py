"""``rllm-gym swe from-commit``: convert a bug-fix commit of a local repository to a line of a task file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rllm_gym.commands.errors import CommandError
from rllm_gym.sandbox.tier import SANDBOXES

_EXAMPLES = """examples:
  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --output tasks.jsonl
  rllm-gym swe from-commit . HEAD --output tasks.jsonl --test-command 'pytest tests/test_core.py'
  rllm-gym swe from-commit ~/src/flask 1f2e3d4 --output tasks.jsonl --runtime ~/venvs/flask --statement issue.md

Use the file with gym.make("rllm/SWE-v0", tasks="tasks.jsonl").
"""
_MAX_STATEMENT = 200_000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym swe",
        description="Create repository tasks for rllm/SWE-v0.",
        epilog="example:\n  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --output tasks.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_from_commit(commands)
    options = parser.parse_args(argv)
    return _from_commit(options)


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
        "--runtime", type=Path, help="virtual environment with pytest and the dependencies of the repository"
    )
    parser.add_argument(
        "--statement",
        help="problem statement for the agent, or a file (.md, .txt) that contains it (default: the commit message)",
    )
    parser.add_argument("--id", help="task id (default: repository name and commit)")
    parser.add_argument(
        "--sandbox", default="auto", choices=("auto", *SANDBOXES), help="sandbox for the test runs (default: auto)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="test runs before and after the commit (default: 3)")
    parser.add_argument("--timeout", type=float, default=300.0, help="timeout of a test run in seconds (default: 300)")
    parser.add_argument(
        "--bundle",
        action="store_true",
        help="also write the tree as a git bundle next to OUTPUT, so that the clone is not needed",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print progress")


def _from_commit(options: argparse.Namespace) -> int:
    from rllm_gym.envs.swe.from_commit import task_from_commit

    out: Path = options.output.expanduser()
    if out.suffix not in (".jsonl", ".ndjson"):
        raise CommandError(f"--output {str(out)!r} must end in .jsonl (one task per line)")
    if not out.parent.is_dir():
        raise CommandError(f"--output {str(out)!r}: directory {str(out.parent)!r} does not exist; create it")
    taken = _ids(out)
    row = task_from_commit(
        options.repo,
        options.commit,
        test_command=options.test_command,
        runtime=options.runtime,
        statement=_statement(options.statement),
        sandbox=options.sandbox,
        repeats=options.repeats,
        timeout=options.timeout,
        progress=None if options.quiet else lambda line: print(line, file=sys.stderr, flush=True),
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
