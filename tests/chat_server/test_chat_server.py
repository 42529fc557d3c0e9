"""The endpoint as OpenAI's own client sees it, and what it says to clients that send anything else."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest

from rllm_gym.chat_server import ChatReply, ChatRequest, ChatServer, RequestError, chat_request, reply_message
from rllm_gym.samplers import SamplerError
from tests.waiting import auntil

TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = 'Let me add.<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "é"]}}\n</tool_call>'

Body = dict[str, Any]


def serve(use: Callable[[ChatServer, openai.AsyncOpenAI], Awaitable[None]], respond: Any) -> None:
    """Run ``use`` with a server and OpenAI's client for it."""

    async def run() -> None:
        async with (
            ChatServer(respond) as server,
            openai.AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client,
        ):
            await use(server, client)

    asyncio.run(run())


async def echo(request: ChatRequest) -> ChatReply:
    text = CALL if request.tools else f"you said {request.messages[-1]['content']}"
    message = reply_message(text, tools=bool(request.tools), name="0")
    return ChatReply(message, "tool_calls" if "tool_calls" in message else "stop", 7, 3)


def test_openais_client_gets_replies_calls_and_the_number_of_tokens() -> None:
    async def use(server: ChatServer, client: openai.AsyncOpenAI) -> None:
        content: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}], n=2)
        assert [choice.message.content for choice in reply.choices] == ["you said a\nb"] * 2
        assert (reply.model, reply.choices[0].finish_reason) == ("m", "stop")
        assert reply.usage is not None
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 6, 13)
        called = await client.chat.completions.create(
            model="m", messages=[{"role": "developer", "content": "x"}], tools=[TOOL], tool_choice="auto"
        )
        message = called.choices[0].message
        assert (message.content, called.choices[0].finish_reason) == ("Let me add.", "tool_calls")
        assert message.tool_calls is not None
        call: Any = message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": [2, "é"]})
        assert [model.id async for model in client.models.list()] == ["rllm-gym"]

    serve(use, echo)


def test_openais_client_reads_streams() -> None:
    async def use(server: ChatServer, client: openai.AsyncOpenAI) -> None:
        for tools in ([], [TOOL]):
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
                tools=tools or openai.omit,
            )
            events = [event async for event in stream]
            deltas = [event.choices[0].delta for event in events if event.choices]
            assert "".join(delta.content or "" for delta in deltas) == ("Let me add." if tools else "you said hi")
            calls = [call.function.name for delta in deltas for call in delta.tool_calls or () if call.function]
            assert calls == ["add"] * len(tools)
            assert events[-1].usage is not None
            assert events[-1].usage.total_tokens == 10
            assert events[-2].choices[0].finish_reason == ("tool_calls" if tools else "stop")

    serve(use, echo)


def test_openais_client_uses_the_responses_api() -> None:
    seen: list[ChatRequest] = []
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}

    async def respond(request: ChatRequest) -> ChatReply:
        seen.append(request)
        return await echo(request)

    async def use(server: ChatServer, client: openai.AsyncOpenAI) -> None:
        said = await client.responses.create(model="m", instructions="Be brief.", input="hi", max_output_tokens=9)
        assert (said.output_text, said.status, said.usage and said.usage.total_tokens) == (
            "you said hi",
            "completed",
            10,
        )
        assert [(item["role"], item["content"]) for item in seen[0].messages] == [
            ("system", "Be brief."),
            ("user", "hi"),
        ]
        assert seen[0].max_tokens == 9
        asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]}]
        called = await client.responses.create(model="m", input=asked, tools=[tool])
        assert [item.type for item in called.output] == ["message", "function_call"]
        call: Any = called.output[1]
        assert json.loads(call.arguments) == {"a": 1, "b": [2, "é"]}
        asked += [item.model_dump() for item in called.output]
        asked.append({"type": "function_call_output", "call_id": call.call_id, "output": "4"})
        stream = await client.responses.create(model="m", input=asked, stream=True)
        events = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "you said 4"
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "you said 4"
        # The messages are those of chat completions, so that a conversation is recognized in either form.
        reply = (await echo(seen[1])).message
        user, assistant, result = seen[2].messages
        assert user == {"role": "user", "content": "2 + 2?"}
        assert assistant == reply
        assert result == {"role": "tool", "content": "4", "tool_call_id": call.call_id}
        for body, message in (
            ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id=.*; give the whole conversation"),
            ({"input": "a", "top_logprobs": 5}, "top_logprobs=5 is not supported; leave it out, or use 0"),
            ({"input": "a", "prompt": {"id": "p"}}, "prompt=.* is not supported; leave it out"),
            ({"input": 7}, "input=7 must be a text or a list"),
            ({"input": [7]}, r"input\[0\]=7 must be a message"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "reads only texts"),
            ({"input": [{"type": "function_call", "name": 7}]}, "must have a function with a name"),
            ({"input": "a", "tools": [{"type": "web_search"}]}, r"tools\[0\]="),
            ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text=.* is not supported"),
            ({"input": []}, "at least one message"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                await client.post("/responses", body=body, cast_to=object)

    serve(use, respond)


ASK: Body = {"messages": [{"role": "user", "content": "hi"}]}
WRONG: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ("7", "is not a JSON object"),
    ({}, "messages=null must be a list"),
    ({"messages": []}, "at least one message"),
    ({"messages": ["hi"]}, r'messages\[0\]="hi" is not an object'),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, 'role="wizard" must be one of system'),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "must be one of system"),
    ({"messages": [{"role": "user", "content": 7}]}, "must be a text or a list of parts"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "reads only texts"),
    ({"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]}, "has no tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {}}}]}]}, "JSON text"),
    ({"messages": [{"role": "tool", "content": "", "tool_call_id": 7}]}, "tool_call_id=7 must be a text"),
    ({**ASK, "tools": {"a": 1}}, "must be a list"),
    ({**ASK, "tools": [{"type": "function"}]}, r"tools\[0\]"),
    ({**ASK, "tool_choice": "required"}, 'tool_choice="required" is not supported'),
    ({**ASK, "response_format": {"type": "json_object"}}, "response_format=.* is not supported"),
    ({**ASK, "logprobs": True}, "logprobs=true is not supported"),
    ({**ASK, "logit_bias": {"5": 100}}, "logit_bias=.* is not supported"),
    ({**ASK, "n": 10**6}, "n=1000000 must be a whole number from 1 to 64"),
    ({**ASK, "max_tokens": "5"}, 'max_tokens="5" must be a whole number'),
    ({**ASK, "seed": 1.5}, "seed=1.5 must be a whole number"),
    ({**ASK, "seed": 1 << 64}, "must be a whole number of at most 63 bits"),
    ({**ASK, "max_tokens": True}, "max_tokens=true must be a whole number"),
    ({**ASK, "temperature": 1e999}, "temperature=Infinity must be a number from 0 to 2"),
    ({**ASK, "stop": [""]}, "stop="),
    ({**ASK, "metadata": {"conversation_id": 7}}, "metadata.conversation_id=7 must be a text"),
    ({**ASK, "metadata": {"conversation_id": "a\nb"}}, "printable"),
    ({**ASK, "stop": ["a"] * 100}, "up to 16 texts"),
]


def test_a_body_that_is_no_request_is_refused_by_name() -> None:
    for body, message in WRONG:
        with pytest.raises(RequestError, match=message):
            chat_request((body if isinstance(body, str) else json.dumps(body)).encode())
    accepted = {**ASK, "user": "x", "metadata": {}, "seed": 1, "store": False, "response_format": {"type": "text"}}
    assert chat_request(json.dumps(accepted).encode()).messages == ({"role": "user", "content": "hi"},)


def test_errors_reach_the_client_with_their_status() -> None:
    failures = iter([RequestError("too long", code="context_length_exceeded"), SamplerError("it died"), KeyError("x")])

    async def fail(request: ChatRequest) -> ChatReply:
        raise next(failures)

    async def use(server: ChatServer, client: openai.AsyncOpenAI) -> None:
        for status, message in ((400, "too long"), (503, "it died"), (503, "KeyError: 'x'")):
            with pytest.raises(openai.APIStatusError, match=message) as raised:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            assert raised.value.status_code == status
        async with aiohttp.ClientSession() as other:
            for key in ("", "Bearer wrong", "Bearer \x00é".encode("latin-1").decode("latin-1").replace("\x00", "")):
                async with other.post(f"{server.url}/chat/completions", json=ASK, headers={"Authorization": key}) as r:
                    assert r.status == 401
                    assert (await r.json())["error"]["code"] == "invalid_api_key"
            own = {"Authorization": f"Bearer {server.key}"}
            async with other.post(f"{server.url}/chat/completions", data=b"\xff\xfe", headers=own) as r:
                assert r.status == 400

    serve(use, fail)


def test_a_request_is_cancelled_when_its_client_is_gone() -> None:
    async def use(server: ChatServer, client: openai.AsyncOpenAI) -> None:
        host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(ASK).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await asyncio.wait_for(started.wait(), 60)
        writer.close()
        await asyncio.wait_for(cancelled.wait(), 60)

    started, cancelled = asyncio.Event(), asyncio.Event()

    async def never(request: ChatRequest) -> ChatReply:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
        raise AssertionError

    serve(use, never)


@pytest.mark.parametrize(("path", "asked"), [("chat/completions", ASK), ("responses", {"input": "hi"})])
def test_a_client_that_does_not_read_loses_its_connection(
    path: str, asked: Body, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And so its place and its descriptor, without an error in the log: a client could fill that."""
    monkeypatch.setattr("rllm_gym.chat_server.server._READ_S", 0.01)
    long = 1 << 24

    async def respond(request: ChatRequest) -> ChatReply:
        return ChatReply({"role": "assistant", "content": "x" * (long if request.stream else 1)}, "stop")

    async def run() -> None:
        async with ChatServer(respond, max_replies=1) as server, aiohttp.ClientSession() as session:
            host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
            with socket.create_connection((host, int(port))) as client:
                client.setblocking(False)
                body = json.dumps({**asked, "stream": True})
                head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                assert (await loop.sock_recv(client, 12)) == b"HTTP/1.1 200"

                async def has_place() -> bool:
                    headers = {"Authorization": f"Bearer {server.key}"}
                    async with session.post(f"{server.url}/chat/completions", json=ASK, headers=headers) as answer:
                        return answer.status == 200

                await auntil(has_place)
                received = 0
                try:
                    while data := await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 60):
                        received += len(data)
                except ConnectionResetError:
                    pass
                assert received < long, "the rest was kept for it"

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert not caplog.records


def test_a_reply_that_is_cancelled_has_its_place_until_it_has_ended() -> None:
    """And the server does not end before."""

    async def run() -> None:
        cancelled, ending, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def respond(request: ChatRequest) -> ChatReply:
            assert request.on_part is not None
            request.on_part(ChatReply({"role": "assistant", "content": "a"}, ""))
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.set()
                await ending.wait()
                for _ in range(1000):  # iterations of the event loop, many more than the server's end takes
                    await asyncio.sleep(0)
                ended.set()
            raise AssertionError

        options: Any = {"max_replies": 1, "shutdown_s": 0.001}
        async with ChatServer(respond, **options) as server, aiohttp.ClientSession() as session:
            url, headers = f"{server.url}/chat/completions", {"Authorization": f"Bearer {server.key}"}
            answer = await session.post(url, json={**ASK, "stream": True}, headers=headers)
            assert b'"content": "a"' in await answer.content.readline()
            answer.close()
            await asyncio.wait_for(cancelled.wait(), 60)
            async with session.post(url, json=ASK, headers=headers) as refused:
                assert refused.status == 429
            ending.set()
        assert ended.is_set()

    asyncio.run(run())


def test_requests_above_the_limit_are_refused_before_their_bodies_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        release, asked = asyncio.Event(), []

        async def wait(request: ChatRequest) -> ChatReply:
            asked.append(request)
            await release.wait()
            return await echo(request)

        async with ChatServer(wait, max_replies=3) as server, aiohttp.ClientSession() as session:
            url, key = f"{server.url}/chat/completions", {"Authorization": f"Bearer {server.key}"}

            async def post(body: Body) -> tuple[int, str]:
                async with session.post(url, json=body, headers=key) as answer:
                    return answer.status, await answer.text()

            status, text = await post({**ASK, "n": 4})  # which could never be accepted
            assert (status, "n=4 must be at most 3" in text) == (400, True)
            two = asyncio.create_task(post({**ASK, "n": 2}))
            await auntil(lambda: len(asked) == 2)
            assert (await post({**ASK, "n": 2}))[0] == 429
            last = asyncio.create_task(post(ASK))
            await auntil(lambda: len(asked) == 3)
            host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {key['Authorization']}\r\n"
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode())  # and never the body
            assert b" 429 " in await asyncio.wait_for(reader.readline(), 60)
            writer.close()
            release.set()
            assert [(await two)[0], (await last)[0]] == [200, 200]
            assert (await post(ASK))[0] == 200
            monkeypatch.setattr("rllm_gym.chat_server.server._BODY_S", 0.01)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n".encode())
            assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
            writer.close()

    asyncio.run(run())


def test_without_a_key_no_web_page_may_ask() -> None:
    async def run() -> None:
        async with ChatServer(echo, key="") as server, aiohttp.ClientSession() as session:
            for headers, status in (({}, 200), ({"Origin": "https://example.com"}, 403)):
                async with session.post(f"{server.url}/chat/completions", json=ASK, headers=headers) as response:
                    assert response.status == status

    asyncio.run(run())


def test_requests_in_progress_are_answered_at_the_end() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(request: ChatRequest) -> ChatReply:
        started.set()
        await release.wait()
        return await echo(request)

    async def refused(port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return True
        writer.close()
        return False

    async def run() -> None:
        server = ChatServer(slow, shutdown_s=300)
        await server.__aenter__()
        port = int(server.url.split(":")[2].split("/")[0])
        async with openai.AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
            asked = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            reply = asyncio.create_task(asked)
            await started.wait()
            ending = asyncio.create_task(server.__aexit__(None, None, None))
            await auntil(lambda: refused(port))
            release.set()
            assert (await reply).choices[0].message.content == "you said hi"
            await ending

    asyncio.run(run())
