"""Throughput counts tokens independently of the layout; the peak memory of a step is that of the step alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.core import TokenSequence
from trainers.batching import Row, make_micro_batches
from trainers.batching.token_count import TokenCount
from trainers.run.peak_memory import PeakMemory


def row(prompt: tuple[int, ...], reply: tuple[int, ...]) -> Row:
    mask = (0,) * len(prompt) + (1,) * len(reply)
    n = len(mask)
    return Row(TokenSequence(prompt + reply, mask, (0.0,) * n, mask, (0.0,) * n, mask), {"adv": np.zeros(len(reply))})


def count(rows: list[Row], *, budget: int, share: bool) -> TokenCount:
    counted = TokenCount()
    for batch in make_micro_batches(rows, tokens_per_microbatch=budget, share_prompts=share):
        counted.add(batch)
    return counted


tokens = st.lists(st.integers(1, 9), min_size=1, max_size=12).map(tuple)
groups = st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(groups=groups, budget=st.sampled_from([1, 40, 10**6]))
def test_sequences_count_the_same_in_every_layout(groups: list, budget: int) -> None:
    rows = [row(prompt, reply) for prompt, replies in groups for reply in replies]
    total = sum(len(item.sequence) for item in rows)
    plain, shared = (count(rows, budget=budget, share=share) for share in (False, True))
    assert plain.sequences == shared.sequences == total
    assert plain.computed == total <= plain.padded
    assert shared.computed <= total
    assert shared.computed <= shared.padded


def test_shared_prompts_count_as_sharing_and_filler_as_padding() -> None:
    prompt = tuple(range(1, 101))
    group = [row(prompt, (101 + k, 7)) for k in range(8)]
    shared = count(group, budget=10**6, share=True)
    assert (shared.sequences, shared.computed) == (8 * 102, 100 + 8 * 2)
    assert shared.metrics()["batch/shared_prefix_fraction"] == 1 - 116 / 816
    uneven = count([row((1,), (2,) * 9), row((3,), (4,))], budget=10**6, share=False)
    assert (uneven.computed, uneven.padded) == (12, 20)
    assert uneven.metrics()["batch/padding_fraction"] == 1 - 12 / 20
    assert (uneven + shared).sequences == 12 + 816


def test_the_peak_memory_of_a_step_is_reset() -> None:
    peak = PeakMemory(torch.device("cpu"))
    big = torch.ones(40 << 20, dtype=torch.uint8)
    high = peak.lap()["memory/process_peak"]
    del big
    peak.lap()
    later = peak.lap()["memory/process_peak"]
    assert high - later > 30 << 20
