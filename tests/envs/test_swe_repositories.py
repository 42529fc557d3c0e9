"""The built-in repositories: solvable, not solved by doing nothing, disjoint between splits, cheap to make."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import keyword
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.core import SPLITS, Task, TaskError, split_of
from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.repositories import NAMES, base_tasks, gold_patch, repository_files, swe_tasks
from rllm_gym.envs.swe.repositories.catalog import (
    RepoChange,
    RepoEdit,
    Repository,
    load_repository,
    report,
    without_tests,
)
from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe import RepositoryTests, grade_repository
from rllm_gym.sandbox import shared_pool
from rllm_gym.sandbox.tree import Changes, TreeFile

BASE = base_tasks()


async def verdicts(task: Task) -> tuple[bool, bool, str]:
    """Return whether the reference solution is accepted, whether doing nothing is, and the reason."""
    base = prepare(repository_files(task.data["repo"]))
    tests = RepositoryTests(
        dict(task.data["hidden_tests"]),
        tuple(task.data["fail_to_pass"]),
        tuple(task.data["pass_to_pass"]),
        trace=task.data["trace"],
    )
    gold = Changes({path: TreeFile("file", text.encode()) for path, text in gold_patch(task).items()}, frozenset())
    solved = await grade_repository(shared_pool(), base.path, gold, tests)
    untouched = await grade_repository(shared_pool(), base.path, Changes({}, frozenset()), tests)
    return solved.correct, untouched.correct, f"{solved.reason} {dict(solved.failed)} {solved.dropped}"


def check(tasks: list[Task]) -> None:
    async def grade_all() -> list[tuple[bool, bool, str]]:
        few = asyncio.Semaphore(3)

        async def one(task: Task) -> tuple[bool, bool, str]:
            async with few:
                return await verdicts(task)

        return await asyncio.gather(*map(one, tasks))

    wrong = {
        task.data["repo"]: message
        for task, (solved, untouched, message) in zip(tasks, asyncio.run(grade_all()))
        if not solved or untouched
    }
    assert wrong == {}


def hand_written(name: str) -> dict[str, list[Task]]:
    """Return the hand-written tasks of a repository by kind: bugs and features."""
    kinds: dict[str, list[Task]] = {}
    for task in BASE:
        if task.data["family"] == name:
            kinds.setdefault(task.data["variant"], []).append(task)
    return kinds


# A few; the long test grades all of them, and the tests below inspect all without running them.
@pytest.mark.parametrize("kind", ["bug", "feature"])
def test_hand_written_tasks_are_solved_only_by_their_solution(kind: str) -> None:
    names = NAMES[::4] if kind == "bug" else NAMES[2::4]
    check([hand_written(name)[kind][0] for name in names])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_hand_written_task_is_solved_only_by_its_solution(name: str) -> None:
    check([task for tasks in hand_written(name).values() for task in tasks])


@pytest.mark.parametrize("splits", [SPLITS[:1], pytest.param(SPLITS, marks=pytest.mark.long)], ids=["one", "all"])
def test_generated_variants_are_solved_only_by_their_solution(splits: Sequence[str]) -> None:
    drawn = [swe_tasks(split=split, seed=3, size=600) for split in splits]
    tasks = [(tasks[index] for index in range(500, 600)) for tasks in drawn]
    check([next(task for task in some if task.data["variant"] == "mutation") for some in tasks])


def test_there_are_enough_tasks() -> None:
    assert len(NAMES) >= 6
    assert len(BASE) >= 36
    kinds = Counter(task.data["variant"] for task in BASE)
    assert kinds["bug"] >= 20
    assert kinds["feature"] >= 10
    for name in NAMES:
        repository = load_repository(name)
        assert 5 <= len(repository.files) <= 25
        assert len(repository.tests) >= 40
        assert sum(change.kind == "mutation" for change in repository.changes.values()) >= 25


def every_change() -> Iterator[tuple[Repository, RepoChange]]:
    for name in NAMES:
        repository = load_repository(name)
        for change in repository.changes.values():
            yield repository, change


def test_a_task_set_has_every_change_of_its_split_once_unless_more_are_requested() -> None:
    seen = Counter(task.data["repo"] for split in SPLITS for task in swe_tasks(split=split))
    assert set(seen.values()) == {1}
    assert sorted(seen) == sorted(f"builtin:{repository.name}/{change.key}@0" for repository, change in every_change())
    assert f"these {len(seen)} tasks" in (Path(__file__).parents[2] / "docs" / "swe.md").read_text(encoding="utf-8")
    assert len(swe_tasks(size=2_000)) == 2_000


def test_edits_match_exactly_once_and_change_something() -> None:
    for repository, change in every_change():
        assert change.fail_to_pass, change.key
        assert set(change.fail_to_pass) <= set(repository.tests), change.key
        broken = repository.broken_files(change)
        for edit in change.edits:
            assert broken.get(edit.path) != repository.files[edit.path], change.key
            if edit.path.endswith(".py") and edit.path in broken:
                compile(broken[edit.path], edit.path, "exec")


def test_the_agent_sees_no_test_that_shows_the_bug() -> None:
    for repository, change in every_change():
        shown = repository.broken_files(change)
        for test in change.fail_to_pass:
            path, _, rest = test.partition("::")
            assert rest.partition("[")[0] not in functions(shown.get(path, "")), (change.key, test)


def functions(source: str) -> set[str]:
    names = set()
    for node in parse_python(source).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize("name", NAMES)
def test_the_visible_tests_pass(name: str, tmp_path: Path) -> None:
    repository = load_repository(name)
    mutations = sorted(key for key, change in repository.changes.items() if change.kind == "mutation")
    write(tmp_path, repository_files(f"builtin:{name}/{mutations[7]}@3"))
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which take seconds to import
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")


def test_renaming_collides_with_no_existing_name() -> None:
    for name in NAMES:
        repository = load_repository(name)
        everything = "\n".join([*repository.files, *repository.files.values()])
        words = set(re.findall(r"\w+", everything)) | {change.key for change in repository.changes.values()}
        instead = [word for words in repository.names.values() for word in words]
        assert len(set(instead)) == len(instead), name
        assert not set(instead) & words, name
        for word in [*repository.names, *instead]:
            assert word.isidentifier()
            assert not keyword.iskeyword(word)
        assert set(repository.names) <= words, name
        # A class name, or a name derived from it, must not be an attribute of the Python standard library.
        assert not set(repository.names) & {"get", "items", "add", "append", "sort", "filter", "select", "head"}, name


def test_renaming_covers_code_documents_paths_and_statements() -> None:
    repository = load_repository("ledger")
    number = next(n for n in range(1, 50) if repository.renaming(n)["tallybook"] != "tallybook")
    package = repository.renaming(number)["tallybook"]
    files = repository_files(f"builtin:ledger/split-money@{number}")
    assert f"src/{package}/money.py" in files
    assert "tallybook" not in json.dumps(files)
    assert f'name = "{package}"' in files["pyproject.toml"]


def test_hand_written_tasks_come_first() -> None:
    tasks = swe_tasks()
    first = [tasks[index] for index in range(12)]
    assert {task.data["variant"] for task in first} <= {"bug", "feature"}
    assert len({task.data["family"] for task in first}) >= 6


@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.long)])
def test_splits_share_no_bug_and_no_statement(count: int) -> None:
    seen: dict[str, dict[str, set[str]]] = {}
    for split in SPLITS:
        tasks = list(swe_tasks(split=split, size=count))
        assert all(task.split == split == split_of(task.content) for task in tasks)
        assert len({task.task_id for task in tasks}) == len(tasks)
        seen[split] = {
            "bugs": {task.data["repo"].partition("@")[0] for task in tasks},
            "contents": {task.content_hash for task in tasks},
        }
        assert len(seen[split]["contents"]) >= 100
    for key in ("bugs", "contents"):
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            assert not seen[one][key] & seen[other][key]


def test_tasks_depend_only_on_their_index() -> None:
    tasks = swe_tasks(split="validation", seed=5, size=100)
    assert len(tasks) == 100
    again = pickle.loads(pickle.dumps(swe_tasks(split="validation", seed=5, size=100)))  # noqa: S301 - our own
    for index in (0, 50, 99):
        assert tasks[index] == again[index] == tasks.find(tasks[index].task_id)
        assert Task.from_json(json.loads(json.dumps(tasks[index].to_json()))) == tasks[index]
    assert tasks[60].content != swe_tasks(split="validation", seed=6, size=100)[60].content
    with pytest.raises(TaskError):
        tasks.find("swe/validation/5/100")


def test_repositories_can_be_chosen() -> None:
    tasks = swe_tasks(repositories=["tables", "caching"], size=1_000)
    assert {tasks[index].data["family"] for index in range(40)} == {"tables", "caching"}
    assert tasks[30].task_id == "swe/tables+caching/train/0/30"


def test_every_repository_has_tasks_in_every_split() -> None:
    for name, split in itertools.product(NAMES, SPLITS):
        assert swe_tasks(repositories=[name], split=split, size=21)[20].data["family"] == name, split


WRONG_ARGUMENTS: list[dict[str, Any]] = [
    {"repositories": ["no-such"]},
    {"repositories": []},
    {"repositories": "ledger"},
    {"split": "dev"},
    {"size": 0},
    {"seed": "x"},
]


def test_invalid_arguments_are_errors_with_their_name() -> None:
    for arguments in WRONG_ARGUMENTS:
        with pytest.raises(TaskError) as caught:
            swe_tasks(**arguments)
        assert repr(next(iter(arguments.values())))[1:5] in str(caught.value) or "empty" in str(caught.value)


OTHER_REFERENCES = [
    "builtin:ledger/split-money@256",
    "builtin:ledger/none@0",
    "builtin:nothing/x@0",
    "ledger",
    "builtin:../x/y@0",
    None,
]


def test_unknown_references_are_refused() -> None:
    for reference in OTHER_REFERENCES:
        with pytest.raises(TaskError):
            repository_files(reference)


def test_statements_do_not_contain_the_fix_nor_rows_the_solution() -> None:
    for name in NAMES:
        for change in load_repository(name).changes.values():
            for edit in change.edits:
                lines = [line.strip() for line in edit.finished.splitlines() if len(line.strip()) > 25]
                code = [
                    line
                    for line in lines
                    if not line.startswith(("#", '"""', "from ", "|")) and line.endswith((":", ")"))
                ]
                assert not [line for line in code if line in change.statement], (name, change.key)
            assert not re.search(" at 0x[0-9a-f]", change.statement), (name, change.key)  # another in each run
    for task in BASE:
        (path, gold), *_ = gold_patch(task).items()
        assert gold not in json.dumps(task.to_json())
        assert path not in task.data["hidden_tests"]


def test_mutation_issues_state_the_behavior_the_call_and_both_results() -> None:
    probes = [{"about": "`half` halves.", "code": "from pkg import half\nhalf(8)\n"}] * 2
    traceback = "Traceback (most recent call last):\n  ...\npkg.errors.OddError: {}"
    issue = report(probes, ["4", traceback.format("3 is odd")], [[0, "2"], [1, "1"]])
    assert issue == (
        "Wrong result\n\nThe documented behavior: `half` halves.\n\nThis code returns a wrong result:\n\n"
        "```python\n>>> from pkg import half\n>>> half(8)\n2\n```\n\nIt should return:\n\n```\n4\n```\n\n"
        "A second example of the same problem:\n\nThe documented behavior: `half` halves.\n\n"
        "This code should raise an error, but it does not:\n\n"
        "```python\n>>> from pkg import half\n>>> half(8)\n1\n```\n\n"
        "It should raise `pkg.errors.OddError: 3 is odd`.\n"
    )
    odd = [traceback.format("?"), "4", traceback.format("!")]
    titles = [report(probes, [wanted], [[0, got]]).splitlines()[0] for got, wanted in zip(odd, [odd[2], *odd[:1] * 2])]
    assert titles == ["Wrong message of OddError", "OddError is not raised", "Wrong message of OddError"]
    unexpected = report(probes, ["4"], [[0, odd[0]]])
    assert unexpected.startswith("Unexpected OddError\n")
    assert "This code raises an unexpected error:" in unexpected
    printing = [{**probes[0], "code": "print(half(8))"}]
    assert "This code prints a wrong result:" in report(printing, ["4"], [[0, "2"]])


def verified(code: str) -> list[Any]:
    """Return a value of the script that writes the tables, from a process without the modules of these tests."""
    code = f"import json, verify_swe_repositories as script\nscript.TIMEOUT_S = 600\n{code}\nprint(json.dumps(found))"
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    scripts = Path(__file__).parents[2] / "scripts"
    done = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


# markup had six tasks that were solved by a case for each call of the issue.
SOME = ["m-inline--closing-3", "m-inline--link-3"]


@pytest.mark.parametrize(
    ("name", "keys"), [("markup", SOME), *(pytest.param(name, None, marks=pytest.mark.long) for name in NAMES)]
)
def test_no_mutation_is_solved_by_special_cases_for_the_calls_of_its_issue(name: str, keys: list[str] | None) -> None:
    """``if arguments == those_of_the_issue: return the_right_result`` in front of the bug would be paid."""
    assert set(keys or ()) <= set(load_repository(name).changes)
    assert verified(f"found = script.solved_by_special_cases({name!r}, {keys!r})") == []


def test_special_cases_solve_what_is_tested_with_the_same_calls() -> None:
    """Otherwise the test above would show nothing."""
    found = verified(
        "calls, table = script.IssueCalls('markup'), script.table_of('markup')\n"
        f"row = next(row for row in table['mutations'] if row['key'] == {SOME[0]!r})\n"
        "tests = [table['tests'][place] for place in row['fail_to_pass']]\n"
        "calls.probes[0] = 'from marktext.inline import inline_html\\ninline_html(\"*a **b** c*\")'\n"
        "found = [calls.solve(row, tests, [0], set()), calls.solve(row, tests, [], set())]"
    )
    assert found == [True, False]


def test_an_edit_that_does_not_match_is_an_error() -> None:
    assert RepoEdit("a", "x", "y").undo("axb") == "ayb"
    assert RepoEdit("a", "", "").undo("anything") is None
    for text in ("b", "xx"):
        with pytest.raises(TaskError, match="must occur once"):
            RepoEdit("a", "x", "y").undo(text)


def test_tests_are_removed_completely() -> None:
    source = (
        "import pytest\n\n\n@pytest.mark.parametrize('x', [1])\ndef test_a(x):\n    assert x\n\n\n"
        "def helper():\n    pass\n\n\n"
        "class TestB:\n    def setup_method(self):\n        pass\n\n    def test_c(self):\n        pass\n\n"
        "    def test_d(self):\n        pass\n"
    )
    rest = without_tests(source, {"test_a", "TestB.test_c"})
    assert rest is not None
    compile(rest, "rest", "exec")
    assert [
        name for name in ("test_a", "parametrize", "helper", "setup_method", "test_c", "test_d") if name in rest
    ] == [
        "helper",
        "setup_method",
        "test_d",
    ]
    assert without_tests(source, {"test_a", "TestB.test_c", "TestB.test_d"}) is None
    assert "class" not in (without_tests(source, {"TestB.test_c", "TestB.test_d"}) or "class")
