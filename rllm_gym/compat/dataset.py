"""A named list of rows with the interface of rLLM's datasets. Task sets can be created from it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.core import TaskError, stream_seed


class Dataset(Sequence[dict[str, Any]]):
    """Rows in memory. ``gym.make("rllm/Math-v0", tasks=dataset)`` accepts it directly.

    Args:
        data: The rows, one mapping each.
        name: Name in the registry, or ``None``.
        split: Split in the registry, or ``None``.
        path: The file the rows came from, or ``None``.

    Raises:
        TaskError: A row is not a mapping.

    >>> [row["n"] for row in Dataset([{"n": 1}, {"n": 2}]).repeat(n=2)]
    [1, 1, 2, 2]
    """

    def __init__(
        self,
        data: Iterable[Mapping[str, Any]],
        name: str | None = None,
        split: str | None = None,
        *,
        path: str | Path | None = None,
    ) -> None:
        self.data: list[dict[str, Any]] = []
        for position, row in enumerate(data):
            if not isinstance(row, Mapping):
                raise TaskError(f"row {position} of {name or 'the data'} must be a mapping; got {type(row).__name__}")
            self.data.append(dict(row))
        self.name = name
        self.split = split
        self._path = None if path is None else str(path)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        """Return a row, or a :class:`Dataset` for a slice."""
        return self._with(self.data[index]) if isinstance(index, slice) else self.data[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.data)

    def get_data(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return self.data

    def get_data_path(self) -> str | None:
        """Return the absolute path of the file of the rows; ``None`` if they were never registered or loaded."""
        return self._path

    def repeat(self, n: int) -> Dataset:
        """Repeat every row ``n`` times as independent copies, next to each other (for pass@k).

        Raises:
            ValueError: ``n`` is less than 1.
        """
        if n < 1:
            raise ValueError(f"repeat(n={n!r}): n must be at least 1")
        return self._with(copy.deepcopy(row) for row in self.data for _ in range(n))

    def shuffle(self, seed: int = 0) -> Dataset:
        """Return the same rows in an order that depends only on ``seed``."""
        order = sorted(range(len(self)), key=lambda index: stream_seed("shuffle", seed, index))
        return self._with(self.data[index] for index in order)

    def select(self, indices: Iterable[int]) -> Dataset:
        """Return the rows at these indices, in this order.

        Raises:
            IndexError: An index is out of range.
        """
        return self._with(self.data[index] for index in indices)

    def _with(self, rows: Iterable[dict[str, Any]]) -> Dataset:
        return Dataset(rows, self.name, self.split, path=self._path)

    @classmethod
    def load_data(cls, path: str | Path) -> Dataset:
        """Load the rows of a ``.jsonl``, ``.json`` or ``.parquet`` file.

        Raises:
            TaskError: The file is missing or cannot be read. The error for a missing file is also a
                ``FileNotFoundError``.
        """
        from rllm_gym.data.files import read_rows

        return cls(read_rows(path), path=Path(path).absolute())

    def __repr__(self) -> str:
        named = "" if self.name is None else f"{self.name!r}, {self.split!r}, "
        return f"Dataset({named}{len(self)} rows)"
