"""The engine with an OpenAI-compatible endpoint, as in rLLM's documentation, against a small real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rllm_gym.compat import AgentExecutionEngine, MathAgent, SingleTurnEnvironment, math_reward_fn
from rllm_gym.samplers import SamplerError, SamplingParams, SamplingRequest
from rllm_gym.samplers.openai_compatible import OpenAISampler


class Server(ThreadingHTTPServer):
    """Answers 42; the statuses in ``refusals`` are returned first; ``body``, if set, replaces the completion."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.refusals: list[int] = []
        self.body: bytes | None = None
        self.hang = threading.Event()
        self.hang.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.headers.append(self.headers.get("Authorization"))
        self.server.hang.wait()
        status = self.server.refusals.pop(0) if self.server.refusals else 200
        answer = {"choices": [{"message": {"role": "assistant", "content": "\\boxed{42}"}, "finish_reason": "stop"}]}
        body = self.server.body if self.server.body is not None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing to stderr."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.hang.set()
    server.shutdown()
    thread.join(60)
    server.server_close()


def ask(server: Server, **arguments: Any) -> str:
    async def scenario() -> str:
        async with OpenAISampler(model="m", base_url=server.url, **arguments) as sampler:
            request = SamplingRequest((), SamplingParams(max_tokens=9), messages=({"role": "user", "content": "?"},))
            (completion,) = await sampler.sample([request])
            return completion.text

    return asyncio.run(scenario())


def test_the_old_constructor_reaches_the_endpoint(server: Server) -> None:
    engine = AgentExecutionEngine(
        agent_class=MathAgent,
        env_class=SingleTurnEnvironment,
        env_args={"reward_fn": math_reward_fn},
        engine_name="openai",
        rollout_engine_args={"base_url": server.url, "api_key": "secret"},
        sampling_params={"temperature": 0.6, "top_p": 0.95, "model": "some/model"},
        max_response_length=100,
    )
    results = asyncio.run(engine.execute_tasks([{"question": "6 * 7?", "answer": "42"}] * 3))
    assert [trajectory.reward for trajectory in results] == [1.0, 1.0, 1.0]
    assert server.headers == ["Bearer secret"] * 3
    requests = server.requests[0]
    assert requests["messages"] == [{"role": "user", "content": "6 * 7?"}]
    assert (requests["model"], requests["temperature"], requests["top_p"], requests["max_tokens"]) == (
        "some/model",
        0.6,
        0.95,
        100,
    )
    assert len({requests["seed"] for requests in server.requests}) == 3


def test_requests_to_a_busy_endpoint_are_retried(server: Server) -> None:
    server.refusals = [503, 429]
    assert ask(server, retries=2) == "\\boxed{42}"
    assert len(server.requests) == 3


@pytest.mark.parametrize(("refusals", "message"), [([503, 503], "503"), ([401], "401")])
def test_an_error_of_the_endpoint_is_quoted_in_the_message(server: Server, refusals: list[int], message: str) -> None:
    server.refusals = refusals
    with pytest.raises(SamplerError, match=message):
        ask(server, retries=1)


def test_an_invalid_response_is_quoted_in_the_message(server: Server) -> None:
    for body, output in (
        (b"<html>", "not JSON"),
        (b'{"choices": []}', "not a chat completion"),
        (b'{"choices": [{"message": {"content": 7}}]}', "not a chat completion"),
    ):
        server.body = body
        with pytest.raises(SamplerError, match=output):
            ask(server, retries=1)


def test_an_endpoint_that_hangs_is_abandoned_at_the_deadline(server: Server) -> None:
    server.hang.clear()
    with pytest.raises(SamplerError):
        ask(server, timeout=0.3, retries=0)


def test_weight_sync_and_other_url_schemes_are_errors(server: Server) -> None:
    with pytest.raises(SamplerError, match="cannot load weights"):
        asyncio.run(OpenAISampler(model="m", base_url=server.url).sync_weights(None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="file:"):
        OpenAISampler(model="m", base_url="file:///etc/passwd")
