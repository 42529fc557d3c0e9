"""Rows of repository tasks: this library's and those of the datasets, what they mean, and which are refused."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_raise

from rllm_gym.core import Task, TaskError
from rllm_gym.data import Taskset
from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.patch import Patched, apply_patch, file_diff
from rllm_gym.envs.swe.rows import read_task, swe_task

BASE = {"pkg/core.py": "x = 1\n", "tests/test_core.py": "def test_a():\n    pass\n"}
TEST_PATCH = """\
diff --git a/tests/test_core.py b/tests/test_core.py
index 1111111..2222222 100644
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,2 +1,5 @@
 def test_a():
     pass
+
+def test_b():
+    assert 1
diff --git a/tests/data/new.txt b/tests/data/new.txt
new file mode 100644
--- /dev/null
+++ b/tests/data/new.txt
@@ -0,0 +1 @@
+data
\\ No newline at end of file
"""
NATIVE_ROW = {"id": "mine", "statement": "Fix it.", "repo": BASE, "fail_to_pass": ["tests/test_core.py::test_b"]}
BENCH = {
    "repo": "psf/requests",
    "instance_id": "psf__requests-1963",
    "base_commit": "a" * 40,
    "patch": "the gold patch",
    "test_patch": TEST_PATCH,
    "problem_statement": "Redirects are wrong.",
    "hints_text": "",
    "version": "2.3",
    "FAIL_TO_PASS": '["tests/test_core.py::test_b"]',
    "PASS_TO_PASS": '["tests/test_core.py::test_a"]',
    "environment_setup_commit": "b" * 40,
}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "patch": "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "FAIL_TO_PASS": ["tests/test_core.py::test_a"],
    "PASS_TO_PASS": [],
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "problem_statement": "It says 2.",
}
R2E = {
    "repo_name": "sympy",
    "docker_image": "namanjain12/sympy_final:f3d7b8a",
    "commit_hash": "f3d7b8a",
    "problem_statement": "[ISSUE] It fails.",
    "expected_output_json": json.dumps({"test_a": "PASSED", "test_b": "FAILED", "TestC.test_d": "PASSED"}),
}


def one(row, repositories=None):
    return read_task(Taskset.from_rows([row], name="swe", convert=swe_task)[0], repositories or {})


def test_a_native_row_is_a_task():
    task = one({**NATIVE_ROW, "test_patch": TEST_PATCH, "pass_to_pass": ["tests/test_core.py::test_a"]})
    assert (task.task_id, task.statement) == ("mine", "Fix it.")
    tests = task.tests(task.checkout(), 10.0)
    assert dict(tests.hidden_tests) == {
        "tests/test_core.py": "def test_a():\n    pass\n\ndef test_b():\n    assert 1\n",
        "tests/data/new.txt": "data",
    }
    assert tests.fail_to_pass == ("tests/test_core.py::test_b",)
    # The agent's starting point has none of it.
    assert task.checkout().read("tests/data/new.txt") is None
    assert b"test_b" not in (task.checkout().read("tests/test_core.py") or b"")


def test_a_task_survives_a_json_round_trip():
    row = {**NATIVE_ROW, "hidden_tests": {"tests/test_b.py": "def test_b(): pass\n"}}
    task = swe_task(row, "mine")
    assert read_task(task, {}) == read_task(Task.from_json(json.loads(json.dumps(task.to_json()))), {}) == one(task)
    bare = Task("t", "Fix it.", {key: value for key, value in row.items() if key not in ("id", "statement")})
    assert read_task(bare, {}).hidden_tests == row["hidden_tests"]


def test_a_swe_bench_row_runs_in_its_image_or_on_a_clone():
    task = one(BENCH)
    assert task.task_id == "psf__requests-1963"
    assert task.repo is None
    assert task.image == "docker.io/swebench/sweb.eval.x86_64.psf_1776_requests-1963:latest"
    with pytest.raises(TaskError, match=r"'psf__requests-1963' needs the image 'docker\.io/.*repositories="):
        task.checkout()
    local = one(BENCH, {"psf/requests": "/home/me/requests"})
    assert (local.repo, local.base_commit, local.image) == ("/home/me/requests", "a" * 40, None)
    assert local.fail_to_pass == ("tests/test_core.py::test_b",)
    assert local.test_patch == TEST_PATCH
    assert "gold" not in str(local)


def test_a_row_of_the_current_harness_names_its_image():
    script = [
        *("source /opt/miniconda3/bin/activate", "cd /testbed", "git apply -v - <<'EOF'\n+x\nEOF"),
        *(
            ": '>>>>> Start Test Output'",
            "pytest -rA tests/test_core.py",
            ": '>>>>> End Test Output'",
            "git checkout x",
        ),
    ]
    row = {**BENCH, "image": "swebench/x:1", "eval_script_list": script, "log_parser": "parse_log_pytest"}
    task = one(row)
    assert (task.image, task.test_command, task.log_parser) == (
        "swebench/x:1",
        "pytest -rA tests/test_core.py",
        "parse_log_pytest",
    )
    assert task.tests(prepare(BASE), 1.0).log_parser == "parse_log_pytest"
    with pytest.raises(TaskError, match="log_parser='nonsense' is unknown"):
        one({**row, "log_parser": "nonsense"}).tests(prepare(BASE), 1.0)


def test_django_uses_its_own_test_command():
    patch = TEST_PATCH.replace("tests/test_core.py", "tests/queries/test_q.py")
    task = one({**BENCH, "repo": "django/django", "test_patch": patch, "FAIL_TO_PASS": '["test_b (queries.test_q.T)"]'})
    assert (task.test_command or "").endswith("--parallel 1 queries.test_q")
    assert task.log_parser == "parse_log_django"


def test_the_patch_of_a_swe_smith_row_introduces_the_bug(tmp_path):
    assert one(SMITH).image == SMITH["image_name"]
    task = one(SMITH, {"oauthlib/oauthlib": "/clone"})
    assert (task.repo, task.base_commit, task.base_patch) == ("/clone", "1fd52536", SMITH["patch"])
    for path, text in BASE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout[:8]
    row = {**SMITH, "repo": f"swesmith/oauthlib__oauthlib.{head}"}
    assert one(row, {"oauthlib/oauthlib": tmp_path}).checkout().read("pkg/core.py") == b"x = 2\n"


def test_an_r2e_row_expects_the_recorded_test_results():
    task = one(R2E)
    assert (task.image, task.fail_to_pass) == (R2E["docker_image"], ("test_a", "TestC.test_d"))
    assert (task.tests_in, task.log_parser) == ("/r2e_tests", "r2e")


def test_the_location_of_a_repository(tmp_path):
    tests = {"hidden_tests": {"t.py": ""}}
    assert one({**NATIVE_ROW, **tests, "repo": str(tmp_path)}).repo == str(tmp_path)
    assert one({**NATIVE_ROW, **tests, "repo": tmp_path}).repo == str(tmp_path)
    assert one({**NATIVE_ROW, **tests, "repo": "docker://python"}).image == "python"
    assert one({**NATIVE_ROW, **tests, "repo": "ghcr.io/me/world:3"}).image == "ghcr.io/me/world:3"
    with pytest.raises(TaskError, match="'mine': the repository '/nowhere' does not exist"):
        one({**NATIVE_ROW, **tests, "repo": "/nowhere"}).checkout()


UNUSABLE = [
    ({"statement": None}, "no 'statement' text"),
    ({"repo": None}, "neither 'repo'"),
    ({"repo": 3}, "'repo' must be"),
    ({"fail_to_pass": []}, "lists no tests"),
    ({"fail_to_pass": "test_a"}, "not valid JSON"),
    ({"fail_to_pass": [1]}, "list of test ids"),
    ({"hidden_tests": {"../t.py": "x"}}, "must be relative and inside"),
    ({"hidden_tests": {"t.py": b"x"}}, "paths to text"),
    ({"hidden_tests": {"t.py": "x"}, "test_patch": TEST_PATCH}, "both"),
    ({"test_command": ["pytest"]}, "'test_command' must be a non-empty string"),
    ({"base_commit": 7}, "'base_commit' must be a non-empty string"),
]


def test_an_unusable_row_is_an_error_with_its_name():
    cases = [(change, rf"(?s)row 0 of 'swe'.*{re.escape(output)}") for change, output in UNUSABLE]
    assert_all_raise(TaskError, lambda change: one({**NATIVE_ROW, **change}), cases)


def test_a_dataset_row_without_a_statement_is_an_error():
    with pytest.raises(TaskError, match="'problem_statement' is empty"):
        one({**SMITH, "problem_statement": ""})


# Diffs

HOSTILE = {
    "leaves the tree": "--- a/../../x\n+++ b/../../x\n@@ -0,0 +1 @@\n+evil\n",
    "absolute": "--- /dev/null\n+++ /etc/cron.d/x\n@@ -0,0 +1 @@\n+evil\n",
    "git's own": "--- /dev/null\n+++ b/.git/hooks/pre-commit\n@@ -0,0 +1 @@\n+evil\n",
    "a link": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
    "a submodule": "diff --git a/l b/l\nnew file mode 160000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n",
    "binary": "diff --git a/l b/l\nGIT binary patch\nliteral 0\n",
    "quoted": '--- /dev/null\n+++ "b/..\\057x"\n@@ -0,0 +1 @@\n+evil\n',
    "a lone surrogate": "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+\ud83d\n",
    "too few lines": "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1,2 +1,2 @@\n x = 1\n",
    "too many lines": "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n+x = 3\n",
    "elsewhere": "--- a/pkg/core.py\n+++ b/pkg/core.py\n@@ -2 +2 @@\n-x = 1\n+x = 2\n",
    "there already": "--- /dev/null\n+++ b/pkg/core.py\n@@ -0,0 +1 @@\n+x\n",
    "nothing": "hello\n",
    "two names": "--- a/pkg/core.py\n+++ b/pkg/other.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
}


def test_a_hostile_or_broken_patch_is_refused():
    base = prepare(BASE)

    def output(patch):
        try:
            one({**NATIVE_ROW, "test_patch": patch}).tests(base, 1.0)
        except TaskError as error:
            return str(error)
        return "nothing"

    assert [name for name, patch in HOSTILE.items() if "patch" not in output(patch)] == []


def test_a_patch_renames_removes_and_changes_modes():
    patch = """\
From 1234 Mon Sep 17 00:00:00 2001
Subject: [PATCH] a mail

---
 a.py | 2 +-

diff --git a/a.py b/b.py
similarity index 50%
rename from a.py
rename to b.py
--- a/a.py
+++ b/b.py
@@ -1,2 +1,2 @@
 one
-two
+2
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/run b/run
old mode 100644
new mode 100755
diff --git a/empty b/empty
new file mode 100644
index 0000000..e69de29
--\x20
2.39.5
"""
    files = {"a.py": b"one\ntwo\n", "gone.py": b"x\n", "run": b"#!\n"}
    assert apply_patch(patch, files.get) == {
        "a.py": Patched(None),
        "b.py": Patched(b"one\n2\n"),
        "gone.py": Patched(None),
        "run": Patched(b"#!\n", True),
        "empty": Patched(b"", False),
    }


LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "c\n", "\n", " \n", "--- x\n", "+++ y\n", "@@\n", "\\\n", "é\r\n"]), max_size=30
)


@given(LINES, LINES, st.booleans(), st.booleans())
def test_a_written_diff_is_read_back(old_lines, new_lines, cut_old, cut_new):
    old, new = (
        "".join(lines).removesuffix("\n" * cut).encode() for lines, cut in ((old_lines, cut_old), (new_lines, cut_new))
    )
    text = file_diff('sub/a "quoted" é.py', old, new)
    if old == new:
        assert text == ""
    else:
        assert apply_patch(text, {'sub/a "quoted" é.py': old}.get)['sub/a "quoted" é.py'].data == new


def test_git_applies_a_written_diff(tmp_path):
    (tmp_path / "é.py").write_bytes(b"".join(b"%d\n" % number for number in range(50)))
    old = (tmp_path / "é.py").read_bytes()
    new = old.replace(b"7\n", b"seven\n", 1).replace(b"40\n", b"") + b"end"
    subprocess.run(["git", "apply"], cwd=tmp_path, input=file_diff("é.py", old, new).encode(), check=True)
    assert (tmp_path / "é.py").read_bytes() == new


@given(
    st.text(max_size=300) | st.lists(st.sampled_from(TEST_PATCH.splitlines(keepends=True)), max_size=30).map("".join)
)
def test_any_text_is_a_patch_or_an_error(text):
    with contextlib.suppress(TaskError):
        apply_patch(text, lambda path: BASE[path].encode() if path in BASE else None)
