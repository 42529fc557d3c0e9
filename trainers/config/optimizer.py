"""Options of the optimizer, its schedule and the microbatch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainers.option_checks import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

TOKENS_PER_MICROBATCH = 16384
"""The default of :attr:`OptimizerConfig.tokens_per_microbatch` where memory does not require fewer."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up and decay."""

    name: Literal["adamw", "adamw8bit", "paged_adamw", "paged_adamw8bit"] = "adamw"
    """``adamw`` keeps 8 bytes of state per trained weight, ``adamw8bit`` about 2 (Dettmers et al. 2022; tensors below
    4096 elements stay in 32 bits). The paged variants can move the state to CPU memory when GPU memory is short; on
    a CPU they are the same as the others."""
    lr: PositiveFloat | None = None
    """Peak learning rate. LoRA needs about ten times the rate of full fine-tuning. None for that of the kind of model:
    2e-5 in full fine-tuning and 2e-4 with adapters, or 2e-3 for a tiny model, which has fewer than ten million weights
    (DPO: 2e-5)."""
    weight_decay: NonNegativeFloat = 0.0
    """Not applied to norms, biases and embeddings."""
    warmup_steps: NonNegativeInt = 5
    """Number of linear warm-up steps; in these PPO trains only its value head."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate decays from its peak to a tenth of it at the last step."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger norm are scaled down to this norm."""
    tokens_per_microbatch: PositiveInt | None = None
    """Padded tokens per forward pass: a smaller value needs less memory and gives the same gradient. By
    default (``none``) 16384, or fewer if reinforcement learning on one GPU would not fit into its free memory."""
