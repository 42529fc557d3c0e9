"""Conversion of rows of repository tasks, in this package's and other data sets' formats, to tasks and episodes.

No repository is accessed here: a row is checked when it is loaded, its repository when an episode begins.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from rllm_gym.core import Task, TaskError
from rllm_gym.envs.swe.checkout import MAX_BYTES, Checkout, prepare
from rllm_gym.envs.swe.images import WORKDIR, ImagePool
from rllm_gym.envs.swe.patch import apply_patch, safe_path
from rllm_gym.envs.swe.repositories import PREFIX as BUILT_IN
from rllm_gym.envs.swe.repositories import repository_files
from rllm_gym.grading.swe import RepositoryTests
from rllm_gym.grading.swe.log_parsers import find_parser
from rllm_gym.sandbox.probe import probe_tier
from rllm_gym.sandbox.tier import Tier

Repositories = Mapping[str, str | os.PathLike[str]]
"""Local clones by the names that rows use, such as ``"psf/requests"``."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9_./:-]*(?::[A-Za-z0-9_.-]+|@sha256:[0-9a-f]{64})")
# The mirrors of SWE-smith have the commit in their name: swesmith/oauthlib__oauthlib.1fd52536
_MIRROR = re.compile(r"(?:[A-Za-z0-9-]+/)?([A-Za-z0-9-]+)__([A-Za-z0-9_.-]+)\.([0-9a-f]{8})")
_BENCH_IMAGE = "docker.io/swebench/sweb.eval.x86_64.{}:latest"
# For SWE-bench's repositories whose tests are not run by pytest.
_BENCH_COMMANDS: dict[str, tuple[str, str]] = {
    "django/django": (
        "python tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
        "parse_log_django",
    ),
    "sympy/sympy": ("python bin/test -C --verbose", "parse_log_sympy"),
}
_SCRIPT_START, _SCRIPT_END = ">>>>> Start Test Output", ">>>>> End Test Output"
_R2E_TESTS = PurePosixPath("/r2e_tests")
_IMAGE_KEYS = ("image", "image_name", "docker_image")
_TEXT_KEYS = (
    "base_commit",
    "base_patch",
    "test_patch",
    "test_command",
    "runtime",
    "log_parser",
    "image",
    "workdir",
    "tests_in",
    "trace",
)


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """The fields of a task that an episode needs.

    Attributes:
        task_id: The task's id, for messages.
        statement: The issue statement for the agent.
        repo: Directory, bundle, built-in repository, or files by path; ``None`` if there is only an image.
        image: A container image that contains the repository, or ``None``.
        base_commit: The commit of ``repo`` the agent starts from.
        base_patch: A diff applied to it first, for example one that introduces a bug.
        hidden_tests: Text of the hidden test files by path.
        test_patch: A diff that creates the hidden test files from those of the base; instead of ``hidden_tests``.
        fail_to_pass: Tests that the change has to fix.
        pass_to_pass: Tests that it must not break.
        test_command: How tests are run; ``None`` for pytest.
        runtime: A virtual environment or interpreter for programs.
        log_parser: The parser for the log of ``test_command``.
        workdir: Directory of the repository in the image.
        tests_in: Directory of the hidden tests in the image, ``None`` if it contains none.
        trace: What the hidden tests observe with the reference solution; ``None`` if it was not recorded.
    """

    task_id: str
    statement: str
    repo: str | Mapping[str, str] | None
    image: str | None
    base_commit: str | None
    base_patch: str | None
    hidden_tests: Mapping[str, str]
    test_patch: str | None
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_command: str | None
    runtime: str | None
    log_parser: str | None
    workdir: str = WORKDIR
    tests_in: str | None = None
    trace: str | None = None

    def checkout(self, image: ImagePool | None = None) -> Checkout:
        """Return the tree the agent starts from.

        Args:
            image: The image of the task, if it runs in one.

        Raises:
            TaskError: It cannot be created; the message names the task.
        """
        try:
            if self.repo is not None:
                repo = repository_files(self.repo) if _is_built_in(self.repo) else self.repo
                return prepare(repo, self.base_commit, patch=self.base_patch)
            if image is not None:
                return image.checkout(self.workdir, self.base_patch)
        except TaskError as error:
            raise TaskError(f"task {self.task_id!r}: {error}") from error
        raise self.needs_image()

    def tests(self, checkout: Checkout, timeout: float, image: ImagePool | None = None) -> RepositoryTests:
        """Return the hidden tests as files.

        Args:
            checkout: The tree the agent starts from.
            timeout: Time limit in seconds for one run of the tests.
            image: The image of the task, if it runs in one.

        Raises:
            TaskError: The test patch does not fit the tree, or a field is unusable; the message names the task.
        """
        hidden = dict(self.hidden_tests)
        try:
            if self.test_patch:
                hidden |= patched_tests(self.test_patch, checkout)
            if self.tests_in is not None and image is not None:
                hidden |= image.texts(self.tests_in, PurePosixPath(self.tests_in).name)
            if self.log_parser is not None:
                find_parser(self.log_parser)
            return RepositoryTests(
                hidden, self.fail_to_pass, self.pass_to_pass, self.test_command, self.log_parser, timeout, self.trace
            )
        except TaskError as error:
            raise TaskError(f"task {self.task_id!r}: {error}") from error

    def needs_image(self) -> TaskError:
        """Return the error of a task that can only run in an image."""
        docker = probe_tier(Tier.DOCKER)
        reason, hint = "this sandbox cannot run images", "use sandbox='docker'"
        if not docker.works:
            reason, hint = f"no Docker engine is available: {docker.reason.rstrip('.?')}", docker.fix.rstrip(".")
        return TaskError(
            f"task {self.task_id!r} needs the image {self.image!r}, and {reason}. Either {hint}; or pass "
            "its repository as a local clone: repositories={'owner/name': directory}, or a row with 'repo': directory"
        )


def patched_tests(test_patch: str, checkout: Checkout) -> dict[str, str]:
    """Return the test files that a diff creates, by path. Files that it removes are ignored: no listed test is in them.

    Raises:
        TaskError: The diff is malformed or does not fit, or a file is not UTF-8.
    """
    hidden: dict[str, str] = {}
    for path, patched in apply_patch(test_patch, lambda path: checkout.read(path, MAX_BYTES)).items():
        if patched.data is None:
            continue
        try:
            hidden[path] = patched.data.decode()
        except UnicodeDecodeError as error:
            raise TaskError(f"the test file {path!r} is not UTF-8 ({error.reason} at {error.start})") from error
    return hidden


# Rows to tasks


def swe_task(row: Mapping[str, Any], task_id: str) -> Task:
    """Convert a row to a task: this package's format, SWE-bench (all variants), SWE-smith or R2E-Gym.

    Raises:
        TaskError: A field is missing or unusable; the message names it.
    """
    more: dict[str, Any] = {}
    if "task_id" in row and "content" in row and isinstance(row.get("data"), Mapping):  # a saved task, kept completely
        more = dict(row["data"])
        row = {"statement": row["content"], **more}
    if "expected_output_json" in row:
        row = _from_r2e(row)
    elif "FAIL_TO_PASS" in row or "instance_id" in row:
        row = _from_swe_bench(row)
    statement = row.get("statement")
    if not isinstance(statement, str) or not statement.strip():
        raise TaskError(f"it has no 'statement' text; its keys are {sorted(map(str, row))!r:.300}")
    data = more | {key: _text(row, key) for key in _TEXT_KEYS if row.get(key) is not None}
    if (repo := row.get("repo")) is not None:
        data["repo"] = _repo(repo)
    if (runtime := row.get("runtime")) is not None:
        data["runtime"] = os.path.expanduser(runtime)
    if "repo" not in data and "image" not in data:
        raise TaskError("it has neither 'repo' (a directory, a git bundle or files) nor 'image'")
    data["hidden_tests"] = _files(row.get("hidden_tests"), "hidden_tests")
    if data["hidden_tests"] and data.get("test_patch"):
        raise TaskError("it has both 'hidden_tests' and 'test_patch'; set only one")
    for key in ("fail_to_pass", "pass_to_pass"):
        data[key] = node_ids(row.get(key), key)
    if not data["fail_to_pass"] and not data["pass_to_pass"]:
        raise TaskError("it lists no tests: set 'fail_to_pass' (and 'pass_to_pass') to lists of test ids")
    name = row.get("instance_id")
    return Task(name if isinstance(name, str) and name else task_id, statement, data)


def _from_swe_bench(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert SWE-bench's field names. A row of SWE-smith has no test patch, and its ``patch`` *introduces* the bug."""
    known = {
        "instance_id": row.get("instance_id"),
        "statement": row.get("problem_statement", row.get("statement")),
        "repo": row.get("repo"),
        "base_commit": row.get("base_commit"),
        "test_patch": row.get("test_patch") or None,
        "hidden_tests": row.get("hidden_tests"),
        "fail_to_pass": row.get("FAIL_TO_PASS", row.get("fail_to_pass")),
        "pass_to_pass": row.get("PASS_TO_PASS", row.get("pass_to_pass")),
        "test_command": row.get("test_command", row.get("test_cmd")),
        "runtime": row.get("runtime"),
        "log_parser": row.get("log_parser"),
    }
    known["image"] = next((row[key] for key in _IMAGE_KEYS if row.get(key)), None)
    if known["test_command"] is None:
        command, parser = _BENCH_COMMANDS.get(str(row.get("repo")), (None, None))
        known["test_command"] = _tested_by(row.get("eval_script_list")) or _with_modules(command, row.get("test_patch"))
        known["log_parser"] = known["log_parser"] or parser
    if known["test_command"] is None:
        known["log_parser"] = None  # there is no log to parse
    smith = bool(row.get("image_name")) and not row.get("test_patch") and bool(row.get("patch"))
    if smith:
        known["base_patch"] = row["patch"]
        mirror = _MIRROR.fullmatch(str(row.get("repo")))
        if mirror is not None and not known["base_commit"]:
            known["repo"], known["base_commit"] = f"{mirror[1]}/{mirror[2]}", mirror[3]
    elif known["image"] is None and isinstance(known["instance_id"], str) and _NAME.fullmatch(str(known["repo"])):
        known["image"] = _BENCH_IMAGE.format(known["instance_id"].replace("__", "_1776_").lower())
    if not isinstance(known["statement"], str) or not known["statement"].strip():
        raise TaskError("its 'problem_statement' is empty, so the task is undefined; remove the row")
    return known


def _tested_by(script: Any) -> str | None:
    """Return the commands of an evaluation script that run tests; preparing and resetting the tree is done here."""
    lines = "\n".join(map(str, script)) if isinstance(script, list | tuple) else str(script or "")
    _, start, rest = lines.partition(_SCRIPT_START)
    tested, end, _ = rest.partition(_SCRIPT_END)
    if not (start and end):
        return None
    commands = [line.strip() for line in tested.splitlines()[1:]]
    return "\n".join(line for line in commands if line and line not in (":", ": '", "echo '", 'echo "')) or None


def _with_modules(command: str | None, test_patch: Any) -> str | None:
    """Return a test command of SWE-bench with the test files of the patch, as that harness calls it."""
    if command is None or not isinstance(test_patch, str):
        return command
    files: list[str] = re.findall(r"^\+\+\+ b/(\S+\.py)$", test_patch, re.MULTILINE)
    if "runtests" in command:
        files = [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in files]
    return shlex.join([*shlex.split(command), *files])


def _from_r2e(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert R2E-Gym: the test results after the real change are required; the tests are in the image."""
    expected = _loaded(row["expected_output_json"], "expected_output_json")
    if not isinstance(expected, Mapping) or not all(isinstance(state, str) for state in expected.values()):
        raise TaskError("its 'expected_output_json' is not an object of test names and outcomes")
    return {
        "instance_id": row.get("instance_id") or row.get("docker_image"),
        "statement": row.get("problem_statement"),
        "repo": row.get("repo") if not row.get("docker_image") else None,
        "image": row.get("docker_image"),
        "fail_to_pass": [name for name, state in expected.items() if state == "PASSED"],
        "test_command": row.get("test_command", f"python -W ignore -m pytest -rA {_R2E_TESTS.name}"),
        "log_parser": row.get("log_parser", "r2e"),
        "tests_in": str(_R2E_TESTS),
    }


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if key == "runtime":
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"its {key!r} must be a non-empty string; got {value!r:.80}")
    return value


def _repo(repo: Any) -> str | dict[str, str]:
    if isinstance(repo, str | os.PathLike):
        path = os.fspath(repo)
        if isinstance(path, str) and path.strip():
            return path
    elif isinstance(repo, Mapping) and repo:
        return _files(repo, "repo")
    raise TaskError(
        "its 'repo' must be a directory, a git bundle, an image, or a mapping of paths to text; got "
        f"{type(repo).__name__} {repo!r:.80}"
    )


def _files(value: Any, key: str) -> dict[str, str]:
    value = _loaded(value, key) if isinstance(value, str) else value
    if value is None:
        return {}
    if isinstance(value, list | tuple):  # how Parquet stores a mapping
        value = dict(value) if all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value) else None
    if not isinstance(value, Mapping):
        raise TaskError(f"its {key!r} must map paths to text")
    files: dict[str, str] = {}
    for path, text in value.items():
        if text is None:  # in Parquet every row has the fields of all rows
            continue
        if not isinstance(path, str) or not isinstance(text, str):
            raise TaskError(f"its {key!r} must map paths to text; {path!r:.80} is {type(text).__name__}")
        try:
            files[safe_path(path)] = text
        except TaskError as error:
            raise TaskError(f"its {key!r}: {error}") from error
    return files


def node_ids(value: Any, key: str) -> list[str]:
    """Return test ids as a list, given as a list or as its JSON text (as in SWE-bench).

    Raises:
        TaskError: It is neither.
    """
    value = _loaded(value, key) if isinstance(value, str) else value
    if value is None:
        return []
    ids = list(value) if isinstance(value, list | tuple) or hasattr(value, "tolist") else None
    if ids is None or not all(isinstance(name, str) and name.strip() for name in ids):
        raise TaskError(f"its {key!r} must be a list of test ids (or its JSON); got {value!r:.80}")
    return list(dict.fromkeys(ids))


def _loaded(text: Any, key: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"its {key!r} is not valid JSON: {text!r:.80}") from error


# Tasks to episodes


def read_task(task: Task, repositories: Repositories) -> RepositoryTask:
    """Return the fields of ``task`` that an episode needs; names of repositories become paths of their clones.

    Raises:
        TaskError: The task is not a repository task.
    """
    task = swe_task({"task_id": task.task_id, "content": task.content, "data": task.data}, task.task_id)
    data = task.data
    repo, image = data.get("repo"), data.get("image")
    if isinstance(repo, str):
        repo, image = _located(repo, image, repositories)
    return RepositoryTask(
        task_id=task.task_id,
        statement=task.content,
        repo=repo,
        image=image,
        base_commit=data.get("base_commit"),
        base_patch=data.get("base_patch"),
        hidden_tests=data["hidden_tests"],
        test_patch=data.get("test_patch"),
        fail_to_pass=tuple(data["fail_to_pass"]),
        pass_to_pass=tuple(data["pass_to_pass"]),
        test_command=data.get("test_command"),
        runtime=data.get("runtime"),
        log_parser=data.get("log_parser"),
        workdir=data.get("workdir", WORKDIR),
        tests_in=data.get("tests_in"),
        trace=data.get("trace"),
    )


def _located(repo: str, image: str | None, repositories: Repositories) -> tuple[str | None, str | None]:
    """Return the local repository, or the image, that a row's ``repo`` refers to."""
    if _is_built_in(repo):
        return repo, image
    if repo in repositories:
        return os.fspath(repositories[repo]), None
    if repo.startswith("docker://"):
        return None, repo.removeprefix("docker://")
    if Path(repo).expanduser().exists() and not (image and _NAME.fullmatch(repo)):
        return repo, image
    if image is not None:
        return None, image
    if _IMAGE.fullmatch(repo):
        return None, repo
    return repo, None  # it does not exist; the checkout raises the error


def _is_built_in(repo: object) -> TypeGuard[str]:
    return isinstance(repo, str) and repo.startswith(BUILT_IN)
