"""Padded, packed and trie micro-batches hold every token once, are bounded, and give one and the same gradient."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from rllm_gym.core import TokenSequence
from trainers.batching import Costs, MicroBatch, Row
from trainers.batching.microbatch import lay_out
from trainers.batching.plan import fill, pad
from trainers.batching.trie import Sorted, grow
from trainers.model.attention import hidden_states, teach_trees
from trainers.model.token_logprobs import token_logprobs

# A token is a second, and nothing else costs anything: everything that can be shared is.
TOKENS_ONLY = Costs(token=1.0, pair=0.0, call=0.0, batch=0.0, block=1)
USUAL = Costs(token=4e-5, pair=1e-7, call=3e-4, batch=2e-3, block=32)
VOCABULARY = 40


def row(ids: list[int], mask: list[int], **targets: float) -> Row:
    n = len(ids)
    sequence = TokenSequence(
        tuple(ids),
        tuple(mask),
        tuple(-0.125 * (i + 1) if m else 0.0 for i, m in enumerate(mask)),
        tuple(0 if m else -1 for m in mask),
        (0.0,) * n,
        tuple(0 if m else -1 for m in mask),
    )
    sampled = sum(mask)
    return Row(sequence, {name: value + np.arange(sampled, dtype=np.float64) for name, value in targets.items()})


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    """Sequences that branch anywhere, end anywhere (one may be what another begins with), come twice, have holes."""
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    ids: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        start: list[int] = []
        if ids and rng.random() < 0.8:
            before = ids[rng.integers(len(ids))]
            start = before[: rng.integers(0, len(before) + 1)]
        tail = rng.integers(0, 3 if rng.random() < 0.5 else VOCABULARY, rng.integers(0, 9)).tolist()
        ids.append((start + tail) or [1])
    rows = []
    for number, sequence in enumerate(ids):
        mask = [0, *(int(m) for m in rng.random(len(sequence) - 1) < 0.5)]
        rows.append(row(sequence, mask, adv=10.0 * number))
    return rows


def layouts(rows: list[Row], kind: str, tokens: int) -> Any:
    if kind == "padded":
        return pad(np.array([len(r.sequence) for r in rows]), range(len(rows)), tokens, USUAL)
    if kind == "packed":
        return fill([grow(Sorted.of(rows, [index]), TOKENS_ONLY.saves) for index in range(len(rows))], tokens)
    return fill([grow(Sorted.of(rows), TOKENS_ONLY.saves)], tokens)


def exact_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    return module.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + module.variance_epsilon)


def tiny(tuning: str) -> tuple[Any, Any]:
    """The whole model in float64, and the one that computes."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    plain = Qwen2ForCausalLM(config).double().eval()
    for module in plain.modules():  # Qwen2's norms round to float32, whatever the model's type
        if isinstance(module, Qwen2RMSNorm):
            module.forward = functools.partial(exact_norm, module)  # type: ignore[method-assign]
    assert teach_trees(plain, torch.device("cpu"))
    if tuning == "full":
        return plain, plain
    adapted = get_peft_model(plain, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)).double()
    return adapted, adapted.get_base_model()


def gradients(model: Any, loss: Any) -> list[torch.Tensor]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(
            trained, torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True), strict=True
        )
    ]


def unbatched_loss(model: Any, plain: Any, rows: list[Row]) -> Any:
    """Log-probs, entropies and what a value head would read, one sequence after the other, with all logits."""
    share = float(np.float32(1 / max(1, sum(r.num_sampled for r in rows))))  # as micro-batches hold it
    loss = torch.zeros((), dtype=torch.float64)
    for number, r in enumerate(rows):
        ids_1T = torch.tensor([r.sequence.ids])
        hidden_TD = plain.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0]
        logp_TV = torch.log_softmax(plain.get_output_embeddings()(hidden_TD) / 0.8, -1)
        for adv, place in zip(r.targets["adv"], np.flatnonzero(r.sequence.mask), strict=True):
            at_V = logp_TV[place - 1]
            loss = loss + (at_V[r.sequence.ids[place]] * adv - 0.3 * (at_V.exp() * at_V).sum()) * share
            loss = loss + hidden_TD[place - 1].sin().sum() * r.sequence.logprobs[place] * share
        loss = loss + (number + 1) * hidden_TD[-1].cos().sum()
    return loss


def batched_loss(plain: Any, batch: MicroBatch) -> Any:
    hidden_BTD = hidden_states(plain, batch.ids_BT, batch.position_BT, batch.end_BT)
    hidden_ND = hidden_BTD[batch.row_N, batch.source_N]
    logp_N, entropy_N = token_logprobs(
        plain, hidden_ND, batch.ids_BT[batch.row_N, batch.column_N], temperature=0.8, tokens_per_chunk=3
    )
    weight_N, adv_N = batch.weight_N.double(), batch.targets["adv"].double()
    loss = (weight_N * (logp_N * adv_N + 0.3 * entropy_N)).sum()
    loss = loss + (weight_N * batch.sampler_logp_N.double() * hidden_ND.sin().sum(-1)).sum()
    return loss + ((batch.sequence_S + 1) * hidden_BTD[batch.last_S[:, 0], batch.last_S[:, 1]].cos().sum(-1)).sum()


MODELS = {tuning: tiny(tuning) for tuning in ("full", "lora")}


@pytest.mark.parametrize("tuning", ["full", "lora"])
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(rows=trees(), tokens=st.integers(1, 60))
def test_trie_packed_and_padded_give_the_gradient_of_each_sequence_alone(
    tuning: str, rows: list[Row], tokens: int
) -> None:
    """In float64, to 1e-9 of each parameter's largest gradient: log-probs, entropies, values, last states."""
    model, plain = MODELS[tuning]
    unbatched = unbatched_loss(model, plain, rows)
    expected = gradients(model, unbatched)
    for kind in ("padded", "packed", "trie"):
        batches = lay_out(rows, layouts(rows, kind, tokens))
        assert kind != "trie" or len(batches) == 1
        loss = sum(batched_loss(plain, batch) for batch in batches)
        torch.testing.assert_close(loss, unbatched, rtol=1e-9, atol=1e-9)
        for mine, theirs in zip(gradients(model, loss), expected, strict=True):
            assert (mine - theirs).abs().max() <= 1e-9 * max(1.0, theirs.abs().max())
