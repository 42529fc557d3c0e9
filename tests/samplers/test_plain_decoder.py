"""The explicit forward pass computes what the model computes, for every supported family, and nothing stale."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from samplers.conftest import qwen
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler
from rllm_gym.samplers.kv_slots import KVSlots
from rllm_gym.samplers.plain_decoder import PlainDecoder
from tests.chat.for_every import for_every

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def build(name: str) -> Any:
    torch.manual_seed(1)
    if name == "qwen2":
        return qwen()
    if name == "llama, tied, llama3 angles":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3)).eval()
    if name == "mistral, window":
        return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=24)).eval()


NAMES = ["qwen2", "llama, tied, llama3 angles", "mistral, window", "qwen3, heads of another size"]


@torch.inference_mode()
def largest_gap(model: Any, slots: KVSlots) -> float:
    """Return the largest relative gap between logits in slots (a prompt, then four tokens) and the model's own."""
    torch.manual_seed(0)
    ids_NT = torch.randint(0, 300, (3, 24))
    slots.reserve(3, 64)
    slots_N1 = torch.arange(3).unsqueeze(1)
    expected_NTV = model(input_ids=ids_NT).logits
    worst = 0.0
    for begin, end in ((0, 20), (20, 21), (21, 22), (22, 23), (23, 24)):
        positions_NQ = torch.arange(begin, end).expand(3, -1)
        got_N1V = slots.forward(ids_NT[:, begin:end], positions_NQ, slots_N1, 32)
        worst = max(worst, float((got_N1V[:, -1] - expected_NTV[:, end - 1]).abs().max()))
    return worst / float(expected_NTV.abs().max())


@for_every("name", NAMES)
def test_logits_in_slots_are_the_models_own(name: str) -> None:
    model = build(name)
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    assert slots.is_plain, "this family must be computed by the explicit forward pass"
    assert largest_gap(model, slots) < 1e-5


def test_an_adapter_injected_later_is_used() -> None:
    """A trainer may share the model it trains: what it does to the modules must not be bypassed."""
    model = qwen()
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    before = torch.nn.Parameter(model.lm_head.weight.detach() * 2)
    model.lm_head.weight = before
    assert largest_gap(model, slots) < 1e-5
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False), model)
    model.eval()
    assert largest_gap(model, slots) < 1e-5


def test_a_model_with_hooks_is_called_itself() -> None:
    model = qwen()
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    called = []
    handle = model.register_forward_pre_hook(lambda *_: called.append(1))
    assert largest_gap(model, slots) < 1e-5
    assert len(called) == 6
    handle.remove()
    model.model.layers[0].mlp.register_forward_hook(lambda *arguments: called.append(1))
    assert PlainDecoder.of(model) is None


def steer(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, args, output: output + 1)


def watch_norm(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda module, args, output: output * 2)


def swap_norm(model: Any) -> None:
    model.model.norm = torch.nn.LayerNorm(64)


def swap_layer(model: Any) -> None:
    model.model.layers[0] = type(model.model.layers[0])(model.config, 0).eval()


@for_every("change", [steer, watch_norm, swap_norm, swap_layer])
@for_every("later", [False, True])
def test_hooks_and_replaced_modules_take_effect(change: Any, later: bool) -> None:
    """Steering vectors, hooks and replaced modules, installed before or after the sampler is made."""
    model = qwen()
    if not later:
        change(model)
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    if later:
        assert slots.is_plain
        change(model)
        assert not slots.is_plain
    assert largest_gap(model, slots) < 1e-5


def test_a_sliding_window_only_in_the_configuration_is_ignored() -> None:
    """Checkpoints converted from Mistral's keep its window, and Llama's code knows none."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, sliding_window=14)).eval()
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    assert largest_gap(model, slots) < 1e-5
    assert model.config.sliding_window == 14


class Scaled(Qwen2ForCausalLM):  # type: ignore[misc]
    """A user's model on top of a known one."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.5
        return output


def test_unsupported_models_use_their_own_forward(tokenizer: Any) -> None:
    model = Scaled(qwen().config).eval()
    with torch.inference_mode():
        slots = KVSlots(model, 4)
    assert not slots.is_plain
    assert largest_gap(model, slots) < 1e-5
    changing = LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    ).eval()
    assert PlainDecoder.of(changing) is None


@pytest.mark.parametrize("deterministic", [False, True])
def test_replies_are_the_same_with_and_without_the_explicit_forward(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    requests = [SamplingRequest((5, 6, 7, number), SamplingParams(max_tokens=12), seed=number) for number in range(12)]

    async def scenario() -> list[Any]:
        async with TorchSampler(qwen(), tokenizer, num_threads=1, deterministic=deterministic) as sampler:
            return await asyncio.wait_for(sampler.sample(requests), 200)

    explicit = asyncio.run(scenario())
    monkeypatch.setattr(PlainDecoder, "of", classmethod(lambda cls, model: None))
    model_code = asyncio.run(scenario())
    assert [completion.ids for completion in explicit] == [completion.ids for completion in model_code]
    for one, other in zip(explicit, model_code, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
