"""Token sampling: the correct distribution, the correct cuts, each row independently."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from rllm_gym.samplers.token_sampling import draw_tokens


def test_frequencies_are_the_probabilities() -> None:
    torch.manual_seed(0)
    count = 40_000
    logits = torch.randn(7) * 2
    uniform = 1 - torch.rand(count, dtype=torch.float64)
    for temperature in (0.5, 1.0, 2.0):
        tokens, logp = draw_tokens(logits.expand(count, 7), torch.full((count,), temperature), uniform)
        expected = torch.softmax(logits / temperature, -1)
        # Five standard deviations of a binomial frequency.
        bound = 5 * (expected * (1 - expected) / count).sqrt() + 1e-9
        assert bool(((torch.bincount(tokens, minlength=7) / count - expected).abs() < bound).all())
        assert torch.allclose(logp, expected.log()[tokens], atol=1e-6)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    uniform=st.floats(0.0, 1.0, exclude_min=True),
)
@example(seed=1, top_k=1, top_p=1.0, uniform=5e-324)
def test_top_k_and_top_p_keep_what_transformers_keeps(seed: int, top_k: int, top_p: float, uniform: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (1, 10))).float()
    kept = logits
    if top_k:
        kept = TopKLogitsWarper(top_k)(None, kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(None, kept)
    token, logp = draw_tokens(
        logits,
        torch.ones(1),
        torch.tensor([uniform], dtype=torch.float64),
        torch.tensor([top_p]),
        torch.tensor([top_k]),
    )
    assert bool(torch.isfinite(kept[0, token[0]]))
    assert float(logp[0]) == float(torch.log_softmax(logits, -1)[0, token[0]])


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(1)
    logits, uniform = torch.randn(5, 50), 1 - torch.rand(5, dtype=torch.float64)
    temperature = torch.tensor([0.0, 1.0, 0.3, 2.0, 1.0])
    plain = draw_tokens(logits, temperature, uniform)
    cut = draw_tokens(logits, temperature, uniform, torch.tensor([1, 1, 0.1, 1, 1]), torch.tensor([0, 0, 0, 3, 0]))
    for row in (0, 1, 4):
        assert plain[0][row] == cut[0][row]
        assert plain[1][row] == cut[1][row]


def test_extreme_logits_and_uniform_numbers_are_valid() -> None:
    logits = torch.tensor([[-1e30, 3.0, -1e30], [1e30, -1e30, 0.0], [0.0, 0.0, -float("inf")]])
    for value in (5e-324, 1.0):
        tokens, logp = draw_tokens(logits, torch.ones(3), torch.full((3,), value, dtype=torch.float64))
        assert tokens[:2].tolist() == [1, 0]
        assert tokens[2] != 2
        assert bool(torch.isfinite(logp).all())
