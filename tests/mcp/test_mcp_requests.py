"""A server's requests for input of the user and for a completion, answered by the model that is trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'rllm-gym[mcp]'")

from rllm_gym.agents import MCPAgent
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.envs.mcp import MCPEnv, ToolState
from rllm_gym.mcp import HttpServer, Server, ServerFault, StdioServer, shared_pool
from rllm_gym.mcp.connection import ServerConnection
from rllm_gym.mcp.server_requests import RequestAnswers, passed_on
from rllm_gym.samplers import ScriptedSampler
from tests.chat.templates import make_tokenizer
from tests.envs.tool_call import call
from tests.mcp import asking_server
from tests.mcp.offering_server import make_server
from tests.mcp.running_application import refusing_the_handshake, running
from tests.mcp.scenarios import run_scenario
from tests.waiting import auntil

OFFERING = str(Path(__file__).with_name("offering_server.py"))
BY_MODEL = {"elicitations": "model", "samples": "model"}
INPUT = {"message": "Where to?", "requestedSchema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def program(**options: Any) -> StdioServer:
    return StdioServer("{python}", (OFFERING,), timeout=120.0, **BY_MODEL, **options)


def make_env(server: Server, **options: Any) -> MCPEnv:
    row = {"prompt": "Book a trip to Graz.", "servers": [server], "answer": {"type": "string", "value": "Graz"}}
    return MCPEnv(tasks=[{**row, **options}])


def answered_by_the_model(server: Server) -> None:
    env = make_env(server)
    env.reset(seed=0)
    observation = env.step(call("book"))[0]
    assert observation.startswith(
        "Before it answers your call, the server server1 asks for input of its user:\nWhere to?"
    )
    assert "- answer_request(city: string): " in observation
    assert "- decline_request(): " in observation
    assert list(env.available_tools) == ["answer_request", "decline_request", "finish", "report_infeasible"]
    for invalid in (call("book"), "Graz", call("answer_request", town="Graz"), call("decline_request") * 2):
        assert env.step(invalid)[4]["invalid_action"], invalid
    assert env.step(call("answer_request", city="Graz"))[0] == "Result, book:\naccept: Graz"
    env.step(call("book"))  # half a character, which no server could read
    assert env.step(call("answer_request", city="Gr\ud800z"))[0] == "Result, book:\naccept: Gr?z"
    assert "asks for a completion of a conversation:\nuser:\n?" in env.step(call("think"))[0]
    assert env.step(call("answer_request", text="42"))[0] == "Result, think:\nagent: 42"
    # Two calls at once: a request of each, one after the other, and then both results.
    asked = [env.step(reply)[0] for reply in (call("book") + call("think"), call("decline_request"))]
    assert sorted(("input" in text, "completion" in text) for text in asked) == [(False, True), (True, False)]
    observation, *_, info = env.step(call("decline_request"))
    assert observation == (
        "Result 1 of 2, book:\ndecline: \n\n"
        "Result 2 of 2, think (failed):\nError: the user declines the request (error -1)"
    )
    assert (info["tools_called"], info["tool_errors"]) == (5, 1)
    # The end of the episode declines what waits.
    env.step(call("book"))
    _, reward, terminated, _, info = env.step(call("finish", answer="Graz"))
    assert (reward, terminated, info["tools_called"]) == (1.0, True, 6)
    env.close()


def test_a_program_asks_the_model() -> None:
    answered_by_the_model(program())


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_server_at_a_url_asks_the_model(transport: str) -> None:
    application = make_server().sse_app() if transport == "sse" else make_server().streamable_http_app()
    with running(application) as url:
        url = url.replace("/mcp", "/sse") if transport == "sse" else url
        answered_by_the_model(HttpServer(url, transport=transport, timeout=120.0, **BY_MODEL))


@pytest.mark.parametrize("wrap", [lambda app: app, refusing_the_handshake], ids=["handshake", "stateless"])
def test_a_result_that_requires_input_is_answered_like_a_request(wrap: Any) -> None:
    """Servers of the protocol of 2026 send no requests of their own."""
    with running(wrap(asking_server.make_server().streamable_http_app())) as url:
        env = make_env(HttpServer(url, timeout=120.0, **BY_MODEL))
        env.reset(seed=0)
        assert "asks for input of its user:\nWhere to?" in env.step(call("book"))[0]
        assert env.step(call("answer_request", city="Graz"))[0] == "Result, book:\nto Graz"
        env.step(call("book"))
        assert env.step(call("decline_request"))[0].startswith("Result, book (failed):")
        env.close()
        env = make_env(HttpServer(url, timeout=120.0, elicitations=({"city": "Linz"},)))
        env.reset(seed=0)
        assert env.step(call("book"))[0] == "Result, book:\nto Linz"
        env.close()


def test_a_call_that_waits_for_the_model_ends_with_its_session(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        session = await shared_pool().open([HttpServer(url, timeout=120.0, **BY_MODEL)], workspace=tmp_path)
        session.listen(lambda: None)
        call_that_asks = session.start("book", {})
        await auntil(lambda: session.requests)
        await session.close()
        await auntil(call_that_asks.done)

    with running(refusing_the_handshake(asking_server.make_server().streamable_http_app())) as url:
        run_scenario(scenario, url)


class Scripted(ServerConnection):
    """A connection whose requests have these results."""

    def __init__(self, *results: Any) -> None:
        super().__init__("scripted", RequestAnswers(({"city": "Graz"},), ()))
        self.results, self.sent = [*results], list[dict[str, Any]]()

    def _client(self) -> Any:
        raise NotImplementedError

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(params)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


ASKS = {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create", "params": INPUT}}}


def test_input_that_a_result_requires_is_sent_with_the_call_again() -> None:
    async def scenario() -> None:
        plain: dict[str, Any] = {"name": "book", "arguments": {}}
        answer = {"a": {"action": "accept", "content": {"city": "Graz"}}}
        asked = Scripted({**ASKS, "requestState": "s"}, {"content": []})
        assert await asked.request_with_input("tools/call", plain) == {"content": []}
        assert asked.sent == [plain, {**plain, "input_responses": answer, "request_state": "s"}]
        # A request of another kind cannot have it, a server that goes on asking gets no more, nor one that asks oddly.
        assert await Scripted(ASKS).request_with_input("resources/list", {}) == ASKS
        insatiable = Scripted(*[ASKS] * 50)
        assert await insatiable.request_with_input("tools/call", plain) == ASKS
        assert len(insatiable.sent) == 11
        odd = {"resultType": "input_required", "inputRequests": {"a": {"method": "sampling/createMessage"}}}
        for result in (odd, {**odd, "inputRequests": {"a": 1}}):
            assert await Scripted(result).request_with_input("tools/call", plain) == result
        # The call has reached the server, which is gone now: the model may have caused that.
        lost = Scripted(ASKS, ServerFault("gone", kind="server_unreachable"))
        with pytest.raises(ServerFault) as caught:
            await lost.request_with_input("tools/call", plain)
        assert caught.value.kind == "server_died"

    run_scenario(scenario)


def test_the_deadline_of_a_call_stands_still_while_the_model_is_asked() -> None:
    async def scenario() -> None:
        answers, loop = RequestAnswers("model", ()), asyncio.get_running_loop()
        asked = asyncio.Event()
        answers.listen(asked.set)
        async with asyncio.timeout(1000) as deadline, asyncio.timeout(2000) as other:
            with answers.suspending(deadline):
                asking = [asyncio.ensure_future(answers.answer("elicitation/create", INPUT)) for _ in range(2)]
                await asked.wait()
                assert deadline.when() is None
                with answers.suspending(other):
                    assert other.when() is None
                    answers.waiting[0].answer({"city": "Graz"})
                    assert await asking[0] == {"action": "accept", "content": {"city": "Graz"}}
                    assert deadline.when() is None
                    answers.listen(None)
                    assert await asking[1] == {"action": "decline"}
                    now = loop.time()
                    ends = [deadline.when() or 0.0, other.when() or 0.0]
                    assert now < ends[0] <= now + 1000 < ends[1] <= now + 2000

    run_scenario(scenario)


def test_only_calls_of_the_model_ask_it() -> None:
    async def scenario() -> None:
        answers = RequestAnswers("model", "model")
        assert await answers.answer("elicitation/create", INPUT) == {"action": "decline"}
        assert await answers.answer("sampling/createMessage", {"messages": []}) is None
        answers.listen(lambda: None)
        for params in ({}, {"message": 1}, {**INPUT, "mode": "url"}, {**INPUT, "requestedSchema": []}):
            assert await answers.answer("elicitation/create", params) == {"action": "decline"}, params
        assert await answers.answer("sampling/createMessage", {"messages": {}}) is None
        assert answers.waiting == []

    run_scenario(scenario)


def booked(state: ToolState) -> bool:
    """Ask during the check, in which no model answers."""
    return state.call("book").text == "decline: "


def test_a_check_whose_call_asks_for_input_is_not_answered_by_the_model() -> None:
    env = make_env(program(), check=booked)
    env.reset(seed=0)
    assert env.step("Graz")[1] == 1.0
    env.close()


def test_the_parameters_of_requests_are_bounded() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    request = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"}
    assert passed_on({**request, "params": INPUT}) == {**request, "params": INPUT}
    for params in ({"message": "x" * 300_000}, {"message": deep}, [1], None):
        assert passed_on({**request, "params": params}) == request
    assert passed_on({**request, "method": "roots/list", "params": INPUT}) == {**request, "method": "roots/list"}


def test_the_answer_to_a_request_is_a_turn_of_the_agent() -> None:
    tokenizer, replies = make_tokenizer("qwen2.5"), [call("book"), call("answer_request", city="Graz"), "Graz"]
    sampler = ScriptedSampler(replies, tokenizer)
    row = {"prompt": "Book.", "servers": [program()], "answer": {"type": "string", "value": "Graz"}}
    engine = AgentExecutionEngine(env="rllm/MCP-v0", env_kwargs={"tasks": [row]}, agent=MCPAgent, sampler=sampler)
    (episode,) = engine.run_sync([0])
    (trajectory,) = episode.trajectories
    assert trajectory.reward == 1.0
    assert "Where to?" in tokenizer.decode(trajectory.steps[1].tokens.context_ids)  # where the mask is 0
    for step, reply in zip(trajectory.steps, replies, strict=True):
        assert tokenizer.decode(step.tokens.ids).startswith(reply[:20])
