"""A 4-bit base with every kind of adapter: training works, and the sampler uses the trained distribution."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echo_config import echo_config
from transformers import AutoModelForCausalLM

from rllm_gym.core import TokenSequence
from rllm_gym.samplers import SamplingParams, SamplingRequest, TorchSampler
from trainers.batching import MicroBatch, Row, make_micro_batches
from trainers.config import LoraConfig, LoraModelConfig, ModelConfig, OptimizerConfig
from trainers.learner import Learner
from trainers.loop import train
from trainers.model import ModelUnusable, Policy
from trainers.model.quantization import dequantized_copy, load_quantized_lm
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

PROMPTS = [(5, 6, 7, 8), (9, 10, 11)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("quantization") / "tiny")


def make_policy(folder: Path, tuning: Any, **options: Any) -> Policy:
    policy = Policy(LoraModelConfig(str(folder), tuning, lora=LoraConfig(rank=4), **options))
    with torch.no_grad():  # adapters start at zero, where half of their gradient is zero too
        for number, (_, parameter) in enumerate(policy.parameters):
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return policy


def batch_of(pairs: list[tuple[tuple[int, ...], Any]]) -> MicroBatch:
    rows = []
    for prompt, completion in pairs:
        mask = (0,) * len(prompt) + (1,) * len(completion.ids)
        logps = (0.0,) * len(prompt) + completion.logprobs
        sequence = TokenSequence(prompt + completion.ids, mask, logps, mask, (0.0,) * len(mask), mask)
        rows.append(Row(sequence, {"adv": np.ones(len(completion.ids))}))
    (batch,) = make_micro_batches(rows, tokens_per_microbatch=10**6)
    return batch


def sample(model: Any, policy: Policy, **push: Any) -> MicroBatch:
    async def sampled() -> list[Any]:
        async with TorchSampler(model, policy.tokenizer) as sampler:
            await sampler.sync_weights(policy.weight_update(**push))
            requests = [SamplingRequest(prompt, SamplingParams(max_tokens=16), seed=3) for prompt in PROMPTS]
            return list(zip(PROMPTS, await sampler.sample(requests), strict=True))

    return batch_of(asyncio.run(sampled()))


def logprob_difference(policy: Policy, batch: MicroBatch) -> float:
    with torch.no_grad():
        return (policy.outputs(batch).logp_N - batch.sampler_logp_N).abs().max().item()


@pytest.mark.parametrize("tuning", ["lora", "qlora"])
def test_the_sampler_uses_the_trained_distribution(folder: Path, tuning: str) -> None:
    policy = make_policy(folder, tuning)
    assert logprob_difference(policy, sample(policy.sampling_model(), policy)) < 1e-4
    # Full and merged, for samplers that do not support such adapters, whatever their base.
    assert (
        logprob_difference(policy, sample(AutoModelForCausalLM.from_pretrained(folder).eval(), policy, merged=True))
        < 1e-4
    )


def test_the_base_on_disk_has_another_distribution(folder: Path, tmp_path: Path) -> None:
    """Verifies that rounding to 4 bits changes something here; otherwise the tests above could not fail."""
    policy = make_policy(folder, "qlora")
    wrong = sample(AutoModelForCausalLM.from_pretrained(folder).eval(), policy)
    assert logprob_difference(policy, wrong) > 0.01
    # A sampler in another process reads the correct one from disk.
    path = policy.write_sampling_base(tmp_path / "base")
    assert logprob_difference(policy, sample(AutoModelForCausalLM.from_pretrained(path).eval(), policy)) < 1e-4
    assert make_policy(folder, "lora").write_sampling_base(tmp_path / "unused") == str(folder)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_equal_those_of_the_dequantized_weights(folder: Path, tmp_path: Path, checkpointing: bool) -> None:
    """Also after a forward pass without gradient, in which bitsandbytes may repack the weights of a model in evaluation
    mode for a kernel without a backward pass.
    """
    policy = make_policy(folder, "qlora", gradient_checkpointing=checkpointing)
    plain = tmp_path / "plain"
    dequantized_copy(policy.model.get_base_model(), str(folder)).save_pretrained(plain)
    policy.tokenizer.save_pretrained(plain)
    other = make_policy(plain, "lora")
    prompt = tuple(range(20, 60))  # long enough to be shared
    pairs = [(prompt, type("C", (), {"ids": (k, k + 1, 7), "logprobs": (-1.0,) * 3})) for k in range(100, 106)]
    rows = []
    for ids, completion in pairs:
        mask = (0,) * len(ids) + (1,) * 3
        rows.append(Row(TokenSequence(ids + completion.ids, mask, (0.0,) * 43, mask, (0.0,) * 43, mask), {}))
    gradients = []
    for item in (policy, other):
        with torch.no_grad():
            for batch in make_micro_batches(rows, tokens_per_microbatch=10**6):
                item.outputs(batch)
        for batch in make_micro_batches(rows, tokens_per_microbatch=10**6, share_prompts=item is policy):
            assert (batch.end_BT is not None) == (item is policy)
            (batch.weight_N * item.outputs(batch).logp_N).sum().backward()
        gradients.append(dict(item.parameters))
    for name, parameter in gradients[0].items():
        assert parameter.grad is not None, name
        assert torch.allclose(parameter.grad, gradients[1][name].grad, rtol=1e-4, atol=1e-6), name


def test_adapters_on_four_bits_learn_and_the_reference_stays(folder: Path) -> None:
    policy = make_policy(folder, "qlora")
    batch = sample(policy.sampling_model(), policy)
    base = dequantized_copy(policy.model.get_base_model(), str(folder))
    before = policy.reference_logprobs(batch)
    learner = Learner(policy, OptimizerConfig(lr=1e-2, warmup_steps=0, name="adamw8bit"), 20)
    losses = [
        learner.optimizer_step(step, [batch], lambda outputs, b: -(b.weight_N * outputs.logp_N).sum()).loss
        for step in range(12)
    ]
    assert losses[-1] < 0.6 * losses[0]
    assert torch.equal(before, policy.reference_logprobs(batch))
    ids = batch.ids_BT[:1, :10]
    with torch.no_grad(), policy.model.disable_adapter():
        assert torch.allclose(policy.model(input_ids=ids).logits, base(input_ids=ids).logits, atol=1e-5)


def test_the_log_prob_difference_stays_small_in_a_complete_run(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", hidden_size=64, num_heads=2, num_layers=1, vocab_size=300)
    options = {"path": str(model), "tuning": "qlora", "lora": {"rank": 4}}
    optimizer = {"name": "adamw8bit", "schedule": "cosine"}
    train(echo_config(tmp_path, model=options, optimizer=optimizer, steps=3))
    rows = [row for row in read_metrics(tmp_path / "run") if "sampling/logprob_difference/max" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["sampling/logprob_difference/max"] < 1e-4
        assert row["memory/process_peak"] > 0
        assert 0 <= row["batch/padding_fraction"] < 1
        assert row["throughput/train_tokens_per_second"] == pytest.approx(
            row["batch/sequence_tokens"] / row["time/update"]
        )


def test_a_saved_adapter_is_self_describing(folder: Path, tmp_path: Path) -> None:
    """Names that PEFT and vLLM know, no machine-specific values but the base, and equal bytes every time."""
    policy = make_policy(folder, "qlora")
    for name in ("one", "two"):
        policy.save(tmp_path / name)
    one, two = ((tmp_path / name / "adapter_config.json").read_text() for name in ("one", "two"))
    settings = json.loads(one)
    assert one == two
    assert settings["base_model_name_or_path"] == str(folder)
    assert settings["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (4, 32, 0.0)


def test_unsupported_quantization_or_adapters_are_errors(folder: Path, tmp_path: Path) -> None:
    adapted = Policy(ModelConfig(str(folder), "lora"))
    for name in ("four", "torn"):
        adapted.tokenizer.save_pretrained(tmp_path / name)
    load_quantized_lm(str(folder), dtype=torch.float32, device=torch.device("cpu")).save_pretrained(tmp_path / "four")
    for tuning in ("lora", "qlora"):
        with pytest.raises(ModelUnusable, match="was saved quantized"):
            Policy(ModelConfig(str(tmp_path / "four"), tuning))  # type: ignore[arg-type]
    adapted.model.get_base_model().save_pretrained(tmp_path / "torn")  # under PEFT's names
    with pytest.raises(ModelUnusable, match="be initialized randomly"):
        Policy(ModelConfig(str(tmp_path / "torn"), "qlora"))
    adapted.save(tmp_path / "adapter")
    with pytest.raises(ModelUnusable, match="rllm-gym merge"):
        Policy(ModelConfig(str(tmp_path / "adapter"), "qlora"))
    for target in ("lm_head", "embed_tokens"):
        with pytest.raises(ModelUnusable, match="often share one weight"):
            Policy(LoraModelConfig(str(folder), lora=LoraConfig(targets=f"q_proj,{target}")))


def test_the_reference_does_not_change(folder: Path) -> None:
    policy = Policy(ModelConfig(str(folder), "full"), reference=True)
    base = Policy(ModelConfig(str(folder), "full"))
    batch = sample(base.sampling_model(), base)
    with torch.no_grad():
        for _, parameter in policy.parameters:
            parameter.add_(0.05)
        expected = base.outputs(batch).logp_N
    assert torch.allclose(policy.reference_logprobs(batch), expected, atol=1e-5)
