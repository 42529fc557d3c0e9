"""Tree attention equals a dense mask, with gradients, by nodes, by blocks, and with FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.chat.for_every import for_every
from trainers.model import attention
from trainers.model.attention import (
    TREE_ATTENTION,
    block_mask_of,
    enable_tree_attention,
    hidden_states,
    nodes_of,
    tree_attention,
)

CPU = torch.device("cpu")


@st.composite
def ends(draw: st.DrawFn, length: int = 37) -> list[int]:
    """Any trees over that many columns, depth first, as the end of each column's subtree."""
    end_T = [0] * length

    def grow(low: int, high: int) -> None:
        while low < high:
            end = draw(st.integers(low + 1, high))
            own = draw(st.integers(low + 1, end))
            end_T[low:own] = [end] * (own - low)
            grow(own, end)
            low = end

    grow(0, length)
    return end_T


def dense_mask(end_BT: torch.Tensor) -> torch.Tensor:
    """``[B, T, T]``: the columns (last axis) visible to each column, from the definition, one pair at a time."""
    size, length = end_BT.shape
    mask = torch.zeros(size, length, length, dtype=torch.bool)
    for b in range(size):
        for query in range(length):
            for key in range(query + 1):
                mask[b, query, key] = query < end_BT[b, key]
    return mask


def draw_qkv(length: int, seed: int, heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, heads, length, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)
    ]


@settings(max_examples=15, deadline=None)
@given(first=ends(), second=ends(), seed=st.integers(0, 99))
def test_attention_by_nodes_equals_a_dense_mask(first: list[int], second: list[int], seed: int) -> None:
    end_BT = torch.tensor([first, second])
    inputs = draw_qkv(len(first), seed)
    ours = tree_attention(*inputs, nodes_of(end_BT), 0.4)
    theirs = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=dense_mask(end_BT)[:, None], scale=0.4)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for mine, expected in zip(
        torch.autograd.grad((ours * weight).sum(), inputs), torch.autograd.grad((theirs * weight).sum(), inputs)
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(first=ends(), second=ends(), block=st.sampled_from([1, 4, 7, 16, 128]))
def test_the_block_mask_equals_the_one_made_from_all_pairs(first: list[int], second: list[int], block: int) -> None:
    end_BT = torch.tensor([first, second])
    length = len(first)
    ours = block_mask_of(end_BT, block)
    theirs = create_block_mask(ours.mask_mod, 2, None, length, length, device="cpu", BLOCK_SIZE=block)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(ours.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    seen = ours.mask_mod(
        torch.arange(2)[:, None, None], torch.tensor(0), torch.arange(length)[None, :, None], torch.arange(length)
    )
    assert torch.equal(seen, dense_mask(end_BT))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_block_mask_equals_a_dense_mask() -> None:
    end_BT = torch.tensor([[300] * 100 + [180] * 80 + [300] * 40 + [240] * 20 + [300] * 60] * 2)
    query, key, value = (tensor.detach().float() for tensor in draw_qkv(300, 0))
    ours = flex_attention(query, key, value, block_mask=block_mask_of(end_BT), scale=0.4)
    theirs = tree_attention(query, key, value, nodes_of(end_BT), 0.4)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
# Two branches after a prompt, the second of which branches again; positions are those of each sequence alone.
BRANCHES = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9, 10], [1, 2, 3, 7, 8, 11]]
IDS, POSITIONS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 5]
ENDS, PATHS = (
    [11, 11, 11, 6, 6, 6, 11, 11, 10, 10, 11],
    [[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8, 9], [0, 1, 2, 6, 7, 10]],
)


MODELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)), True),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES)), True),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)), True),
    "mistral": (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)), True),
    "windowed": (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4096)), False),
    "eager": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, attn_implementation="eager")), False),
    "recurrent": (lambda: MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1)), False),
}


@for_every("kind", MODELS)
@torch.no_grad()
def test_trees_are_used_only_for_models_that_compute_them_correctly(kind: str) -> None:
    build, knows = MODELS[kind]
    model = build().eval()
    plain_BTV = model(torch.tensor(BRANCHES[:1])).logits
    assert enable_tree_attention(model, CPU) is knows
    tree = (torch.tensor([IDS]), torch.tensor([POSITIONS]), torch.tensor([ENDS]))
    if not knows:
        assert torch.equal(model(torch.tensor(BRANCHES[:1])).logits, plain_BTV)  # it computes the same as before
        with pytest.raises(ValueError, match="share_prompts=False"):
            hidden_states(model, *tree)
        return
    together_TD = hidden_states(model, *tree)[0]
    for ids, path in zip(BRANCHES, PATHS, strict=True):
        alone_TD = hidden_states(model, torch.tensor([ids]), None, None)[0]
        torch.testing.assert_close(together_TD[path], alone_TD, rtol=1e-4, atol=1e-5)


def test_a_gpu_without_the_backward_kernel_gets_padded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a consumer GPU: the forward pass works, the backward kernel needs more shared memory than there is."""

    class NoBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: torch.Tensor) -> torch.Tensor:
            return query.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: shared memory")

    def broken(query: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = NoBackward.apply(query)
        return result

    config = Qwen2Config(**SIZES)
    monkeypatch.setattr(attention, "tree_of", lambda end_BT: attention.AttentionTree(block_mask=object()))
    monkeypatch.setattr(attention, "_flex_attention", lambda device: lambda query, *_, **options: query.clone())
    assert attention._backward_error(config, CPU, torch.float32) is None
    monkeypatch.setattr(attention, "_flex_attention", lambda device: lambda query, *_, **options: broken(query))
    assert "shared memory" in str(attention._backward_error(config, CPU, torch.float32))


def test_a_model_with_tree_attention_is_saved_and_generates_normally(tmp_path: Any) -> None:
    """The attention's name exists only here: another program could not load a model that requires it."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    ids_BT = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    mask_BT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    before = model.generate(ids_BT, attention_mask=mask_BT, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert enable_tree_attention(model, CPU)
    after = model.generate(ids_BT, attention_mask=mask_BT, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(before, after)
    model.save_pretrained(tmp_path)
    assert TREE_ATTENTION not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    again = loaded.generate(ids_BT, attention_mask=mask_BT, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(before, again)


def test_gradient_checkpointing_uses_the_tree_mask_in_recomputation() -> None:
    """Layers recomputed in the backward pass must not use full attention."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    assert enable_tree_attention(model.eval(), CPU)
    tree = (torch.tensor([IDS]), torch.tensor([POSITIONS]), torch.tensor([ENDS]))

    def gradient() -> list[torch.Tensor]:
        parameters = list(model.model.layers.parameters())
        return list(torch.autograd.grad(hidden_states(model, *tree).square().sum(), parameters))

    plain = gradient()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    for mine, expected in zip(gradient(), plain, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_tree_gradients_on_a_gpu_equal_those_on_a_cpu() -> None:
    end_BT = torch.tensor([[700] * 300 + [500] * 200 + [700] * 100 + [650] * 50 + [700] * 50])
    generator = torch.Generator().manual_seed(0)
    sequence = torch.randint(0, 64, (1, 700), generator=generator)
    position = torch.tensor([[*range(300), *range(300, 500), *range(300, 400), *range(400, 450), *range(400, 450)]])
    gradients = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, "hidden_size": 128})).eval()
        model.to(device)
        assert enable_tree_attention(model, torch.device(device))
        states = hidden_states(model, sequence.to(device), position.to(device), end_BT.to(device))
        parameters = list(model.model.layers.parameters())
        gradients.append([g.cpu() for g in torch.autograd.grad(states.square().mean(), parameters)])
    for mine, expected in zip(*gradients, strict=True):
        assert (mine - expected).norm() <= 2e-2 * expected.norm()
