"""Log-probs and entropies without full logits equal plain log-softmax, with gradients, for every tile size."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.chat.for_every import for_every
from trainers.model.token_logprobs import LogitTransform, linear_logprobs, token_logprobs

FORMS = [
    LogitTransform(),
    LogitTransform(scale=0.3, temperature=0.7),
    LogitTransform(softcap=2.5, scale=1.7, temperature=1.3),
]


def plain(hidden_ND: Any, weight_VD: Any, bias_V: Any, target_N: Any, form: LogitTransform) -> tuple[Any, Any]:
    logits_NV = torch.nn.functional.linear(hidden_ND, weight_VD, bias_V) * form.scale
    if form.softcap is not None:
        logits_NV = form.softcap * torch.tanh(logits_NV / form.softcap)
    logp_NV = torch.log_softmax(logits_NV / form.temperature, -1)
    return logp_NV.gather(-1, target_N[:, None]).squeeze(-1), -(logp_NV.exp() * logp_NV).sum(-1)


def draw(n: int, d: int, v: int, seed: int, *, head: bool, bias: bool) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    hidden_ND = torch.randn(n, d, generator=generator, dtype=torch.float64).requires_grad_()
    weight_VD = torch.randn(v, d, generator=generator, dtype=torch.float64).requires_grad_(head)
    bias_V = torch.randn(v, generator=generator, dtype=torch.float64).requires_grad_(head) if bias else None
    return hidden_ND, weight_VD, bias_V, torch.randint(0, v, (n,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 9),
    v=st.integers(2, 23),
    tokens=st.integers(1, 9),
    words=st.integers(1, 23),
    form=st.sampled_from(FORMS),
    head=st.booleans(),
    bias=st.booleans(),
    uses=st.sampled_from(["logp", "entropy", "both"]),
    announced=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_plain_log_softmax(
    n: int,
    v: int,
    tokens: int,
    words: int,
    form: LogitTransform,
    head: bool,
    bias: bool,
    uses: str,
    announced: bool,
    seed: int,
) -> None:
    """Frozen or trained head, differentiated entropy announced or not: equal to 1e-9."""
    inputs = draw(n, 5, v, seed, head=head, bias=bias)
    tile_bytes = 8 * min(tokens, n) * words
    ours = linear_logprobs(
        *inputs, form=form, tokens_per_chunk=tokens, tile_bytes=tile_bytes, entropy_gradient=announced
    )
    theirs = plain(*inputs, form)
    weight_N = torch.linspace(-1, 2, n, dtype=torch.float64)
    trained = [tensor for tensor in inputs[:3] if tensor is not None and tensor.requires_grad]

    def gradients(logp_N: Any, entropy_N: Any) -> Any:
        loss = 0.0
        if uses != "entropy":
            loss = loss + (weight_N * logp_N).sum()
        if uses != "logp":
            loss = loss + (weight_N.flip(0) * entropy_N).sum()
        return torch.autograd.grad(loss, trained)

    for mine, expected in zip(
        itertools.chain(ours, gradients(*ours)), itertools.chain(theirs, gradients(*theirs)), strict=True
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)


@for_every("form", FORMS)
def test_gradcheck(form: LogitTransform) -> None:
    *inputs, target_N = draw(4, 3, 7, 0, head=True, bias=True)
    assert torch.autograd.gradcheck(
        lambda *tensors: linear_logprobs(*tensors, target_N, form=form, tokens_per_chunk=3, tile_bytes=3 * 8 * 4),
        inputs,
        atol=1e-9,
    )


def test_bfloat16_hidden_states_and_a_large_scale_of_logits_lose_nothing() -> None:
    """The head is float32 under autocast, and no exponential overflows."""
    generator = torch.Generator().manual_seed(0)
    hidden_ND = (torch.randn(6, 16, generator=generator) * 30).bfloat16().requires_grad_()
    weight_VD = torch.randn(50, 16, generator=generator)
    target_N = torch.randint(0, 50, (6,), generator=generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logp_N, entropy_N = linear_logprobs(hidden_ND, weight_VD, None, target_N, tile_bytes=4 * 6 * 8)
    expected_N, expected_entropy_N = plain(hidden_ND.double(), weight_VD.double(), None, target_N, LogitTransform())
    assert logp_N.dtype == torch.float32
    torch.testing.assert_close(logp_N.double(), expected_N, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropy_N.double(), expected_entropy_N, rtol=1e-4, atol=1e-4)
    (grad_ND,) = torch.autograd.grad(logp_N.sum(), hidden_ND)
    assert grad_ND.dtype == torch.bfloat16


def test_zero_tokens() -> None:
    hidden_ND = torch.zeros(0, 4, requires_grad=True)
    logp_N, entropy_N = linear_logprobs(hidden_ND, torch.ones(9, 4), None, torch.zeros(0, dtype=torch.long))
    assert logp_N.shape == entropy_N.shape == (0,)
    (logp_N.sum() + entropy_N.sum()).backward()


@for_every("head", ["frozen", "lora", "saved", "tied", "capped"])
def test_heads_that_adapters_wrap_get_their_gradient(head: str) -> None:
    """LoRA on the head, a trained copy of it, one tied to the embeddings, one with a soft cap and a LoRA: equal to
    plain logits.
    """
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "initializer_range": 0.3,
        "tie_word_embeddings": head == "tied",
    }
    model: Any = (
        Gemma2ForCausalLM(Gemma2Config(**sizes, head_dim=8, final_logit_softcapping=2.0))
        if head == "capped"
        else Qwen2ForCausalLM(Qwen2Config(**sizes))
    ).double()
    if head in ("frozen", "lora", "capped"):
        targets = ["q_proj", "lm_head"] if head != "frozen" else ["q_proj"]
        model = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).double()
    elif head == "saved":
        settings = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False)
        model = get_peft_model(model, settings).double()
    base = model if head == "tied" else model.get_base_model()
    ids_BT = torch.randint(0, 30, (2, 7), generator=torch.Generator().manual_seed(1))
    target_N = ids_BT[:, 1:].flatten()
    hidden_ND = base.base_model(input_ids=ids_BT).last_hidden_state[:, :-1].flatten(0, 1)
    logp_N, entropy_N = token_logprobs(base, hidden_ND, target_N, temperature=0.7, tokens_per_chunk=4)
    logp_NV = torch.log_softmax(model(input_ids=ids_BT).logits[:, :-1].flatten(0, 1) / 0.7, -1)
    expected_N = logp_NV.gather(-1, target_N[:, None]).squeeze(-1)
    expected_entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    torch.testing.assert_close(logp_N, expected_N, rtol=1e-9, atol=1e-9)
    weight_N = torch.linspace(-1, 1, len(target_N), dtype=torch.float64)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert any("lm_head" in name or "embed" in name for name in trained) == (head != "frozen")
    ours = torch.autograd.grad((weight_N * (logp_N + entropy_N)).sum(), list(trained.values()))
    theirs = torch.autograd.grad((weight_N * (expected_N + expected_entropy_N)).sum(), list(trained.values()))
    for name, mine, expected in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_no_tensor_of_size_tokens_times_vocabulary_is_created() -> None:
    """Forward and backward, frozen and trained: the largest tensor is the head itself, or its gradient."""
    largest = 0

    for trained in (False, True):
        hidden_ND = torch.randn(300, 4, requires_grad=True)
        weight_VD = torch.randn(3000, 4, requires_grad=trained)
        target_N = torch.randint(0, 3000, (300,))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
            logp_N, entropy_N = linear_logprobs(hidden_ND, weight_VD, None, target_N, tile_bytes=1 << 17)
            (logp_N.sum() + 0.1 * entropy_N.sum()).backward()  # type: ignore[no-untyped-call]
        largest = max(largest, *(event.self_cpu_memory_usage for event in measured.events()))
    assert 1 << 16 < largest <= 1 << 18
