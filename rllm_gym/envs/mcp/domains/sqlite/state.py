"""A state that is one SQLite database: its server, its facts, and its initial rows for writing tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rllm_gym.envs.mcp.domains.sqlite.database import Database
from rllm_gym.envs.mcp.serving import server
from rllm_gym.envs.mcp.task import Call, DomainState, FinalAnswer, SolutionStep
from rllm_gym.mcp.servers import InProcessServer

Rows = Sequence[Mapping[str, Any]]


class DatabaseState(DomainState):
    """One database.

    Attributes:
        rows: The initial tables. Calls of the model change the database, never these rows.
        today: The current date in the task, if the task depends on it.
    """

    def __init__(self, schema: str, rows: Mapping[str, Rows], today: date) -> None:
        self.rows = rows
        self.today = today
        self.database = Database(schema, rows)

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [database_server(self.database)]

    def facts(self, workspace: Path) -> Any:
        return self.database.facts()


def database_server(database: Database) -> InProcessServer:
    return server(
        "sqlite",
        lambda: (database.list_tables, database.describe_table, database.read_query, database.write_query),
        instructions="One SQLite database: look at its tables, query and edit them.",
    )


def asked(query: str, answer: str) -> tuple[SolutionStep, ...]:
    """Return the moves that look at the tables, run a query, and answer."""
    return Call("list_tables"), Call("read_query", {"query": query}), FinalAnswer(answer)


def edited(*statements: str) -> tuple[SolutionStep, ...]:
    return (*(Call("write_query", {"query": statement}) for statement in statements), FinalAnswer())


def executed(statements: Sequence[str]) -> Callable[[DatabaseState, Path], None]:
    """Return the outcome in which these statements have been executed."""

    def outcome(state: DatabaseState, workspace: Path) -> None:
        for statement in statements:
            state.database.execute(statement)

    return outcome


def by_id(rows: Rows) -> dict[int, Any]:
    return {row["id"]: row for row in rows}
