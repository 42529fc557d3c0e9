"""``rllm-gym swe from-commit``: convert a bug-fix commit of a local repository to a line of a task file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rllm_gym.commands.errors import CommandError
from rllm_gym.sandbox.tier import SANDBOXES

_EXAMPLES = """examples:
  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --out tasks.jsonl
  rllm-gym swe from-commit . HEAD --out tasks.jsonl --test-command 'pytest tests/test_core.py'
  rllm-gym swe from-commit ~/src/flask 1f2e3d4 --out tasks.jsonl --runtime ~/venvs/flask --statement issue.md

The file is then played with gym.make("rllm/SWE-v0", tasks="tasks.jsonl").
"""
_MAX_STATEMENT = 200_000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym swe",
        description="Repository tasks of one's own.",
        epilog="example:\n  rllm-gym swe from-commit ~/src/boltons 1f2e3d4 --out tasks.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_from_commit(commands)
    options = parser.parse_args(argv)
    return _from_commit(options)


def _add_from_commit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "from-commit",
        help="turn a bug-fix commit into a task, without Docker",
        description="Turn a bug-fix commit of a local Python repository into a task: its tests are hidden, and run in "
        "the sandbox before and after it to find those it fixes. One line is added to the file OUT.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repo", metavar="REPO", type=Path, help="a local clone, or a git bundle")
    parser.add_argument("commit", metavar="COMMIT", help="the commit that fixes something: an id, a tag or a branch")
    parser.add_argument("--out", type=Path, required=True, help="the file (.jsonl) that the task is added to")
    parser.add_argument(
        "--test-command", help="how tests are run: 'pytest' with options and paths, or any other; default: pytest"
    )
    parser.add_argument("--runtime", type=Path, help="a virtual environment with pytest and what the repository needs")
    parser.add_argument(
        "--statement", help="what the agent is told, or a file (.md, .txt) with it; default: the commit's message"
    )
    parser.add_argument("--id", help="the task's id; default: the repository's name and the commit")
    parser.add_argument(
        "--sandbox", default="auto", choices=("auto", *SANDBOXES), help="where tests run; default: auto"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs before and after; default: 3")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a run may take; default: 300")
    parser.add_argument(
        "--bundle", action="store_true", help="write the tree as a git bundle beside OUT: the clone is then not needed"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _from_commit(options: argparse.Namespace) -> int:
    from rllm_gym.envs.swe.from_commit import task_from_commit

    out: Path = options.out.expanduser()
    if out.suffix not in (".jsonl", ".ndjson"):
        raise CommandError(f"--out {str(out)!r} must end in .jsonl: one task a line")
    if not out.parent.is_dir():
        raise CommandError(f"there is no folder {str(out.parent)!r} for --out; make it")
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
        raise CommandError(f"{str(out)!r} has a task {row['id']!r} already; give another --id or another --out")
    line = json.dumps(row, ensure_ascii=False)
    with out.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"{row['id']}: {len(row['fail_to_pass'])} tests to fix, {len(row['pass_to_pass'])} to keep")
    print(f"added to {out}; play it with gym.make('rllm/SWE-v0', tasks={str(out)!r})")
    if options.statement is None:
        print("its statement is the commit's message: read it over, it may tell too much or too little")
    return 0


def _statement(value: str | None) -> str | None:
    """Return the statement itself, or the content of the file of this name."""
    if value is None or "\n" in value or not value.endswith((".md", ".txt")):
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise CommandError(f"--statement {value!r}: there is no such file")
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
            raise CommandError(f"line {number} of {str(out)!r} is no JSON; --out adds to a file of tasks") from error
        if isinstance(row, dict):
            found.add(str(row.get("id")))
    return found
