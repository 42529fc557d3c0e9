"""Attacks on the built-in domains: nothing leaves them, nothing hangs, and the model gets an error message."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the tools are MCP servers: pip install 'rllm-gym[mcp]'")

from rllm_gym.envs.mcp.domains import TEMPLATES
from rllm_gym.envs.mcp.domains.files.folder import MAX_FILE_BYTES, Folder, tree
from rllm_gym.envs.mcp.domains.sqlite.database import Database
from rllm_gym.envs.mcp.serving import Refusal, heavy, server
from tests.waiting import auntil

SCHEMA = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL, day TEXT NOT NULL);"
ROWS = [{"id": number, "text": f"note {number}", "day": "2024-03-05"} for number in range(1, 101)]


def database() -> Database:
    return Database(SCHEMA, {"notes": ROWS})


def refusal(tool: Callable[..., str], **arguments: Any) -> str:
    with pytest.raises(Refusal) as caught:
        tool(**arguments)
    return str(caught.value)


# SQL

FORBIDDEN = (
    "ATTACH DATABASE '{path}' AS other",
    "VACUUM INTO '{path}'",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('{path}')",
    "SELECT writefile('{path}', 'x')",
    "SELECT readfile('/etc/passwd')",
    "CREATE TABLE more (id INTEGER)",
    "CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM notes; END",
    "CREATE VIRTUAL TABLE v USING fts5(text)",
    "DROP TABLE notes",
    "ALTER TABLE notes RENAME TO gone",
    "BEGIN",
    "COMMIT",
    "SAVEPOINT s",
    "REINDEX",
    "ANALYZE",
    "EXPLAIN SELECT 1; DROP TABLE notes",
    "SELECT 1; DELETE FROM notes",
    "DELETE FROM sqlite_master",
    "SELECT random()",
    "SELECT RANDOM()",
    "SELECT hex(randomblob(9))",
    "SELECT CURRENT_TIMESTAMP",
    "SELECT date('now')",
    "SELECT date()",
    "SELECT strftime('%s', ' NOW ')",
    "SELECT * FROM sqlite_stmt",
    "SELECT fts3_tokenizer('simple')",
    "SELECT sqlite_version()",
    "SELECT \0",
    "SELECT '\ud800'",
    "",
    "-- nothing",
    "DELETE FROM",
    "SELECT " + "(" * 500 + "1" + ")" * 500,
    "SELECT '" + "x" * 20_000 + "'",
)


def test_only_reading_and_editing_statements_are_allowed(tmp_path: Path):
    untouched, wrong = database().facts(), []
    for statement in FORBIDDEN:
        for tool in ("read_query", "write_query"):
            db = database()
            try:
                output = getattr(db, tool)(query=statement.replace("{path}", str(tmp_path / "stolen")))
            except Refusal:
                output = None
            if output is not None or db.facts() != untouched or list(tmp_path.iterdir()):
                wrong.append((tool, statement, output))
    assert wrong == []


def test_a_read_query_refuses_a_statement_that_was_just_written():
    for statement in (
        "DELETE FROM notes",
        "INSERT INTO notes VALUES (0, 'x', 'y')",
        "UPDATE notes SET text = ''",
        "REPLACE INTO notes VALUES (1, 'x', 'y')",
        "WITH a AS (SELECT 1) DELETE FROM notes",
    ):
        db = database()
        db.write_query(statement)
        before = db.facts()
        assert "not authorized" in refusal(db.read_query, query=statement), statement
        assert db.facts() == before, statement


ENDLESS = "WITH RECURSIVE c(n, t) AS (SELECT 1, 'x' UNION ALL SELECT n + 1, {text} FROM c)"
HEAVY = (
    ENDLESS.format(text="t") + " SELECT COUNT(*) FROM c",
    ENDLESS.format(text="t || t") + " SELECT COUNT(*) FROM c",
    ENDLESS.format(text="t || n") + " SELECT * FROM c ORDER BY t DESC LIMIT 1",
    ENDLESS.format(text="hex(zeroblob(4500))") + " SELECT * FROM c ORDER BY t, n DESC LIMIT 1",
    ENDLESS.format(text="printf('%.9000c', 'x')") + " SELECT group_concat(t) FROM c",
    "SELECT COUNT(*) FROM notes a, notes b, notes c, notes d, notes e",
    "SELECT hex(zeroblob(1000000000))",
    "SELECT printf('%.*c', 1000000000, 'x')",
    "SELECT replace(hex(zeroblob(4500)), '0', hex(zeroblob(4500)))",
    "SELECT '" + "a" * 5_000 + "' LIKE '" + "%a" * 90 + "b'",
    "SELECT max(n) FROM (" + ENDLESS.format(text="t") + " SELECT n FROM c)",
)


def test_heavy_queries_end_soon_and_use_little_memory():
    # In its own process: the peak memory of this process includes everything that ran before.
    program = (
        "import resource, time\n"
        "from test_mcp_domain_attacks import HEAVY, Refusal, database\n"
        "there = database()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for statement in HEAVY:\n"
        "    began = time.process_time()\n"
        "    try:\n"
        "        there.read_query(statement)\n"
        "    except Refusal:\n"
        "        pass\n"
        "    took = time.process_time() - began\n"
        "    assert took < 5, (took, statement)\n"
        "    assert there.read_query('SELECT COUNT(*) FROM notes').endswith('[100]'), statement\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000, f"{done.stdout} KiB"


def test_a_database_has_a_maximum_size():
    db = database()
    output = ""
    for _ in range(40):
        try:
            db.write_query("INSERT INTO notes (text, day) SELECT hex(zeroblob(2000)), day FROM notes")
        except Refusal as error:
            output = str(error)
    assert "full" in output or "steps" in output
    assert len(db.facts()["notes"]) < 20_000
    db.write_query("DELETE FROM notes WHERE id > 100")
    assert db.facts() == database().facts()


def test_long_results_and_odd_values_are_shown_within_bounds():
    db = database()
    output = db.read_query("SELECT a.id, b.text FROM notes a, notes b")
    assert output.count("\n") == 51
    assert "only the first 50 rows" in output
    output = db.read_query("SELECT hex(zeroblob(4500)), CAST(x'ff' AS TEXT), x'00ff', 9e999, NULL, 1 AS \"a\"\"b\"")
    assert len(output) < 2_000
    assert "(9000 characters)" in output
    db.write_query("UPDATE notes SET text = CAST(x'ff00fe' AS TEXT), day = x'00ff' WHERE id = 1")
    db.write_query("INSERT INTO notes VALUES (500, 9e999, -9e999) RETURNING id")
    assert db.facts() != database().facts()


def test_date_functions_cannot_read_the_clock():
    db = database()
    assert db.read_query("SELECT date('2024-02-28', '+2 days'), strftime('%Y', day) FROM notes LIMIT 1").endswith(
        '["2024-03-01", "2024"]'
    )


def test_computed_numbers_equal_stored_numbers_in_spite_of_rounding():
    one, other = (
        Database("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)", {"t": [{"id": 1, "n": 1000}]}) for _ in "ab"
    )
    one.write_query("UPDATE t SET n = n * 1.1")
    other.write_query("UPDATE t SET n = n * 110 / 100")
    assert one.facts() == other.facts() == {"t": [[1, 1100]]}


# Files

OUTSIDE = ("..", "../secret.txt", "notes/../../secret.txt", "/../secret.txt", "link/secret.txt", "linked.txt",
           "a\0b", "x" * 600, "/".join("d" * 30), "\ud800", "n" * 300)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "workspace"
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "a.txt").write_text("one\ntwo\nthree\n")
    # Another server of the same workspace might create such files.
    (root / "link").symlink_to(tmp_path)
    (root / "linked.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(root / "pipe")
    return Folder(root)


def test_no_path_leads_outside(folder: Folder, tmp_path: Path):
    before = tree(tmp_path)
    for path in OUTSIDE:
        for tool, arguments in (
            ("list_directory", {"path": path}),
            ("search_files", {"pattern": "*", "path": path}),
            ("read_text_file", {"path": path}),
            ("write_file", {"path": path, "content": "mine"}),
            ("edit_file", {"path": path, "old_text": "secret", "new_text": "mine"}),
            ("move_file", {"source": path, "destination": "stolen.txt"}),
            ("move_file", {"source": "notes/a.txt", "destination": path}),
            ("delete_file", {"path": path}),
            ("create_directory", {"path": path}),
        ):
            output = refusal(getattr(folder, tool), **arguments)
            assert "secret\n" not in output, (path, tool)
            assert str(tmp_path) not in output, (path, tool, "the place on this machine is nobody's business")
        assert tree(tmp_path) == before, path


def test_an_absolute_path_is_relative_to_the_workspace(folder: Folder):
    assert folder.read_text_file("/notes/a.txt") == "one\ntwo\nthree\n"
    assert "no file" in refusal(folder.read_text_file, path="/etc/passwd")


def test_a_pipe_is_not_a_file_and_never_blocks(folder: Folder):
    assert "not a file" in refusal(folder.read_text_file, path="pipe")


def test_links_and_pipes_are_part_of_the_state(folder: Folder, tmp_path: Path):
    found = tree(tmp_path / "workspace")
    assert found["link"] == found["linked.txt"] == found["pipe"] == "not a file"


def test_files_are_bounded_in_size_and_number(folder: Folder, tmp_path: Path):
    assert "bytes" in refusal(folder.write_file, path="big.txt", content="ü" * MAX_FILE_BYTES)
    (tmp_path / "workspace" / "huge.bin").write_bytes(b"\xff" * (MAX_FILE_BYTES + 1))
    assert "more than" in refusal(folder.read_text_file, path="huge.bin")
    assert "surrogate" in refusal(folder.write_file, path="a.txt", content="\udfff")
    (tmp_path / "workspace" / "bytes.bin").write_bytes(b"\xff\xfe")
    assert "not a text file" in refusal(folder.read_text_file, path="bytes.bin")
    text = "x" * (MAX_FILE_BYTES - 1)
    output = ""
    for number in range(40):
        try:
            folder.write_file(f"f{number}.txt", text)
        except Refusal as error:
            output = str(error)
    assert "used up" in output
    assert len(folder.read_text_file("f0.txt")) < 21_000


def test_directories_are_bounded_in_number(folder: Folder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rllm_gym.envs.mcp.domains.files.folder.MAX_ENTRIES", 20)
    for number in range(8):
        folder.create_directory(f"d{number}")
    assert "room for 20" in refusal(folder.create_directory, path="d8/d/d/d")
    folder.create_directory("d7")  # exists


def test_moving_never_overwrites(folder: Folder):
    folder.write_file("b.txt", "kept")
    assert "exists already" in refusal(folder.move_file, source="notes/a.txt", destination="b.txt")
    assert folder.read_text_file("b.txt") == "kept"
    assert "exactly once" in refusal(folder.edit_file, path="b.txt", old_text="", new_text="x")
    assert "does not exist" in refusal(folder.write_file, path="nowhere/b.txt", content="x")


# Every tool of every domain

ODD: dict[str, tuple[Any, ...]] = {
    "string": ("", " ", "\0", "\ud800", "x" * 10_000, "../..", "%s{0}", "9999-99-99", "2024-02-30", "0001-01-01 00:00",
               "9999-12-31 23:59", "1e999", "2**10**10", "((((", "'; DROP TABLE x; --", "ß" * 300),
    "integer": (0, -1, 10**30, -(10**30), 2**63),
    "array": ([], [""], ["x"] * 1_000, ["\ud800"]),
}  # fmt: skip


def odd(schema: dict[str, Any], number: int) -> Any:
    kinds = [schema, *schema.get("anyOf", ())]
    kind = next((one["type"] for one in kinds if one.get("type") in ODD), "string")
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    return ODD[kind][number % len(ODD[kind])]


async def answered(tools: Any, name: str, arguments: dict[str, Any]) -> str:
    from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

    try:
        return str(await tools.call_tool(name, arguments))
    except UnexpectedToolError as error:
        raise AssertionError((name, arguments)) from error
    except ToolError as error:
        return str(error)


def test_odd_arguments_to_any_tool_get_an_error_message(tmp_path: Path):
    async def everything(domain: str, workspace: Path) -> None:
        template = next(template for name, template in TEMPLATES.items() if name.startswith(f"{domain}/"))
        created = template.build(3, 1)
        created.prepare(workspace)
        for offering in created.servers(workspace):
            tools = offering.make(workspace, 0)
            for tool in await tools.list_tools():
                for number in range(16):
                    properties = tool.input_schema["properties"]
                    arguments = {name: odd(schema, number) for name, schema in properties.items()}
                    output = await answered(tools, tool.name, arguments)
                    assert str(workspace) not in output, (domain, tool.name, arguments)
        created.facts(workspace)

    for domain in sorted({name.partition("/")[0] for name in TEMPLATES}):
        (tmp_path / domain).mkdir()
        asyncio.run(everything(domain, tmp_path / domain))


def test_every_tool_documents_its_purpose_and_arguments(tmp_path: Path):
    async def schemas() -> list[tuple[str, ...]]:
        silent = []
        for name, template in TEMPLATES.items():
            for offering in template.build(0, 1).servers(tmp_path):
                for tool in await offering.make(tmp_path, 0).list_tools():
                    if not tool.description or "Args:" in tool.description:
                        silent.append((name, tool.name))
                    for argument, schema in tool.input_schema["properties"].items():
                        if not schema.get("description"):
                            silent.append((name, tool.name, argument))
        return silent

    assert asyncio.run(schemas()) == []


# Serving


def test_concurrent_calls_are_executed_in_order(tmp_path: Path):
    async def counted() -> list[str]:
        db = database()
        tools = server("sqlite", lambda: (db.read_query, db.write_query)).make(tmp_path, 0)
        calls = []
        for number in range(20):
            calls.append(tools.call_tool("write_query", {"query": f"UPDATE notes SET text = '{number}' WHERE id = 1"}))
            calls.append(tools.call_tool("read_query", {"query": "SELECT text FROM notes WHERE id = 1"}))
        results = await asyncio.gather(*calls)
        return [result.content[0].text.splitlines()[-1] for result in results[1::2]]

    assert asyncio.run(counted()) == [f'["{number}"]' for number in range(20)]


class HoldingDatabase:
    """A database with a slow tool that returns when it is released."""

    def __init__(self) -> None:
        self.started, self.released = threading.Event(), threading.Event()

    @heavy
    def hold(self) -> str:
        """Hold."""
        self.started.set()
        self.released.wait()
        return "held"

    def look(self) -> str:
        """Look."""
        return "seen"


def test_a_heavy_query_does_not_block_the_event_loop(tmp_path: Path):
    assert all(tool.heavy for tool in (Database.read_query, Database.write_query))
    db = HoldingDatabase()

    async def run_both() -> list[str]:
        tools = server("holding", lambda: (db.hold, db.look)).make(tmp_path, 0)
        held = asyncio.create_task(tools.call_tool("hold", {}))
        await auntil(db.started.is_set)
        seen = await tools.call_tool("look", {})
        assert not held.done()
        db.released.set()
        return [result.content[0].text for result in (seen, await held)]

    try:
        assert asyncio.run(run_both()) == ["seen", "held"]
    finally:
        db.released.set()


def test_two_databases_share_no_state(tmp_path: Path):
    async def both() -> tuple[str, str]:
        one, other = database(), database()
        first = server("sqlite", lambda: (one.read_query, one.write_query)).make(tmp_path, 0)
        second = server("sqlite", lambda: (other.read_query, other.write_query)).make(tmp_path, 0)
        await first.call_tool("write_query", {"query": "DELETE FROM notes"})
        query = {"query": "SELECT COUNT(*) FROM notes"}
        results = [await tools.call_tool("read_query", query) for tools in (first, second)]
        return tuple(result.content[0].text.splitlines()[-1] for result in results)

    assert asyncio.run(both()) == ("[0]", "[100]")
