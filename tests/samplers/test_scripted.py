"""The scripted sampler returns the given texts and claims no more than it knows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.samplers import (
    Completion,
    Sampler,
    SamplerError,
    SamplingParams,
    SamplingRequest,
    ScriptedSampler,
    WeightUpdate,
)


def texts(completions: list[Completion]) -> list[str]:
    return [completion.text for completion in completions]


def test_a_list_is_replayed_in_order(run: Any) -> None:
    async def go() -> None:
        async with ScriptedSampler(["a", "b", "c"]) as sampler:
            assert isinstance(sampler, Sampler)
            assert not sampler.returns_tokens
            assert texts(await sampler.sample([SamplingRequest((1,)), SamplingRequest((2,))])) == ["a", "b"]
            [completion] = await sampler.sample([SamplingRequest((1,))])
            assert completion == Completion((), (), "c")
            with pytest.raises(SamplerError, match="3 replies, and reply 4 was requested"):
                await sampler.sample([SamplingRequest((1,))])

    run(go())


def test_each_conversation_starts_at_the_beginning_of_the_list(run: Any) -> None:
    async def go() -> None:
        sampler = ScriptedSampler(["a", "b"], per_conversation=True, cycle=True)
        for name in ("x", "y"):
            seen = [texts(await sampler.sample([SamplingRequest((1,), conversation=name)])) for _ in range(3)]
            assert seen == [["a"], ["b"], ["a"]]
        await sampler.release("x")
        assert texts(await sampler.sample([SamplingRequest((1,), conversation="x")])) == ["a"]
        assert texts(await sampler.sample([SamplingRequest((1,), conversation="y")])) == ["b"]

    run(go())


def test_a_function_sees_the_request(run: Any) -> None:
    async def slow(request: SamplingRequest) -> str:
        await asyncio.sleep(0)
        return f"{len(request.ids)} {request.messages[-1]['content']}"

    async def go() -> None:
        request = SamplingRequest((1, 2), messages=({"role": "user", "content": "hi"},))
        assert texts(await ScriptedSampler(slow).sample([request])) == ["2 hi"]
        complete = Completion((5,), (-0.5,), "five", "length", 3)
        assert await ScriptedSampler(lambda _: complete).sample([request]) == [complete]
        with pytest.raises(TypeError, match="NoneType"):
            await ScriptedSampler(lambda _: None).sample([request])  # type: ignore[arg-type,return-value]

    run(go())


def test_a_tokenizer_gives_ids_and_certain_log_probs(tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        sampler = ScriptedSampler(["up down", "left right", "up STOP down"], tokenizer, context_length=100)
        assert sampler.returns_tokens
        [completion] = await sampler.sample([SamplingRequest((1,))])
        assert list(completion.ids) == [*tokenizer.encode("up down"), tokenizer.eos_token_id]
        assert completion.logprobs == (0.0,) * len(completion.ids)
        assert completion.finish_reason == "stop"
        [cut] = await sampler.sample([SamplingRequest((1,), SamplingParams(max_tokens=1))])
        assert (len(cut.ids), cut.finish_reason, cut.text) == (1, "length", tokenizer.decode(cut.ids))
        [stopped] = await sampler.sample([SamplingRequest((1,), SamplingParams(stop=("STOP",)))])
        assert stopped.text == "up "
        with pytest.raises(ValueError, match="100 tokens leaves no tokens for a reply"):
            await ScriptedSampler(["a"], tokenizer, context_length=100).sample([SamplingRequest((1,) * 100)])

    run(go())


def test_scripts_load_from_files(tmp_path: Path, run: Any) -> None:
    lines, rows, bad = tmp_path / "replies.txt", tmp_path / "replies.jsonl", tmp_path / "bad.jsonl"
    lines.write_text("one\n\ntwo\n")
    rows.write_text('"one\\ntwo"\n"three"\n')
    bad.write_text('"one"\n{"text": "two"}\n')

    async def go() -> None:
        for path, expected in ((lines, ["one", "two"]), (str(rows), ["one\ntwo", "three"])):
            assert texts(await ScriptedSampler(path).sample([SamplingRequest((1,))] * 2)) == expected
        with pytest.raises(ValueError, match="reply 2 must be a JSON string"):
            ScriptedSampler(bad)
        with pytest.raises(ValueError, match="is empty"):
            ScriptedSampler([])

    run(go())


def test_weight_versions_and_closing(run: Any) -> None:
    async def go() -> None:
        sampler = ScriptedSampler(["a"], cycle=True)
        assert await sampler.sync_weights(WeightUpdate(())) == 1
        [completion] = await sampler.sample([SamplingRequest((1,))])
        assert completion.weight_version == sampler.weight_version == 1
        await sampler.close()
        await sampler.close()
        with pytest.raises(SamplerError, match="closed"):
            await sampler.sample([SamplingRequest((1,))])

    run(go())
