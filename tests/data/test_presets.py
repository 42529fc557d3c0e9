"""Data sets by name: rows of each one's shape become gradable tasks, and being offline says what to download."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.core import TaskError
from rllm_gym.data import PRESETS, Taskset, load_tasks
from rllm_gym.data.presets import _mapped
from rllm_gym.envs.code.rows import row_to_code_task
from rllm_gym.envs.math import MathEnv
from rllm_gym.envs.math.rows import row_to_math_task
from rllm_gym.envs.swe.rows import swe_task

CONVERT = {"math": row_to_math_task, "code": row_to_code_task, "swe": swe_task}
_PATCH = "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-a\n+b\n"
_SWE: dict[str, Any] = {
    "repo": "psf/requests", "instance_id": "psf__requests-1", "base_commit": "a" * 40, "patch": _PATCH,
    "test_patch": _PATCH, "problem_statement": "It fails.", "hints_text": "", "created_at": "2020", "version": "1",
    "FAIL_TO_PASS": '["tests/test_a.py::test_a"]', "PASS_TO_PASS": "[]", "environment_setup_commit": "b" * 40,
}  # fmt: skip
_HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": 'def f(x):\n    """Return x."""\n', "canonical_solution": "    return x\n",
    "entry_point": "f", "test": "def check(candidate):\n    assert candidate(1) == 1\n",
}  # fmt: skip
_MATH500 = {"problem": "What is 1 + 1?", "solution": r"It is $\boxed{2}$.", "answer": "2", "subject": "Algebra",
            "level": 1, "unique_id": "test/algebra/1.json"}  # fmt: skip
_CASE = {"input": "1\n", "output": "2\n", "testtype": "stdin"}

# A row of each data set with all its columns, and what the task must hold: the gold answer, the function or the kind.
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "gsm8k": ({"question": "What is 1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}, "2"),
    "math": ({"problem": "What is 1 + 1?", "level": "Level 1", "type": "Algebra", "solution": r"$\boxed{2}$."}, "2"),
    "math500": (_MATH500, "2"),
    "aime24": ({"id": 60, "problem": "Find $n$.", "solution": r"\boxed{025}", "answer": "204", "year": "2024"}, "204"),
    "aime25": ({"problem": "Find $n$.", "answer": "70", "id": "0"}, "70"),
    "amc23": ({"id": 0, "answer": "27.0", "url": "", "question": "Find $n$."}, "27.0"),
    "minerva": ({"question": "How far?", "answer": "4.3e-3"}, "4.3e-3"),
    "deepscaler": ({"problem": "Find $n$.", "answer": r"\frac{1}{2}", "solution": "Half of it."}, r"\frac{1}{2}"),
    "humaneval": (_HUMANEVAL, "f"),
    "humaneval+": (_HUMANEVAL, "f"),
    "mbpp": ({"task_id": 11, "text": "Write a function to double.", "code": "def double(x):\n    return 2 * x",
              "test_list": ["assert double(1) == 2"], "test_setup_code": "", "challenge_test_list": []}, "double"),
    "mbpp+": ({"task_id": 2, "code": "def double(x):\n    return 2 * x", "prompt": "Write a function to double.",
               "source_file": "a.ipynb", "test_imports": [], "test_list": ["assert double(1) == 2"],
               "test": "for one in [1, 2]:\n    assert double(one) == 2 * one\n"}, "double"),
    "livecodebench": ({"question_title": "A", "question_content": "Add one.", "platform": "atcoder",
                       "question_id": "abc1_a", "contest_id": "abc1", "contest_date": "2025-01-01T00:00:00",
                       "starter_code": "", "difficulty": "easy", "public_test_cases": json.dumps([_CASE]),
                       "private_test_cases": json.dumps([_CASE]), "metadata": "{}"}, "stdio"),
    "deepcoder": ({"problem": "Add one.", "solutions": ["..."],
                   "tests": json.dumps([{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}])}, "stdio"),
    "codecontests": ({"name": "1_A", "description": "Add one.", "public_tests": {"input": ["1\n"], "output": ["2\n"]},
                      "private_tests": {"input": ["2\n"], "output": ["3\n"]},
                      "generated_tests": {"input": [], "output": []}, "source": 2, "difficulty": 7}, "stdio"),
    "swe-bench": (_SWE, "tests/test_a.py::test_a"),
    "swe-bench-lite": (_SWE, "tests/test_a.py::test_a"),
    "swe-bench-verified": (_SWE | {"difficulty": "15 min"}, "tests/test_a.py::test_a"),
    "swe-gym": (_SWE | {"FAIL_TO_PASS": ["tests/test_a.py::test_a"], "PASS_TO_PASS": []}, "tests/test_a.py::test_a"),
    "swe-smith": ({**{key: _SWE[key] for key in ("instance_id", "patch", "problem_statement")},
                   "FAIL_TO_PASS": ["tests/test_a.py::test_a"], "PASS_TO_PASS": [],
                   "image_name": "swesmith.x86_64.a", "repo": "swesmith/a__a.12345678"}, "tests/test_a.py::test_a"),
    "r2e-gym": ({"repo_name": "sympy", "docker_image": "sympy:1", "commit_hash": "a", "problem_statement": "It fails.",
                 "expected_output_json": json.dumps({"test_a": "PASSED"})}, "test_a"),
}  # fmt: skip


def test_rows_of_every_shape_become_tasks_by_name_and_from_a_local_file(tmp_path: Path) -> None:
    assert set(ROWS) == set(PRESETS)
    for name, (row, expected) in ROWS.items():
        preset = PRESETS[name]
        assert set(preset.columns.values()) <= set(row), name
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(row) + "\n")
        convert = CONVERT[preset.envs]
        for tasks in (
            Taskset.from_rows([row], name=name, convert=_mapped(name, convert)),
            load_tasks(str(path), convert=convert),
        ):
            data = tasks[0].data
            held = data.get("gold") or data.get("entry_point") or data.get("kind") or data["fail_to_pass"][0]
            assert held == expected, name


def test_a_data_set_whose_columns_have_changed_is_refused_with_their_names() -> None:
    for name in PRESETS:
        with pytest.raises(TaskError, match=r"has no column .*any more; its columns are \['text'\]"):
            Taskset.from_rows([{"text": "?"}], name=name, convert=_mapped(name, CONVERT[PRESETS[name].envs]))


def test_every_environment_finds_the_split_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_hub(source: str, *, split: str | None, **_: Any) -> Taskset:
        asked.append(source + (f" by content: {split}" if split else ""))
        return Taskset.from_rows([_MATH500])

    monkeypatch.setattr(Taskset, "from_hub", from_hub)
    for tasks, split, source in (
        ("gsm8k", None, "hf:openai/gsm8k:main@train"),
        ("gsm8k", "validation", "hf:openai/gsm8k:main@test"),
        ("GSM8K@test", None, "hf:openai/gsm8k:main@test"),
        ("aime2024", "validation", "hf:HuggingFaceH4/aime_2024@train"),
        ("math500", None, "hf:HuggingFaceH4/MATH-500@test"),
        ("deepscaler", None, "hf:agentica-org/DeepScaleR-Preview-Dataset@train"),
        ("deepscaler", "validation", "hf:agentica-org/DeepScaleR-Preview-Dataset@train by content: validation"),
        ("swe-bench-lite", "validation", "hf:princeton-nlp/SWE-bench_Lite@dev"),
        ("humaneval+", "test", "hf:evalplus/humanevalplus@test"),
    ):
        load_tasks(tasks, split=split)
        assert asked.pop() == source, (tasks, split)


def test_the_page_lists_every_data_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for name, preset in PRESETS.items():
        splits = ", ".join(preset.splits)
        assert f"| `{name}` | {preset.envs} | `{preset.repo}` | {splits} | {preset.licence} |" in page, name


@pytest.mark.long
@pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")
def test_names_select_the_splits_of_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ``datasets`` takes a local folder for a repository of the same name: the same code, without the network.
    for repo, splits in (("openai/gsm8k", ("train", "test")), ("agentica-org/DeepScaleR-Preview-Dataset", ("train",))):
        folder = tmp_path / repo
        folder.mkdir(parents=True)
        keys = ("question", "answer") if "gsm8k" in repo else ("problem", "answer")
        for split in splits:
            rows = [dict(zip(keys, (f"{split} {n}?", f"#### {n}"))) for n in range(30)]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        configs = [{"config_name": "main" if "gsm8k" in repo else "default",
                    "data_files": [{"split": split, "path": f"{split}.jsonl"} for split in splits]}]  # fmt: skip
        (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for arguments, first in (
        ({"tasks": "gsm8k"}, "train 0?"),
        ({"tasks": "gsm8k", "split": "test"}, "test 0?"),
        ({"tasks": "GSM8K@test"}, "test 0?"),
        ({"tasks": "gsm8k", "split": "validation"}, "test 0?"),  # it has none
    ):
        env = MathEnv(**arguments)  # type: ignore[arg-type]
        assert (env.tasks[0].content, len(env.tasks)) == (first, 30), arguments
        assert env.tasks[7].task_id == f"gsm8k/{first.split()[0]}/7"
    assert pickle.loads(pickle.dumps(env.tasks))[7] == env.tasks[7]  # noqa: S301 - our own bytes
    parts = [
        load_tasks("deepscaler", split=split, convert=row_to_math_task) for split in ("train", "validation", "test")
    ]
    assert sum(map(len, parts)) == len(load_tasks("deepscaler", convert=row_to_math_task)) == 30
    assert len({task.content for part in parts for task in part}) == 30


def test_being_offline_says_what_to_download_and_how_to_pass_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(TaskError) as caught:
        MathEnv(tasks="aime24")
    for part in ("tasks='aime24'", "HuggingFaceH4/aime_2024", "not stated", "hf download HuggingFaceH4/aime_2024",
                 "file of its split 'train'", "tasks='aime24/"):  # fmt: skip
        assert part in str(caught.value)


def test_names_and_splits_that_do_not_exist_are_refused_without_a_download() -> None:
    for arguments, message in (
        ({"tasks": "gsm9k"}, "neither a file nor the name of a data set; did you mean 'gsm8k'"),
        ({"tasks": "everything"}, "data sets by name: gsm8k, math"),
        ({"tasks": "humaneval"}, "are code tasks; data sets of math tasks by name: gsm8k"),
        ({"tasks": "math500", "split": "train"}, "'math500' has no split 'train' and is meant for evaluation"),
        ({"tasks": "math500@train"}, "it has test: choose with 'math500@test'"),
        ({"tasks": "gsm8k@dev"}, "has no split 'dev'; it has train, test"),
        ({"tasks": "gsm8k", "split": "dev"}, "dev"),
    ):
        with pytest.raises(TaskError, match=message):
            MathEnv(**arguments)  # type: ignore[arg-type]
