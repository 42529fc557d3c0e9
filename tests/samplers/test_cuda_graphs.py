"""Steps of fixed shapes: the same tokens and log-probs as without them, and no recorded graph outlives its memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samplers.conftest import qwen

from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, TorchSampler, WeightUpdate, decode_loop
from rllm_gym.samplers.cuda_graphs import CudaGraphSteps, rows_bucket, span_bucket
from rllm_gym.samplers.decode_loop import current_device
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


class Graph:
    def replay(self) -> None:
        pass


class Pools:
    """CUDA's rule for graph pools, and graphs that record nothing: a pool is freed with its last graph, for good."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failure: Exception | None = None) -> None:
        self.recorded: list[int] = []
        self._handles = itertools.count()
        self._graphs: dict[int, weakref.WeakSet[Any]] = {}
        self._failure = failure
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(self._handles))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self._record)

    @contextlib.contextmanager
    def _record(self, graph: Any, *, pool: int, capture_error_mode: str) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        assert self._graphs.setdefault(pool, weakref.WeakSet([graph])), "this pool was freed"
        self._graphs[pool].add(graph)
        self.recorded.append(pool)
        yield


def steps_of(kv: KVSlots, steps: CudaGraphSteps, longest: int, times: int) -> None:
    for _ in range(times):
        steps.logits(torch.tensor([5, 6]), torch.tensor([longest - 1, 0]), longest)


@torch.inference_mode()
def test_graphs_are_recorded_again_when_slots_or_weights_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools(monkeypatch)
    kv = KVSlots(qwen(), 8)
    steps = CudaGraphSteps(kv, 8, capture=True)
    steps_of(kv, steps, 40, 3)
    steps_of(kv, steps, 100, 3)  # the slots grow, and move
    kv.reserve(8, 300)
    steps_of(kv, steps, 40, 3)
    steps.forget()
    steps_of(kv, steps, 40, 3)
    assert len(pools.recorded) == 4
    assert len(set(pools.recorded)) >= 3


@torch.inference_mode()
def test_a_step_that_cannot_be_recorded_runs_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Pools(monkeypatch, failure=RuntimeError("operation not permitted when stream is capturing"))
    kv = KVSlots(qwen(), 8)
    steps = CudaGraphSteps(kv, 8, capture=True)
    kv.reserve(2, 64)
    expected = CudaGraphSteps(kv, 8, capture=False).logits(torch.tensor([5, 6]), torch.tensor([3, 0]), 4).clone()
    for _ in range(4):
        assert torch.equal(steps.logits(torch.tensor([5, 6]), torch.tensor([3, 0]), 4), expected)
    assert caplog.text.count("cannot be recorded") == 1


def test_the_decoding_thread_records_on_the_gpu_of_its_model(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, threads = [], []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(chosen.append(device)))
    with current_device(torch.device("cuda:1")), current_device(torch.device("cpu")):
        pass
    assert chosen == [torch.device("cuda:1")]

    def recorded(device: torch.device) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext(threads.append((threading.current_thread().name, device)))

    monkeypatch.setattr(decode_loop, "current_device", recorded)
    sample_all(qwen(), tokenizer)
    assert threads == [("rllm-gym-sampler", torch.device("cpu"))]


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
