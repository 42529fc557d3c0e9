"""The answer to a query."""

from __future__ import annotations

from tablequery.aggregates import aggregate
from tablequery.conditions import names_in
from tablequery.errors import QueryError, TableError
from tablequery.parser import Column, Query, parse_query
from tablequery.table import Row, Table
from tablequery.types import Cell


def query(table: Table, text: str) -> Table:
    """Ask a question in the language of ``docs/queries.md``."""
    return run(table, parse_query(text))


def run(table: Table, asked: Query) -> Table:
    """Filter, group, order and cut, in this order."""
    if asked.where is not None:
        unknown = sorted(names_in(asked.where) - set(table.names))
        if unknown:
            raise TableError(f"there is no column {unknown[0]!r}; the columns are {', '.join(table.names)}")
        table = table.filter(asked.where)
    if asked.group_by or any(column.function for column in asked.columns):
        table = _order(_grouped(table, asked), asked)
    else:
        # Rows may be ordered by a column that is not selected.
        names = {column.name for column in asked.columns}
        first = all(name in names for name, _ in asked.order_by)
        table = _order(_selected(table, asked), asked) if first else _selected(_order(table, asked), asked)
    return table if asked.limit is None else table.head(asked.limit)


def _selected(table: Table, asked: Query) -> Table:
    if not asked.columns:
        return table
    return table.select({column.name: column.source for column in asked.columns})


def _order(table: Table, asked: Query) -> Table:
    # Sorting is stable, so the most important column comes last.
    for name, descending in reversed(asked.order_by):
        table = table.order_by(name, descending=descending)
    return table


def _grouped(table: Table, asked: Query) -> Table:
    if not asked.columns:
        raise QueryError("select * does not go with group by; name the columns")
    for column in asked.columns:
        if column.function is None and column.source not in asked.group_by:
            raise QueryError(f"{column.source!r} is neither grouped by nor inside an aggregate")
    for name in [*asked.group_by, *(column.source for column in asked.columns if column.source)]:
        table.column(name)
    groups: dict[tuple[Cell, ...], list[Row]] = {}
    for row in table:
        groups.setdefault(tuple(row[name] for name in asked.group_by), []).append(row)
    if not asked.group_by and not groups:
        groups[()] = []
    rows = [[_cell(column, members) for column in asked.columns] for members in groups.values()]
    return Table.from_rows([column.name for column in asked.columns], rows)


def _cell(column: Column, rows: list[Row]) -> Cell:
    if column.function is None:
        return rows[0][column.source]
    if not column.source:
        return len(rows)
    return aggregate(column.function, [row[column.source] for row in rows])
