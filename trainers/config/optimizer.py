"""From gradients to new weights: AdamW, its schedule, and how much goes through the model at once."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.config.checks import positive
from trainers.config.model import ModelConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and linear decay."""

    lr: float = 2e-4
    """Peak learning rate. LoRA wants about ten times the rate of full fine-tuning."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    warmup_steps: int = 5
    """Steps of linear warm-up."""
    final_lr_fraction: float = 0.1
    """The rate falls linearly to this share of the peak."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    tokens_per_microbatch: int = 16384
    """Padded tokens that go through the model at once: less needs less memory and gives the same gradient."""
    tokens_per_chunk: int = 4096
    """Sampled tokens whose logits exist at once."""
    max_bad_steps: int = 5
    """Steps in a row that teach nothing because something is broken, before the run stops: loss or gradient are not
    finite (each is skipped and counted), or not one episode came to an end."""


def check_optimizer(optimizer: OptimizerConfig, problems: list[str]) -> None:
    names = ("lr", "max_grad_norm", "tokens_per_microbatch", "tokens_per_chunk", "max_bad_steps")
    positive(optimizer, "optimizer.", names, problems)
    if optimizer.warmup_steps < 0:
        problems.append(f"optimizer.warmup_steps={optimizer.warmup_steps} must be 0 or more")
    if not optimizer.weight_decay >= 0:
        problems.append(f"optimizer.weight_decay={optimizer.weight_decay} must be 0 or more")
    if not 0 <= optimizer.final_lr_fraction <= 1:
        problems.append(f"optimizer.final_lr_fraction={optimizer.final_lr_fraction} must be in [0, 1]")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            problems.append(f"optimizer.{name}={getattr(optimizer, name)} must be in [0, 1)")


def learning_rate_warnings(model: ModelConfig, optimizer: OptimizerConfig) -> list[str]:
    if model.tuning == "lora" and optimizer.lr < 1e-6:
        return [f"optimizer.lr={optimizer.lr:g} with LoRA learns nothing one could see; usual are 1e-5 … 1e-3"]
    return []
