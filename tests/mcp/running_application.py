"""Serve an ASGI application of an MCP server on a port of this machine."""

from __future__ import annotations

import contextlib
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
