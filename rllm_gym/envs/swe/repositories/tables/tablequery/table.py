"""Named columns of equal length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tablequery.errors import TableError
from tablequery.types import Cell, show

Row = dict[str, Cell]


class Table:
    """An immutable table.

    Args:
        columns: The cells of each column, by name.
    """

    def __init__(self, columns: Mapping[str, Sequence[Cell]]) -> None:
        self._columns = {name: list(cells) for name, cells in columns.items()}
        lengths = {len(cells) for cells in self._columns.values()}
        if len(lengths) > 1:
            raise TableError(f"columns of different lengths: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    @classmethod
    def from_rows(cls, names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
        """A table from rows, each with one cell for every name."""
        columns: dict[str, list[Cell]] = {name: [] for name in names}
        for row in rows:
            if len(row) != len(names):
                raise TableError(f"a row of {len(row)} cells for {len(names)} columns")
            for name, cell in zip(names, row):
                columns[name].append(cell)
        return cls(columns)

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and list(self._columns.items()) == list(other._columns.items())

    def __iter__(self) -> Iterator[Row]:
        for place in range(self._length):
            yield {name: cells[place] for name, cells in self._columns.items()}

    def column(self, name: str) -> list[Cell]:
        if name not in self._columns:
            raise TableError(f"there is no column {name!r}; the columns are {', '.join(self.names)}")
        return list(self._columns[name])

    def select(self, names: Mapping[str, str]) -> Table:
        """Some of the columns under new names (new name: old name)."""
        return Table({new: self.column(old) for new, old in names.items()})

    def filter(self, keep: Callable[[Row], bool]) -> Table:
        """The rows for which ``keep`` is true."""
        return self.take([place for place, row in enumerate(self) if keep(row)])

    def take(self, places: Sequence[int]) -> Table:
        """The rows at these places, in this order."""
        return Table({name: [cells[place] for place in places] for name, cells in self._columns.items()})

    def head(self, count: int) -> Table:
        """The first ``count`` rows."""
        return self.take(range(min(count, self._length)))

    def order_by(self, name: str, *, descending: bool = False) -> Table:
        """Sorted by one column; equal cells keep their order, missing ones come last."""
        cells = self.column(name)
        present = [place for place in range(self._length) if cells[place] is not None]
        missing = [place for place in range(self._length) if cells[place] is None]
        present.sort(key=lambda place: cells[place], reverse=descending)  # type: ignore[arg-type,return-value]
        return self.take(present + missing)

    def to_text(self) -> str:
        """A table for people: numbers to the right, the rest to the left."""
        shown = {name: [show(cell) for cell in cells] for name, cells in self._columns.items()}
        lines = [[] for _ in range(self._length + 2)]
        for name, texts in shown.items():
            width = max(len(text) for text in [name, *texts])
            right = self._is_numeric(name)
            for line, text in zip(lines, [name, "-" * width, *texts]):
                line.append(text.rjust(width) if right else text.ljust(width))
        return "\n".join("  ".join(line).rstrip() for line in lines)

    def _is_numeric(self, name: str) -> bool:
        present = [cell for cell in self._columns[name] if cell is not None]
        return bool(present) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in present)
