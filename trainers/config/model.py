"""The model that is trained, its adapters, and a tiny one made on the spot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.checks import positive


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters; used with `model.tuning=lora`."""

    rank: int = 32
    """Rank of the adapters."""
    alpha: float = 32.0
    """The adapters' output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """`all-linear`, or names of modules separated by commas."""


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    path: str = ""
    """A Hugging Face folder or hub id. Required, except where a tiny model is made (`rllm-gym sft --tiny.enabled`)."""
    tuning: Literal["full", "lora"] = "lora"
    """`lora` trains low-rank adapters on all linear layers; `full` trains every weight."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16` computes in bfloat16; trained weights stay float32. On CPUs float32 is faster."""
    device: str = "auto"
    """`auto` takes a GPU where there is one; else `cpu`, `cuda`, `cuda:1` …"""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@dataclass(frozen=True)
class TinyConfig:
    """A tiny model made on the spot; see :func:`trainers.tiny_model.make_tiny_model`."""

    enabled: bool = False
    """Make one in the run's folder and start from it, in place of `model.path`."""
    architecture: Literal["qwen2", "llama"] = "qwen2"
    hidden_size: int = 96
    num_layers: int = 2
    num_heads: int = 3
    intermediate_size: int | None = None
    """Width of the feed-forward layers; none for twice the hidden size."""
    vocab_size: int = 512
    init_std: float = 0.08
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding; short texts are told apart better with a small one."""
    seed: int = 0


def check_model(model: ModelConfig, problems: list[str], *, required: bool) -> None:
    if required and not model.path:
        problems.append("model.path is missing: a Hugging Face folder or hub id (`rllm-gym sft` makes a tiny one)")
    if model.tuning == "full" and model.lora != LoraConfig():
        problems.append("model.lora does nothing with model.tuning=full; leave it out, or use model.tuning=lora")
    positive(model.lora, "model.lora.", ("rank", "alpha"), problems)
