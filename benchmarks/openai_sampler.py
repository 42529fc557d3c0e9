"""Compare ``OpenAISampler`` with HTTP clients: aiohttp, which it uses, ``http.client`` in threads, httpx, ``openai``.

    python benchmarks/openai_sampler.py [--rounds 7] [--write]

A server in another process answers every request at once. Figures are per second of processor time of this process,
which the server is not part of; the clients alternate, round by round, and the median counts.

- *Replies*: 64 concurrent requests for token ids with log-probs, about 2 kB per reply. All clients have the same reply
  parsed by the same code.
- *Episodes*: 64 concurrent episodes of ``rllm/FrozenLake-v0`` through ``AgentExecutionEngine``, with chat replies of
  about 2 kB. This is what a user notices: environment, agent and engine included.

The peers only send requests and read replies: no retries, rate limits, redirects or limits on a reply's size, except
what the library does by itself. ``OpenAISampler`` had ``http.client`` in a pool of threads before. With everything that
it added to it, it made 2,980 replies and 258 episodes per CPU-second; with aiohttp 5,670 and 274 (medians of six
alternating rounds on two busy cores).
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest
from rllm_gym.samplers.openai_compatible import OpenAISampler
from rllm_gym.samplers.openai_responses import chat_completion, token_completion

PARALLEL, TOKENS, BATCHES = 64, 48, 6
RESULTS = Path(__file__).parent / "results" / "openai_sampler.md"

_LOGPROBS = [-0.0123456 * number for number in range(TOKENS)]
_TOKENS: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "text": "word " * TOKENS,
            "finish_reason": "stop",
            "token_ids": list(range(1000, 1000 + TOKENS)),
            "logprobs": {
                "tokens": [f"token_id:{1000 + number}" for number in range(TOKENS)],
                "token_logprobs": _LOGPROBS,
                "text_offset": [5 * number for number in range(TOKENS)],
                "top_logprobs": None,
            },
        }
    ],
    "usage": {"prompt_tokens": 64, "completion_tokens": TOKENS, "total_tokens": 64 + TOKENS},
}
_MESSAGE = {"role": "assistant", "content": "I look at the map and go on. " * 62 + "```right```"}
_CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 64, "completion_tokens": TOKENS, "total_tokens": 64 + TOKENS},
}


class _Server(asyncio.Protocol):
    """Answers each request on a kept connection."""

    replies: dict[bytes, bytes]

    def connection_made(self, transport: Any) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            begin = head.find(b"content-length:") + 15
            length = int(head[begin:].split(b"\r\n", 1)[0])
            if len(self._data) < end + 4 + length:
                return
            self._data = self._data[end + 4 + length :]
            self._transport.write(self.replies[b"chat" if b"/chat/" in head[:40] else b"tokens"])


def serve(pipe: Connection) -> None:
    """Run the server in its own process; send its port."""

    def reply(content: dict[str, Any]) -> bytes:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def run() -> None:
        _Server.replies = {b"chat": reply(_CHAT), b"tokens": reply(_TOKENS)}
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Peer:
    """A sampler that only sends requests and reads replies."""

    weight_version, context_length, tokenizer = 0, None, None

    def __init__(self, port: int, *, tokens: bool) -> None:
        self.port, self.returns_tokens = port, tokens
        self.path = "/v1/completions" if tokens else "/v1/chat/completions"

    def body(self, request: SamplingRequest) -> dict[str, Any]:
        params = request.params
        body: dict[str, Any] = {"model": "m", "temperature": params.temperature, "top_p": params.top_p}
        body |= {"max_tokens": params.max_tokens, "seed": request.seed % 2**31}
        if self.returns_tokens:
            body |= {"prompt": list(request.ids), "logprobs": 0}
        else:
            body["messages"] = [dict(message) for message in request.messages]
        return body

    def read(self, content: Any) -> Completion:
        return token_completion(content, 0) if self.returns_tokens else chat_completion(content, 0)

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        return list(await asyncio.gather(*map(self.one, requests)))

    async def one(self, request: SamplingRequest) -> Completion:
        raise NotImplementedError

    async def sync_weights(self, update: Any) -> int:
        raise NotImplementedError

    async def drop(self, name: str) -> None:
        raise NotImplementedError

    async def release(self, conversation: str) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class HttpClientInThreads(Peer):
    def __init__(self, port: int, *, tokens: bool) -> None:
        super().__init__(port, tokens=tokens)
        self._threads = ThreadPoolExecutor(PARALLEL)
        self._local = threading.local()

    def _post(self, data: bytes) -> bytes:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection = self._local.connection
        headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
        connection.request("POST", self.path, data, headers)
        reply: bytes = connection.getresponse().read()
        return reply

    async def one(self, request: SamplingRequest) -> Completion:
        data = json.dumps(self.body(request)).encode()
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._post, data)
        return self.read(json.loads(reply))

    async def close(self) -> None:
        self._threads.shutdown()


class Aiohttp(Peer):
    _session: Any = None

    async def one(self, request: SamplingRequest) -> Completion:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=PARALLEL), headers={"Authorization": "Bearer key"}
            )
        url = f"http://127.0.0.1:{self.port}{self.path}"
        async with self._session.post(url, json=self.body(request)) as answer:
            return self.read(await answer.json())

    async def close(self) -> None:
        await self._session.close()


class Httpx(Peer):
    def __init__(self, port: int, *, tokens: bool) -> None:
        import httpx

        super().__init__(port, tokens=tokens)
        self._client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            limits=httpx.Limits(max_connections=PARALLEL),
            headers={"Authorization": "Bearer key"},
        )

    async def one(self, request: SamplingRequest) -> Completion:
        return self.read((await self._client.post(self.path, json=self.body(request))).json())

    async def close(self) -> None:
        await self._client.aclose()


class OpenAIPackage(Peer):
    def __init__(self, port: int, *, tokens: bool) -> None:
        import openai

        super().__init__(port, tokens=tokens)
        self._client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="key", max_retries=0)

    async def one(self, request: SamplingRequest) -> Completion:
        completions: Any = self._client.completions if self.returns_tokens else self._client.chat.completions
        return self.read((await completions.create(**self.body(request))).model_dump())

    async def close(self) -> None:
        await self._client.close()


def own(port: int, *, tokens: bool) -> OpenAISampler:
    sampler = OpenAISampler(model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key="key", parallel=PARALLEL)
    sampler.returns_tokens = tokens  # without the probe, which this server cannot answer
    return sampler


CLIENTS: dict[str, Callable[..., Any]] = {
    "OpenAISampler": own,
    "http.client in threads": HttpClientInThreads,
    "aiohttp": Aiohttp,
    "httpx": Httpx,
    "openai": OpenAIPackage,
}


def replies_per_cpu_second(make: Callable[..., Any], port: int) -> float:
    requests = [
        SamplingRequest(tuple(range(64)), SamplingParams(max_tokens=TOKENS), seed=number) for number in range(PARALLEL)
    ]

    async def run() -> float:
        sampler = make(port, tokens=True)
        await sampler.sample(requests)  # opens the connections
        began = time.process_time()
        for _ in range(BATCHES):
            completions = await sampler.sample(requests)
        seconds = time.process_time() - began
        assert all(len(completion.ids) == TOKENS for completion in completions)
        await sampler.close()
        return PARALLEL * BATCHES / seconds

    return asyncio.run(run())


def episodes_per_cpu_second(make: Callable[..., Any], port: int) -> float:
    specs = [EpisodeSpec(seed=number) for number in range(PARALLEL)]

    async def run() -> float:
        sampler = make(port, tokens=False)
        engine = AgentExecutionEngine(env="rllm/FrozenLake-v0", sampler=sampler, n_parallel=PARALLEL)
        try:
            await engine.run(specs)  # opens the connections
            began = time.process_time()
            episodes = await engine.run(specs)
            seconds = time.process_time() - began
        finally:
            await engine.aclose()
            await sampler.close()
        assert len(episodes) == PARALLEL
        return PARALLEL / seconds

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write the results file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(sender,), daemon=True)
    server.start()
    port = receiver.recv()
    found: dict[tuple[str, str], list[float]] = {}
    try:
        for _ in range(options.rounds):
            for name, make in CLIENTS.items():
                found.setdefault((name, "replies"), []).append(replies_per_cpu_second(make, port))
                found.setdefault((name, "episodes"), []).append(episodes_per_cpu_second(make, port))
                print(name, *(f"{found[name, what][-1]:.0f}" for what in ("replies", "episodes")), flush=True)
    finally:
        server.terminate()
        server.join()
    text = report(found, options.rounds, load)
    print(text)
    if options.write:
        RESULTS.write_text(text)


def report(found: dict[tuple[str, str], list[float]], rounds: int, load: float) -> str:
    medians = {key: statistics.median(values) for key, values in found.items()}
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("aiohttp", "httpx", "openai"))
    size = len(json.dumps(_TOKENS)), len(json.dumps(_CHAT))
    lines = [
        "# HTTP clients for an OpenAI-compatible endpoint",
        "",
        "By `python benchmarks/openai_sampler.py --write`, whose docstring describes the measurements.",
        "",
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average {load:.1f}; "
        f"{versions}; medians of {rounds} interleaved rounds; replies of {size[0]:,} and {size[1]:,} bytes.",
        "",
        "| client | replies per CPU-second | OpenAISampler / this | episodes per CPU-second | OpenAISampler / this |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in CLIENTS:
        cells = [name]
        for what in ("replies", "episodes"):
            value = medians[name, what]
            cells += [f"{value:,.0f}", f"{medians['OpenAISampler', what] / value:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
