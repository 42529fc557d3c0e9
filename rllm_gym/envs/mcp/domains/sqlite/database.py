"""An in-memory SQLite database that a model can query and edit, with limits on steps, size and functions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.envs.mcp.serving import Refusal, heavy
from rllm_gym.envs.mcp.wording import as_json, words

MAX_SQL_CHARS = 10_000
MAX_VALUE_BYTES = 10_000
MAX_STEPS = 2_000_000
"""Instructions of SQLite's virtual machine per statement: some tenths of a second, deterministic on every machine."""
_STEPS_PER_CHECK = 10_000
MAX_PAGES = 1_000
"""Most pages of 4 KiB in the database."""
MAX_ROWS = 50
MAX_CELL_CHARS = 300

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_WRITING = {*_READING, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
# Functions without randomness or a clock whose running time is short.
_FUNCTIONS = {
    *words(
        "abs avg ceil ceiling changes char coalesce concat concat_ws count cume_dist dense_rank exp first_value floor"
    ),
    *words(
        "glob group_concat hex ifnull iif instr lag last_insert_rowid last_value lead length like ln log log10 log2"
    ),
    *words("lower ltrim max min mod nth_value ntile nullif octet_length percent_rank pi pow power quote rank replace"),
    *words("round row_number rtrim sign sqrt string_agg substr substring sum total trim trunc typeof unhex unicode"),
    *words("upper zeroblob json json_array json_array_length json_extract json_group_array json_group_object"),
    *words("json_object json_type json_valid -> ->>"),
}
_ALSO_READABLE = {"sqlite_master", "sqlite_schema", "json_each", "json_tree"}
_OF_THE_CLOCK = words("date time datetime julianday unixepoch strftime")
_FORMATTING = words("printf format")
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:[*]|[0-9]{4})")
"""A format field with a very large width, which SQLite needs minutes to fill."""

Table = Sequence[Mapping[str, Any]]


class Database:
    """Tables created from a schema and rows, with the tools of an SQLite server.

    Args:
        schema: ``CREATE TABLE`` statements.
        tables: Their rows.
    """

    def __init__(self, schema: str, tables: Mapping[str, Table]) -> None:
        self._names = list(tables)
        self._connection = connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        # Text that a statement creates from bytes may be invalid UTF-8.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        connection.executescript(f"PRAGMA foreign_keys = ON; PRAGMA max_page_count = {MAX_PAGES}; {schema}")
        connection.execute("BEGIN")
        for name, rows in tables.items():
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", [tuple(row.values()) for row in rows])
        connection.execute("COMMIT")
        self._functions = sqlite3.connect(":memory:", check_same_thread=False)
        self._functions.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        for name in (*_OF_THE_CLOCK, *_FORMATTING):
            connection.create_function(name, -1, self._guarded(name), deterministic=True)
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_CHARS),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
            (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        ):
            connection.setlimit(limit, value)
        self._steps, self._writes = 0, False
        connection.set_progress_handler(self._count, _STEPS_PER_CHECK)

    # Internal access

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute a trusted statement; used by the outcome of a task."""
        self._connection.set_authorizer(None)
        self._steps = 0
        self._connection.execute(statement, values)

    def facts(self) -> dict[str, list[list[Any]]]:
        """Return all rows of all tables, in an order that depends only on their content."""
        self._connection.set_authorizer(None)
        self._steps = -(10**9)  # all data that statements within the limits can write must be readable here
        return {name: self._all_rows(name) for name in self._names}

    def _all_rows(self, name: str) -> list[list[Any]]:
        columns = len(self._connection.execute(f"SELECT * FROM {name} LIMIT 0").description)
        order = ", ".join(str(number) for number in range(1, columns + 1))
        rows = self._connection.execute(f"SELECT * FROM {name} ORDER BY {order}")
        return [[_plain(value) for value in row] for row in rows]

    # Tools

    def list_tables(self) -> str:
        """List all tables of the database, one name a line."""
        return "\n".join(self._names)

    def describe_table(self, table_name: str) -> str:
        """Show the CREATE TABLE statement of a table and how many rows it has.

        Args:
            table_name: Name of the table.
        """
        if table_name not in self._names:
            raise Refusal(f"There is no table {table_name[:100]!r}. The tables are: {', '.join(self._names)}.")
        self._connection.set_authorizer(None)
        self._steps = 0
        find = "SELECT sql FROM sqlite_master WHERE name = ?"
        (statement,) = self._connection.execute(find, (table_name,)).fetchone()
        (count,) = self._connection.execute(f"SELECT COUNT(*) FROM {table_name}").fetchone()
        return f"{statement}\n-- {count} rows"

    @heavy
    def read_query(self, query: str) -> str:
        """Run one SELECT statement (SQLite dialect) and return its rows as JSON. At most 50 rows are shown.

        Args:
            query: The SELECT statement.
        """
        cursor = self._run(query, _READING)
        try:
            if cursor.description is None:
                raise Refusal("That statement returns no rows; read_query takes a SELECT statement.")
            columns = [column[0][:MAX_CELL_CHARS] for column in cursor.description]
            rows = cursor.fetchmany(MAX_ROWS + 1)
        except sqlite3.Error as error:
            raise self._refusal(error) from None
        finally:
            cursor.close()
        lines = [as_json([_shown(value) for value in row]) for row in rows[:MAX_ROWS]]
        more = f"\n(only the first {MAX_ROWS} rows; use LIMIT and OFFSET, or aggregate)" if len(rows) > MAX_ROWS else ""
        return "\n".join([as_json(columns), *lines]) + (more if lines else "\n(no rows)")

    @heavy
    def write_query(self, query: str) -> str:
        """Run one INSERT, UPDATE or DELETE statement and return the number of rows it changed. It is committed at once.

        Args:
            query: The statement.
        """
        before = self._connection.total_changes
        cursor = self._run(query, _WRITING)
        try:
            for _ in cursor:  # rows of a RETURNING clause
                pass
            if not self._writes:
                raise Refusal("That statement changes nothing; write_query takes INSERT, UPDATE or DELETE.")
            return f"{self._connection.total_changes - before} row(s) changed."
        except sqlite3.Error as error:
            raise self._refusal(error) from None
        finally:
            cursor.close()

    # Limits of a statement

    def _run(self, query: str, allowed: set[int]) -> sqlite3.Cursor:
        def authorize(action: int, first: str | None, second: str | None, *where: str | None) -> int:
            match action:
                case sqlite3.SQLITE_FUNCTION:
                    fine = second in _FUNCTIONS or second in _OF_THE_CLOCK or second in _FORMATTING
                case sqlite3.SQLITE_READ:
                    fine = first in self._names or first in _ALSO_READABLE
                case sqlite3.SQLITE_INSERT | sqlite3.SQLITE_UPDATE | sqlite3.SQLITE_DELETE:
                    fine = action in allowed and first in self._names
                    self._writes = True
                case _:
                    fine = action in allowed
            return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

        # A new authorizer makes SQLite recompile statements that it compiled under another one.
        self._connection.set_authorizer(authorize)
        self._steps, self._writes = 0, False
        try:
            return self._connection.execute(query)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise self._refusal(error) from None

    def _count(self) -> bool:
        self._steps += _STEPS_PER_CHECK
        return self._steps > MAX_STEPS

    def _refusal(self, error: Exception) -> Refusal:
        message = str(error)
        if "interrupted" in message:
            return Refusal(f"The statement took more than {MAX_STEPS:,} steps and was stopped; narrow it down.")
        if "not authorized" in message or "prohibited" in message:
            return Refusal(
                f"{message}: read_query takes SELECT, write_query takes INSERT, UPDATE and DELETE; there are no other "
                "statements, and no functions of chance or of the clock."
            )
        if "user-defined function" in message:
            return Refusal(
                "A function failed: there is no clock (the date functions take a date, not 'now'), and fields of "
                "printf are at most 999 characters wide."
            )
        return Refusal(f"SQL error: {message[:500]}")

    def _guarded(self, name: str) -> Any:
        """Return SQLite's own function without its access to the clock and without arguments that take too long."""

        def calculate(*values: Any) -> Any:
            if name in _FORMATTING:
                if values and _WIDE.search(str(values[0])):
                    raise ValueError("the field is too wide")
            else:
                moment = values[1:2] if name == "strftime" else values[:1]
                if not moment or (isinstance(moment[0], str) and moment[0].strip().lower() == "now"):
                    raise ValueError("there is no clock")
            marks = ", ".join("?" * len(values))
            return self._functions.execute(f"SELECT {name}({marks})", values).fetchone()[0]

        return calculate


def _plain(value: Any) -> Any:
    """Convert a stored value to JSON; whole numbers become integers however they were computed."""
    if isinstance(value, float):
        nearest = round(value, 6)
        return int(nearest) if nearest.is_integer() else nearest
    return value.hex() if isinstance(value, bytes) else value


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        value = f"x'{value[:MAX_CELL_CHARS].hex()}'"
    if isinstance(value, str) and len(value) > MAX_CELL_CHARS:
        return f"{value[:MAX_CELL_CHARS]}… ({len(value)} characters)"
    return value
