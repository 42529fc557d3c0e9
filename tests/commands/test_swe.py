"""``rllm-gym swe from-commit`` writes a task file that can be used without changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import gymnasium
import pytest
from commands.command_line import assert_brief_error, rllm_gym

import rllm_gym as package  # noqa: F401 - registers the ids

TESTS = "from triple import triple\n\n\ndef test_zero():\n    assert triple(0) == 0\n"
COMMITS: list[tuple[str, dict[str, str]]] = [
    ("first", {"triple.py": "def triple(x):\n    return 2 * x\n", "test_triple.py": TESTS}),
    (
        "triple() only doubles what it is given",
        {
            "triple.py": "def triple(x):\n    return 3 * x\n",
            "test_triple.py": TESTS + "\n\ndef test_two():\n    assert triple(2) == 6\n",
        },
    ),
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "triples"
    root.mkdir()
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=root, env=environment, check=True)
    for message, files in COMMITS:
        for name, text in files.items():
            (root / name).write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=root, env=environment, check=True)
        subprocess.run(["git", "commit", "-q", "-m", message], cwd=root, env=environment, check=True)
    return root


@pytest.mark.long
def test_a_commit_is_added_to_a_usable_task_file(clone: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    result = rllm_gym("swe", "from-commit", str(clone), "HEAD", "--output", str(out), "--repeats", "1", "--bundle")
    assert result.returncode == 0, result.stderr
    assert "1 tests must be fixed, 1 must keep passing" in result.stdout
    assert "1 of 2 pass before, 2 of 2 pass after" in result.stderr
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert row["statement"] == "triple() only doubles what it is given"
    assert Path(row["repo"]).parent == tmp_path
    again = rllm_gym("swe", "from-commit", str(clone), "HEAD", "--output", str(out), "--repeats", "1", "--quiet")
    assert_brief_error(again, row["id"], "--id")
    named = rllm_gym(
        *("swe", "from-commit", str(clone), "HEAD", "--output", str(out), "--repeats", "1", "--quiet"),
        *("--id", "second", "--statement", "triple(2) is 4"),
    )
    assert named.returncode == 0, named.stderr
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [row["id"], "second"]
    env = gymnasium.make("rllm/SWE-v0", tasks=str(out))
    for replies, reward in ((["sed -i s/2/3/ triple.py", "submit"], 1.0), (["submit"], 0.0)):
        observation, _ = env.reset(options={"task": "second"})
        assert "triple(2) is 4" in observation
        for reply in replies:
            _, found, *_ = env.step(f"```bash\n{reply}\n```")
        assert found == reward
    env.close()


def test_invalid_commits_are_one_line_errors(clone: Path, tmp_path: Path) -> None:
    cases = [
        (["HEAD~1", "--output", "a.jsonl"], ["first commit"]),
        (["HEAD", "--output", "a.json"], [".jsonl"]),
        (["HEAD", "--output", "none/a.jsonl"], ["'none'"]),
        (["HEAD", "--output", "a.jsonl", "--statement", "none.md"], ["none.md"]),
    ]
    for arguments, words in cases:
        result = rllm_gym("swe", "from-commit", str(clone), *arguments, cwd=tmp_path)
        result.stderr = "\n".join(line for line in result.stderr.splitlines() if line.startswith("rllm-gym: "))
        assert_brief_error(result, *words)
        assert not (tmp_path / "a.jsonl").exists(), arguments


def test_the_help_contains_an_example() -> None:
    result = rllm_gym("swe", "from-commit", "--help")
    assert result.returncode == 0
    for word in ("--test-command", "--runtime", "--statement", "--bundle", "examples:"):
        assert word in result.stdout
    result = rllm_gym("swe", "from-repo", "--help")
    for word in ("--limit", "--revision", "--runtime", "example:"):
        assert word in result.stdout
