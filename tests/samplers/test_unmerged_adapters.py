"""Adapters synced onto a 4-bit base: the same as PEFT computes on that base, without a second copy of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoTokenizer

from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler, WeightUpdate
from trainers.model.quantization import load_quantized_lm
from trainers.tiny_model import make_tiny_model

PROMPT = (5, 77, 300, 12)


def load(folder: Path) -> Any:
    return load_quantized_lm(str(folder), dtype=torch.float32, device=torch.device("cpu")).eval()


def largest_gap(model: Any, completions: Any) -> float:
    gaps = []
    for completion in completions:
        with torch.no_grad():
            logp_TV = model(torch.tensor([[*PROMPT, *completion.ids]])).logits[0].float().log_softmax(-1)
        for place, (token, logp) in enumerate(zip(completion.ids, completion.logprobs, strict=True)):
            gaps.append(abs(float(logp_TV[len(PROMPT) - 1 + place, token]) - logp))
    return max(gaps)


def test_adapters_replace_each_other_on_a_four_bit_base(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", seed=1, vocab_size=400, hidden_size=64, num_heads=2)
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", use_rslora=True)
    policy = get_peft_model(load(folder), config).eval()
    requests = [SamplingRequest(PROMPT, SamplingParams(max_tokens=8), seed=number) for number in range(4)]

    async def scenario() -> None:
        async with TorchSampler(load(folder), AutoTokenizer.from_pretrained(folder), num_threads=1) as sampler:
            plain = await sampler.sample(requests)
            for version in (1, 2):
                torch.manual_seed(version)
                with torch.no_grad():
                    for name, parameter in policy.named_parameters():
                        if "lora_" in name:
                            parameter.normal_(std=0.3)
                tensors = list(get_peft_model_state_dict(policy).items())
                settings = policy.peft_config["default"].to_dict()
                assert await sampler.sync_weights(WeightUpdate(tensors, kind="lora", lora_config=settings)) == version
                completions = await sampler.sample(requests)
                assert largest_gap(policy, completions) < 1e-4
                with policy.disable_adapter():
                    assert largest_gap(policy, completions) > 1e-2
                    assert largest_gap(policy, plain) < 1e-4
            # The trainer's next step changes its tensors in place; the synced copy must not change.
            with torch.no_grad():
                for _, tensor in tensors:
                    tensor.mul_(5)
            again = await sampler.sample(requests)
            assert [completion.ids for completion in again] == [completion.ids for completion in completions]
            with pytest.raises(ValueError, match="DoRA changes the weight"):
                await sampler.sync_weights(
                    WeightUpdate(tensors, kind="lora", lora_config=settings | {"use_dora": True})
                )
            wrong = [(name, tensor[:, :-1]) for name, tensor in tensors]
            with pytest.raises(ValueError, match="has shapes"):
                await sampler.sync_weights(WeightUpdate(wrong, kind="lora", lora_config=settings))
            # The updates that did not fit changed nothing.
            assert [completion.ids for completion in await sampler.sample(requests)] == [c.ids for c in completions]

    asyncio.run(scenario())
