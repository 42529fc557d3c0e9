"""The task set: an indexable, lazy, immutable sequence of tasks, split by their content and not by their position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from rllm_gym.core import SPLITS, Task, TaskError, split_of, stream_seed
from rllm_gym.data.conversion import RowToTask, row_to_task
from rllm_gym.data.files import open_store
from rllm_gym.data.hub import open_hub
from rllm_gym.data.rows import MemoryStore, TaskStore


class EmptySplit(TaskError):
    """Raised if no task of a task set falls into a split."""


class Taskset(Sequence[Task]):
    """A sequence of tasks, with access by index and by id. Methods that select tasks return a new task set.

    Tasks are created on access, so a set over a large file or a generator uses little memory. A task
    keeps its id in every view, and ids do not depend on the view: ``<name>/<row number>``, or the row's own
    ``task_id``, ``id`` or ``unique_id``.

    Splits are made by content (:func:`rllm_gym.core.split_of`): equal problems are always in the same split, so a
    problem that occurs twice is kept twice and still never leaks from training into testing;
    :meth:`unique` drops repetitions.

    Create one with :meth:`from_rows`, :meth:`from_file`, :meth:`from_hub`, or
    :class:`~rllm_gym.data.ProceduralTaskset`.

    >>> tasks = Taskset.from_rows([{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}])
    >>> len(tasks), tasks[1].task_id, tasks.find("rows/0").content
    (2, 'rows/1', '1 + 1?')
    """

    __slots__ = ("_positions", "_store")

    _store: TaskStore
    _positions: range | np.ndarray

    def __init__(self, store: TaskStore, positions: range | np.ndarray | None = None) -> None:
        object.__setattr__(self, "_store", store)
        object.__setattr__(self, "_positions", range(len(store)) if positions is None else positions)

    # Constructors

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any] | Task],
        *,
        name: str = "rows",
        split: str | None = None,
        convert: RowToTask | None = None,
    ) -> Taskset:
        """Create a task set from rows (or tasks) in memory.

        Args:
            rows: Mappings or tasks. They are copied, so later changes to them have no effect.
            name: Prefix of the ids of rows that have none of their own.
            split: Keep only the rows of this content split; ``None`` for all rows.
            convert: Converts a row to a task; :func:`row_to_task` by default.

        Raises:
            TaskError: A row cannot be used, an id occurs twice, or nothing is left; names the row.
        """
        return _narrow(MemoryStore(rows, name, convert or row_to_task), split)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        split: str | None = None,
        convert: RowToTask | None = None,
    ) -> Taskset:
        """Create a task set from a ``.jsonl``/``.ndjson``, ``.json`` (a list of rows) or ``.parquet`` file.

        Every row is read and checked once by this method; afterwards rows are read on access. A file that has not
        changed since it was last opened is shared within the process.

        Args:
            path: The file.
            name: Prefix of the ids; the file's stem by default.
            split: Keep only the rows of this content split; ``None`` for all rows.
            convert: Converts a row to a task; :func:`row_to_task` by default.

        Raises:
            TaskError: The file is missing, has another format, or has a row that cannot be used; names the file and
                the line. The error for a missing file is also a ``FileNotFoundError``.
        """
        return _narrow(open_store(path, name=name, convert=convert or row_to_task), split)

    @classmethod
    def from_hub(
        cls,
        source: str,
        *,
        name: str | None = None,
        split: str | None = None,
        convert: RowToTask | None = None,
        timeout: float = 600.0,
    ) -> Taskset:
        """Create a task set from the Hugging Face hub, as ``"repo[:config][@split]"`` (a leading ``hf:`` is allowed).

        ``@split`` names a split of the data set on the hub. The default is ``train``, or the only split there is.
        ``split=`` then keeps only the rows of one content split.

        Raises:
            TaskError: ``datasets`` is missing, the hub cannot be reached within ``timeout`` seconds, there is no such
                data set, or ``split=`` is given while the data set has splits of its own and none was selected.
        """
        return _narrow(open_hub(source, name=name, split=split, convert=convert or row_to_task, timeout=timeout), split)

    # Sequence of tasks

    @property
    def name(self) -> str:
        """Prefix of the ids of rows without an id of their own."""
        return self._store.name

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Taskset: ...
    def __getitem__(self, index: int | slice) -> Task | Taskset:
        if isinstance(index, slice):
            return Taskset(self._store, self._positions[index])
        try:
            position = self._positions[index]
        except IndexError:
            # IndexError and not TaskError, because iteration and random.choice of the standard library rely on it.
            raise IndexError(f"task index {index} is outside 0..{len(self) - 1} of {self!r}") from None
        return self._store.task(int(position))

    def __iter__(self) -> Iterator[Task]:
        for position in self._positions:
            yield self._store.task(int(position))

    def __contains__(self, task: object) -> bool:
        if not isinstance(task, Task):
            return False
        try:
            return self.find(task.task_id) == task
        except TaskError:
            return False

    def find(self, task_id: str) -> Task:
        """Return the task with this id.

        Raises:
            TaskError: There is none in this view.
        """
        position = self._store.position(task_id)
        if position is not None and (
            position in self._positions
            if isinstance(self._positions, range)
            else bool((self._positions == position).any())
        ):
            return self._store.task(position)
        example = f"; ids look like {self[0].task_id!r}" if len(self) else ""
        raise TaskError(f"no task {task_id!r} among the {len(self)} of {self.name!r}{example}")

    # Views

    def split(self, name: str) -> Taskset:
        """Return the tasks whose content is in the split ``"train"``, ``"validation"`` or ``"test"``."""
        check_split(name)
        kept = self._store.split_positions(name)
        if kept is None:
            return self.filter(lambda task: split_of(task.content) == name)
        if isinstance(self._positions, range) and self._positions == range(len(self._store)):
            return Taskset(self._store, kept)
        mine = np.asarray(self._positions, dtype=np.int64)
        return Taskset(self._store, mine[np.isin(mine, kept)])

    def select(self, indices: Iterable[int]) -> Taskset:
        """Return the tasks at these indices of this view, in this order.

        Raises:
            TaskError: An index is out of range.
        """
        chosen = np.fromiter((int(index) for index in indices), dtype=np.int64)
        outside = chosen[(chosen < -len(self)) | (chosen >= len(self))]
        if outside.size:
            raise TaskError(f"task index {outside[0]} is outside 0..{len(self) - 1} of {self!r}")
        return self._at(np.where(chosen < 0, chosen + len(self), chosen))

    def take(self, count: int) -> Taskset:
        """Return the first ``count`` tasks, or all if there are fewer."""
        if count < 0:
            raise TaskError(f"take({count}): the number of tasks must be 0 or more")
        return self[:count]

    def skip(self, count: int) -> Taskset:
        """Return all tasks except the first ``count``."""
        if count < 0:
            raise TaskError(f"skip({count}): the number of tasks must be 0 or more")
        return self[count:]

    def shuffle(self, seed: int) -> Taskset:
        """Return the same tasks in an order that depends only on ``seed``."""
        # Raw bits of PCG64 are the same in every NumPy version; Generator.permutation does not guarantee that.
        keys = np.random.PCG64(stream_seed("shuffle", seed)).random_raw(len(self))
        return self._at(np.argsort(keys, kind="stable"))

    def filter(self, keep: Callable[[Task], bool]) -> Taskset:
        """Return the tasks for which ``keep`` is true, in order. Every task is created once."""
        chosen = [index for index, task in enumerate(self) if keep(task)]
        return self._at(np.asarray(chosen, dtype=np.int64))

    def unique(self) -> Taskset:
        """Return each content once: the first of all tasks with equal content."""
        seen: set[str] = set()

        def first(task: Task) -> bool:
            new = task.content_hash not in seen
            seen.add(task.content_hash)
            return new

        return self.filter(first)

    def _at(self, indices: np.ndarray) -> Taskset:
        if isinstance(self._positions, range):
            return Taskset(self._store, self._positions.start + self._positions.step * indices)
        return Taskset(self._store, self._positions[indices])

    # Immutability: copies are the same object, and attributes cannot be set

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Taskset is immutable; create a new one instead of setting {name!r}")

    def __copy__(self) -> Taskset:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Taskset:
        return self

    def __getstate__(self) -> tuple[TaskStore, range | np.ndarray]:
        return self._store, self._positions

    def __setstate__(self, state: tuple[TaskStore, range | np.ndarray]) -> None:
        object.__setattr__(self, "_store", state[0])
        object.__setattr__(self, "_positions", state[1])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self)} tasks)"


def _narrow(store: TaskStore, split: str | None) -> Taskset:
    tasks = Taskset(store)
    if split is None:
        return tasks
    kept = tasks.split(split)
    if not len(kept):
        raise EmptySplit(
            f"none of the {len(tasks)} tasks of {store.name!r} falls into the split {split!r} "
            "(by the hash of its content); use split=None for all of them"
        )
    return kept


def check_split(split: str) -> str:
    """Check that ``split`` is a valid split, and return it.

    Raises:
        TaskError: It is not one of the three splits; names them.
    """
    if split not in SPLITS:
        raise TaskError(f"split={split!r} is not one of {', '.join(map(repr, SPLITS))} (or None)")
    return split
