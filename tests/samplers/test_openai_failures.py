"""Endpoints that are slow, busy, broken or malicious: the sampler ends in time with a reason and protects its key."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from samplers.hostile_endpoint import HostileEndpoint, Reply, answer, chat, refusal

from rllm_gym.samplers import Completion, SamplerError, SamplingParams, SamplingRequest
from rllm_gym.samplers.openai_compatible import OpenAISampler

KEY = "sk-secret-0123456789"
HELLO = answer(chat())
ASK = SamplingRequest((), SamplingParams(max_tokens=9), messages=({"role": "user", "content": "?"},))


def sample(server: HostileEndpoint, *requests: SamplingRequest, **arguments: Any) -> list[Completion]:
    """Return replies of a new sampler. Waiting for an answer that never arrives fails after 100 s."""

    async def scenario() -> list[Completion]:
        settings: dict[str, Any] = {"retries": 0, "timeout": 90.0, "api_key": KEY} | arguments
        async with OpenAISampler(model="m", base_url=server.url, **settings) as sampler:
            return await asyncio.wait_for(sampler.sample(requests or [ASK]), 100)

    return asyncio.run(scenario())


def unexpected(
    cases: Iterable[tuple[Reply, str]], context: Callable[[HostileEndpoint], list[Completion]] = sample
) -> list[tuple[str, str]]:
    """Return cases of a reply and a pattern in which the error does not match the pattern or lacks the address."""
    wrong = []
    for reply, output in cases:
        with HostileEndpoint([reply]) as server:
            try:
                got = repr(context(server))
            except SamplerError as error:
                got = str(error)
                if re.search(output, got) and server.url in got:
                    continue
        wrong.append((repr(reply)[:100], got))
    return wrong


def hang(connection: socket.socket, released: threading.Event) -> None:
    released.wait()


def drip(connection: socket.socket, released: threading.Event) -> None:
    """Send a byte of a header now and then, for ever: never silent, never done."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not released.wait(0.05):
        connection.sendall(b"z")


def drip_body(connection: socket.socket, released: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not released.wait(0.05):
        connection.sendall(b" ")


def flood(connection: socket.socket, released: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not released.is_set():
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def close_silently(connection: socket.socket, released: threading.Event) -> None:
    """Close the connection without an answer."""


def test_an_endpoint_that_never_finishes_costs_only_one_timeout() -> None:
    for reply in (hang, drip, drip_body):
        with HostileEndpoint([reply]) as server:
            with pytest.raises(SamplerError, match=r"did not answer within 0\.4 s"):
                sample(server, timeout=0.4, retries=3)
            assert len(server.received) <= 1, reply


def test_silence_has_a_separate_timeout() -> None:
    with HostileEndpoint([hang]) as server, pytest.raises(SamplerError, match=r"no data for 0\.3 s"):
        sample(server, timeout=600, silence_timeout=0.3)


def test_an_invalid_response_is_an_error_with_its_content() -> None:
    cases: list[tuple[Reply, str]] = [
        (flood, "more than 1000000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nConnection: close\r\n\r\n{", "lost in the middle"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n9\r\n{",
            "lost in the middle",
        ),
        (b"220 mail.example ESMTP\r\nConnection: close\r\n\r\n", "no valid HTTP reply: .*220 mail"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n", "no valid HTTP reply"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * 10_000 + b"\r\n", "no valid HTTP reply"),
        (close_silently, "closed without a reply"),
        (answer(b"<html><h1>Log in</h1></html>"), "not JSON .*Log in"),
        (answer(b"[" * 100_000), "not JSON"),
        (answer(b"\x1f\x8b\x08", Content_Encoding="gzip"), "Content-Encoding 'gzip'"),
        (answer([1, 2]), "not a chat completion"),
        (answer(chat(finish="abort")), "aborted the reply"),
        (answer(b"<html>\n<h1>502  Bad\nGateway</h1></html>", 502), "502: <html> <h1>502 Bad Gateway</h1></html>"),
        (answer(b"", 500), "500: no reason given"),
        (refusal("You exceeded your current quota", 429, "insufficient_quota"), "429: You exceeded"),
        (answer({"error": {"message": "no provider", "code": "odd"}}), "400: no provider"),
        (answer({"error": "upstream"}), "400: upstream"),
        (refusal("no such key", 401), "401: no such key .*OPENAI_API_KEY"),
    ]
    assert not unexpected(cases, lambda server: sample(server, max_reply_bytes=1_000_000))


def test_transient_errors_are_retried() -> None:
    passing: list[Reply] = [
        close_silently,
        b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nConnection: close\r\n\r\n{",
        answer(b"busy", 503),
        answer(b"busy", 429),
        answer({"error": {"message": "busy", "code": 502}}),
        answer(chat(finish="abort")),
    ]

    async def scenario(server: HostileEndpoint) -> Completion:
        async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=1) as sampler:
            (completion,) = await sampler.sample([ASK])
            return completion

    async def sample_concurrently(servers: list[HostileEndpoint]) -> list[Any]:
        return await asyncio.gather(*map(scenario, servers), return_exceptions=True)

    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(HostileEndpoint([reply, HELLO])) for reply in passing]
        completions = asyncio.run(sample_concurrently(servers))
    got = [(completion, len(server.received)) for completion, server in zip(completions, servers, strict=True)]
    wrong = [(repr(reply), item) for reply, item in zip(passing, got) if item != (Completion((), (), "hello"), 2)]
    assert not wrong


def test_permanent_errors_are_not_retried() -> None:
    for reply in (answer(b"<html>"), refusal("bad temperature", 400), refusal("quota", 429, "insufficient_quota")):
        with HostileEndpoint([reply]) as server:
            with pytest.raises(SamplerError):
                sample(server, retries=5)
            assert len(server.received) == 1, reply


def timed(reply: bytes, times: list[float]) -> Callable[[socket.socket, threading.Event], None]:
    """Return a reply that records the time at which it is sent."""

    def send(connection: socket.socket, released: threading.Event) -> None:
        times.append(time.monotonic())
        connection.sendall(reply)

    return send


def test_a_requested_pause_applies_to_all_requests() -> None:
    """Requests that would be sent during the pause wait as well; otherwise each would be refused in turn."""
    times: list[float] = []

    async def scenario(server: HostileEndpoint) -> None:
        async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=1, parallel=1) as sampler:
            await asyncio.gather(*(sampler.sample([ASK]) for _ in range(3)))

    closing = refusal("slow down", 429, Connection="close", Retry_After_Ms="700")
    with HostileEndpoint([timed(closing, times), timed(answer(chat(), Connection="close"), times)]) as server:
        asyncio.run(scenario(server))
    assert len(times) >= 4
    # Requests already queued behind the first may have been sent at once; the refused one may not.
    assert max(times) - times[0] >= 0.69


def test_a_requested_pause_that_is_too_long_is_an_error() -> None:
    with HostileEndpoint([refusal("later", 429, Retry_After="86400")]) as server:
        with pytest.raises(SamplerError, match="a pause of 86400 s, above max_pause=2 s"):
            sample(server, retries=3, max_pause=2)
        assert len(server.received) == 1


def test_reported_rate_limits_are_respected() -> None:
    times: list[float] = []
    exhausted = answer(
        chat(), x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests="600ms", Connection="close"
    )
    with HostileEndpoint([timed(exhausted, times), timed(HELLO, times)]) as server:

        async def scenario() -> None:
            async with OpenAISampler(model="m", base_url=server.url, api_key="") as sampler:
                await sampler.sample([ASK])
                await sampler.sample([ASK])

        asyncio.run(scenario())
    first, second = times
    assert second - first >= 0.59


def test_without_aiohttp_the_extra_is_named() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import rllm_gym.samplers as samplers; samplers.OpenAISampler"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert result.stderr.splitlines()[-1].endswith("pip install 'rllm-gym[openai]'"), result.stderr


# The API key


def test_the_key_is_not_sent_to_another_host() -> None:
    with HostileEndpoint([HELLO]) as other_server:
        away = [answer(b"", status, Location=f"{other_server.url}/chat/completions") for status in (301, 302, 307, 308)]
        assert not unexpected((reply, r"redirect to .*base_url") for reply in away)
        assert other_server.received == []


def test_a_redirect_within_the_host_is_followed_as_a_post_with_the_key() -> None:
    with HostileEndpoint([answer(b"", 307, Location="/v2/chat/completions?x=1"), HELLO]) as server:
        assert sample(server)[0].text == "hello"
    assert server.received[1].line == "POST /v2/chat/completions?x=1 HTTP/1.1"
    assert server.received[1].headers["authorization"] == f"Bearer {KEY}"
    assert server.received[1].body == server.received[0].body


def test_credentials_in_a_redirect_within_the_host_are_dropped() -> None:
    with HostileEndpoint([lambda connection, released: connection.sendall(redirect), HELLO]) as server:
        host = server.url.removeprefix("http://").partition("/")[0]
        redirect = f"HTTP/1.1 307 x\r\nLocation: http://u:p@{host}/v2\r\nContent-Length: 0\r\n\r\n".encode()
        assert sample(server)[0].text == "hello"
    assert server.received[1].headers["authorization"] == f"Bearer {KEY}"


def test_circular_redirects_end() -> None:
    with HostileEndpoint([answer(b"", 308, Location="/v1/chat/completions")]) as server:
        with pytest.raises(SamplerError, match="redirects"):
            sample(server, retries=3)
        assert len(server.received) == 4


def test_a_key_quoted_by_an_endpoint_is_masked_in_errors_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for reply in (
        refusal(f"Incorrect API key provided: {KEY}", 401),
        answer(f"<p>{KEY}</p>".encode(), 503),
        answer(b"", 307, Location=f"http://elsewhere.example/?key={KEY}"),
        answer({"choices": [KEY]}),
    ):
        with HostileEndpoint([reply]) as server, pytest.raises(SamplerError) as caught:
            sample(server)
        assert KEY not in "".join(traceback.format_exception(caught.value))
    assert KEY not in caplog.text


def test_an_invalid_key_is_refused_without_being_shown() -> None:
    for key in ("sk-1\nX-Evil: 1", "sk-ü1234"):
        with pytest.raises(ValueError, match="API key") as caught:
            OpenAISampler(model="m", base_url="http://127.0.0.1:1", api_key=key)
        assert key[:4] not in str(caught.value)


def test_a_trailing_line_break_of_a_key_is_removed() -> None:
    with HostileEndpoint([HELLO]) as server:
        sample(server, api_key=KEY + "\n")
    assert server.received[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HostileEndpoint([HELLO, answer(b"", 407)]) as proxy:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pw@127.0.0.1:{proxy.port}")

        async def scenario(base_url: str) -> list[Completion]:
            async with OpenAISampler(model="m", base_url=base_url, api_key=KEY, retries=0) as sampler:
                return await asyncio.wait_for(sampler.sample([ASK]), 100)

        assert asyncio.run(scenario("http://models.example/v1"))[0].text == "hello"
        with pytest.raises(SamplerError, match="407"):
            asyncio.run(scenario("https://models.example/v1"))
    plain, tunnel = proxy.received
    assert plain.line == "POST http://models.example/v1/chat/completions HTTP/1.1"
    assert plain.headers["authorization"] == f"Bearer {KEY}"
    assert tunnel.line == "CONNECT models.example:443 HTTP/1.1"
    assert "authorization" not in tunnel.headers
    assert plain.headers["proxy-authorization"] == tunnel.headers["proxy-authorization"] == "Basic bWU6cHc="


def test_a_server_without_tls_is_a_permanent_error() -> None:
    accepted = []

    def greet(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                connection, _ = listener.accept()
                accepted.append(connection)
                connection.sendall(b"220 mail.example ESMTP\r\n")

    async def scenario(port: int) -> None:
        async with OpenAISampler(model="m", base_url=f"https://127.0.0.1:{port}", api_key="", retries=5) as sampler:
            await asyncio.wait_for(sampler.sample([ASK]), 100)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, args=(listener,), daemon=True)
        thread.start()
        with pytest.raises(SamplerError, match="SSLError"):
            asyncio.run(scenario(listener.getsockname()[1]))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(100)
    (connection,) = accepted
    connection.close()


def test_an_invalid_base_url_is_refused() -> None:
    urls = [
        "localhost:8000/v1",
        "file:///etc/passwd",
        "http://",
        "http://me:pw@host/v1",
        "http://[::1",
        "http://h:99999",
    ]
    taken = []
    for url in urls:
        try:
            OpenAISampler(model="m", base_url=url, api_key="")
        except ValueError as error:
            if "base_url" in str(error):
                continue
        taken.append(url)
    assert not taken


# Connections and cancellation


def test_connections_are_reused_and_a_closed_one_is_replaced() -> None:
    last = answer(chat("bye"), Connection="close")
    with HostileEndpoint([HELLO, HELLO, last, HELLO]) as server:

        async def scenario() -> list[str]:
            async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=0) as sampler:
                return [(await sampler.sample([ASK]))[0].text for _ in range(4)]

        assert asyncio.run(scenario()) == ["hello", "hello", "bye", "hello"]
    assert [received.connection for received in server.received] == [1, 1, 1, 2]


def test_a_reused_connection_that_dies_costs_no_retry() -> None:
    with HostileEndpoint([HELLO, close_silently, HELLO]) as server:

        async def scenario() -> list[str]:
            async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=0) as sampler:
                return [(await sampler.sample([ASK]))[0].text for _ in range(2)]

        assert asyncio.run(scenario()) == ["hello", "hello"]


def test_a_new_connection_that_dies_is_not_asked_again_without_retries() -> None:
    with HostileEndpoint([close_silently, HELLO]) as server:
        with pytest.raises(SamplerError, match="closed without a reply"):
            sample(server, retries=0)
        assert len(server.received) == 1


def test_a_sampler_works_on_successive_event_loops() -> None:
    with HostileEndpoint([HELLO]) as server:
        sampler = OpenAISampler(model="m", base_url=server.url, api_key="")
        for _ in range(3):
            assert asyncio.run(sampler.sample([ASK]))[0].text == "hello"
        asyncio.run(sampler.close())
        with pytest.raises(SamplerError, match="closed"):
            asyncio.run(sampler.sample([ASK]))
    assert server.connections == 1


def test_cancelling_a_call_closes_its_connection_and_frees_its_place() -> None:
    received, ended = threading.Event(), threading.Event()

    def wait_for_close(connection: socket.socket, released: threading.Event) -> None:
        received.set()
        if connection.recv(1) == b"":
            ended.set()

    async def scenario(server: HostileEndpoint) -> None:
        settings: dict[str, Any] = {"api_key": "", "parallel": 1, "timeout": 600}
        async with OpenAISampler(model="m", base_url=server.url, **settings) as sampler:
            cancelled = asyncio.create_task(sampler.sample([ASK]))
            assert await asyncio.to_thread(received.wait, 100)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            # The only place is free for the next one.
            assert (await asyncio.wait_for(sampler.sample([ASK]), 100))[0].text == "hello"

    with HostileEndpoint([wait_for_close, HELLO]) as server:
        asyncio.run(scenario(server))
        assert ended.wait(100)


@pytest.mark.long
def test_a_sampler_that_is_never_closed_ends_its_connection_and_thread() -> None:
    ended = threading.Event()

    def answer_and_wait(connection: socket.socket, released: threading.Event) -> None:
        connection.sendall(HELLO)
        if connection.recv(1) == b"":
            ended.set()

    with HostileEndpoint([answer_and_wait]) as server:
        others = set(threading.enumerate())
        sampler = OpenAISampler(model="m", base_url=server.url, api_key="")
        assert asyncio.run(sampler.sample([ASK]))[0].text == "hello"
        (thread,) = [new for new in set(threading.enumerate()) - others if new.name == "openai-sampler"]
        del sampler
        gc.collect()
        assert ended.wait(100)
        thread.join(100)
        assert not thread.is_alive()


def test_closing_ends_calls_in_progress() -> None:
    received = threading.Event()

    def receive_and_hang(connection: socket.socket, released: threading.Event) -> None:
        received.set()
        released.wait()

    async def scenario(server: HostileEndpoint) -> None:
        sampler = OpenAISampler(model="m", base_url=server.url, api_key="", timeout=600)
        call = asyncio.create_task(sampler.sample([ASK]))
        assert await asyncio.to_thread(received.wait, 100)
        await sampler.close()
        await sampler.close()
        with pytest.raises(SamplerError, match="closed before this call finished"):
            await asyncio.wait_for(call, 100)

    with HostileEndpoint([receive_and_hang]) as server:
        asyncio.run(scenario(server))


def test_one_refusal_ends_the_other_requests_of_the_call() -> None:
    """The others would take 600 s."""
    with HostileEndpoint([refusal("no", 400), hang]) as server, pytest.raises(SamplerError, match="400: no"):
        sample(server, *[ASK] * 8, timeout=600)


def test_an_unreachable_server_is_reported_with_the_address() -> None:
    with socket.socket() as reserved:  # nothing listens on its port, and no other process can
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        sampler = OpenAISampler(model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key="", retries=1)
        with pytest.raises(SamplerError, match=rf"127\.0\.0\.1:{port}/v1: ConnectionRefusedError"):
            asyncio.run(sampler.sample([ASK]))
        asyncio.run(sampler.close())
