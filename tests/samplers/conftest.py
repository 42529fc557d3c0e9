"""A tiny model and tokenizer for the samplers' tests, and log-probs of a completion by a plain forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import torch
from samplers.vllm_server import run_vllm, vllm_folder, vllm_server, vllm_shared
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(1)

VOCABULARY = 300


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        ["up down left right the lake is frozen"] * 4,
        trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    backend.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", pad_token="<|end|>")


def qwen(seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,  # larger weights make rounding show in log-probs
        "eos_token_id": None,
        "bos_token_id": None,
    }
    return Qwen2ForCausalLM(Qwen2Config(**(settings | changes))).eval()


@pytest.fixture
def make_model() -> Callable[..., Qwen2ForCausalLM]:
    return qwen


@pytest.fixture
def model() -> Qwen2ForCausalLM:
    return qwen()


def _plain_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Return log-probs of ``ids`` after ``prompt`` by one plain forward pass, without any cache."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0].float() / (temperature or 1.0)
    logp_TV = logits_TV.log_softmax(-1)
    return [float(logp_TV[len(prompt) - 1 + place, index]) for place, index in enumerate(ids)]


@pytest.fixture
def plain_logprobs() -> Callable[..., list[float]]:
    return _plain_logprobs


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Return a function that runs a coroutine with a deadline."""

    def go(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(coroutine, 200)

        return asyncio.run(bounded())

    return go
