"""What clients of a served agent send is logged with the tokens that were sampled, and comes back as episodes."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from engine.test_call_recorder import PLANS, TOKENIZER, TOOLS, Calls, Sampled, ask
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.chat_server import ChatReply, ChatRequest, RequestError
from rllm_gym.samplers import SamplingParams, ScriptedSampler
from rllm_gym.serving import CallLog, Conversations, ServedAgent, calls_of_row, episode_of, json_lines
from rllm_gym.serving.replay import drawn
from tests.waiting import auntil

LIMIT = 1 << 30


def serve(sampler: ScriptedSampler, *, log: CallLog | None = None, **options: Any) -> ServedAgent:
    return ServedAgent(sampler, SamplingParams(max_tokens=100), log=log, model={"model": "m"}, **options)


def conversations_of(path: Path) -> Conversations:
    found = Conversations()
    for number, row in json_lines(path):
        assert isinstance(row, dict), row
        for call in calls_of_row(row):
            found.add(call, name=f"line {number}")
    return found


@settings(max_examples=25, deadline=None)
@given(plan=PLANS, tools=st.booleans())
def test_the_log_gives_back_every_reply_after_the_tokens_it_was_sampled_after(
    plan: list[tuple[str, int, int]], tools: bool
) -> None:
    sampled, clients = Sampled(calls=tools), Calls(plan, TOOLS if tools else "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.jsonl")
        with CallLog(path, max_bytes=LIMIT) as log:
            asyncio.run(clients.perform(serve(ScriptedSampler(sampled, TOKENIZER), log=log).respond))
        conversations = conversations_of(path)
    found, texts = [], []
    for conversation in conversations.by_id.values():
        episode = episode_of(conversation, 1.0)
        assert episode is not None
        texts += [step.model_response for step in episode.trajectories[0].steps]
        for sequence in episode.trajectories[0].branches():
            starts = [i for i in range(len(sequence)) if sequence.mask[i] and not (i and sequence.mask[i - 1])]
            for start in starts:
                end = next((i for i in range(start, len(sequence)) if not sequence.mask[i]), len(sequence))
                found.append((sequence.ids[:start], sequence.ids[start:end]))
                assert set(sequence.logprobs[start:end]) == {-0.5}
    assert sorted(found) == sorted(zip(sampled.prompts, sampled.replies, strict=True))
    assert sorted(texts) == sorted(TOKENIZER.decode(ids[:-1]) for ids in sampled.replies)


def said(*texts: str) -> tuple[dict[str, Any], ...]:
    return tuple({"role": role, "content": text} for role, text in zip(("user", "assistant") * 9, texts, strict=False))


def test_a_conversation_keeps_its_id_and_a_rewritten_one_is_its_branch(tmp_path: Path) -> None:
    async def run(log: CallLog) -> list[ChatReply]:
        agent = serve(ScriptedSampler(Sampled(), TOKENIZER), log=log, system_prompt="Be brief.")
        first = await agent.respond(ask("a"))
        reply = first.message["content"]
        return [
            first,
            await agent.respond(ChatRequest(said("a", reply, "b"))),
            await agent.respond(ChatRequest(said("a", reply, "b, I mean c"))),
            await agent.respond(ask("a")),
            await agent.respond(ChatRequest(said("a", reply, "d"), conversation="mine")),
            await agent.respond(ChatRequest(({"role": "system", "content": "Own."}, *said("a")))),
            await agent.respond(ChatRequest(said("a", reply, "e"), conversation=first.conversation)),
        ]

    with CallLog(tmp_path / "calls.jsonl", max_bytes=LIMIT) as log:
        replies = asyncio.run(run(log))
    ids = [reply.conversation for reply in replies]
    assert ids[0] == ids[1] == ids[2] == ids[6]
    assert len({*ids}) == 4
    assert ids[4] == "mine"
    conversations = conversations_of(tmp_path / "calls.jsonl")
    assert list(conversations.by_id) == list(dict.fromkeys(ids))
    long = conversations.by_id[ids[0]]
    assert [reply.branch for reply in long.replies] == [0, 0, 1, 2]
    sampled = long.replies[0].call.tokens
    last = long.replies[3].call.tokens
    assert sampled is not None
    assert last is not None
    before = (*sampled.context_ids, *sampled.ids)  # the reply is not encoded again, whoever names the conversation
    assert last.context_ids[: len(before)] == before
    assert long.prompt[0] == {"role": "system", "content": "Be brief."}
    assert conversations.by_id[ids[5]].prompt[0]["content"] == "Own."
    assert conversations.of_call[f"chatcmpl-{replies[3].name}"].name == ids[3]


def test_what_a_request_asks_for_is_done_or_refused_with_the_reason() -> None:
    sampled = Sampled()

    async def run() -> None:
        agent = serve(ScriptedSampler(sampled, TOKENIZER), max_context_tokens=120)
        await agent.respond(ask("a", temperature=0.0, top_p=0.5, max_tokens=7, stop=("x",)))
        for request, message in (
            (ask("a " * 200), r"too long \(prompt_too_long\)"),
            (ask("a" * 120 * 64), "more than 64 for each of the 120 tokens"),  # it is not rendered
            (ask("a", tools=json.dumps("a" * 120 * 64)), "more than 64 for each"),
            (ask("a", top_p=0.0), "top_p=0.0 must be in"),
        ):
            with pytest.raises(RequestError, match=message) as refused:
                await agent.respond(request)
            assert refused.value.status == 400

    asyncio.run(run())
    (params,) = sampled.params
    assert (params.temperature, params.top_p, params.max_tokens, params.stop) == (0.0, 0.5, 7, ("x",))


def test_a_client_that_vanishes_frees_its_slot() -> None:
    async def run() -> None:
        release, started = asyncio.Event(), []

        async def wait(request: Any) -> str:
            started.append(request)
            await release.wait()
            return "done"

        agent = serve(ScriptedSampler(wait, TOKENIZER), parallel=1)
        gone = asyncio.create_task(agent.respond(ask("a")))
        others = [asyncio.create_task(agent.respond(ask(f"b{index}"))) for index in range(16)]
        await auntil(lambda: len(started) == 1)
        gone.cancel()
        await auntil(lambda: len(started) == 2)  # the next one has the slot
        release.set()
        assert [(await other).message["content"] for other in others] == ["done"] * 16

    asyncio.run(run())


def test_closing_ends_the_thread_that_renders() -> None:
    before = set(threading.enumerate())
    agent = serve(ScriptedSampler(Sampled(), TOKENIZER))
    asyncio.run(agent.respond(ask("a")))
    started = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("render")]
    assert started
    agent.close()
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def test_a_branch_is_numbered_without_a_look_at_all_earlier_replies() -> None:
    found, replies = Conversations(), ({"role": "assistant", "content": "b"},)

    def add(text: str) -> None:
        row = {"messages": list(said(text)), "reply": replies[0], "text": "b", "conversation_id": "mine"}
        found.add(*calls_of_row(row), name="")

    class Unread(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the replies were read")

    add("a")
    conversation = found.by_id["mine"]
    conversation.replies = Unread(conversation.replies)
    add("another beginning")
    assert [conversation.replies[0].branch, conversation.replies[1].branch, conversation.num_branches] == [0, 1, 2]


def test_every_logged_conversation_of_a_prompt_is_replayed_and_none_twice_in_a_group() -> None:
    groups = [[drawn(10, f"task@{step}.0", number) for number in range(4)] for step in range(50)]
    assert all(len(set(group)) == 4 for group in groups)
    assert {index for group in groups for index in group} == set(range(10))
    assert sorted(drawn(3, "task@1.0", number) for number in range(6)) == [0, 0, 1, 1, 2, 2]


def test_a_log_is_whole_lines_for_its_owner_up_to_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "calls.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"half a li')  # of a process that was killed
    path.chmod(0o644)

    async def run(log: CallLog, number: int) -> None:
        agent = serve(ScriptedSampler(Sampled(), TOKENIZER), log=log)
        for index in range(number):
            assert (await agent.respond(ask(f"a{index}"))).message["content"]

    with CallLog(path, max_bytes=LIMIT) as log:
        with pytest.raises(OSError, match="is the log of another process"):
            CallLog(path, max_bytes=LIMIT)
        asyncio.run(run(log, 1))
    with CallLog(path, max_bytes=path.stat().st_size * 2 + 100) as log:
        asyncio.run(run(log, 9))
        assert (log.calls, log.missed) == (1, 8)
        assert "would be larger" in log.stopped
    assert caplog.text.count("no further call is logged") == 1
    half, *lines = path.read_bytes().splitlines()
    assert [json.loads(line)["reply"]["role"] for line in lines] == ["assistant"] * 2
    assert half == b'{"half a li'
    CallLog(tmp_path / "new.jsonl", max_bytes=LIMIT).close()
    for file in (path, tmp_path / "new.jsonl"):
        assert os.stat(file).st_mode & 0o077 == 0
