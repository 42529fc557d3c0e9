"""``EpisodeIndex``: what episodes are filtered, searched and sorted by, in an SQLite file; they stay in their files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.view.run_files import Cursor, EpisodeFile, FileLine, FilterError, Run, episode_files, new_lines

_FORMAT = 3
_APPLICATION = 0x726C6700 + _FORMAT  # SQLite's application_id of an index
_BATCH_BYTES = 16 << 20
_MAX_TEXT_CHARS = 1_000
_MAX_SEARCHED_CHARS = 50_000
_MAX_QUERY_WORDS = 20
_MAX_DEAD_TEXTS = 20_000
_BAD_LINES_KEPT = 100
_MAX_ALTERNATIVES = 100
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files(
  id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, step INTEGER,
  cursor TEXT NOT NULL, bad INTEGER NOT NULL DEFAULT 0, UNIQUE(run, name));
CREATE TABLE IF NOT EXISTS bad_lines(file INTEGER, line INTEGER, reason TEXT, PRIMARY KEY(file, line)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes(
  file INTEGER, line INTEGER, offset INTEGER, length INTEGER, step INTEGER, reward REAL, success INTEGER,
  turns INTEGER, tokens INTEGER, stop_reason TEXT, task_id TEXT, group_id TEXT, episode_id TEXT, env_id TEXT,
  fault TEXT, PRIMARY KEY(file, line)) WITHOUT ROWID;
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(reply, prompt, content='');
CREATE INDEX IF NOT EXISTS groups ON episodes(file, group_id, reward, success, task_id);
"""
_EXACT = {"file": "files.name", "kind": "files.kind", "stop": "stop_reason", "group": "group_id"}
_RANGES = ("reward", "tokens", "turns", "step")
FILTERS = frozenset(
    {
        "run",
        "task",
        "text",
        "reply",
        "success",
        "fault",
        *_EXACT,
        *(f"{name}_{end}" for name in _RANGES for end in ("min", "max")),
    }
)
"""Names of the parameters that select episodes. Several values of one are alternatives."""
_ORDERS = {
    "": "file, line",
    **{name: f"{name}, file, line" for name in _RANGES},
    **{f"-{name}": f"{name} DESC, file, line" for name in _RANGES},
}
_NO_SYNTAX = {ord('"'): " ", 0: " "}
_STEP = "coalesce(episodes.step, files.step)"
_COLUMNS = (
    "files.run, files.name, files.kind, line, task_id, group_id, episode_id, env_id, reward, success, stop_reason, "
    f"fault, turns, tokens, {_STEP}"
)
ROW = (
    *("run", "file", "kind", "line", "task", "group", "episode", "env"),
    *("reward", "success", "stop_reason", "fault", "turns", "tokens", "step"),
)
"""Names of the values of an episode in a list."""


class EpisodeIndex:
    """The index of the runs' episodes. Use it in ``with``; all methods can be called from any thread.

    The file is a cache: it is brought up to date by :meth:`refresh`, can be deleted while it is not open, and can be
    shared by several processes.

    Args:
        path: The SQLite file; by default in the cache folder of the user.
        runs: The runs that are viewed.
    """

    def __init__(self, path: Path | None, runs: Sequence[Run]) -> None:
        self._path = path or _default_path()
        self._replaceable = path is None
        self._damaged = False
        self._runs = {str(run.path): run for run in runs}
        self._refreshing = threading.Lock()
        self._closed = False
        self._stops: tuple[int, list[str]] = (0, [])
        self._complete: dict[Path, tuple[int, ...]] = {}  # inode, size and time of files without new lines
        self._files: dict[str, dict[str, EpisodeFile]] = {}  # of each run by name, as listed last
        self._sizes: dict[Path, int] = {}

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            CommandError: It cannot be used. Only the default one is replaced if it is damaged.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._create()
            except sqlite3.DatabaseError:
                if not (self._damaged and self._replaceable):
                    raise
                self._replace()
        except (OSError, sqlite3.Error) as error:
            raise CommandError(
                f"{self._path} cannot be used as the index: {error}; --index FILE takes that of an index, or a new one"
            ) from error
        self._list()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        with self._refreshing:
            pass  # a batch in progress is completed

    def refresh(self) -> bool:
        """Read what the files have new. Return whether the index changed; ``False`` also if another call is at it."""
        if not self._refreshing.acquire(blocking=False):
            return False
        try:
            if self._damaged and self._replaceable:
                self._replace()
            self._list()
            changed = False
            for path, run in self._runs.items():
                changed |= self._forget(run)
                for file in self._files[path].values():
                    changed |= self._read_all(run, file)
            return changed
        finally:
            self._refreshing.release()

    def state(self, known: int | None = None) -> dict[str, Any]:
        """Return for each run its files with episodes, bad lines and bytes; and a version, which changes with them.

        Args:
            known: The version that the caller has; its files are not repeated.
        """
        with self._connect() as db:
            rows = db.execute(
                "SELECT run, name, kind, step, bad, cursor FROM files "
                f"WHERE run IN ({_marks(self._runs)}) ORDER BY kind, step, name",
                list(self._runs),
            ).fetchall()
            version = zlib.crc32(repr(rows).encode())
            if self._stops[0] != version:
                stops = db.execute(
                    "SELECT DISTINCT stop_reason FROM episodes WHERE file IN "
                    f"(SELECT id FROM files WHERE run IN ({_marks(self._runs)})) ORDER BY 1 LIMIT 100",
                    list(self._runs),
                ).fetchall()
                self._stops = version, [stop for (stop,) in stops]
        runs: dict[str, dict[str, Any]] = {}
        for path, run in self._runs.items():
            sizes = {name: self._sizes.get(file.path, 0) for name, file in self._files[path].items()}
            indexed = [(*row[1:5], Cursor.parse(row[5])) for row in rows if row[0] == path]
            runs[run.name] = {
                "path": path,
                "bytes": sum(sizes.values()),
                "indexed": sum(min(cursor.offset, sizes.get(name, 0)) for name, _, _, _, cursor in indexed),
                "bad": sum(bad for _, _, _, bad, _ in indexed),
            }
            if known != version:
                runs[run.name]["files"] = [
                    {"name": name, "kind": kind, "step": step, "episodes": cursor.line - bad}
                    for name, kind, step, bad, cursor in indexed
                ]
        return {"version": version, "runs": runs, "stops": self._stops[1]}

    def bad_lines(self) -> list[dict[str, Any]]:
        """Return the first lines of each file that are not episodes, with the reason."""
        with self._connect() as db:
            rows = db.execute(
                "SELECT run, name, line, reason FROM bad_lines JOIN files ON file = id "
                f"WHERE run IN ({_marks(self._runs)}) ORDER BY run, name, line LIMIT 1000",
                list(self._runs),
            ).fetchall()
        return [
            {"run": self._runs[run].name, "file": name, "line": line, "reason": reason}
            for run, name, line, reason in rows
        ]

    def episodes(
        self, filters: Mapping[str, Sequence[str]], *, order: str = "", offset: int = 0, limit: int = 100
    ) -> dict[str, Any]:
        """Return a page of the selected episodes, and the number and means of all.

        Raises:
            FilterError: A filter or the order is unknown, or its value is invalid.
        """
        if order not in _ORDERS:
            raise FilterError(f"order={order!r:.100} is unknown; use one of {', '.join(filter(None, _ORDERS))}")
        where, values = self._where(filters)
        source = f"FROM episodes JOIN files ON file = files.id WHERE {where}"
        ordered = _ORDERS[order].replace("step", _STEP)
        with self._connect() as db:
            count, reward, success, tokens = db.execute(
                f"SELECT count(*), avg(reward), avg(success), avg(tokens) {source}", values
            ).fetchone()
            rows = db.execute(
                f"SELECT {_COLUMNS} {source} ORDER BY {ordered} LIMIT ? OFFSET ?", [*values, limit, offset]
            ).fetchall()
        return {
            "count": count,
            "means": {"reward": reward, "success": success, "tokens": tokens},
            "episodes": [self._row(row) for row in rows],
        }

    def selection(self, limit: int) -> list[tuple[dict[str, Any], tuple[Path, int, int]]]:
        """Return some episodes of all kinds and files, each with file, offset and length of its line.

        The kinds take turns; within a kind, those of the first group of each file come before those of the second.
        """
        files = list(self._runs)
        with self._connect() as db:
            rows = db.execute(
                "WITH starts AS (SELECT *, "
                "min(line) OVER (PARTITION BY file, iif(group_id = '', line, group_id)) start "
                f"FROM episodes WHERE file IN (SELECT id FROM files WHERE run IN ({_marks(files)}))), "
                "places AS (SELECT *, dense_rank() OVER (PARTITION BY file ORDER BY start) place FROM starts) "
                f"SELECT {_COLUMNS.replace('episodes.', 'places.')}, offset, length "
                "FROM places JOIN files ON file = files.id "
                "ORDER BY row_number() OVER (PARTITION BY files.kind ORDER BY place, file, line), files.kind LIMIT ?",
                [*files, limit],
            ).fetchall()
        paths = {file: self._path_of(*file) for file in {row[:2] for row in rows}}
        return [(self._row(row[:-2]), (path, *row[-2:])) for row in rows if (path := paths[row[:2]])]

    def groups(self, filters: Mapping[str, Sequence[str]], *, offset: int = 0, limit: int = 100) -> dict[str, Any]:
        """Return a page of the groups of the selected episodes: number, mean and deviation of rewards, successes.

        Raises:
            FilterError: A filter is unknown, or its value is invalid.
        """
        where, values = self._where(filters)
        source = f"FROM episodes JOIN files ON file = files.id WHERE {where} GROUP BY file, group_id"
        with self._connect() as db:
            (count,) = db.execute(f"SELECT count(*) FROM (SELECT 1 {source})", values).fetchone()
            rows = db.execute(
                f"SELECT files.run, files.name, files.kind, min({_STEP}), group_id, min(task_id), count(*), "
                f"avg(reward), avg(reward * reward), substr(group_concat(success, ''), 1, 64) {source} "
                "ORDER BY file, 4, group_id LIMIT ? OFFSET ?",
                [*values, limit, offset],
            ).fetchall()
        return {
            "count": count,
            "groups": [
                {
                    "run": self._runs[run].name,
                    "file": name,
                    "kind": kind,
                    "step": step,
                    "group": group,
                    "task": task,
                    "episodes": episodes,
                    "reward": mean,
                    "std": None if mean is None else math.sqrt(max(square - mean * mean, 0.0)),
                    "successes": successes,
                }
                for run, name, kind, step, group, task, episodes, mean, square, successes in rows
            ],
        }

    def compare(self, first: tuple[str, str], second: tuple[str, str]) -> list[dict[str, Any]]:
        """Return the tasks that two files, each given as names of run and file, have in common.

        Raises:
            FilterError: There is no such file.
        """
        files = [self._file_id(*side) for side in (first, second)]
        side = (
            "SELECT task_id, avg(reward) reward, avg(success) success, count(*) episodes, min(line) line "
            "FROM episodes WHERE file = ? GROUP BY task_id"
        )
        with self._connect() as db:
            rows = db.execute(
                f"SELECT a.*, b.reward, b.success, b.episodes, b.line FROM ({side}) a JOIN ({side}) b "
                "ON a.task_id = b.task_id ORDER BY a.line LIMIT 20000",
                files,
            ).fetchall()
        names = ("reward", "success", "episodes", "line")
        return [
            {"task": row[0], "a": dict(zip(names, row[1:5], strict=True)), "b": dict(zip(names, row[5:], strict=True))}
            for row in rows
        ]

    def locations(self, filters: Mapping[str, Sequence[str]]) -> list[tuple[Path, int, int]]:
        """Return file, offset and length of the line of each selected episode.

        Raises:
            FilterError: A filter is unknown, or its value is invalid.
        """
        where, values = self._where(filters)
        with self._connect() as db:
            rows = db.execute(
                f"SELECT run, name, offset, length FROM episodes JOIN files ON file = files.id WHERE {where} "
                "ORDER BY file, line",
                values,
            ).fetchall()
        paths = {file: self._path_of(*file) for file in {(run, name) for run, name, _, _ in rows}}
        return [(path, offset, length) for run, name, offset, length in rows if (path := paths[run, name])]

    def location(self, run: str, file: str, line: int) -> tuple[Path, int, int] | None:
        """Return file, offset and length of the line of an episode, or ``None`` if there is none."""
        with contextlib.suppress(FilterError), self._connect() as db:
            row = db.execute(
                "SELECT offset, length FROM episodes WHERE file = ? AND line = ?", (self._file_id(run, file), line)
            ).fetchone()
            path = self._path_of(str(self.run(run).path), file)
            return None if row is None or path is None else (path, *row)
        return None

    def run(self, name: str) -> Run:
        """Return the run of this name.

        Raises:
            FilterError: There is none.
        """
        for run in self._runs.values():
            if run.name == name:
                return run
        raise FilterError(f"run={name!r:.200} is unknown")

    # Private methods

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60.0, isolation_level=None)) as db:
            try:
                db.execute("PRAGMA synchronous = OFF")  # a cache
                db.execute("PRAGMA mmap_size = 268435456")
                yield db
            except sqlite3.DatabaseError as error:
                # Subclasses are raised for the rest, such as a lock or a full disk.
                self._damaged |= type(error) is sqlite3.DatabaseError
                raise

    def _create(self) -> None:
        if not self._path.exists():
            self._path.touch(mode=0o600)  # it has texts of faults
        with self._connect() as db:
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and db.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise sqlite3.DatabaseError("it was written by another program or version")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION}; {_SCHEMA} COMMIT;")
            dead = "(SELECT count(*) FROM texts_docsize) - (SELECT count(*) FROM episodes)"
            if db.execute(f"SELECT {dead} > max({_MAX_DEAD_TEXTS}, (SELECT count(*) FROM episodes))").fetchone()[0]:
                # A text cannot be deleted alone: SQLite would need its content.
                db.executescript(
                    "BEGIN IMMEDIATE; INSERT INTO texts(texts) VALUES ('delete-all'); "
                    "DELETE FROM episodes; DELETE FROM bad_lines; DELETE FROM files; COMMIT;"
                )
            # Files of runs that have been deleted.
            for (path,) in db.execute("SELECT DISTINCT run FROM files").fetchall():
                if not Path(path).exists():
                    for (file,) in db.execute("SELECT id FROM files WHERE run = ?", (path,)).fetchall():
                        _delete(db, file)

    def _replace(self) -> None:
        """Replace the file with an empty index."""
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)
        self._damaged = False
        self._complete.clear()
        self._create()

    def _list(self) -> None:
        files = {path: {file.name: file for file in episode_files(run)} for path, run in self._runs.items()}
        sizes = {}
        for file in (file for of_run in files.values() for file in of_run.values()):
            with contextlib.suppress(OSError):
                sizes[file.path] = file.path.stat().st_size
        self._files, self._sizes = files, sizes

    def _path_of(self, run: str, name: str) -> Path | None:
        """Return the path of a file of episodes, if it is still no link."""
        file = self._files[run].get(name)
        return file.path if file is not None and file.path.resolve() == file.path else None

    def _forget(self, run: Run) -> bool:
        """Delete the files that the run no longer has."""
        with self._connect() as db, _transaction(db):
            rows = db.execute("SELECT id, name FROM files WHERE run = ?", (str(run.path),)).fetchall()
            gone = [file for file, name in rows if name not in self._files[str(run.path)]]
            for file in gone:
                _delete(db, file)
        return bool(gone)

    def _read_all(self, run: Run, file: EpisodeFile) -> bool:
        try:
            status = file.path.stat()
        except FileNotFoundError:
            return False
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        changed = False
        if self._complete.get(file.path) != stamp:
            while not self._closed and self._read(run, file):
                changed = True
            self._complete[file.path] = stamp
        return changed

    def _read(self, run: Run, file: EpisodeFile) -> bool:
        """Index the next lines of a file; return whether there were any. The lock of the transaction excludes other
        processes."""
        with self._connect() as db, _transaction(db):
            found = db.execute(
                "SELECT id, cursor FROM files WHERE run = ? AND name = ?", (str(run.path), file.name)
            ).fetchone()
            number, before = (found[0], Cursor.parse(found[1])) if found else (self._add(db, run, file), Cursor())
            try:
                lines, cursor, restarted = new_lines(file.path, before, _BATCH_BYTES)
            except OSError:
                return False  # deleted in between, or not readable
            if restarted:  # the texts of the old number stay, but belong to no episode
                _delete(db, number)
                number = self._add(db, run, file)
            bad: list[tuple[int, int, str]] = []
            rows, texts = [], []
            for line in lines:
                try:
                    row, text = index_row(line)
                except (ValueError, RecursionError) as error:
                    bad.append((number, line.number, str(error)[:200]))
                else:
                    rows.append((number, line.number, line.offset, line.length, *row))
                    texts.append((number << 32 | line.number, *text))
            db.executemany(f"INSERT OR REPLACE INTO episodes VALUES ({_marks(range(15))})", rows)
            db.executemany("INSERT INTO texts(rowid, reply, prompt) VALUES (?, ?, ?)", texts)
            if bad:
                (kept,) = db.execute("SELECT bad FROM files WHERE id = ?", (number,)).fetchone()
                db.executemany(
                    "INSERT OR REPLACE INTO bad_lines VALUES (?, ?, ?)", bad[: max(_BAD_LINES_KEPT - kept, 0)]
                )
            db.execute("UPDATE files SET cursor = ?, bad = bad + ? WHERE id = ?", (str(cursor), len(bad), number))
        return bool(lines) or restarted

    def _add(self, db: sqlite3.Connection, run: Run, file: EpisodeFile) -> int:
        """Add a file of which nothing has been read, and return its number, which no other one has had."""
        values = (str(run.path), file.name, file.kind, file.step, str(Cursor()))
        added = db.execute("INSERT INTO files(run, name, kind, step, cursor) VALUES (?, ?, ?, ?, ?)", values)
        return added.lastrowid or 0

    def _file_id(self, run: str, file: str) -> int:
        with self._connect() as db:
            row = db.execute(
                "SELECT id FROM files WHERE run = ? AND name = ?", (str(self.run(run).path), file)
            ).fetchone()
        if row is None:
            raise FilterError(f"file={file!r:.200} is not a file of episodes of {run!r:.200}")
        return int(row[0])

    def _where(self, filters: Mapping[str, Sequence[str]]) -> tuple[str, list[Any]]:
        names = filters.get("run") or [run.name for run in self._runs.values()]
        paths = list({str(self.run(name).path) for name in names})
        files, values = [f"run IN ({_marks(paths)})"], [*paths]
        conditions: list[str] = []
        compared: list[Any] = []
        for name, choices in filters.items():
            if name not in FILTERS:
                raise FilterError(f"{name!r:.100} is not a filter; use {', '.join(sorted(FILTERS))}")
            if name != "run" and len(choices) > _MAX_ALTERNATIVES:
                raise FilterError(f"{name} has {len(choices)} values; give at most {_MAX_ALTERNATIVES}")
            if name in ("file", "kind"):
                files.append(f"{_EXACT[name]} IN ({_marks(choices)})")
                values += choices
            elif name in _EXACT:
                conditions.append(f"{_EXACT[name]} IN ({_marks(choices)})")
                compared += choices
            elif name == "task":
                conditions.append(" OR ".join(["instr(task_id, ?)"] * len(choices)))
                compared += choices
            elif name in ("text", "reply"):
                conditions.append(
                    "(file, line) IN (SELECT rowid >> 32, rowid & 4294967295 FROM texts WHERE texts MATCH ?)"
                )
                found = " OR ".join(f"({_match(name, choice)})" for choice in choices)
                compared.append(found if name == "text" else f"reply : ({found})")
            elif name in ("success", "fault"):
                conditions.append({"success": "success = ?", "fault": "(fault != '') = ?"}[name])
                compared.append(_flag(name, choices[-1]))
            elif name != "run":
                column, _, end = name.rpartition("_")
                conditions.append(f"{_STEP if column == 'step' else column} {'>=' if end == 'min' else '<='} ?")
                compared.append(_number(name, choices[-1]))
        where = f"file IN (SELECT id FROM files WHERE {' AND '.join(files)})"
        return " AND ".join([where, *(f"({condition})" for condition in conditions)]), values + compared

    def _row(self, row: Sequence[Any]) -> dict[str, Any]:
        named = dict(zip(ROW, row, strict=True))
        return {**named, "run": self._runs[named["run"]].name, "success": bool(named["success"])}


def index_row(line: FileLine) -> tuple[tuple[Any, ...], tuple[str, str]]:
    """Return the values of a line that episodes are filtered by, and the texts of its replies and prompts.

    Raises:
        ValueError: The line is not an episode.
        RecursionError: Its JSON is nested too deeply.
    """
    if line.content is None:
        raise ValueError(f"{line.length:,} bytes are too many")
    row = json.loads(line.content)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if "completion" in row and "trajectories" not in row:
        return _row_of_completion(row)
    if not isinstance(row.get("trajectories"), list) or "task_id" not in row:
        raise ValueError("not an episode: it has no trajectories or no task_id")
    turns = tokens = 0
    replies: list[str] = []
    prompts: list[str] = []
    for trajectory in row["trajectories"]:
        steps = trajectory.get("steps") if isinstance(trajectory, dict) else None
        for step in steps if isinstance(steps, list) else ():
            turns += 1
            if not isinstance(step, dict):
                continue
            sampled = step.get("tokens")
            ids = sampled.get("ids") if isinstance(sampled, dict) else None
            tokens += len(ids) if isinstance(ids, list) else 0
            replies += _contents(step.get("response"))
            prompts += _prompt(step)
    values = (
        None, _finite(row.get("reward")), bool(row.get("success")), turns, tokens, _text(row.get("stop_reason")),
        _text(row["task_id"]), _text(row.get("group_id")), _text(row.get("episode_id")), _text(row.get("env_id")),
        _text(row.get("fault")),
    )  # fmt: skip
    return values, (_searched(replies), _searched(prompts))


def _row_of_completion(row: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[str, str]]:
    step = _finite(row.get("step"))
    values = (
        None if step is None else int(step), _finite(row.get("reward")), bool(row.get("success")), 1, None,
        _text(row.get("stop_reason")), _text(row.get("task")), _text(row.get("group")), "", "", "",
    )  # fmt: skip
    return values, (_searched(_contents(row.get("completion"))), _searched(_contents(row.get("prompt"))))


def _prompt(step: Mapping[str, Any]) -> list[str]:
    """Return the texts that a turn added to the prompt; the observation if it is not in a message."""
    sent = step.get("messages")
    new = sent.get("new") if isinstance(sent, dict) else None
    messages = [message for message in new if isinstance(message, dict)] if isinstance(new, list) else []
    texts = [text for one in messages if one.get("role") != "assistant" for text in _contents(one.get("content"))]
    observed = step.get("observation")
    observed = observed.get("text") if isinstance(observed, dict) else observed
    return texts + [text for text in _contents(observed) if not any(text in other for other in texts)]


def _contents(content: Any) -> list[str]:
    """Return the texts of a content: a text, or parts of texts and images."""
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else [content]
    return [part for part in parts if isinstance(part, str)]


def _searched(texts: Sequence[str]) -> str:
    return "\n".join(texts)[:_MAX_SEARCHED_CHARS].encode("utf-8", "replace").decode()


def _match(name: str, text: str) -> str:
    """Return the FTS5 query for a text: episodes with all words, or words that begin so; phrases are in quotes."""
    pieces = [(quoted or word, quoted) for quoted, word in re.findall(r'"([^"]*)"|(\S+)', text)]
    terms = [
        f'"{piece.translate(_NO_SYNTAX)}"{"" if quoted else " *"}'
        for piece, quoted in pieces
        if any(map(str.isalnum, piece))
    ]
    if len(terms) > _MAX_QUERY_WORDS:
        raise FilterError(f"{name} has {len(terms)} words; give at most {_MAX_QUERY_WORDS}")
    if not terms:
        raise FilterError(f"{name}={text!r:.100} has no word to search for")
    return " AND ".join(terms).encode("utf-8", "replace").decode()


# Private functions


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _delete(db: sqlite3.Connection, file: int) -> None:
    for table in ("episodes", "bad_lines"):
        db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
    db.execute("DELETE FROM files WHERE id = ?", (file,))


def _default_path() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rllm-gym" / f"view-{_FORMAT}.sqlite"


def _marks(values: Any) -> str:
    return ", ".join("?" * len(values))


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    # SQLite stores no lone surrogates.
    return text[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _flag(name: str, text: str) -> int:
    if text not in ("0", "1"):
        raise FilterError(f"{name}={text!r:.100} must be 0 or 1")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FilterError(f"{name}={text!r:.100} must be a number")
    return value
