"""``ChatServer``: serves chat completions on a port of this machine, from a coroutine that makes the replies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from rllm_gym.chat_server.replies import ChatReply, completion, error_event, events
from rllm_gym.chat_server.requests import ChatRequest, RequestError, chat_request, json_object, shown
from rllm_gym.chat_server.responses_api import response, response_events, responses_request
from rllm_gym.samplers.protocol import SamplerError

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger(__name__)

_BODY_S = 60.0  # for the body of a request, which has a place among max_replies from its beginning
_READ_S = 60.0  # that a client may take to read an event

Respond = Callable[[ChatRequest], Awaitable[ChatReply]]
StepFunction = Callable[[str], Awaitable[dict[str, Any]]]


class _ClientLostError(Exception):
    """The client of an event stream is gone, or does not read it."""

    def __init__(self, stream: web.StreamResponse) -> None:
        super().__init__()
        self.stream = stream


class ChatServer:
    """An OpenAI-compatible endpoint. Use it with ``async with``: the port is open inside.

    Requests are answered concurrently. One whose client is gone is cancelled.

    Args:
        respond: Returns the reply to a request, of which it is asked ``n`` times. With ``on_part`` of the request it
            can send a reply in parts while it is sampled. May raise
            :class:`~rllm_gym.chat_server.RequestError`; a :class:`~rllm_gym.samplers.SamplerError` becomes status 503.
        step: Returns what an action did, for ``POST {url}/step`` with ``{"action": text}``. May raise as ``respond``.
        model: The name of the model, if a request has none.
        host, port: Where to listen; port 0 takes a free one.
        key: What requests must send as the API key; by default a secret of this server. With ``""`` none is needed, and
            requests of web pages are refused, which any page in a browser on this machine could send otherwise.
        max_body_bytes: Maximum length of a request.
        max_replies: Maximum number of replies that may be asked for at a time; a request above it is refused with
            status 429, before its body is read. By default there is no limit.
        shutdown_s: Seconds that requests in progress may take at the end, before they are cancelled.

    Attributes:
        url: The base URL, such as ``"http://127.0.0.1:40123/v1"``.
        key: The API key.

    Raises:
        ModuleNotFoundError: aiohttp is not installed.
        OSError: The port is taken.
    """

    def __init__(
        self,
        respond: Respond,
        *,
        step: StepFunction | None = None,
        model: str = "rllm-gym",
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        max_body_bytes: int = 64 << 20,
        max_replies: int = sys.maxsize,
        shutdown_s: float = 1.0,
    ) -> None:
        self._respond, self._step, self._model, self._address = respond, step, model, (host, port)
        self._max_body_bytes, self._shutdown_s = max_body_bytes, shutdown_s
        self._max_replies, self._asked = max_replies, 0
        self.key = secrets.token_urlsafe(24) if key is None else key
        self.url = ""
        self._numbers = itertools.count()
        self._replying = set[asyncio.Task[Any]]()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            from aiohttp import web
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "an OpenAI-compatible endpoint needs aiohttp: pip install 'rllm-gym[openai]'", name="aiohttp"
            ) from error
        app = web.Application(client_max_size=self._max_body_bytes)
        app.router.add_post("/v1/chat/completions", self._completions)
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_get("/v1/models", self._models)
        if self._step is not None:
            app.router.add_post("/v1/step", self._stepped)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=self._shutdown_s)
        async with AsyncExitStack() as opened:
            await runner.setup()
            opened.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, *self._address).start()
            self._opened = opened.pop_all()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.aclose()
        if self._replying:  # cancelled, and not ended within shutdown_s
            await asyncio.wait(self._replying)

    async def _models(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            self._check_key(request)
        except RequestError as error:
            return web.json_response(error.body(), status=error.status)
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "rllm-gym"}
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat_request, completion, events)

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, responses_request, response, response_events)

    async def _stepped(self, request: web.Request) -> web.Response:
        from aiohttp import web

        assert self._step is not None
        try:
            self._check_key(request)
            action = json_object(await self._body(request)).get("action")
            if not isinstance(action, str):
                raise RequestError(f"action={shown(action)} must be a text")
            with _failures_as_request_errors():
                return web.json_response(await self._step(action))
        except RequestError as error:
            return web.json_response(error.body(), status=error.status)

    async def _answer(
        self,
        request: web.Request,
        read: Callable[[bytes], ChatRequest],
        body_of: Callable[[str, str, list[ChatReply]], dict[str, Any]],
        events_of: Callable[..., Iterator[bytes]],
    ) -> web.StreamResponse:
        from aiohttp import web

        try:
            self._check_key(request)
            with self._places(1):
                asked = read(await self._body(request))
                if asked.choices > self._max_replies:
                    raise RequestError(f"n={asked.choices} must be at most {self._max_replies}, as many may wait here")
                with self._places(asked.choices - 1):
                    if asked.stream and asked.choices == 1 and events_of is events:
                        return await self._streamed(request, asked)
                    replies = await self._replies(asked)
                name, model = replies[0].name or f"{next(self._numbers)}", asked.model or self._model
                if not asked.stream:
                    return web.json_response(body_of(name, model, replies))
                stream = await _event_stream(request)
                await _send(stream, events_of(name, model, replies, include_usage=asked.include_usage))
                await _end(stream)
                return stream
        except RequestError as error:
            return web.json_response(error.body(), status=error.status)
        except _ClientLostError as error:
            if request.transport is not None:
                request.transport.abort()  # closing it would wait until the client reads what was written
            return error.stream

    async def _streamed(self, request: web.Request, asked: ChatRequest) -> web.StreamResponse:
        """Send the only reply to a request, in parts if there are any.

        If the client disconnects, the reply is cancelled.

        Raises:
            RequestError: There is no reply, and nothing was sent.
        """
        changed, latest = asyncio.Event(), list[ChatReply]()

        def on_part(part: ChatReply) -> None:
            latest[:] = [part]
            changed.set()

        def on_end(task: asyncio.Task[Any]) -> None:
            changed.set()
            if not task.cancelled():
                task.exception()  # retrieved also if the client is gone

        stream: web.StreamResponse | None = None
        model, created, sent = asked.model or self._model, time.time(), None
        replies = asyncio.create_task(self._replies(replace(asked, on_part=on_part)))
        replies.add_done_callback(on_end)
        try:
            ended = False
            while not ended:
                await changed.wait()
                changed.clear()
                ended = replies.done()
                try:
                    group = replies.result() if ended else list(latest)
                except RequestError as error:
                    if stream is None:
                        raise
                    await _send(stream, [error_event(error.body())])
                    break
                name = group[0].name or f"{next(self._numbers)}"
                stream = stream or await _event_stream(request)
                await _send(
                    stream,
                    events(name, model, group, include_usage=asked.include_usage, created=created, sent=sent),
                )
                sent = group[0].message["content"]
        finally:
            replies.cancel()
            await asyncio.wait([replies])
        assert stream is not None
        await _end(stream)
        return stream

    @contextlib.contextmanager
    def _places(self, replies: int) -> Iterator[None]:
        if self._asked + replies > self._max_replies:
            raise RequestError(f"{self._asked} replies are waited for; try again", status=429, code="rate_limit")
        self._asked += replies
        try:
            yield
        finally:
            self._asked -= replies

    async def _replies(self, asked: ChatRequest) -> list[ChatReply]:
        this = asyncio.current_task()
        assert this is not None
        self._replying.add(this)
        try:
            with _failures_as_request_errors():
                if asked.choices == 1:
                    return [await self._respond(asked)]
                async with asyncio.TaskGroup() as group:
                    choices = (self._respond(replace(asked, choice=index)) for index in range(asked.choices))
                    tasks = [group.create_task(_awaited(reply)) for reply in choices]
                return [task.result() for task in tasks]
        finally:
            self._replying.discard(this)

    async def _body(self, request: web.Request) -> bytes:
        from aiohttp import web

        try:
            async with asyncio.timeout(_BODY_S):
                return await request.read()
        except TimeoutError:
            raise RequestError(f"the body did not arrive within {_BODY_S:g} s", status=408) from None
        except web.HTTPRequestEntityTooLarge:
            raise RequestError(f"the body has more than {self._max_body_bytes >> 20} MiB", status=413) from None

    def _check_key(self, request: web.Request) -> None:
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not self.key and "Origin" in request.headers:
            raise RequestError("requests of web pages need a server with an API key", status=403)
        if self.key and not secrets.compare_digest(sent.encode(errors="surrogateescape"), self.key.encode()):
            raise RequestError(
                "wrong API key; use that of this endpoint (OPENAI_API_KEY)", status=401, code="invalid_api_key"
            )


async def _event_stream(request: web.Request) -> web.StreamResponse:
    from aiohttp import web

    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await stream.prepare(request)
    return stream


async def _send(stream: web.StreamResponse, parts: Iterable[bytes]) -> None:
    for part in parts:
        await _written(stream, stream.write(part))


async def _end(stream: web.StreamResponse) -> None:
    await _written(stream, stream.write_eof())


async def _written(stream: web.StreamResponse, writing: Awaitable[None]) -> None:
    """Wait until something is written. A client that does not read it loses its connection, and so its place.

    Raises:
        _ClientLostError: It does not read it in time, or is gone.
    """
    try:
        async with asyncio.timeout(_READ_S):
            await writing
    except (TimeoutError, ConnectionError):
        raise _ClientLostError(stream) from None


async def _awaited(reply: Awaitable[ChatReply]) -> ChatReply:
    return await reply


@contextlib.contextmanager
def _failures_as_request_errors() -> Iterator[None]:
    try:
        yield
    except* RequestError as errors:
        raise _first(errors) from None
    except* SamplerError as errors:
        raise RequestError(str(_first(errors)), status=503, code="sampler_failed") from None
    except* Exception as errors:
        error = _first(errors)
        _log.warning("a request failed: %s: %s", type(error).__name__, error)
        raise RequestError(f"{type(error).__name__}: {error}", status=503, code="request_failed") from None


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
