"""The interface of task stores, the base class of stores over rows, and a store over rows in memory."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rllm_gym.core import SPLITS, Task, TaskError
from rllm_gym.data.conversion import RowToTask, row_id


class TaskStore(Protocol):
    """The storage behind a :class:`~rllm_gym.data.Taskset`: returns tasks by position, and the position of an id."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def task(self, position: int) -> Task: ...

    def position(self, task_id: str) -> int | None:
        """Return the position of this id, or ``None``."""
        ...

    def split_positions(self, split: str) -> np.ndarray | None:
        """Return the positions whose content is in ``split``, ascending; ``None`` if each task must be tested."""
        ...


@dataclass(frozen=True, slots=True)
class RowTable:
    """The split and the id hash of every row of a store. About 17 bytes per row."""

    splits: np.ndarray
    """Index into ``SPLITS``, by row."""
    id_hashes: np.ndarray
    """64-bit hashes of the ids, ascending; empty if no row has an id of its own."""
    id_positions: np.ndarray
    """The row of each hash, aligned with ``id_hashes``."""

    def split_positions(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def candidates(self, task_id: str) -> Iterable[int]:
        """Yield the rows whose id may be ``task_id``; usually one or none."""
        wanted = _id_hash(task_id)
        at = int(np.searchsorted(self.id_hashes, wanted))
        while at < len(self.id_hashes) and self.id_hashes[at] == wanted:
            yield int(self.id_positions[at])
            at += 1


class RowReader:
    """Converts rows to tasks one by one and collects the data of a :class:`RowTable`.

    Args:
        name: Prefix of the ids of rows that have none.
        convert: Converts a row to a task.
        where: Returns a description of the row at a position for error messages, such as ``"gsm8k.jsonl, line 3"``.
    """

    def __init__(self, name: str, convert: RowToTask, where: Callable[[int], str]) -> None:
        self._name = name
        self._convert = convert
        self._where = where
        self._splits = bytearray()
        self._hashes: list[int] = []
        self._named = False

    def read(self, row: Any) -> Task:
        """Convert the next row to a task.

        Raises:
            TaskError: The row cannot be used; names the row.
        """
        position = len(self._splits)
        try:
            task = make_task(row, position, self._name, self._convert)
        except TaskError as error:
            raise TaskError(f"{self._where(position)}: {error}") from error
        self._named = self._named or task.task_id != f"{self._name}/{position}"
        self._splits.append(SPLITS.index(task.split))
        self._hashes.append(_id_hash(task.task_id))
        return task

    def __len__(self) -> int:
        return len(self._splits)

    def table(self, id_at: Callable[[int], str]) -> RowTable:
        """Return the table of all rows read.

        Args:
            id_at: Returns the task id at a position; called only if two hashes are equal.

        Raises:
            TaskError: Two rows have the same id; names both.
        """
        splits = np.frombuffer(bytes(self._splits), dtype=np.uint8)
        if not self._named:
            return RowTable(splits, np.empty(0, np.uint64), np.empty(0, np.int64))
        hashes = np.asarray(self._hashes, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        for at in np.flatnonzero(hashes[1:] == hashes[:-1]):
            first, second = int(order[at]), int(order[at + 1])
            if id_at(first) == id_at(second):
                raise TaskError(
                    f"{self._where(second)}: its id {id_at(second)!r:.200} is already used by {self._where(first)}; "
                    "ids must be unique (rename one, or omit the ids to number the rows)"
                )
        return RowTable(splits, hashes, order)


def make_task(row: Any, position: int, name: str, convert: RowToTask) -> Task:
    """Convert one row to a task with its id.

    Raises:
        TaskError: The row cannot be used.
    """
    if isinstance(row, Task):
        row = {"task_id": row.task_id, "content": row.content, "data": row.data}
    if not isinstance(row, Mapping):
        raise TaskError(f"a row must be an object with named fields; got {type(row).__name__}: {row!r:.80}")
    return convert(row, row_id(row) or f"{name}/{position}")


def _id_hash(task_id: str) -> int:
    return int.from_bytes(hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")


class RowStore(ABC):
    """A task store over rows, with the table of their ids and splits.

    Attributes:
        name: Prefix of the ids of rows that have none.
        table: The ids and splits of the rows.
    """

    name: str
    table: RowTable

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def task(self, position: int) -> Task: ...

    def position(self, task_id: str) -> int | None:
        if len(self.table.id_hashes):
            rows = self.table.candidates(task_id)
            return next((position for position in rows if self.task(position).task_id == task_id), None)
        number = task_id.removeprefix(f"{self.name}/")
        if number == task_id or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        position = int(number)
        return position if position < len(self) and number == str(position) else None

    def split_positions(self, split: str) -> np.ndarray | None:
        return self.table.split_positions(split)


class MemoryStore(RowStore):
    """A task store that holds all tasks in memory."""

    def __init__(self, rows: Iterable[Any], name: str, convert: RowToTask) -> None:
        if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
            raise TaskError(f"rows must be a list of mappings or tasks; got {type(rows).__name__}: {rows!r:.80}")
        self.name = name
        reader = RowReader(name, convert, lambda position: f"row {position} of {name!r}")
        self._tasks = tuple(reader.read(row) for row in rows)
        self.table = reader.table(lambda position: self._tasks[position].task_id)

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, position: int) -> Task:
        return self._tasks[position]
