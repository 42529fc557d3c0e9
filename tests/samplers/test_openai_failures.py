"""Endpoints that are slow, busy, broken or malicious: the sampler ends in time, says why, and keeps its key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
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
    """Replies of a new sampler. What waits for an answer that never comes fails after 100 s."""

    async def scenario() -> list[Completion]:
        settings: dict[str, Any] = {"retries": 0, "timeout": 90.0, "api_key": KEY} | arguments
        async with OpenAISampler(model="m", base_url=server.url, **settings) as sampler:
            return await asyncio.wait_for(sampler.sample(requests or [ASK]), 100)

    return asyncio.run(scenario())


def unexpected(
    cases: Iterable[tuple[Reply, str]], context: Callable[[HostileEndpoint], list[Completion]] = sample
) -> list[tuple[str, str]]:
    """Cases of a reply and a pattern in which the error does not match the pattern or does not name the address."""
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


def hang(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def drip(connection: socket.socket, over: threading.Event) -> None:
    """A byte of a header now and then, for ever: never silent, never done."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(0.05):
        connection.sendall(b"z")


def drip_body(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.05):
        connection.sendall(b" ")


def flood(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not over.is_set():
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def vanish(connection: socket.socket, over: threading.Event) -> None:
    """Close without a word."""


def test_an_endpoint_that_never_gets_done_costs_one_timeout_and_no_more() -> None:
    for reply in (hang, drip, drip_body):
        with HostileEndpoint([reply]) as server:
            with pytest.raises(SamplerError, match=r"did not answer within 0\.4 s"):
                sample(server, timeout=0.4, retries=3)
            assert len(server.asked) <= 1, reply


def test_silence_has_a_limit_of_its_own() -> None:
    with HostileEndpoint([hang]) as server, pytest.raises(SamplerError, match=r"silent for 0\.3 s"):
        sample(server, timeout=600, silence_timeout=0.3)


def test_nonsense_is_an_error_that_says_what_came() -> None:
    cases: list[tuple[Reply, str]] = [
        (flood, "more than 1000000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\nConnection: close\r\n\r\n{", "broke off in the middle"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n9\r\n{",
            "broke off in the middle",
        ),
        (b"220 mail.example ESMTP\r\nConnection: close\r\n\r\n", "BadStatusLine"),
        (vanish, "RemoteDisconnected"),
        (answer(b"<html><h1>Log in</h1></html>"), "no JSON .*Log in"),
        (answer(b"[" * 100_000), "no JSON"),
        (answer(b"\x1f\x8b\x08", Content_Encoding="gzip"), "encoded as 'gzip'"),
        (answer([1, 2]), "no chat completion"),
        (answer(chat(finish="abort")), "gave up in the middle"),
        (answer(b"<html>\n<h1>502  Bad\nGateway</h1></html>", 502), "502: <html> <h1>502 Bad Gateway</h1></html>"),
        (answer(b"", 500), "500: no reason given"),
        (refusal("You exceeded your current quota", 429, "insufficient_quota"), "429: You exceeded"),
        (answer({"error": {"message": "no provider", "code": "odd"}}), "400: no provider"),
        (answer({"error": "upstream"}), "400: upstream"),
        (refusal("no such key", 401), "401: no such key .*OPENAI_API_KEY"),
    ]
    assert not unexpected(cases, lambda server: sample(server, max_reply_bytes=1_000_000))


def test_what_may_pass_is_asked_again() -> None:
    passing: list[Reply] = [
        vanish,
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

    async def all_at_once(servers: list[HostileEndpoint]) -> list[Any]:
        return await asyncio.gather(*map(scenario, servers), return_exceptions=True)

    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(HostileEndpoint([reply, HELLO])) for reply in passing]
        completions = asyncio.run(all_at_once(servers))
    got = [(completion, len(server.asked)) for completion, server in zip(completions, servers, strict=True)]
    wrong = [(repr(reply), item) for reply, item in zip(passing, got) if item != (Completion((), (), "hello"), 2)]
    assert not wrong


def test_what_stays_as_it_is_is_asked_once() -> None:
    for reply in (answer(b"<html>"), refusal("bad temperature", 400), refusal("quota", 429, "insufficient_quota")):
        with HostileEndpoint([reply]) as server:
            with pytest.raises(SamplerError):
                sample(server, retries=5)
            assert len(server.asked) == 1, reply


def timed(reply: bytes, times: list[float]) -> Callable[[socket.socket, threading.Event], None]:
    """A reply that first notes when it is sent."""

    def send(connection: socket.socket, over: threading.Event) -> None:
        times.append(time.monotonic())
        connection.sendall(reply)

    return send


def test_a_pause_that_is_asked_for_is_kept_by_everyone() -> None:
    """The requests that would come during the pause wait, too: else they would all be refused in turn."""
    times: list[float] = []

    async def scenario(server: HostileEndpoint) -> None:
        async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=1, parallel=1) as sampler:
            await asyncio.gather(*(sampler.sample([ASK]) for _ in range(3)))

    closing = refusal("slow down", 429, Connection="close", Retry_After_Ms="700")
    with HostileEndpoint([timed(closing, times), timed(answer(chat(), Connection="close"), times)]) as server:
        asyncio.run(scenario(server))
    assert len(times) >= 4
    # Those already in line behind the first may have gone out at once; the refused one may not.
    assert max(times) - times[0] >= 0.69


def test_a_pause_that_is_too_long_is_an_error_and_not_a_hang() -> None:
    with HostileEndpoint([refusal("later", 429, Retry_After="86400")]) as server:
        with pytest.raises(SamplerError, match="come back in 86400 s, and max_pause is 2 s"):
            sample(server, retries=3, max_pause=2)
        assert len(server.asked) == 1


def test_reported_rate_limits_are_respected() -> None:
    times: list[float] = []
    spent = answer(chat(), x_ratelimit_remaining_requests="0", x_ratelimit_reset_requests="600ms", Connection="close")
    with HostileEndpoint([timed(spent, times), timed(HELLO, times)]) as server:

        async def scenario() -> None:
            async with OpenAISampler(model="m", base_url=server.url, api_key="") as sampler:
                await sampler.sample([ASK])
                await sampler.sample([ASK])

        asyncio.run(scenario())
    first, second = times
    assert second - first >= 0.59


# The key ------------------------------------------------------------------------------------------------------


def test_the_key_does_not_travel_to_another_host() -> None:
    with HostileEndpoint([HELLO]) as thief:
        away = [answer(b"", status, Location=f"{thief.url}/chat/completions") for status in (301, 302, 307, 308)]
        assert not unexpected((reply, r"redirects to .*base_url") for reply in away)
        assert thief.asked == []


def test_a_redirect_within_the_host_is_followed_as_a_post_with_the_key() -> None:
    with HostileEndpoint([answer(b"", 307, Location="/v2/chat/completions?x=1"), HELLO]) as server:
        assert sample(server)[0].text == "hello"
    assert server.asked[1].line == "POST /v2/chat/completions?x=1 HTTP/1.1"
    assert server.asked[1].headers["authorization"] == f"Bearer {KEY}"
    assert server.asked[1].body == server.asked[0].body


def test_redirects_in_a_circle_end() -> None:
    with HostileEndpoint([answer(b"", 308, Location="/v1/chat/completions")]) as server:
        with pytest.raises(SamplerError, match="redirects"):
            sample(server, retries=3)
        assert len(server.asked) == 4


def test_an_endpoint_that_quotes_the_key_does_not_get_it_into_errors_or_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for reply in (
        refusal(f"Incorrect API key provided: {KEY}", 401),
        answer(f"<p>{KEY}</p>".encode(), 503),
        answer(b"", 307, Location=f"http://elsewhere.example/?key={KEY}"),
        answer({"choices": [KEY]}),
    ):
        with HostileEndpoint([reply]) as server, pytest.raises(SamplerError) as caught:
            sample(server)
        assert KEY not in str(caught.value)
    assert KEY not in caplog.text


def test_a_key_no_header_can_carry_is_refused_without_being_shown() -> None:
    for key in ("sk-1\nX-Evil: 1", "sk-ü1234"):
        with pytest.raises(ValueError, match="API key") as caught:
            OpenAISampler(model="m", base_url="http://127.0.0.1:1", api_key=key)
        assert key[:4] not in str(caught.value)


def test_a_line_break_behind_a_key_from_a_file_is_forgiven() -> None:
    with HostileEndpoint([HELLO]) as server:
        sample(server, api_key=KEY + "\n")
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_base_url_that_cannot_be_meant_is_refused() -> None:
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


# Connections and cancelling -----------------------------------------------------------------------------------


def test_connections_are_kept_and_a_closed_one_is_noticed() -> None:
    last = answer(chat("bye"), Connection="close")
    with HostileEndpoint([HELLO, HELLO, last, HELLO]) as server:

        async def scenario() -> list[str]:
            async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=0) as sampler:
                return [(await sampler.sample([ASK]))[0].text for _ in range(4)]

        assert asyncio.run(scenario()) == ["hello", "hello", "bye", "hello"]
    assert [asked.connection for asked in server.asked] == [1, 1, 1, 2]


def test_a_connection_that_dies_when_it_is_taken_again_costs_no_retry() -> None:
    with HostileEndpoint([HELLO, vanish, HELLO]) as server:

        async def scenario() -> list[str]:
            async with OpenAISampler(model="m", base_url=server.url, api_key="", retries=0) as sampler:
                return [(await sampler.sample([ASK]))[0].text for _ in range(2)]

        assert asyncio.run(scenario()) == ["hello", "hello"]


def test_a_sampler_serves_one_event_loop_after_another() -> None:
    with HostileEndpoint([HELLO]) as server:
        sampler = OpenAISampler(model="m", base_url=server.url, api_key="")
        for _ in range(3):
            assert asyncio.run(sampler.sample([ASK]))[0].text == "hello"
        asyncio.run(sampler.close())
        with pytest.raises(SamplerError, match="closed"):
            asyncio.run(sampler.sample([ASK]))
    assert server.connections == 1


def test_a_caller_that_gives_up_frees_connection_and_thread_at_once() -> None:
    asked, ended = threading.Event(), threading.Event()

    def notices(connection: socket.socket, over: threading.Event) -> None:
        asked.set()
        if connection.recv(1) == b"":
            ended.set()

    async def scenario(server: HostileEndpoint) -> None:
        settings: dict[str, Any] = {"api_key": "", "parallel": 1, "timeout": 600}
        async with OpenAISampler(model="m", base_url=server.url, **settings) as sampler:
            given_up = asyncio.create_task(sampler.sample([ASK]))
            assert await asyncio.to_thread(asked.wait, 100)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            # The only thread is free for the next one.
            assert (await asyncio.wait_for(sampler.sample([ASK]), 100))[0].text == "hello"

    with HostileEndpoint([notices, HELLO]) as server:
        asyncio.run(scenario(server))
        assert ended.wait(100)


def test_one_refusal_ends_the_other_requests_of_the_call() -> None:
    """The others would take 600 s."""
    with HostileEndpoint([refusal("no", 400), hang]) as server, pytest.raises(SamplerError, match="400: no"):
        sample(server, *[ASK] * 8, timeout=600)


def test_an_unreachable_server_is_reported_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sampler = OpenAISampler(model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key="", retries=1)
    with pytest.raises(SamplerError, match=rf"127\.0\.0\.1:{port}/v1: ConnectionRefusedError"):
        asyncio.run(sampler.sample([ASK]))
    asyncio.run(sampler.close())
