"""rLLM's registry of named data sets in a user folder, with atomic writes and file locks. Stores only JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rllm_gym.compat.dataset import Dataset
from rllm_gym.core import RllmGymError, TaskError
from rllm_gym.data.conversion import check_json

logger = logging.getLogger(__name__)

_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,99})?")
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK_SECONDS = 30.0
_MAX_INDEX_BYTES = 64 * 2**20
_STALE_SECONDS = 24 * 3600.0


class RegistryError(RllmGymError):
    """Raised if the registry cannot be read or written; names the file and the fix."""


class DatasetRegistry:
    """Data sets by name and split, stored as JSONL files with an index.

    They are stored in ``<home>/datasets``, where home is the ``home=`` of the call, else the environment variable
    ``RLLM_GYM_HOME``, else ``$XDG_CACHE_HOME/rllm-gym``, else ``~/.cache/rllm-gym``.

    A data set is registered atomically: its rows are written to a temporary file, which is renamed and then entered in
    the index under a lock. Acquiring the lock takes at most 30 seconds. Readers take no lock.

    >>> import tempfile
    >>> home = tempfile.mkdtemp()
    >>> _ = DatasetRegistry.register_dataset("sums", [{"question": "1 + 1?", "answer": "2"}], "train", home=home)
    >>> len(DatasetRegistry.load_dataset("sums", "train", home=home).repeat(n=8))
    8
    """

    @classmethod
    def register_dataset(
        cls,
        name: str,
        data: Iterable[Mapping[str, Any]],
        split: str = "default",
        source: str = "",
        description: str = "",
        category: str = "",
        *,
        home: str | Path | None = None,
    ) -> Dataset:
        """Store rows under a name and a split, replacing any earlier ones.

        Args:
            name: Letters, digits, ``.``, ``_`` and ``-``, with at most one ``/`` (``"openai/gsm8k"``).
            data: Mappings of JSON types: a list, a :class:`Dataset`, a data set of ``datasets``, or a data frame.
            split: Any name, such as ``"train"``.
            source: Where the data set is from, for :meth:`get_dataset_info`.
            description: What it contains.
            category: Its category, such as ``"math"``.
            home: Overrides ``RLLM_GYM_HOME``.

        Raises:
            ValueError: The name or the split contains other characters.
            TaskError: A row cannot be stored as JSON; names the row.
            RegistryError: The index is corrupt, or the lock could not be acquired within 30 seconds.
        """
        _check_names(name, split)
        folder = _folder(home, create=True)
        if hasattr(data, "to_dict") and hasattr(data, "columns"):
            data = data.to_dict("records")  # iterating over a data frame would give its column names
        dataset = Dataset(data, name, split)
        temporary, digest = _write_rows(folder, dataset)
        try:
            with _locked(folder):
                index = _read_index(folder)
                slug = f"{name}.{split}".replace("/", "--")
                final = f"{slug}.{digest[:16]}.jsonl"
                os.replace(temporary, folder / final)
                entry = index["datasets"].setdefault(name, {"metadata": {}, "splits": {}})
                metadata = {"source": source, "description": description, "category": category}
                entry["metadata"].update({key: value for key, value in metadata.items() if value})
                before = entry["splits"].get(split, {}).get("path")
                entry["splits"][split] = {
                    "path": final,
                    "num_examples": len(dataset),
                    "fields": list(dataset[0]) if len(dataset) else [],
                }
                _write_index(folder, index)
                _forget_files(folder, index, [before])
        finally:
            temporary.unlink(missing_ok=True)
        return Dataset(dataset.data, name, split, path=folder / final)

    @classmethod
    def load_dataset(cls, name: str, split: str = "default", *, home: str | Path | None = None) -> Dataset | None:
        """Load the rows under this name and split. Return ``None`` and log a warning if there are none.

        Raises:
            RegistryError: The index or the file of the rows is corrupt.
        """
        from rllm_gym.data.files import read_rows

        folder = _folder(home)
        for _ in range(10):
            # Another process may replace the file between reading the index and opening the file.
            splits = _read_index(folder)["datasets"].get(name, {}).get("splits", {})
            if split not in splits:
                break
            path = folder / splits[split]["path"]
            try:
                return Dataset(read_rows(path), name, split, path=path)
            except FileNotFoundError:
                continue
            except TaskError as error:
                raise RegistryError(f"data set {name!r}, split {split!r}: {error}; register it again") from error
        else:
            raise RegistryError(f"data set {name!r}, split {split!r}: {path} does not exist; register it again")
        known = f"it has {sorted(splits)}" if splits else f"registered are {cls.get_dataset_names(home=home)}"
        logger.warning("no data set %r with the split %r in %s; %s", name, split, folder, known)
        return None

    @classmethod
    def get_dataset_names(cls, *, home: str | Path | None = None) -> list[str]:
        """Return all names, sorted."""
        return sorted(_read_index(_folder(home))["datasets"])

    @classmethod
    def get_dataset_splits(cls, name: str, *, home: str | Path | None = None) -> list[str]:
        """Return the splits of a data set, sorted; ``[]`` if the data set is unknown."""
        return sorted((cls.get_dataset_info(name, home=home) or {"splits": {}})["splits"])

    @classmethod
    def get_dataset_info(cls, name: str, *, home: str | Path | None = None) -> dict[str, Any] | None:
        """Return ``{"metadata": …, "splits": {split: {"path", "num_examples", "fields"}}}``, or ``None``."""
        info: dict[str, Any] | None = _read_index(_folder(home))["datasets"].get(name)
        return info

    @classmethod
    def dataset_exists(cls, name: str, split: str | None = None, *, home: str | Path | None = None) -> bool:
        """Return whether there is such a data set (with such a split)."""
        info = cls.get_dataset_info(name, home=home)
        return info is not None and (split is None or split in info["splits"])

    @classmethod
    def remove_dataset_split(cls, name: str, split: str, *, home: str | Path | None = None) -> bool:
        """Remove one split and its file, and the data set if it was the last split. Return whether it existed."""
        return cls._remove(name, split, home)

    @classmethod
    def remove_dataset(cls, name: str, *, home: str | Path | None = None) -> bool:
        """Remove a data set and its files. Return whether it existed."""
        return cls._remove(name, None, home)

    @classmethod
    def _remove(cls, name: str, split: str | None, home: str | Path | None) -> bool:
        folder = _folder(home)
        if not cls.dataset_exists(name, split, home=home):
            return False
        with _locked(folder):
            index = _read_index(folder)
            splits = index["datasets"].get(name, {}).get("splits", {})
            removed = [key for key in splits if split is None or key == split]
            if split is not None and not removed:
                return False
            files = [splits.pop(key)["path"] for key in removed]
            if not splits:
                index["datasets"].pop(name, None)
            _write_index(folder, index)
            _forget_files(folder, index, files)
        return True


def _check_names(name: str, split: str) -> None:
    for what, value, pattern in (("name", name, _NAME), ("split", split, _SPLIT)):
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(
                f"the {what} {value!r:.120} of a data set must begin with a letter or digit and hold only letters, "
                f"digits, '.', '_' and '-'{' (and one / at most)' if what == 'name' else ''}, up to 100 each"
            )


def _folder(home: str | Path | None, *, create: bool = False) -> Path:
    if home is None:
        home = os.environ.get("RLLM_GYM_HOME") or Path(
            os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rllm-gym"
        )
    folder = Path(home).expanduser().absolute() / "datasets"
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegistryError(f"cannot make {folder} ({error}); set RLLM_GYM_HOME to a writable folder") from error
    return folder


def _write_rows(folder: Path, dataset: Dataset) -> tuple[Path, str]:
    """Write the rows to a temporary file in the folder. Return its path and the SHA-256 of its bytes."""
    handle, name = tempfile.mkstemp(prefix=".rows-", suffix=".tmp", dir=folder)
    digest = hashlib.sha256()
    try:
        with open(handle, "wb") as file:
            for position, row in enumerate(dataset):
                try:
                    check_json(row)
                    line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
                except (TaskError, UnicodeEncodeError) as error:
                    raise TaskError(f"row {position} of {dataset.name!r} cannot be saved as JSON: {error}") from error
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name), digest.hexdigest()


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "registry.json"
    hint = f"move {path} away and register the data sets again; their rows are next to it as .jsonl"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_INDEX_BYTES)
    except FileNotFoundError:
        return {"version": _VERSION, "datasets": {}}
    except OSError as error:
        raise RegistryError(f"cannot read the registry {path} ({error})") from error
    try:
        index = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"the registry {path} is corrupt ({error}); {hint}") from error
    if not _is_index(index):
        raise RegistryError(f"{path} is not a registry of version {_VERSION}; {hint}")
    return dict(index)


def _is_index(index: Any) -> bool:
    if not isinstance(index, dict) or index.get("version") != _VERSION or not isinstance(index.get("datasets"), dict):
        return False
    return all(
        isinstance(entry, dict)
        and isinstance(entry.get("metadata"), dict)
        and isinstance(entry.get("splits"), dict)
        # A path with a folder in it was not written by this class, and would be read or removed outside the folder.
        and all(
            isinstance(split, dict) and isinstance(split.get("path"), str) and split["path"] == Path(split["path"]).name
            for split in entry["splits"].values()
        )
        for entry in index["datasets"].values()
    )


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=".registry-", suffix=".tmp", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(index, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, folder / "registry.json")
    finally:
        Path(name).unlink(missing_ok=True)


def _forget_files(folder: Path, index: dict[str, Any], names: Iterable[str | None]) -> None:
    """Remove files without an index entry, and temporary files of killed processes that are older than a day."""
    used = {split["path"] for entry in index["datasets"].values() for split in entry["splits"].values()}
    for name in names:
        if name is not None and name not in used:
            (folder / name).unlink(missing_ok=True)
    for leftover in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the registry. It is released when the block or the process ends."""
    try:
        import fcntl
    except ImportError as error:
        raise RegistryError("the data set registry needs POSIX file locks (Linux, macOS, WSL)") from error
    path = folder / "registry.lock"
    deadline = time.monotonic() + _LOCK_SECONDS
    with open(path, "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RegistryError(
                        f"{path} was locked by another process for {_LOCK_SECONDS:.0f} seconds; find that process "
                        "with fuser and stop it"
                    ) from None
                time.sleep(0.01)
        yield
