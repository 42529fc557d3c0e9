"""Options of the trained model: its adapters, the precision of its base, and a tiny model created for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.option_checks import idle, positive


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, used with ``model.tuning=lora`` and ``qlora``."""

    rank: int = 32
    """Rank of the adapters."""
    alpha: float = 32.0
    """The adapters' output is scaled by alpha / rank."""
    targets: str = "all-linear"
    """``all-linear`` (all except the output head), or names of modules separated by commas."""
    variant: Literal["lora", "rslora", "dora"] = "lora"
    """``lora`` (Hu et al. 2021). ``rslora`` scales by alpha / sqrt(rank), so that higher ranks learn at the same rate
    (Kalajdzievski 2023). ``dora`` learns the magnitude of each row of a weight separately from its direction (Liu et
    al. 2024): often slightly better, a third slower."""


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    path: str = ""
    """A Hugging Face folder or hub id. Required unless a tiny model is created (``rllm-gym sft --tiny.enabled``)."""
    tuning: Literal["full", "lora", "qlora"] = "lora"
    """``lora`` trains low-rank adapters on all linear layers; ``qlora`` does so on a 4-bit base (NF4 with double
    quantization: about 0.52 bytes per weight, Dettmers et al. 2023); ``full`` trains every weight."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16`` computes in bfloat16; trained weights stay in float32. On CPUs float32 is faster."""
    device: str = "auto"
    """``auto`` uses a GPU if there is one; otherwise ``cpu``, ``cuda``, ``cuda:1`` …"""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    reference: Literal["copy", "bfloat16", "cpu"] = "copy"
    """How full fine-tuning stores the reference model of the KL term: a frozen ``copy``; a copy in ``bfloat16``, half
    the size; or a copy on the ``cpu``, which is slow to evaluate but takes no GPU memory. Adapters need no copy: the
    reference is the model with adapters disabled."""


@dataclass(frozen=True)
class TinyConfig:
    """A tiny randomly initialized model; see :func:`trainers.tiny_model.make_tiny_model`."""

    enabled: bool = False
    """Create a tiny model in the run's folder and start from it instead of ``model.path``."""
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


def check_model(model: ModelConfig, problems: list[str], *, required: bool, reference: bool = False) -> None:
    """Check the options of the model.

    Args:
        required: Whether ``model.path`` must be set.
        reference: Whether a KL term needs a reference model.
    """
    if required and not model.path:
        problems.append("model.path is missing: a Hugging Face folder or hub id (`rllm-gym sft` can create a tiny one)")
    if model.tuning == "full" and model.lora != LoraConfig():
        problems.append("model.lora has no effect with model.tuning=full; remove it, or use model.tuning=lora")
    if model.tuning != "full":
        unless = f"with model.tuning={model.tuning}, whose reference is the base with adapters disabled"
        idle(model, "model.", ("reference",), unless, problems)
    elif not reference:
        idle(model, "model.", ("reference",), "without a KL term", problems)
    positive(model.lora, "model.lora.", ("rank", "alpha"), problems)
    if not model.lora.targets.strip():
        problems.append("model.lora.targets is empty: name modules, or remove it for all linear layers")
