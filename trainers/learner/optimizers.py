"""Optimizers by name, their parameter groups, and the learning rate of every step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainers.config import OptimizerConfig
from trainers.model.quantization import check_bitsandbytes
from trainers.model.size_defaults import is_tiny, num_weights, trains_all, with_learning_rate

_log = logging.getLogger(__name__)

# AdamW's decay rates of the mean gradient and of its square.
_BETAS = (0.9, 0.95)
# The fraction of the peak learning rate at the last step, unless it is constant.
_FINAL_FRACTION = 0.1
# Learning rates common for adapters degrade a full pretrained model within a few steps; tiny models need them.
_FULL_RATE = 5e-5


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    further: Sequence[Mapping[str, Any]] = (),
    *,
    trained: Sequence[tuple[str, nn.Parameter]] | None = None,
) -> torch.optim.Optimizer:
    """Create AdamW for the trained parameters of a model, with 32-bit or 8-bit states, optionally paged.

    Each group has ``lr_scale``, its multiple of the learning rate; see :func:`set_learning_rate`.

    Args:
        model: The model.
        config: Options of the optimizer.
        further: Additional parameter groups outside the model, with ``params`` and, if it is not 1, ``lr_scale``.
        trained: The parameters by name; ``None`` for all trainable ones.

    Raises:
        ConfigError: The optimizer needs a library that is not installed.
    """
    config = with_learning_rate(config, model)
    groups = parameter_groups(model, config, trained) + [{"weight_decay": 0.0, **group} for group in further]
    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": _BETAS,
        "eps": 1e-8,
        "weight_decay": config.weight_decay,
    }
    if warning := rate_warning(model, config):
        _log.warning("%s", warning)
    if config.name == "adamw":
        on_gpu = all(parameter.is_cuda for group in groups for parameter in group["params"])
        return torch.optim.AdamW(groups, **options, fused=on_gpu or None)
    check_library(config)
    import bitsandbytes.optim

    if config.name.startswith("paged") and not any(p.is_cuda for group in groups for p in group["params"]):
        _log.warning("optimizer.name=%s on a CPU: paging has no effect without a GPU", config.name)
    kinds = {
        "adamw8bit": bitsandbytes.optim.AdamW8bit,
        "paged_adamw": bitsandbytes.optim.PagedAdamW32bit,
        "paged_adamw8bit": bitsandbytes.optim.PagedAdamW8bit,
    }
    optimizer: torch.optim.Optimizer = kinds[config.name](groups, **options)
    return optimizer


def check_library(config: OptimizerConfig) -> None:
    """Check that the optimizer's library is installed.

    Raises:
        ConfigError: The optimizer needs bitsandbytes, and importing it failed.
    """
    if config.name != "adamw":
        check_bitsandbytes(f"optimizer.name={config.name}", instead="adamw")


def parameter_groups(
    model: nn.Module,
    config: OptimizerConfig,
    trained: Sequence[tuple[str, nn.Parameter]] | None = None,
) -> list[dict[str, Any]]:
    """Group the trained parameters (or the given ones) by whether they are decayed, in the order of the model. The
    groups do not depend on the options, so that a run can be resumed with others.

    Norms, biases and embeddings (including an output head that shares their weight) are not decayed: pulling them to
    0 does not regularize.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[bool, list[nn.Parameter]] = {}
    if trained is None:
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for _, parameter in trained:
        groups.setdefault(parameter.ndim < 2 or id(parameter) in embeddings, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": 0.0 if plain else config.weight_decay, "lr_scale": 1.0}
        for plain, parameters in groups.items()
    ]


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore the state of each parameter. The options of the groups remain those the optimizer was created with."""
    options = [dict(group) for group in optimizer.param_groups]
    # Where the counters of the steps are kept, on the GPU or not, depends on these, and so does loading them.
    saved = [
        {**group, **{name: own[name] for name in ("fused", "foreach", "capturable") if name in own}}
        for group, own in zip(state["param_groups"], options, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": saved})
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update({**own, "params": group["params"]})


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Return linear warm-up times the schedule. Steps count from 0; the last is ``steps - 1``."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    progress = min(1.0, step / max(1, steps - 1))
    left = {
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        "constant": 1.0,
    }[config.schedule]
    assert config.lr is not None, "the learner has set the default of the model"
    return config.lr * warmup * (_FINAL_FRACTION + (1.0 - _FINAL_FRACTION) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group to its multiple of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def rate_warning(model: nn.Module, config: OptimizerConfig) -> str | None:
    """Return a warning if the learning rate would degrade this model in full fine-tuning, or have no effect."""
    if config.lr is not None and config.lr < 1e-6 and not trains_all(model):
        return f"optimizer.lr={config.lr:g} with LoRA is too low to have a visible effect; typical are 1e-5 to 1e-3"
    if not trains_all(model) or is_tiny(model) or config.lr is None or config.lr <= _FULL_RATE:
        return None
    return (
        f"optimizer.lr={config.lr:g} is too high for full fine-tuning of {num_weights(model) / 1e6:,.0f} M weights; "
        "typical are 1e-6 to 2e-5 (higher rates suit only adapters and tiny models)"
    )
