"""vLLM in this process against transformers: log-probs, weight syncs, staleness, cancellation, with one real engine."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vllm_models as models
from vllm_models import adapted, full_update, largest_gap, lora_update, moved, probe_of, requests

from rllm_gym.samplers import Sampler, SamplerError, SamplingParams, SamplingRequest, VLLMSampler, WeightUpdate

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def folder(vllm_folder: Path) -> Path:
    return vllm_folder


@pytest.fixture(scope="module")
def base(folder: Path) -> Any:
    return models.load(folder)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VLLMSampler]:
    set_num_threads = torch.set_num_threads
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    expected = random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002
    random.seed(1), np.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
    preloaded = os.environ.get("LD_PRELOAD")
    sampler = VLLMSampler(folder, max_batch=24, context_length=512, lora_rank=8, dtype="float32", cache_gib=0.0625)
    assert isinstance(sampler, VLLMSampler)
    # vLLM seeds everything and removes set_num_threads; a trainer's randomness and threads are not its own.
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected  # noqa: NPY002
    assert torch.set_num_threads is set_num_threads
    assert os.environ.get("LD_PRELOAD") == preloaded  # programs started from here must not inherit vLLM's libraries
    yield sampler
    asyncio.run(sampler.close())


@pytest.fixture
def sampler(engine: VLLMSampler, base: Any, run: Callable[..., Any]) -> VLLMSampler:
    """With the base weights and no adapter."""
    run(engine.sync_weights(full_update(base)))
    return engine


def test_many_long_seeded_prompts_in_one_call(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    """More than vLLM takes in one step: splitting a seeded prompt would kill the engine on a CPU."""
    prompts = [tuple(5 + (index + column) % 50 for column in range(500)) for index in range(48)]
    asked = [SamplingRequest(prompt, SamplingParams(max_tokens=2), seed=seed) for seed, prompt in enumerate(prompts)]
    assert len(run(sampler.sample(asked))) == 48


def test_log_probs_are_of_the_distribution_at_the_temperature_before_it_is_truncated(
    sampler: VLLMSampler, base: Any, run: Callable[..., Any]
) -> None:
    assert isinstance(sampler, Sampler)
    asked = [
        SamplingRequest((40 + i, 50, 60), SamplingParams(temperature, top_p, top_k, 12), seed=i)
        for i, (temperature, top_p, top_k) in enumerate(
            [(1.0, 1.0, 0), (0.5, 1.0, 0), (1.4, 0.7, 0), (1.0, 1.0, 5), (0.0, 1.0, 0), (0.7, 0.9, 20)]
        )
    ]
    replies = run(sampler.sample(asked))
    assert largest_gap(base, asked, replies) < 1e-4
    greedy = replies[4]
    with torch.no_grad():
        logits_TV = base(torch.tensor([[*asked[4].ids, *greedy.ids]])).logits[0]
    assert tuple(logits_TV[2:-1].argmax(-1).tolist()) == greedy.ids


def test_adapters_are_served_by_name(sampler: VLLMSampler, folder: Path, run: Callable[..., Any]) -> None:
    """Three at once, though the engine computes one at a time: they take turns."""
    run(models.check_named_weights(sampler, folder, sampler.weight_version + 1))
    with pytest.raises(ValueError, match=r"'old'.*kind='lora'"):
        run(sampler.sync_weights(replace(full_update(models.load(folder)), name="old")))


def test_a_seed_determines_a_reply_in_any_batch(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    asked = requests(6)
    together = run(sampler.sample(asked))
    for request, reply in zip(asked, together, strict=True):
        (alone,) = run(sampler.sample([request]))
        assert alone.ids == reply.ids
        assert alone.text == sampler.tokenizer.decode(reply.ids, skip_special_tokens=True)
    assert len({reply.ids for reply in run(sampler.sample([SamplingRequest((50, 51), seed=i) for i in range(4)]))}) == 4


def test_tokens_are_passed_on_as_they_are_sampled(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    """And the reply is the same, with its log-probs."""
    for params in (SamplingParams(max_tokens=12), SamplingParams(max_tokens=12, stop=("b", "e"))):
        tokens: list[int] = []
        request = SamplingRequest((50, 51), params, seed=3)
        (whole,) = run(sampler.sample([request]))
        (streamed,) = run(sampler.sample([replace(request, on_token=tokens.append)]))
        assert (streamed.ids, streamed.text, streamed.finish_reason) == (whole.ids, whole.text, whole.finish_reason)
        assert streamed.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
        assert tuple(tokens) == whole.ids[:-1]


def test_more_prompt_tokens_than_one_step_do_not_kill_the_engine(
    sampler: VLLMSampler, base: Any, run: Callable[..., Any]
) -> None:
    """vLLM would split what does not fit a step; with seeded requests that kills it on a CPU."""
    asked = [SamplingRequest((100 + i, *range(30, 500)), SamplingParams(max_tokens=2), seed=i) for i in range(24)]
    assert largest_gap(base, asked, run(sampler.sample(asked))) < 1e-4


def test_replies_end_at_stops_and_limits(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    (free,) = run(sampler.sample([SamplingRequest((40, 50, 60), SamplingParams(max_tokens=12), seed=5)]))
    assert (len(free.ids), free.finish_reason) == (12, "length")
    middle = sampler.tokenizer.decode(free.ids[5:6], skip_special_tokens=True)
    (string,) = run(
        sampler.sample([SamplingRequest((40, 50, 60), SamplingParams(max_tokens=12, stop=(middle,)), seed=5)])
    )
    assert string.finish_reason == "stop"
    assert string.ids == free.ids[: len(string.ids)]
    assert middle in sampler.tokenizer.decode(string.ids)  # the ids keep it, the text does not
    assert string.text == sampler.tokenizer.decode(string.ids, skip_special_tokens=True).split(middle)[0]
    token = SamplingParams(max_tokens=12, stop_token_ids=(free.ids[3],))
    (by_id,) = run(sampler.sample([SamplingRequest((40, 50, 60), token, seed=5)]))
    assert (by_id.finish_reason, by_id.ids[-1], len(by_id.logprobs)) == ("stop", free.ids[3], len(by_id.ids))
    (full,) = run(sampler.sample([SamplingRequest(tuple([50] * 508), SamplingParams(max_tokens=100, temperature=0.0))]))
    assert len(full.ids) <= 4  # no more fits the context


def test_the_end_of_turn_ends_a_reply(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    eos = sampler.tokenizer.eos_token_id
    replies = run(sampler.sample(requests(16, tokens=300)))
    ended = [reply for reply in replies if reply.finish_reason == "stop"]
    assert ended
    assert all(reply.ids[-1] == eos and sampler.tokenizer.eos_token not in reply.text for reply in ended)
    assert all(eos not in reply.ids[:-1] for reply in replies)


def test_invalid_requests_are_errors_with_the_reason(sampler: VLLMSampler, run: Callable[..., Any]) -> None:
    good = requests(1)[0]
    for ids, message in [
        ((), "request 1 is empty"),
        ((5,) * 512, "512 tokens"),
        ((5, 10**6), "outside 0.."),
        ((-1,), "outside"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(sampler.sample([good, SamplingRequest(ids)]))
    with pytest.raises(TypeError, match="seed of request 0"):
        run(sampler.sample([SamplingRequest((5,), seed=0.5)]))  # type: ignore[arg-type]
    assert run(sampler.sample([])) == []


def test_each_of_five_adapters_is_served_and_loaded_once(
    sampler: VLLMSampler, folder: Path, base: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.lora.lora_model import LoRAModel

    reads = []
    read = LoRAModel.from_local_checkpoint.__func__  # type: ignore[attr-defined]

    def counting(cls: Any, *args: Any, **kwargs: Any) -> Any:
        reads.append(args[0])
        return read(cls, *args, **kwargs)

    monkeypatch.setattr(LoRAModel, "from_local_checkpoint", classmethod(counting))
    model = adapted(folder, use_rslora=True, alpha_pattern={"q_proj": 3}, rank_pattern={"down_proj": 2})
    asked = requests(6)
    for sync in range(5):
        models.randomize_adapter(model, sync)
        before = sampler.weight_version
        assert run(sampler.sync_weights(lora_update(model))) == before + 1 == sampler.weight_version
        replies = run(sampler.sample(asked))
        assert largest_gap(model, asked, replies) < 1e-4
        assert largest_gap(base, asked, replies) > 0.1
        assert {reply.weight_version for reply in replies} == {before + 1}
    assert len(reads) == len(set(reads)) == 5  # none again, in fifty steps of the engine


def test_an_adapter_that_vllm_did_not_load_is_detected(
    sampler: VLLMSampler, folder: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vllm.lora.lora_model import LoRAModel

    model = adapted(folder)
    read = LoRAModel.from_local_checkpoint.__func__  # type: ignore[attr-defined]

    def keeping(cls: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        shutil.copytree(path, tmp_path / "old")
        return read(cls, path, *args, **kwargs)

    with monkeypatch.context() as first:
        first.setattr(LoRAModel, "from_local_checkpoint", classmethod(keeping))
        run(sampler.sync_weights(lora_update(model)))
    models.randomize_adapter(model, 7)
    version = sampler.weight_version
    with monkeypatch.context() as stale:
        stale.setattr(
            LoRAModel,
            "from_local_checkpoint",
            classmethod(lambda cls, path, *args, **kwargs: read(cls, str(tmp_path / "old"), *args, **kwargs)),
        )
        with pytest.raises(SamplerError, match="stale adapter"):
            run(sampler.sync_weights(lora_update(model)))
    with pytest.raises(SamplerError, match="stale adapter"):
        run(sampler.sample(requests(1)))  # nobody trains on unknown weights
    assert sampler.weight_version == version
    run(sampler.sync_weights(lora_update(model)))
    assert largest_gap(model, requests(2), run(sampler.sample(requests(2)))) < 1e-4


def test_full_weights_are_served_with_embedding_and_tied_head(
    sampler: VLLMSampler, folder: Path, run: Callable[..., Any]
) -> None:
    run(sampler.sync_weights(lora_update(adapted(folder))))  # is gone with the weights it belongs to
    asked = requests(6)
    for seed in range(2):
        model = moved(folder, seed)
        run(sampler.sync_weights(full_update(model)))
        assert largest_gap(model, asked, run(sampler.sample(asked))) < 1e-4


def test_mismatched_weights_change_nothing(
    sampler: VLLMSampler, base: Any, folder: Path, run: Callable[..., Any]
) -> None:
    state = list(base.state_dict().items())
    name, tensor = state[3]
    for tensors, message in [
        (state[:3] + state[4:], "lacks 1 of"),
        ([*state[:3], ("model.strange", tensor), *state[4:]], "model.strange"),
        ([*state[:3], (name, tensor[:1]), *state[4:]], "has shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(sampler.sync_weights(WeightUpdate(tensors)))
    for changes, message in [({"r": 16}, "rank 16"), ({"use_dora": True}, "DoRA")]:
        with pytest.raises(ValueError, match=message):
            run(sampler.sync_weights(lora_update(adapted(folder, **changes), probe_of(base))))
    with pytest.raises(ValueError, match="kind='shared'"):
        run(sampler.sync_weights(WeightUpdate((), "shared")))
    assert largest_gap(base, requests(2), run(sampler.sample(requests(2)))) < 1e-4


def test_overlapping_calls_share_steps_and_cancelled_ones_are_removed(
    sampler: VLLMSampler, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    steps: list[int] = []
    step = LLMEngine.step
    asked = threading.Event()

    def counting(engine: Any) -> Any:
        asked.wait(100)
        steps.append(engine.get_num_unfinished_requests())
        return step(engine)

    monkeypatch.setattr(LLMEngine, "step", counting)

    async def scenario() -> None:
        ignored = [SamplingRequest((50 + i,), SamplingParams(max_tokens=500), seed=i) for i in range(3)]
        cancelled = asyncio.create_task(sampler.sample(ignored))
        calls = [asyncio.create_task(sampler.sample([request])) for request in requests(5, tokens=20)]
        await asyncio.sleep(0)  # all requests are sent
        asked.set()
        await asyncio.gather(*calls)
        assert max(steps) == 8
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await sampler.sample(requests(1, tokens=2))
        assert steps[-1] == 1

    run(scenario())


def test_a_weight_sync_waits_for_running_replies(
    sampler: VLLMSampler, base: Any, folder: Path, run: Callable[..., Any]
) -> None:
    model = moved(folder, 4)

    async def scenario() -> None:
        before = sampler.weight_version
        early = asyncio.create_task(sampler.sample(requests(2, tokens=40)))
        await asyncio.sleep(0)  # it is sent first
        sync = asyncio.create_task(sampler.sync_weights(full_update(model)))
        await asyncio.sleep(0)
        late = asyncio.create_task(sampler.sample(requests(2, tokens=40)))
        old, version, new = await asyncio.gather(early, sync, late)
        assert {reply.weight_version for reply in old} == {before}
        assert {reply.weight_version for reply in new} == {version} == {before + 1}
        assert largest_gap(base, requests(2, tokens=40), old) < 1e-4
        assert largest_gap(model, requests(2, tokens=40), new) < 1e-4

    run(scenario())


def test_unsupported_machines_and_processes_are_reported(
    sampler: VLLMSampler, folder: Path, run: Callable[..., Any]
) -> None:
    with pytest.raises(SamplerError, match="already has a vLLM engine"):
        VLLMSampler(folder)
    with pytest.raises(SamplerError, match="cannot sleep"):
        run(sampler.sleep())
    with pytest.raises(SamplerError, match="is not asleep"):
        run(sampler.wake())
    with pytest.raises(SamplerError, match="cannot read a model"):
        VLLMSampler(folder / "absent")
    for option in (
        {"max_batch": 0},
        {"lora_rank": -1},
        {"lora_rank": 1000},
        {"dtype": "int4"},
        {"memory": 0},
        {"cache_gib": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(option))):
            VLLMSampler(folder, **option)


@pytest.mark.long
def test_an_engine_that_dies_is_reported_at_once_and_can_be_replaced(
    sampler: VLLMSampler, folder: Path, base: Any, run: Callable[..., Any]
) -> None:
    """Last in this file: it ends the shared engine."""
    half = WeightUpdate(iter(list(base.state_dict().items())[:5]))

    async def scenario() -> None:
        # Replies requested before the weight sync are done; those after it are lost with the engine.
        calls = [sampler.sample(requests(2)), sampler.sync_weights(half), sampler.sample(requests(2))]
        early, sync, late = await asyncio.gather(*calls, return_exceptions=True)
        assert len(early) == 2
        for lost in (sync, late):
            assert isinstance(lost, SamplerError)
            assert "half-way" in str(lost)
        with pytest.raises(SamplerError, match="make a new sampler"):
            await sampler.sample(requests(1))
        await sampler.close()
        await sampler.close()

        async with VLLMSampler(folder, max_batch=4, context_length=64, dtype="float32", cache_gib=0.0625) as another:
            assert largest_gap(base, requests(2), await another.sample(requests(2))) < 1e-4
            with pytest.raises(ValueError, match="lora_rank"):
                await another.sync_weights(WeightUpdate((), "lora", {"r": 1}))
            running_call = asyncio.create_task(another.sample([SamplingRequest((50,), SamplingParams(max_tokens=60))]))
            await asyncio.sleep(0)
        with pytest.raises(SamplerError, match="closed"):
            await running_call
        with pytest.raises(SamplerError, match="closed"):
            await another.sample(requests(1))

    run(scenario())
