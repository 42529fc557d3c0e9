"""Serve an ASGI application of an MCP server on a port of this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from tests.waiting import until


@contextlib.contextmanager
def running(application: Any) -> Iterator[str]:
    """Yield its URL."""
    import uvicorn

    config = uvicorn.Config(application, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join(120)


def refusing_the_handshake(application: Any) -> Any:
    """Answer ``initialize`` as a server does that supports only the 2026 protocol."""

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await application(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if json.loads(body)["method"] == "initialize":
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": b"no handshakes here"})
            return
        pieces = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(pieces, None) or await receive()

        await application(scope, again, send)

    return refusing
