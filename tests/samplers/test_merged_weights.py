"""Adapters merged for sampling give what PEFT gives, however often weights are synced."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler, WeightUpdate, merged_weights
from tests.chat.for_every import for_every

IDS = (5, 9, 200, 31, 7)


def adapted(model: Any, seed: int = 0, **settings: Any) -> tuple[Any, WeightUpdate]:
    """Return a PEFT model with random adapter weights, and the update a trainer would send."""
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"], **settings)
    policy = get_peft_model(copy.deepcopy(model), config).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and "magnitude" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif parameter.requires_grad:
                parameter.mul_(1 + torch.rand_like(parameter))
    tensors = get_peft_model_state_dict(policy)
    return policy, WeightUpdate(list(tensors.items()), kind="lora", lora_config=policy.peft_config["default"].to_dict())


@for_every(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 20}},
        {"modules_to_save": ["lm_head"]},
        {"bias": "lora_only"},
    ],
)
def test_a_merged_adapter_is_what_peft_computes(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, settings: dict[str, Any]
) -> None:
    model = make_model()
    policy, update = adapted(model, **settings)

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            assert await sampler.sync_weights(update) == 1
            [completion] = await sampler.sample([SamplingRequest(IDS, SamplingParams(max_tokens=20), seed=1)])
            assert completion.logprobs == pytest.approx(plain_logprobs(policy, IDS, completion.ids), abs=1e-4)

    run(go())


@for_every("settings", [{}, {"use_rslora": True}, {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 20}}])
def test_without_merging_the_weights_stay_and_an_adapter_is_what_peft_computes(
    make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any, settings: dict[str, Any]
) -> None:
    model = make_model()
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = (adapted(model, seed, **settings) for seed in (0, 1))

    async def go() -> None:
        async with TorchSampler(model, tokenizer, merge_adapters=False) as sampler:
            for policy, update in (first, second, first):
                await sampler.sync_weights(update)
                await sampler.sync_weights(replace(second[1], name="opponent"))
                for weights, peft in (("", policy), ("opponent", second[0])):
                    request = SamplingRequest(IDS, SamplingParams(max_tokens=9), seed=1, weights=weights)
                    [completion] = await sampler.sample([request])
                    assert completion.logprobs == pytest.approx(plain_logprobs(peft, IDS, completion.ids), abs=1e-4)
            await sampler.sync_weights(WeightUpdate((), kind="lora", lora_config=first[1].lora_config))
            [completion] = await sampler.sample([SamplingRequest(IDS, SamplingParams(max_tokens=9), seed=1)])
            assert completion.logprobs == pytest.approx(plain_logprobs(make_model(), IDS, completion.ids), abs=1e-4)

    run(go())
    assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())


def test_a_new_adapter_of_the_same_shapes_is_written_in_place(model: Any) -> None:
    """Recorded decoding steps read the adapters where they are."""
    (_, first), (policy, second), (_, other) = (
        adapted(model, 0),
        adapted(model, 1),
        adapted(model, 2, rank_pattern={"v_proj": 2}),
    )
    weights = merged_weights.MergedWeights(model, merge_adapters=False)
    weights.apply(first)
    layout = weights.layout
    weights.apply(second)
    assert weights.layout == layout
    with torch.inference_mode():
        ids = torch.tensor([IDS])
        assert torch.allclose(model(input_ids=ids).logits, policy(input_ids=ids).logits, atol=1e-4)
    weights.apply(other)
    assert weights.layout != layout


@for_every("settings", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_what_needs_weights_of_its_own_is_refused_without_merging(model: Any, settings: dict[str, Any]) -> None:
    weights = merged_weights.MergedWeights(model, merge_adapters=False)
    with pytest.raises(ValueError, match="merge_adapters=True"):
        weights.apply(adapted(model, **settings)[1])


def test_embeddings_can_be_adapted(make_model: Any, tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    model = make_model()
    config = LoraConfig(r=4, target_modules=["embed_tokens"])
    policy = get_peft_model(copy.deepcopy(model), config).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    tensors = get_peft_model_state_dict(policy, save_embedding_layers=False)
    update = WeightUpdate(list(tensors.items()), kind="lora", lora_config=policy.peft_config["default"].to_dict())

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            await sampler.sync_weights(update)
            [completion] = await sampler.sample([SamplingRequest(IDS, SamplingParams(max_tokens=20), seed=1)])
            assert completion.logprobs == pytest.approx(plain_logprobs(policy, IDS, completion.ids), abs=1e-4)

    run(go())


def test_weight_syncs_do_not_drift(model: Any, tokenizer: Any, run: Any) -> None:
    """After many other adapters, the first gives the same weights to the last bit, and no adapter gives the base."""
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, first = adapted(model)
    others = [adapted(model, seed=seed)[1] for seed in range(1, 6)]

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            await sampler.sync_weights(first)
            once = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            for update in others:
                await sampler.sync_weights(update)
            await sampler.sync_weights(first)
            assert all(torch.equal(tensor, once[name]) for name, tensor in model.state_dict().items())
            await sampler.sync_weights(WeightUpdate((), kind="lora", lora_config=first.lora_config))
            assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())

    run(go())


def test_merged_weights_are_computed_one_at_a_time(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at once, in float32, would need the memory of a third model."""
    merge, alive = merged_weights._merge, weakref.WeakSet[torch.Tensor]()

    def watched(*arguments: Any) -> torch.Tensor:
        assert not alive
        result = merge(*arguments)
        alive.add(result)
        return result

    monkeypatch.setattr(merged_weights, "_merge", watched)
    policy, update = adapted(model)
    with torch.inference_mode():
        merged_weights.MergedWeights(model).apply(update)
        ids = torch.tensor([IDS])
        assert torch.allclose(model(input_ids=ids).logits, policy(input_ids=ids).logits, atol=1e-4)


def test_a_mismatched_adapter_changes_nothing(model: Any, tokenizer: Any, run: Any) -> None:
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, good = adapted(model)
    tensors = dict(good.tensors)
    first = next(iter(tensors))
    config = good.lora_config
    cases = [
        (WeightUpdate(good.tensors, kind="lora"), "lora_config"),
        (WeightUpdate([(first, tensors[first])], kind="lora", lora_config=config), "needs lora_A and lora_B"),
        (
            WeightUpdate([*good.tensors, ("base_model.model.x.lora_A.weight", torch.ones(4, 4))], "lora", config),
            "adapts 'x'",
        ),
        (WeightUpdate([*good.tensors, ("base_model.model.nobody", torch.ones(1))], "lora", config), "'nobody'"),
        (
            WeightUpdate([(n, t[:, :-1] if "lora_A" in n else t) for n, t in good.tensors], "lora", config),
            "the weight has",
        ),
        (WeightUpdate(good.tensors, "lora", {**(config or {}), "use_dora": True}), "magnitude"),
    ]

    async def go() -> None:
        async with TorchSampler(model, tokenizer) as sampler:
            for update, message in cases:
                with pytest.raises(ValueError, match=message):
                    await sampler.sync_weights(update)
            assert sampler.weight_version == 0
        assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())

    run(go())
