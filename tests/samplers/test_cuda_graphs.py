"""Steps of fixed shapes: the same tokens and log-probs as without them, and no recorded graph outlives its memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplers.conftest import qwen

from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, TorchSampler, WeightUpdate
from rllm_gym.samplers.cuda_graphs import CudaGraphSteps, rows_bucket, span_bucket
from rllm_gym.samplers.kv_slots import KVSlots

# Of different lengths, so that rows leave, move and are added in the middle, and shapes change.
REQUESTS = [
    SamplingRequest(tuple(range(3, 8 + 5 * (number % 7))), SamplingParams(max_tokens=3 + 9 * (number % 5)), seed=number)
    for number in range(21)
]


def sample_all(model: Any, tokenizer: Any, *, max_batch: int = 12) -> list[Completion]:
    async def go() -> list[Completion]:
        async with TorchSampler(model, tokenizer, max_batch=max_batch, num_threads=1) as sampler:
            first = await asyncio.wait_for(sampler.sample(REQUESTS), 200)
            # New weights, in place: the recorded graphs must use them.
            state = {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
            await sampler.sync_weights(WeightUpdate(list(state.items())))
            return first + await asyncio.wait_for(sampler.sample(REQUESTS), 200)

    return asyncio.run(go())


def assert_alike(completions: list[Completion], others: list[Completion]) -> None:
    assert [completion.ids for completion in completions] == [completion.ids for completion in others]
    for one, other in zip(completions, others, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)


def test_fixed_shapes_change_no_token_or_log_prob(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sample_all(qwen(), tokenizer)
    created = []

    def of(cls: type[CudaGraphSteps], kv: KVSlots, max_batch: int) -> CudaGraphSteps:
        created.append(cls(kv, max_batch, capture=False))
        return created[-1]

    monkeypatch.setattr(CudaGraphSteps, "of", classmethod(of))
    assert_alike(sample_all(qwen(), tokenizer), expected)
    assert created


@given(st.integers(1, 512), st.integers(1, 9000))
def test_buckets_are_large_enough_and_waste_little(count: int, longest: int) -> None:
    assert count <= rows_bucket(count) < count + max(count, 16)
    assert longest <= span_bucket(longest) < longest + (64 if longest <= 512 else 256)


@torch.inference_mode()
def test_unused_rows_write_nothing() -> None:
    kv = KVSlots(qwen(), 8)
    kv.reserve(8, 64)
    steps = CudaGraphSteps(kv, 8, capture=False)
    before = kv.take(3, 64)
    steps.logits(torch.tensor([5, 6, 7]), torch.tensor([4, 9, 0]), 10)  # 3 rows in a bucket of 4
    for old, new in zip(before, kv.take(3, 64), strict=True):
        assert torch.equal(old, new)


def test_no_graphs_are_recorded_on_a_cpu() -> None:
    with torch.inference_mode():
        assert CudaGraphSteps.of(KVSlots(qwen(), 2), 2) is None


@pytest.mark.gpu
def test_replayed_graphs_equal_plain_steps(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    created = CudaGraphSteps.of

    def of(cls: type[CudaGraphSteps], kv: KVSlots, max_batch: int) -> CudaGraphSteps | None:
        steps = created(kv, max_batch)
        graphs.append(steps)
        return steps

    monkeypatch.setattr(CudaGraphSteps, "of", classmethod(of))
    replayed = sample_all(qwen().to("cuda"), tokenizer)
    assert graphs[0] is not None
    assert any(step.graph is not None for step in graphs[0]._shapes.values())
    monkeypatch.setattr(CudaGraphSteps, "of", classmethod(lambda cls, kv, max_batch: None))
    assert_alike(replayed, sample_all(qwen().to("cuda"), tokenizer))
