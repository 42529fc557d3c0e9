"""Options of the trained model: one type per kind of ``tuning``, and a tiny model created for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.mapping import Variants, option_types
from trainers.option_checks import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021)."""

    rank: PositiveInt = 32
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """The adapters' output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """``all-linear`` (all except the output head), or names of modules separated by commas."""


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained: all options with ``tuning=full``. :class:`LoraModelConfig` has those of adapters;
    without it, they have their defaults."""

    path: str = ""
    """A Hugging Face folder or hub id. Required unless a tiny model is created (``rllm-gym sft --tiny``)."""
    tuning: Literal["full", "lora", "qlora"] = "lora"
    """``lora`` trains low-rank adapters on all linear layers; ``qlora`` does so on a 4-bit base (NF4 with double
    quantization: about 0.52 bytes per weight, Dettmers et al. 2023); ``full`` trains every weight."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16`` computes in bfloat16; trained weights stay in float32. On CPUs float32 is faster."""
    device: str = "auto"
    """``auto`` uses a GPU if there is one; otherwise ``cpu``, ``cuda``, ``cuda:1`` …"""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: less memory, about a third more time. By default
    (``none``) it is enabled only if reinforcement learning on one GPU would not fit into its free memory otherwise."""


@dataclass(frozen=True)
class LoraModelConfig(ModelConfig):
    """A model with low-rank adapters (``tuning=lora`` or ``qlora``)."""

    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class TinyConfig:
    """A tiny randomly initialized model, created in the run's folder, to start from instead of ``model.path``
    (``--tiny``); see ``trainers.tiny_model.make_tiny_model``."""

    architecture: Literal["qwen2", "llama"] = "qwen2"
    hidden_size: int = 96
    num_layers: int = 2
    num_heads: int = 3
    intermediate_size: int | None = None
    """Width of the feed-forward layers; none for twice the hidden size."""
    vocab_size: int = 512
    init_std: float = 0.08
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding; a small one distinguishes positions of short texts better."""
    seed: int = 0


_TYPES = {"lora": LoraModelConfig, "qlora": LoraModelConfig, "full": ModelConfig}

MODEL_VARIANTS = Variants(
    lambda chosen: _TYPES.get(str(chosen.get("tuning")), LoraModelConfig),
    ("tuning",),
    lambda option: [
        f"model.tuning={tuning}" for tuning, kind in _TYPES.items() if option.partition(".")[0] in option_types(kind)
    ],
)
"""How the options of the model depend on ``tuning``."""


def lora_of(model: ModelConfig) -> LoraConfig:
    """Return the options of the adapters; the defaults for a model without any."""
    return model.lora if isinstance(model, LoraModelConfig) else LoraConfig()


def shares_base(model: ModelConfig, *, gpu: bool) -> bool:
    """Return whether an embedded sampler shares the frozen base with the trainer and adds adapters to its outputs.

    Merged into bfloat16 weights, most of the first updates would be rounded away. In float32 adapters are merged into a
    copy, which decodes faster; a 4-bit base is dequantized for that on a CPU, but not on a GPU, where memory is short.
    """
    return model.tuning != "full" and (model.dtype == "bfloat16" or (model.tuning == "qlora" and gpu))


def check_model(model: ModelConfig, problems: list[str], *, required: bool) -> None:
    """Check the options of the model, of which ``model.path`` can be required."""
    if required and not model.path:
        problems.append("model.path is missing: a Hugging Face folder or hub id (`rllm-gym sft` can create a tiny one)")
    if isinstance(model, LoraModelConfig):
        if model.tuning == "full":
            problems.append("model.tuning=full with LoraModelConfig: use ModelConfig, or another tuning")
        if not model.lora.targets.strip():
            problems.append("model.lora.targets is empty: name modules, or remove it for all linear layers")
