"""The HTTP server of the viewer: the page, and what it asks for as JSON. It only reads, and only answers this machine.

Texts of episodes are written by models. They leave here as JSON, which the page inserts as text; the policy in the
headers forbids scripts, styles and connections other than the page's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from rllm_gym.commands.view.episode_index import FILTERS, EpisodeIndex
from rllm_gym.commands.view.run_files import Cursor, FilterError, Run, lines_at, new_lines
from rllm_gym.commands.view.run_tables import manifest_of, metric_rows, results_of
from rllm_gym.commands.view.token_text import TokenTexts
from rllm_gym.commands.view.transcript import EpisodePage

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HOSTS = ("127.0.0.1", "localhost", "::1")
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_METRICS_BYTES = 4 << 20
_EXPORT_BYTES = 1 << 20
_MAX_PAGE = 500
_TRANSCRIPT_BYTES = 256 << 20

Query = Mapping[str, Sequence[str]]


class ViewServer:
    """The application that serves some runs.

    Args:
        runs: The runs.
        index: The index of their episodes, open.
        tokens: Gives tokens their texts.
    """

    def __init__(self, runs: Sequence[Run], index: EpisodeIndex, tokens: TokenTexts) -> None:
        self._runs, self._index, self._tokens = runs, index, tokens
        self._refresh: asyncio.Task[bool] | None = None
        self._parsing = asyncio.Lock()
        self._transcripts: OrderedDict[tuple[str, int, int], tuple[EpisodePage, int]] = OrderedDict()
        self.app = web.Application(middlewares=[_guard])
        for name in ("index.html", "view.css", *_scripts()):
            path = "/" if name == "index.html" else f"/{name}"
            self.app.router.add_get(path, partial(_page_file, name))
        for name, answer, names in (
            ("state", self._state, {"version"}),
            ("metrics", self._metrics, {"run", "cursor"}),
            ("episodes", self._episodes, FILTERS | {"order", "offset", "limit"}),
            ("groups", self._groups, FILTERS | {"offset", "limit"}),
            ("compare", self._compare, {"a_run", "a_file", "b_run", "b_file"}),
            ("transcript", self._transcript, {"run", "file", "line"}),
            ("bad", self._bad, frozenset[str]()),
            ("results", self._results, frozenset[str]()),
            ("manifests", self._manifests, frozenset[str]()),
        ):
            self.app.router.add_get(f"/api/{name}", partial(_json, answer, frozenset(names)))
        self.app.router.add_get("/api/image", self._image)
        self.app.router.add_get("/api/export", self._export)
        self.app.on_cleanup.append(self._stop)

    async def _state(self, query: Query) -> Any:
        """Start to index what is new, and return what is indexed so far."""
        known = _int(query, "version") if "version" in query else None
        task = self._refresh  # another request can replace the attribute
        if task is None or task.done():
            if task is not None:
                self._refresh = None
                task.result()  # raises its error
            task = self._refresh = asyncio.create_task(asyncio.to_thread(self._index.refresh))
            await asyncio.wait([task], timeout=0.2)
        state = await asyncio.to_thread(self._index.state, known)
        return {**state, "indexing": not task.done()}

    async def _metrics(self, query: Query) -> Any:
        path = self._index.run(_one(query, "run")).metrics
        cursor = Cursor.parse(_one(query, "cursor", str(Cursor())))
        if path is None:
            return {"rows": [], "bad": [], "cursor": str(cursor), "restarted": cursor != Cursor(), "more": False}
        lines, end, restarted = await asyncio.to_thread(new_lines, path, cursor, _METRICS_BYTES)
        rows, bad = metric_rows(lines)
        more = sum(line.length for line in lines) >= _METRICS_BYTES
        return {"rows": rows, "bad": bad, "cursor": str(end), "restarted": restarted, "more": more}

    async def _episodes(self, query: Query) -> Any:
        return await asyncio.to_thread(
            self._index.episodes, _filters(query), order=_one(query, "order", ""), **_page(query)
        )

    async def _groups(self, query: Query) -> Any:
        return await asyncio.to_thread(self._index.groups, _filters(query), **_page(query))

    async def _compare(self, query: Query) -> Any:
        first, second = ((_one(query, f"{side}_run"), _one(query, f"{side}_file")) for side in "ab")
        return {"tasks": await asyncio.to_thread(self._index.compare, first, second)}

    async def _bad(self, query: Query) -> Any:
        return {"lines": await asyncio.to_thread(self._index.bad_lines)}

    async def _results(self, query: Query) -> Any:
        return {"runs": await asyncio.to_thread(lambda: [found for run in self._runs if (found := results_of(run))])}

    async def _manifests(self, query: Query) -> Any:
        return {"runs": await asyncio.to_thread(lambda: [found for run in self._runs if (found := manifest_of(run))])}

    async def _transcript(self, query: Query) -> Any:
        transcript = await self._read(query)
        return {**transcript.page, **{name: _one(query, name) for name in ("run", "file")}, "line": _int(query, "line")}

    async def _image(self, request: web.Request) -> web.Response:
        query = _query(request, frozenset({"run", "file", "line", "n"}))
        transcript = await self._read(query)
        number = _int(query, "n")
        if not 0 <= number < len(transcript.images):
            raise web.HTTPNotFound(text=f"n={number}: the episode has {len(transcript.images)} images")
        kind, content = transcript.images[number]
        return web.Response(body=content, content_type=kind)

    async def _export(self, request: web.Request) -> web.StreamResponse:
        """Send the lines of the selected episodes as they are in the files."""
        query = _query(request, FILTERS)
        locations = await asyncio.to_thread(self._index.locations, query)
        headers = {"Content-Disposition": 'attachment; filename="episodes.jsonl"'}
        stream = web.StreamResponse(headers={**headers, **_HEADERS})
        stream.content_type = "application/jsonl"
        await stream.prepare(request)
        batch: list[tuple[Path, int, int]] = []
        size = 0
        for location in locations:
            batch.append(location)
            size += location[2]
            if size >= _EXPORT_BYTES:
                await stream.write(await asyncio.to_thread(lines_at, batch))
                batch, size = [], 0
        await stream.write(await asyncio.to_thread(lines_at, batch))
        return stream

    async def _read(self, query: Query) -> EpisodePage:
        """Return a transcript; the last ones are kept, since the page asks for their images next."""
        run, file, line = self._index.run(_one(query, "run")), _one(query, "file"), _int(query, "line")
        location = await asyncio.to_thread(self._index.location, run.name, file, line)
        if location is None:
            raise web.HTTPNotFound(text=f"{run.name}/{file} has no episode at line {line}")
        path, offset, length = location
        key = (str(path), offset, path.stat().st_mtime_ns)
        async with self._parsing:  # one at a time: a line can be large
            transcript, size = self._transcripts.pop(key, (None, 0))
            if transcript is None:
                transcript = await asyncio.to_thread(self._parse, run, path, offset, length)
                size = length + sum(len(image) for _, image in transcript.images)
            self._transcripts[key] = transcript, size
        while len(self._transcripts) > 1 and (
            sum(size for _, size in self._transcripts.values()) > _TRANSCRIPT_BYTES or len(self._transcripts) > 16
        ):
            self._transcripts.popitem(last=False)
        return transcript

    def _parse(self, run: Run, path: Path, offset: int, length: int) -> EpisodePage:
        try:
            return self._tokens.transcript(run, lines_at([(path, offset, length)]))
        except (ValueError, RecursionError) as error:
            raise web.HTTPConflict(text=f"{path.name} has changed, or the episode cannot be shown: {error}") from error

    async def _stop(self, app: web.Application) -> None:
        if self._refresh is not None:
            await asyncio.to_thread(self._index.__exit__)
            await asyncio.wait([self._refresh])


async def serve(server: ViewServer, port: int, started: Callable[[str], None]) -> None:
    """Serve until cancelled.

    Args:
        server: What to serve.
        port: The port of 127.0.0.1, 0 for any free one.
        started: Called with the address.
    """
    runner = web.AppRunner(server.app, access_log=None, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        started(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


# Private functions


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse requests of other sites, also of one whose name resolves to this machine, and add the headers."""
    try:
        if _hostname(request.host) not in _HOSTS:
            raise web.HTTPForbidden(text=f"Host: {request.host!r:.200} is not this machine; use 127.0.0.1 or localhost")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if request.path != "/" and site not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="requests of other sites are refused")
        try:
            response = await handler(request)
        except FilterError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except FileNotFoundError as error:
            raise web.HTTPNotFound(text="the file has been deleted") from error
        except sqlite3.Error as error:
            raise web.HTTPServiceUnavailable(text=f"the index cannot be read or written: {error}") from error
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        raise
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


def _hostname(host: str) -> str | None:
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{host}").hostname
    return None


def _scripts() -> list[str]:
    folder = resources.files(__package__) / "page"
    return sorted(file.name for file in folder.iterdir() if file.name.endswith(".js"))


async def _page_file(name: str, request: web.Request) -> web.Response:
    text = (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=_TYPES[name.rpartition(".")[2]])


async def _json(answer: Callable[[Query], Awaitable[Any]], names: frozenset[str], request: web.Request) -> web.Response:
    return web.json_response(await answer(_query(request, names)))


def _query(request: web.Request, names: frozenset[str]) -> Query:
    if unknown := sorted(set(request.query) - names):
        raise FilterError(f"parameter {unknown[0]!r:.100} is unknown; known are {', '.join(sorted(names)) or 'none'}")
    return {name: request.query.getall(name) for name in request.query}


def _filters(query: Query) -> Query:
    return {name: values for name, values in query.items() if name in FILTERS}


def _page(query: Query) -> dict[str, int]:
    offset, limit = _int(query, "offset", 0), _int(query, "limit", 100)
    if not 0 <= offset < 2**40 or not 1 <= limit <= _MAX_PAGE:
        raise FilterError(f"offset={offset} must be 0 or more, and limit={limit} from 1 to {_MAX_PAGE}")
    return {"offset": offset, "limit": limit}


def _one(query: Query, name: str, default: str | None = None) -> str:
    if name in query:
        return query[name][-1]
    if default is None:
        raise FilterError(f"parameter {name!r} is missing")
    return default


def _int(query: Query, name: str, default: int | None = None) -> int:
    text = _one(query, name, None if default is None else str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FilterError(f"{name}={text!r:.100} must be a number, 0 or more")
    return int(text)
