"""Padded, packed and prefix-tree micro-batches contain each token once, respect the limits and give equal gradients."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from token_sequences import token_sequence
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from trainers.batching import CostModel, MicroBatch, Row, make_micro_batches
from trainers.batching.layout import fill, layout_tokens, pad, plan_layouts, predict_seconds
from trainers.batching.microbatch import build_micro_batches
from trainers.batching.prefix_tree import PrefixTrees, SortedRows, build_prefix_trees, merge_prefix_trees
from trainers.model.attention import enable_tree_attention, hidden_states
from trainers.model.token_logprobs import token_logprobs

# A cost model in which a token costs one second and nothing else costs anything: all possible sharing happens.
TOKENS_ONLY = CostModel(token=1.0, pair=0.0, call=0.0, batch=0.0, block=1)
USUAL = CostModel(token=4e-5, pair=1e-7, call=3e-4, batch=2e-3, block=32)
VOCABULARY = 40


def row(ids: list[int], mask: list[int], sample: int = 0, **targets: float) -> Row:
    sequence = token_sequence(ids, mask, [-0.125 * (i + 1) if m else 0.0 for i, m in enumerate(mask)])
    sampled = sum(mask)
    per_token = {name: value + np.arange(sampled, dtype=np.float64) for name, value in targets.items()}
    return Row(sequence, per_token, sample=sample)


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    """Sequences that branch anywhere, end anywhere (also as a prefix of another), occur twice, have unsampled gaps."""
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
        rows.append(row(sequence, mask, sample=number // 2, adv=10.0 * number))
    return rows


def layouts(rows: list[Row], kind: str, tokens: int) -> Any:
    if kind == "padded":
        return pad(np.array([len(r.sequence) for r in rows]), range(len(rows)), tokens, USUAL)
    if kind == "packed":
        return fill(
            [
                build_prefix_trees(SortedRows.of(rows, [index]), TOKENS_ONLY.is_worth_sharing)
                for index in range(len(rows))
            ],
            tokens,
        )
    return fill([build_prefix_trees(SortedRows.of(rows), TOKENS_ONLY.is_worth_sharing)], tokens)


def exact_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    return module.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + module.variance_epsilon)


def tiny(tuning: str) -> tuple[Any, Any]:
    """Return the full model in float64, and the one that computes."""
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
    assert enable_tree_attention(plain, torch.device("cpu"))
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
    """Log-probs, entropies and the input of a value head, one sequence after the other, with all logits."""
    share = float(np.float32(1 / max(1, sum(r.num_sampled for r in rows))))  # in the order of micro-batches
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
@settings(max_examples=10, deadline=None, phases=[Phase.generate])
@given(rows=trees(), tokens=st.integers(1, 60))
def test_prefix_tree_packed_and_padded_give_the_gradient_of_each_sequence_alone(
    tuning: str, rows: list[Row], tokens: int
) -> None:
    """In float64, to 1e-9 of each parameter's largest gradient: log-probs, entropies, values, last states."""
    model, plain = MODELS[tuning]
    unbatched = unbatched_loss(model, plain, rows)
    expected = gradients(model, unbatched)
    for kind in ("padded", "packed", "prefix tree"):
        batches = build_micro_batches(rows, layouts(rows, kind, tokens))
        assert kind != "prefix tree" or len(batches) == 1
        loss = sum(batched_loss(plain, batch) for batch in batches)
        torch.testing.assert_close(loss, unbatched, rtol=1e-9, atol=1e-9)
        for mine, theirs in zip(gradients(model, loss), expected, strict=True):
            assert (mine - theirs).abs().max() <= 1e-9 * max(1.0, theirs.abs().max())


def path_of(batch: MicroBatch, b: int, last: int) -> list[int]:
    """Return the columns of the sequence that ends at a column, from the definition of the ends."""
    if batch.end_BT is None:
        return list(range(last + 1))
    return [column for column in range(last + 1) if last < batch.end_BT[b, column]]


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(
    rows=trees(),
    tokens=st.integers(1, 60),
    share=st.booleans(),
    costs=st.sampled_from([TOKENS_ONLY, USUAL]),
    aggregation=st.sampled_from(["token-mean", "sequence-mean"]),
)
def test_every_sampled_token_occurs_once_per_sequence(
    rows: list[Row], tokens: int, share: bool, costs: CostModel, aggregation: Any
) -> None:
    """Also for two equal sequences, and for one that is a prefix of another."""
    batches = make_micro_batches(
        rows, tokens_per_microbatch=tokens, share_prompts=share, costs=costs, weighting=aggregation
    )
    assert sorted(index for batch in batches for index in batch.sequence_S.tolist()) == list(range(len(rows)))
    sampled = [r.num_sampled for r in rows]
    for batch in batches:
        assert batch.ids_BT.numel() <= tokens or len(batch.sequence_S) == 1
        assert (batch.position_BT is None) == (batch.end_BT is None)
        assert share or batch.end_BT is None
        for index, (b, last) in zip(batch.sequence_S.tolist(), batch.last_S.tolist(), strict=True):
            sequence, path = rows[index].sequence, path_of(batch, b, last)
            assert batch.ids_BT[b, path].tolist() == list(sequence.ids)
            if batch.position_BT is not None:
                assert batch.position_BT[b, path].tolist() == list(range(len(sequence)))
            mine = batch.sequence_N == index
            marked = np.flatnonzero(sequence.mask)
            assert batch.row_N[mine].tolist() == [b] * len(marked)
            assert batch.column_N[mine].tolist() == [path[place] for place in marked]
            assert batch.source_N[mine].tolist() == [path[place - 1] for place in marked]
            assert batch.targets["adv"][mine].tolist() == rows[index].targets["adv"].tolist()
            assert batch.sampler_logp_N[mine].tolist() == [sequence.logprobs[place] for place in marked]
            of_episode = sum(r.num_sampled for r in rows if r.sample == rows[index].sample)
            episodes = len({r.sample for r in rows})
            share_of_each = (
                1 / max(1, sum(sampled)) if aggregation == "token-mean" else 1 / (episodes * max(1, of_episode))
            )
            assert np.allclose(batch.weight_N[mine], share_of_each if len(marked) else 0)
    again = make_micro_batches(
        rows, tokens_per_microbatch=tokens, share_prompts=share, costs=costs, weighting=aggregation
    )
    assert all(torch.equal(a.ids_BT, b.ids_BT) for a, b in zip(batches, again, strict=True))


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(rows=trees())
def test_the_prefix_tree_contains_each_distinct_prefix_once(rows: list[Row]) -> None:
    tree = build_prefix_trees(SortedRows.of(rows), TOKENS_ONLY.is_worth_sharing)
    prefixes = {r.sequence.ids[:n] for r in rows for n in range(1, len(r.sequence) + 1)}
    assert tree.length == len(prefixes)
    twice = merge_prefix_trees([tree, tree])
    assert twice.length == 2 * tree.length
    assert [node.end for node in twice.nodes[len(tree.nodes) :]] == [node.end + tree.length for node in tree.nodes]


def group(prompt: int, completion: int, size: int, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 700, prompt).tolist()
    return [
        row(start + rng.integers(0, 700, completion).tolist(), [0] * prompt + [1] * completion, adv=0.0)
        for _ in range(size)
    ]


def test_a_few_equal_tokens_do_not_split_a_sequence() -> None:
    """Another node is another call in every layer: this pays off for forty tokens, not for two."""
    assert len(build_prefix_trees(SortedRows.of(group(2, 30, 4)), USUAL.is_worth_sharing).nodes) == 4
    assert len(build_prefix_trees(SortedRows.of(group(40, 30, 4)), USUAL.is_worth_sharing).nodes) == 5
    assert len(build_prefix_trees(SortedRows.of(group(2, 30, 30)), USUAL.is_worth_sharing).nodes) == 31


def test_micro_batches_have_equal_sizes() -> None:
    """Not three full ones and a small rest: whether padded, packed, or groups that share a prompt."""
    alone = [row([*r.sequence.ids], [*r.sequence.mask]) for seed in range(13) for r in group(1, 63, 1, seed)]
    for share in (False, True):
        sizes = [
            batch.ids_BT.numel() for batch in make_micro_batches(alone, tokens_per_microbatch=256, share_prompts=share)
        ]
        assert len(sizes) == 4
        assert min(sizes) >= 192
    groups = [r for seed in range(9) for r in group(100, 20, 4, seed)]
    sizes = [layout_tokens(layout) for layout in plan_layouts(groups, tokens=800, costs=USUAL, share=True)]
    assert sum(sizes) == 9 * 180
    assert len(sizes) == 3
    assert min(sizes) == max(sizes)


def test_a_group_too_large_for_a_micro_batch_is_split_and_each_part_keeps_the_prompt() -> None:
    sizes = [layout_tokens(layout) for layout in plan_layouts(group(100, 50, 16), tokens=512, costs=USUAL, share=True)]
    assert sizes == [500, 500]
    sizes = [layout_tokens(layout) for layout in plan_layouts(group(100, 50, 24), tokens=512, costs=USUAL, share=True)]
    assert sizes == [500, 500, 500]
    assert [
        layout_tokens(layout) for layout in plan_layouts(group(100, 50, 2), tokens=10, costs=USUAL, share=True)
    ] == [150, 150]


def test_the_plan_uses_the_layout_predicted_to_be_fastest() -> None:
    """Shared prompt: a prefix tree. Equal lengths: padded, one call for all. Uneven: packed, or padded in two cuts."""
    (shared,) = plan_layouts(group(200, 30, 8), tokens=10**6, costs=USUAL, share=True)
    assert isinstance(shared, PrefixTrees)
    assert shared.length == 200 + 8 * 30
    equal = [r for seed in range(16) for r in group(1, 30, 1, seed)]
    (padded,) = plan_layouts(equal, tokens=10**6, costs=USUAL, share=True)
    assert not isinstance(padded, PrefixTrees)
    uneven = [r for seed in range(16) for r in group(1, 5 + 20 * seed, 1, seed)]
    (packed,) = plan_layouts(uneven, tokens=10**6, costs=USUAL, share=True)
    assert isinstance(packed, PrefixTrees)
    assert packed.length == sum(len(r.sequence) for r in uneven)
    cut = plan_layouts(uneven, tokens=10**6, costs=USUAL, share=False)
    assert len(cut) > 1
    complete = USUAL.padded(16, max(len(r.sequence) for r in uneven))
    assert sum(predict_seconds(layout, USUAL) for layout in cut) < complete


def test_a_sequence_that_does_not_fit_is_an_error_and_no_rows_give_no_batches() -> None:
    assert make_micro_batches([], tokens_per_microbatch=10) == []
    with pytest.raises(ValueError, match="first token of a sequence is marked"):
        make_micro_batches([row([1, 2], [1, 1])], tokens_per_microbatch=10)
    (batch,) = make_micro_batches([row([1, 2, 3], [0, 0, 0], adv=0.0)], tokens_per_microbatch=10)
    assert batch.column_N.shape == (0,)
    assert batch.last_S.tolist() == [[0, 2]]
