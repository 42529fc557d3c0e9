"""The optimizers by name, what each parameter group gets, and the learning rate of every step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainers.config import ConfigError, OptimizerConfig

_log = logging.getLogger(__name__)

# Rates that adapters want ruin a whole model of real size in a few steps; tiny ones need them.
_REAL_SIZE, _FULL_RATE = 50_000_000, 5e-5


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    further: Sequence[Mapping[str, Any]] = (),
    *,
    trained: Sequence[tuple[str, nn.Parameter]] | None = None,
) -> torch.optim.Optimizer:
    """AdamW over the trained parameters of a model, with states in 32 or 8 bits, in memory or paged.

    Each group carries ``lr_scale``, its multiple of the learning rate; see :func:`set_learning_rate`.

    Args:
        model: The model.
        config: The options.
        further: Parameter groups that are no part of the model, with ``params`` and, if it is not 1, ``lr_scale``.
        trained: Which parameters, by name; ``None`` for all that are trained.

    Raises:
        ConfigError: The optimizer needs a library that is not here.
    """
    groups = parameter_groups(model, config, trained) + [
        {"weight_decay": 0.0, "lr_scale": 1.0, **group} for group in further
    ]
    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": 1e-8,
        "weight_decay": config.weight_decay,
    }
    if warning := rate_warning(model, config):
        _log.warning("%s", warning)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, **options)
    check_library(config)
    import bitsandbytes.optim

    if config.name.startswith("paged") and not any(p.is_cuda for group in groups for p in group["params"]):
        _log.warning("optimizer.name=%s on a CPU: its state is paged by nothing but the system", config.name)
    kinds = {
        "adamw8bit": bitsandbytes.optim.AdamW8bit,
        "paged_adamw": bitsandbytes.optim.PagedAdamW32bit,
        "paged_adamw8bit": bitsandbytes.optim.PagedAdamW8bit,
    }
    made: torch.optim.Optimizer = kinds[config.name](groups, **options)
    return made


def check_library(config: OptimizerConfig) -> None:
    """
    Raises:
        ConfigError: The optimizer needs bitsandbytes, and it cannot be imported.
    """
    if config.name == "adamw":
        return
    try:
        import bitsandbytes.optim  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"optimizer.name={config.name} needs bitsandbytes ({error}): pip install bitsandbytes, or use adamw"
        ) from error


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, trained: Sequence[tuple[str, nn.Parameter]] | None = None
) -> list[dict[str, Any]]:
    """The trained parameters (or those named), by weight decay and rate, each kind in the order of the model.

    Norms, biases and embeddings (an output head that shares their weight included) are not decayed: pulling them to 0
    regularises nothing.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    if trained is None:
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in trained:
        plain = parameter.ndim < 2 or id(parameter) in embeddings
        decay = 0.0 if plain else config.weight_decay
        scale = config.lora_plus_ratio if ".lora_B." in name or ".lora_embedding_B." in name else 1.0
        groups.setdefault((decay, scale), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), parameters in groups.items()
    ]


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Linear warm-up times the schedule. Steps count from 0; the last is ``steps - 1``."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    progress = min(1.0, step / max(1, steps - 1))
    left = {
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "constant": 1.0,
    }[config.schedule]
    return config.lr * warmup * (config.final_lr_fraction + (1.0 - config.final_lr_fraction) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its multiple of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def rate_warning(model: nn.Module, config: OptimizerConfig) -> str | None:
    """What to say of a rate that would ruin this model, trained whole."""
    whole = all(parameter.requires_grad for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters())
    if not whole or trained < _REAL_SIZE or config.lr <= _FULL_RATE:
        return None
    return (
        f"optimizer.lr={config.lr:g} trains {trained / 1e6:,.0f} M weights at a rate that only adapters or tiny models "
        f"stand; usual for full fine-tuning are 1e-6 … 2e-5"
    )
