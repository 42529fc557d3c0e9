"""Data sets by the names people use: ``tasks="gsm8k"``. What the columns mean is defined by the environments."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.data.conversion import RowToTask
from rllm_gym.data.taskset import Taskset, check_split

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9+_-]*)(?:@(?P<split>\w+))?", re.ASCII)


@dataclass(frozen=True)
class Preset:
    """A data set of the Hugging Face hub.

    Attributes:
        repo: Its repository on the hub.
        envs: What its tasks are for: ``"math"``, ``"code"`` or ``"swe"``.
        splits: Our name of each split -> the hub's. A data set for evaluation has no ``"train"``.
        columns: Key of a row of the environment -> the column that has its value. These columns must exist.
        licence: Licence that its card states, ``"not stated"`` if none.
        config: Configuration on the hub.
    """

    repo: str
    envs: str
    splits: Mapping[str, str]
    columns: Mapping[str, str]
    licence: str
    config: str | None = None

    def source(self, split: str) -> str:
        """Return ``"hf:repo:config@split"``."""
        config = f":{self.config}" if self.config else ""
        return f"hf:{self.repo}{config}@{self.splits[split]}"


_TEST = {"test": "test"}
_TRAIN = {"train": "train"}
_BOTH = _TRAIN | _TEST
_PROBLEM = {"problem": "problem", "answer": "answer"}
_QUESTION = {"question": "question", "answer": "answer"}
_HUMANEVAL = {"prompt": "prompt", "entry_point": "entry_point", "test": "test"}
_SWE = {key: key for key in ("instance_id", "problem_statement", "repo", "FAIL_TO_PASS", "PASS_TO_PASS")}
_SWE_BENCH = _SWE | {"base_commit": "base_commit", "test_patch": "test_patch"}

PRESETS: dict[str, Preset] = {
    "gsm8k": Preset("openai/gsm8k", "math", _BOTH, _QUESTION, "MIT", "main"),
    "math": Preset(
        "DigitalLearningGmbH/MATH-lighteval", "math", _BOTH, {"problem": "problem", "answer": "solution"}, "MIT"
    ),
    "math500": Preset("HuggingFaceH4/MATH-500", "math", _TEST, _PROBLEM, "not stated; MATH is MIT"),
    "aime24": Preset("HuggingFaceH4/aime_2024", "math", {"test": "train"}, _PROBLEM, "not stated"),
    "aime25": Preset("math-ai/aime25", "math", _TEST, _PROBLEM, "Apache-2.0"),
    "amc23": Preset("math-ai/amc23", "math", _TEST, _QUESTION, "not stated"),
    "minerva": Preset("math-ai/minervamath", "math", _TEST, _QUESTION, "not stated"),
    "deepscaler": Preset("agentica-org/DeepScaleR-Preview-Dataset", "math", _TRAIN, _PROBLEM, "MIT"),
    "humaneval": Preset("openai/openai_humaneval", "code", _TEST, _HUMANEVAL, "MIT"),
    "humaneval+": Preset("evalplus/humanevalplus", "code", _TEST, _HUMANEVAL, "Apache-2.0"),
    "mbpp": Preset(
        "google-research-datasets/mbpp", "code", _BOTH | {"validation": "validation"},
        {"prompt": "text", "code": "code", "test_list": "test_list"}, "CC-BY-4.0", "full",
    ),
    "mbpp+": Preset(
        "evalplus/mbppplus", "code", _TEST,
        {"prompt": "prompt", "code": "code", "test": "test", "test_list": "test_list"}, "Apache-2.0",
    ),
    "livecodebench": Preset(
        "lighteval/code_generation_lite", "code", _TEST,
        {"prompt": "question_content", "public_test_cases": "public_test_cases",
         "private_test_cases": "private_test_cases", "starter_code": "starter_code", "metadata": "metadata"},
        "CC (see its card)", "release_v6",
    ),
    "deepcoder": Preset(
        "agentica-org/DeepCoder-Preview-Dataset", "code", _TRAIN, {"prompt": "problem", "tests": "tests"}, "MIT",
        "primeintellect",
    ),
    "codecontests": Preset(
        "deepmind/code_contests", "code", _BOTH | {"validation": "valid"},
        {"prompt": "description", "public_tests": "public_tests", "private_tests": "private_tests",
         "generated_tests": "generated_tests"}, "CC-BY-4.0",
    ),
    # Its train split names no tests.
    "swe-bench": Preset("princeton-nlp/SWE-bench", "swe", _TEST | {"validation": "dev"}, _SWE_BENCH, "not stated"),
    "swe-bench-lite": Preset(
        "princeton-nlp/SWE-bench_Lite", "swe", _TEST | {"validation": "dev"}, _SWE_BENCH, "not stated"
    ),
    "swe-bench-verified": Preset("princeton-nlp/SWE-bench_Verified", "swe", _TEST, _SWE_BENCH, "not stated"),
    "swe-gym": Preset("SWE-Gym/SWE-Gym", "swe", _TRAIN, _SWE_BENCH, "MIT"),
    "swe-smith": Preset(
        "SWE-bench/SWE-smith", "swe", _TRAIN, _SWE | {"image_name": "image_name", "patch": "patch"}, "MIT"
    ),
    "r2e-gym": Preset(
        "R2E-Gym/R2E-Gym-Subset", "swe", _TRAIN,
        {key: key for key in ("problem_statement", "docker_image", "expected_output_json")}, "not stated",
    ),
}  # fmt: skip
"""Data sets by name."""

_ALIASES = {"math-500": "math500", "aime2024": "aime24", "aime2025": "aime25", "humanevalplus": "humaneval+",
            "mbppplus": "mbpp+", "lcb": "livecodebench", "minervamath": "minerva", "swebench": "swe-bench",
            "swebench-verified": "swe-bench-verified"}  # fmt: skip


def preset_name(source: str) -> tuple[str, str | None] | None:
    """Return the name of a data set and the split after ``@`` in ``"gsm8k@test"``; ``None`` if it names none.

    >>> preset_name("GSM8K@test"), preset_name("tasks.jsonl")
    (('gsm8k', 'test'), None)
    """
    match = _NAME.fullmatch(source)
    if match is None:
        return None
    name = match["name"].lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    return (name, match["split"]) if name in PRESETS else None


def unknown_name(source: str) -> str:
    """Return a hint for a source that looks like the name of a data set and is none, else ``""``."""
    match = _NAME.fullmatch(source)
    if match is None:
        return ""
    close = difflib.get_close_matches(match["name"].lower(), [*PRESETS, *_ALIASES], 1)
    return (f"; did you mean {close[0]!r}?" if close else "") + f"; data sets by name: {', '.join(PRESETS)}"


def load_preset(
    name: str, chosen: str | None, *, split: str | None, convert: RowToTask, envs: str | None, timeout: float = 600.0
) -> Taskset:
    """Return the tasks of a data set.

    Args:
        name: A key of ``PRESETS``.
        chosen: The split after ``@``.
        split: The split that the environment asks for: the data set's own, with ``"test"`` for a ``"validation"`` that
            it lacks. A data set that has only ``"train"`` is split by content. ``None`` selects ``"train"``, or the
            only split there is.
        convert: Converts a row to a task.
        envs: What the tasks are for (:attr:`Preset.envs`); ``None`` accepts any.
        timeout: Seconds that the download may take.

    Raises:
        TaskError: The data set is for another environment, has no such split, cannot be downloaded, or has another
            layout than expected; says what to download and how to pass it as a file.
    """
    preset = PRESETS[name]
    if envs is not None and preset.envs != envs:
        same = ", ".join(key for key, other in PRESETS.items() if other.envs == envs)
        raise TaskError(f"tasks={name!r} are {preset.envs} tasks; data sets of {envs} tasks by name: {same}")
    if split is not None:
        check_split(split)
    by_content = chosen is None and split is not None and list(preset.splits) == ["train"]
    own = chosen or ("train" if by_content or (split is None and "train" in preset.splits) else split)
    if own is None:
        own = next(iter(preset.splits))
    if own == "validation" and own not in preset.splits:
        own = "test"
    if own not in preset.splits:
        why = " and is meant for evaluation" if "train" not in preset.splits else ""
        raise TaskError(
            f"tasks={name!r} has no split {own!r}{why}; it has {', '.join(preset.splits)}: choose with "
            f"'{name}@{next(iter(preset.splits))}', or pass rows of your own"
        )
    source = preset.source(own)
    try:
        return Taskset.from_hub(
            source,
            name=f"{name}/{own}",
            split=split if by_content else None,
            convert=_mapped(name, convert),
            timeout=timeout,
        )
    except TaskError as error:
        raise TaskError(
            f"tasks={name!r}: {error}. It is {preset.repo!r} (licence: {preset.licence}); where there is a network, "
            f"run 'hf download {preset.repo} --repo-type dataset --local-dir {name}' and pass the file of its split "
            f"{preset.splits[own]!r}: tasks='{name}/….parquet' (or .jsonl, .json)"
        ) from error


@functools.cache
def _mapped(name: str, convert: RowToTask) -> RowToTask:
    return functools.partial(_convert, name, convert)


def _convert(name: str, convert: RowToTask, row: Mapping[str, Any], task_id: str) -> Task:
    preset = PRESETS[name]
    missing = sorted(set(preset.columns.values()) - row.keys())
    if missing:
        raise TaskError(
            f"{preset.repo!r} has no column {', '.join(map(repr, missing))} any more; its columns are "
            f"{sorted(row)!r:.300}. Convert its rows and pass them as tasks=[...]"
        )
    return convert({**row, **{key: row[column] for key, column in preset.columns.items()}}, task_id)
