"""Task stores over data sets of the Hugging Face hub, downloaded in a worker process with a deadline."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from typing import Any

from rllm_gym.core import SPLITS, Task, TaskError
from rllm_gym.data.conversion import RowToTask
from rllm_gym.data.rows import RowReader, RowStore, make_task

_SOURCE = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.+-]+))?(?:@(?P<split>[\w.+-]+))?", re.ASCII)
_FORM = "'hf:repo[:config][@split]', such as 'hf:openai/gsm8k' or 'hf:openai/gsm8k:main@test'"


def open_hub(source: str, *, name: str | None, split: str | None, convert: RowToTask, timeout: float) -> HubStore:
    """Open one split of a data set on the hub as a task store.

    Raises:
        TaskError: See :meth:`rllm_gym.data.Taskset.from_hub`.
    """
    match = _SOURCE.fullmatch(source.removeprefix("hf:"))
    if match is None or ".." in match["repo"]:
        raise TaskError(f"{source!r:.200} is not a dataset of the Hugging Face hub; the form is {_FORM}")
    if importlib.util.find_spec("datasets") is None:
        raise TaskError(
            f"{source!r} needs the package 'datasets', which is not installed; pip install 'rllm-gym[hub]', "
            "or pass a local file"
        )
    files, chosen, others = _fetched(match["repo"], match["config"], match["split"], timeout)
    if split is not None and match["split"] is None and any(other in SPLITS for other in others):
        raise TaskError(
            f"{source!r} has splits of its own ({', '.join(sorted((chosen, *others)))}), so split={split!r} "
            f"is ambiguous; use '{source}@{split}' for the hub's split, or '{source}@{chosen}' and split={split!r} "
            "to split one of them by content"
        )
    return _open_files(files, name or match["repo"].split("/")[-1], convert, source)


@functools.lru_cache(maxsize=16)
def _fetched(
    repo: str, config: str | None, split: str | None, timeout: float
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the Arrow files, the name of their split, and the names of the other splits."""
    from rllm_gym.runtime import DeadlineExceeded, WorkerDied, WorkerPool

    what = f"hf:{repo}" + (f":{config}" if config else "") + (f"@{split}" if split else "")
    with WorkerPool("process", max_workers=1, name="hub") as pool:
        try:
            answer = pool.run(_fetch, repo, config, split, timeout=timeout)
        except (DeadlineExceeded, WorkerDied) as error:
            raise TaskError(
                f"{what} was not downloaded within {timeout:g} seconds ({error}); check the network, pass a "
                "larger timeout to Taskset.from_hub, or download it and pass the file"
            ) from error
    if "error" in answer:
        offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE")
        reason = (
            "HF_HUB_OFFLINE is set and the dataset is not in the cache" if offline else "check the network and the name"
        )
        raise TaskError(
            f"cannot load {what} from the Hugging Face hub: {answer['error']:.500} ({reason}). Download it "
            "once with a network connection, or pass a local file: tasks='path.jsonl'"
        )
    return tuple(answer["files"]), answer["split"], tuple(answer["others"])


def _fetch(repo: str, config: str | None, split: str | None) -> dict[str, Any]:
    """Download the data set (or find it in the cache) and return the paths of the Arrow files. Runs in the worker."""
    # Timeouts in seconds per request; without them, each request to a silent server takes minutes.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "15")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    import datasets

    try:
        try:
            loaded = datasets.load_dataset(repo, config, split=split)
        except ValueError:
            # Several configurations and none selected: most data sets call the default one "main".
            if config is not None:
                raise
            try:
                loaded = datasets.load_dataset(repo, "main", split=split)
            except ValueError:
                loaded = None
            if loaded is None:
                raise
    except Exception as error:  # returned as text, since its type may not exist in the parent process
        return {"error": f"{type(error).__name__}: {error}"}
    others: list[str] = []
    if split is None:
        names = [str(key) for key in loaded]
        split = "train" if "train" in names else names[0] if len(names) == 1 else None
        if split is None:
            return {"error": f"it has the splits {', '.join(names)}; choose one with '@', as in 'hf:{repo}@{names[0]}'"}
        others = [name for name in names if name != split]
        loaded = loaded[split]
    return {"files": [file["filename"] for file in loaded.cache_files], "split": split, "others": others}


@functools.lru_cache(maxsize=16)
def _open_files(files: tuple[str, ...], name: str, convert: RowToTask, source: str) -> HubStore:
    return HubStore(files, name, convert, source)


class HubStore(RowStore):
    """A store over Arrow files in the cache of ``datasets``, memory-mapped.

    Raises:
        TaskError: A row cannot be used, or there is none.
    """

    def __init__(self, files: tuple[str, ...], name: str, convert: RowToTask, source: str) -> None:
        import datasets

        self.name, self._files, self._convert, self._source = name, files, convert, source
        parts = [datasets.Dataset.from_file(file) for file in files]
        if not sum(map(len, parts)):
            raise TaskError(f"{source!r} has no rows")
        self._rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
        reader = RowReader(name, convert, lambda position: f"{source}, row {position}")
        for row in self._rows:
            reader.read(row)
        self.table = reader.table(lambda position: self.task(position).task_id)

    def __len__(self) -> int:
        return len(self._rows)

    def task(self, position: int) -> Task:
        return make_task(self._rows[position], position, self.name, self._convert)

    def __reduce__(self) -> tuple[object, ...]:
        return HubStore, (self._files, self.name, self._convert, self._source)
