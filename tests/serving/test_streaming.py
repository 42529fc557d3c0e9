"""A streamed reply arrives while it is sampled, is the one that would have arrived whole, and ends with its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from rllm_gym.chat.tokenizer import is_undecided, reply_decoder
from rllm_gym.chat_server import ChatServer, reply_message
from rllm_gym.samplers import Completion, SamplerError, SamplingParams, SamplingRequest, ScriptedSampler, TorchSampler
from rllm_gym.serving import CallLog, ServedAgent
from rllm_gym.serving.partial_reply import PartialReply
from tests.chat.templates import make_tokenizer
from trainers.tiny_model import make_tiny_model

TOKENIZER = make_tokenizer("qwen2.5")
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PIECES = st.sampled_from(
    [
        *("Let me ", "look", "(", ")", ".call", "\n", " ", "é", "\U0001f600", "a < b", "END", "EN", "D", "<", "<tool"),
        *(CALL, "```json\n", "```", "[TOOL_CALLS]", "</think>", "<think>", '{"name": "look", "arguments": {}}', "{"),
        "\ufffd",
    ]
)


@settings(max_examples=200, deadline=None)
@given(text=st.lists(PIECES, max_size=8).map("".join), tools=st.booleans(), stop=st.sampled_from([(), ("END", "D\n")]))
@example(text=f"reasoned</think>Now.{CALL}", tools=True, stop=())
@example(text="look(at='é')", tools=True, stop=())
@example(text="\n\nNow." + CALL + "later", tools=True, stop=())
@example(text="one EN", tools=False, stop=("END",))
def test_what_was_streamed_is_the_beginning_of_the_reply(text: str, tools: bool, stop: Sequence[str]) -> None:
    ids, parts = TOKENIZER.encode(text, add_special_tokens=False), [""]
    decode = reply_decoder(TOKENIZER)
    reply = PartialReply(decode, is_undecided(TOKENIZER), parts.append, tools=tools, stop=stop)
    whole = decode(ids)
    for number, token in enumerate(ids[:-1], 1):
        if any(each in decode(ids[:number]) for each in stop):  # the sampler ends the reply here
            whole = decode(ids[:number])
            break
        reply.add(token)
    whole = whole[: min((whole.find(each) for each in stop if each in whole), default=None)]
    message = reply_message(whole, tools=tools, name="0", sent=reply.sent)
    assert all(later.startswith(earlier) for earlier, later in zip(parts, [*parts[1:], message["content"] or ""]))
    assert message.get("tool_calls") == reply_message(whole, tools=tools, name="0").get("tool_calls")
    if not tools and not stop and "\ufffd" not in decode(ids[:-1]):
        assert parts[-1] == decode(ids[:-1]), "nothing is held back without a reason"


def bytes_of(data: bytes) -> list[int]:
    """Return tokens of one byte each, which together need not be characters."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the others have the letters from 256 on
    letters = {byte: chr(byte) for byte in own}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(sorted({*range(256)} - {*own}))}
    return [TOKENIZER.convert_tokens_to_ids(letters[byte]) for byte in data]


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"\xff" * 2000, "\ufffd" * 1000),
        ("\ufffd".encode() * 700, "\ufffd" * 300),
        (b"a" + b"\xe2" * 2000 + b"\x82\xac" + b"z" * 1000, "a" + "\ufffd" * 1999 + "\u20ac" + "z" * 100),
        (b"(" + b"\xf0\x9f\x98\x80" * 500, "(" + "\U0001f600" * 499),
    ],
    ids=["no characters", "the character itself", "a character after them", "characters"],
)
def test_bytes_that_are_no_characters_are_sent_and_decoded_a_few_times(data: bytes, content: str) -> None:
    decode, decoded, parts = reply_decoder(TOKENIZER), 0, [""]

    def counting(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    ids = bytes_of(data)
    reply = PartialReply(counting, is_undecided(TOKENIZER), parts.append, tools=False, stop=())
    for token in ids:
        reply.add(token)
    assert decode(ids).startswith(reply.sent)
    assert reply.sent.startswith(content)
    assert all(later.startswith(earlier) for earlier, later in pairwise(parts))
    assert decoded < 20 * len(ids)


def make_byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of the form of Llama 2's and Gemma's: what is not in the vocabulary becomes bytes."""
    vocab = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abc"]
    backend = Tokenizer(
        models.BPE({token: number for number, token in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


BYTE_FALLBACK = make_byte_fallback_tokenizer()
GRIN = [BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "\U0001f600".encode()]


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.one_of(st.sampled_from(GRIN), st.just(GRIN), st.integers(0, len(BYTE_FALLBACK) - 1)), max_size=9)
)
@example(ids=[GRIN, GRIN[0]])
@example(ids=[GRIN, 1, GRIN[0], 260, 260])
def test_bytes_in_a_row_are_sent_when_it_is_known_what_they_are(ids: list[int | list[int]]) -> None:
    decode, parts = reply_decoder(BYTE_FALLBACK), [""]
    flat = [number for item in ids for number in (item if isinstance(item, list) else [item])]
    reply = PartialReply(decode, is_undecided(BYTE_FALLBACK), parts.append, tools=False, stop=())
    for token in flat:
        reply.add(token)
    assert decode(flat).startswith(reply.sent)
    assert all(later.startswith(earlier) for earlier, later in pairwise(parts))
    letter = BYTE_FALLBACK.convert_tokens_to_ids("a")
    reply.add(letter)
    assert reply.sent == decode([*flat, letter])


@asynccontextmanager
async def served(sampler: Any, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    agent = ServedAgent(sampler, SamplingParams(max_tokens=40), **options)
    async with (
        ChatServer(agent.respond) as server,
        openai.AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client,
    ):
        yield client
    agent.close()


ASK: Any = [{"role": "user", "content": "hi"}]


def test_a_streamed_reply_is_the_one_that_its_seed_gives_whole(tmp_path: Path) -> None:
    """And so are its tokens in the log, after which the conversation goes on."""
    model = make_tiny_model(tmp_path / "tiny", hidden_size=32, num_layers=1, num_heads=2, vocab_size=300)

    async def run(log: CallLog) -> None:
        async with TorchSampler(model, deterministic=True) as sampler, served(sampler, log=log, seed=7) as client:
            create = client.chat.completions.create
            for options in ({}, {"stop": ["e", "zz"]}, {"seed": 3}, {"tools": [TOOL]}):
                whole = await create(model="m", messages=ASK, **options)
                events = [event async for event in await create(model="m", messages=ASK, stream=True, **options)]
                deltas = [event.choices[0].delta.content for event in events]
                assert "".join(filter(None, deltas)) == whole.choices[0].message.content
                assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
                assert len({(event.id, event.created) for event in events}) == 1
                if not options:
                    assert events[0].choices[0].delta.role == "assistant"
                    first = {"role": "assistant", "content": whole.choices[0].message.content}
            several = await create(model="m", messages=ASK, n=2)
            texts = [choice.message.content for choice in several.choices]
            assert first["content"] == texts[0] != texts[1]
            await create(model="m", messages=[*ASK, first, *ASK], max_tokens=1)

    with CallLog(tmp_path / "calls.jsonl", max_bytes=1 << 30) as log:
        asyncio.run(run(log))
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    for whole, streamed in zip(lines[0:8:2], lines[1:8:2], strict=True):
        assert (whole["ids"], whole["logprobs"], whole["text"]) == (
            streamed["ids"],
            streamed["logprobs"],
            streamed["text"],
        )
    assert lines[0]["ids"] != lines[4]["ids"], "the request's own seed counts"
    before = lines[0]["prompt_ids"] + lines[0]["ids"]
    assert lines[-1]["prompt_ids"][: len(before)] == before


async def at_once() -> None:
    pass


class Gated(ScriptedSampler):
    """Waits for ``between`` after each token but the last, then for ``then`` before the reply ends."""

    def __init__(
        self,
        then: Callable[[], Coroutine[Any, Any, Any]] = at_once,
        between: Callable[[], Coroutine[Any, Any, Any]] = at_once,
    ) -> None:
        super().__init__(lambda _: "It is four.", TOKENIZER)
        self._then, self._between = then, between

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        (completion,) = await super().sample([replace(request, on_token=None) for request in requests])
        on_token = requests[0].on_token
        for token in completion.ids[:-1] if on_token else ():
            on_token(token)
            await self._between()
        await self._then()
        return [completion]


def test_a_part_arrives_before_the_reply_ends_and_the_end_of_the_client_ends_the_reply() -> None:
    async def run() -> None:
        received, cancelled = asyncio.Event(), asyncio.Event()

        async def until_received() -> None:
            try:
                await asyncio.wait_for(received.wait(), 60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with served(Gated(until_received)) as client:
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            first = await anext(aiter(stream))
            assert first.choices[0].delta.content == "It is four."
            await stream.close()
            await asyncio.wait_for(cancelled.wait(), 60)
            received.set()
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            assert "".join([event.choices[0].delta.content or "" async for event in stream]) == "It is four."

    asyncio.run(run())


def test_each_part_arrives_before_the_next_one_is_sampled() -> None:
    async def run() -> None:
        received = asyncio.Semaphore(0)
        async with served(Gated(between=received.acquire)) as client:
            parts = []
            async for event in await client.chat.completions.create(model="m", messages=ASK, stream=True):
                if event.choices[0].delta.content:
                    parts.append(event.choices[0].delta.content)
                    received.release()
        assert "".join(parts) == "It is four."
        assert len(parts) == len(TOKENIZER.encode("It is four.", add_special_tokens=False)) > 1

    asyncio.run(run())


def test_a_sampler_that_fails_before_or_amid_a_stream_is_an_error_of_the_client() -> None:
    async def run() -> None:
        received = asyncio.Event()

        async def fail() -> None:
            await asyncio.wait_for(received.wait(), 60)
            raise SamplerError("it died")

        async with served(Gated(fail)) as client:
            events = aiter(await client.chat.completions.create(model="m", messages=ASK, stream=True))
            assert (await anext(events)).choices[0].delta.content == "It is four."
            received.set()
            with pytest.raises(openai.APIError, match="it died"):
                await anext(events)
            with pytest.raises(openai.InternalServerError, match="it died"):
                await client.chat.completions.create(model="m", messages=ASK)

    asyncio.run(run())
