"""The memory estimate is within a stated factor of the memory of the tensors of a real update."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from token_sequences import token_sequence
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from trainers.batching import Row, make_micro_batches
from trainers.config import LoraConfig, LoraModelConfig, ModelConfig, OptimizerConfig
from trainers.dry_run.memory import BatchShape, activation_bytes, estimate_memory, model_shape
from trainers.learner import Learner
from trainers.model import ModelUnusable, Policy
from trainers.tiny_model import make_tiny_model

ROWS, LENGTH, PROMPT = 4, 160, 128


def peak_bytes(policy: Policy, optimizer: OptimizerConfig, trace: Path) -> int:
    """Return the bytes of the model and of what its updates allocate, at the peak."""
    storages = [tensor.untyped_storage() for tensor in (*policy.model.parameters(), *policy.model.buffers())]
    model = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        updates(policy, optimizer)
    measured.export_chrome_trace(str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    return model + max(itertools.accumulate(event["args"]["Bytes"] for event in events))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough that activations dominate, with grouped queries and a large vocabulary."""
    path = make_tiny_model(tmp_path_factory.mktemp("memory") / "model")
    tokenizer = AutoTokenizer.from_pretrained(path)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=6_000,
            hidden_size=192,
            intermediate_size=640,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).save_pretrained(path)
    return path


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    mask = (0,) * PROMPT + (1,) * (LENGTH - PROMPT)
    created = []
    for _ in range(ROWS):
        ids = tuple(int(i) for i in rng.integers(3, 700, LENGTH))
        created.append(Row(token_sequence(ids, mask), {}))
    return created


def updates(policy: Policy, optimizer: OptimizerConfig) -> None:
    learner = Learner(policy, optimizer, 10)
    for step in range(2):  # in the second, optimizer states exist during the passes
        batches = make_micro_batches(rows(), tokens_per_microbatch=10**6)
        learner.optimizer_step(step, batches, lambda outputs, batch: -(batch.weight_N * outputs.logp_N).sum())


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ({"tuning": "full"}, {}),
        ({"tuning": "full", "gradient_checkpointing": True}, {"name": "adamw8bit"}),
        ({"tuning": "lora"}, {}),
        ({"tuning": "lora", "dtype": "bfloat16"}, {}),
        ({"tuning": "lora", "gradient_checkpointing": True}, {}),
        ({"tuning": "qlora"}, {"name": "adamw8bit"}),
    ],
    ids=["full", "full-checkpointing-8bit", "lora", "lora-bf16", "lora-checkpointing", "qlora-8bit"],
)
def test_the_estimate_is_close_to_the_memory_of_an_update(
    folder: Path, tmp_path: Path, model: Any, optimizer: Any
) -> None:
    kind = LoraModelConfig if "lora" in model else ModelConfig
    config, options = kind(str(folder), **model), OptimizerConfig(**optimizer)
    shape = BatchShape(ROWS, LENGTH, ROWS * (LENGTH - PROMPT))
    estimate = estimate_memory(config, options, shape)
    policy = Policy(config)
    peak = peak_bytes(policy, options, tmp_path / "trace.json")
    assert 0.75 <= peak / estimate.peak <= 1.1, (peak, estimate)


def test_activations_grow_with_the_tokens_and_checkpointing_keeps_a_tenth(folder: Path) -> None:
    plain, saving = (ModelConfig(str(folder), gradient_checkpointing=on) for on in (False, True))
    one, _ = activation_bytes(model_shape(plain), plain, BatchShape(2, 100, 10))
    two, _ = activation_bytes(model_shape(plain), plain, BatchShape(4, 100, 10))
    assert two == pytest.approx(2 * one, rel=0.01)
    less, block = activation_bytes(model_shape(saving), saving, BatchShape(2, 100, 10))
    assert less < one / 10
    assert less + block < one


def test_four_bit_weights_take_half_a_byte_each(folder: Path) -> None:
    shape, options = BatchShape(1, 16, 4), OptimizerConfig()
    complete, small = (
        estimate_memory(ModelConfig(str(folder), tuning), options, shape) for tuning in ("lora", "qlora")
    )
    linear = sum(
        module.weight.numel()
        for name, module in Qwen2ForCausalLM.from_pretrained(folder).named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    assert complete.resident["weights"] - small.resident["weights"] == pytest.approx((4 - 0.516) * linear, rel=1e-3)


def test_a_model_without_a_configuration_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="nowhere"):
        model_shape(ModelConfig(str(tmp_path / "nowhere")))
    adapter = tmp_path / "model"
    with pytest.raises(ModelUnusable, match="no_such_layer"):
        model_shape(LoraModelConfig(str(make_tiny_model(adapter)), lora=LoraConfig(targets="no_such_layer")))
