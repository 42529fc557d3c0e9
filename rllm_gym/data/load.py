"""Convert any supported source of tasks to a task set."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllm_gym.core import TaskError, TaskSource
from rllm_gym.data.conversion import RowToTask, row_to_task
from rllm_gym.data.presets import load_preset, preset_name, unknown_name
from rllm_gym.data.taskset import Taskset


def load_tasks(
    source: Any,
    *,
    name: str | None = None,
    split: str | None = None,
    convert: RowToTask | None = None,
    envs: str | None = None,
) -> TaskSource:
    """Return the task set for ``source``.

    Args:
        source: ``"path.jsonl"``, ``"path.json"`` or ``"path.parquet"``; ``"hf:repo[:config][@split]"``; the name of
            a data set, such as ``"gsm8k"`` or ``"gsm8k@test"`` (:data:`rllm_gym.data.PRESETS`); an iterable of rows
            (mappings) or tasks, such as a list or a data set of ``datasets``; or a task set, which is returned
            unchanged.
        name: Prefix of the ids of rows that have none.
        split: Keep only the tasks of this content split; ``None`` for all. For the name of a data set, its own split.
        convert: Converts a row to a task; :func:`~rllm_gym.data.row_to_task` by default. Not applied to a task set.
        envs: ``"math"``, ``"code"`` or ``"swe"``: a name of a data set for other tasks is refused.

    Raises:
        TaskError: The source cannot be used; names the problem and the fix.
    """
    if isinstance(source, Taskset):
        return source if split is None else source.split(split)
    if isinstance(source, str) and source.startswith("hf:"):
        return Taskset.from_hub(source, name=name, split=split, convert=convert)
    if isinstance(source, str) and (found := preset_name(source)) is not None:
        return load_preset(*found, split=split, convert=convert or row_to_task, envs=envs)
    if isinstance(source, str) and not os.path.exists(source) and (hint := unknown_name(source)):
        raise TaskError(f"tasks={source!r} is neither a file nor the name of a data set{hint}")
    if isinstance(source, str | os.PathLike):
        return Taskset.from_file(Path(source), name=name, split=split, convert=convert)
    if isinstance(source, Iterable):
        if isinstance(source, TaskSource) and split is None:
            first = source[0] if len(source) else None
            if hasattr(first, "task_id") and hasattr(first, "content"):
                return source
        return Taskset.from_rows(source, name=name or "rows", split=split, convert=convert)
    raise TaskError(
        f"tasks={source!r:.80} ({type(source).__name__}) is not a source of tasks; pass a path to .jsonl "
        "or .parquet, 'hf:repo[:config][@split]', a list of rows, or a Taskset"
    )
