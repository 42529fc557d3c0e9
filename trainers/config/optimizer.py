"""From gradients to new weights: the optimizer, its schedule, and how much goes through the model at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.config.checks import idle, positive
from trainers.config.model import ModelConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and decay."""

    name: Literal["adamw", "adamw8bit", "paged_adamw", "paged_adamw8bit"] = "adamw"
    """`adamw` keeps 8 bytes of state per trained weight, `adamw8bit` about 2 (Dettmers et al. 2022; tensors below 4096
    elements stay in 32 bits). The paged ones let the state move to the CPU's memory where the GPU's is short; on a CPU
    they are the same as the others."""
    lr: float = 2e-4
    """Peak learning rate. LoRA wants about ten times the rate of full fine-tuning."""
    lora_plus_ratio: float = 1.0
    """The adapters' B matrices learn at this multiple of the rate (LoRA+, Hayou et al. 2024, who use 16)."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    """Not applied to norms, biases and embeddings."""
    warmup_steps: int = 5
    """Steps of linear warm-up."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls from its peak to `final_lr_fraction` at the last step."""
    final_lr_fraction: float = 0.1
    """Share of the peak that is left at the last step."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    tokens_per_microbatch: int = 16384
    """Padded tokens that go through the model at once: less needs less memory and gives the same gradient."""
    tokens_per_chunk: int | None = None
    """Sampled tokens whose logits exist at once, at most; none for as many as fit a few megabytes."""
    max_bad_steps: int = 5
    """Steps in a row that teach nothing because something is broken, before the run stops: loss or gradient are not
    finite (each is skipped and counted), or not one episode came to an end."""


def check_optimizer(optimizer: OptimizerConfig, problems: list[str], *, tuning: str) -> None:
    """
    Args:
        tuning: ``model.tuning``, under which some options do nothing.
    """
    names = ("lr", "max_grad_norm", "tokens_per_microbatch", "tokens_per_chunk", "max_bad_steps", "lora_plus_ratio")
    positive(optimizer, "optimizer.", names, problems)
    if optimizer.warmup_steps < 0:
        problems.append(f"optimizer.warmup_steps={optimizer.warmup_steps} must be 0 or more")
    if not optimizer.weight_decay >= 0:
        problems.append(f"optimizer.weight_decay={optimizer.weight_decay} must be 0 or more")
    if not 0 <= optimizer.final_lr_fraction <= 1:
        problems.append(f"optimizer.final_lr_fraction={optimizer.final_lr_fraction} must be in [0, 1]")
    if optimizer.schedule == "constant":
        idle(optimizer, "optimizer.", ("final_lr_fraction",), "with optimizer.schedule=constant", problems)
    if tuning == "full":
        idle(optimizer, "optimizer.", ("lora_plus_ratio",), "with model.tuning=full", problems)
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            problems.append(f"optimizer.{name}={getattr(optimizer, name)} must be in [0, 1)")


def learning_rate_warnings(model: ModelConfig, optimizer: OptimizerConfig) -> list[str]:
    """Rates that are rarely meant. Those of full fine-tuning are judged in :func:`trainers.optimizers.rate_warning`,
    where the size of the model is known: a tiny one learns at rates that ruin a real one."""
    if model.tuning != "full" and optimizer.lr < 1e-6:
        return [f"optimizer.lr={optimizer.lr:g} with LoRA learns nothing one could see; usual are 1e-5 … 1e-3"]
    return []
