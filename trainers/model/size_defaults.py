"""Defaults of options that depend on the size of the model: a tiny one, created here, or a pretrained one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from trainers.config import OptimizerConfig, SamplingConfig

TINY_WEIGHTS = 10_000_000
"""A model with fewer weights is a tiny one."""

_TINY_LR, _FULL_LR, _LORA_LR = 2e-3, 2e-5, 2e-4
_TINY_REPLY_TOKENS = 64


def is_tiny(model: nn.Module) -> bool:
    """Return whether the model has fewer than :data:`TINY_WEIGHTS`."""
    return num_weights(model) < TINY_WEIGHTS


def num_weights(model: nn.Module) -> int:
    """Return the number of weights, without those of adapters."""
    return sum(parameter.numel() for name, parameter in model.named_parameters() if "lora_" not in name)


def trains_all(model: nn.Module) -> bool:
    """Return whether every weight is trained."""
    return all(parameter.requires_grad for parameter in model.parameters())


def context_length(model: Any) -> int | None:
    """Return the context length of a Hugging Face model, if it is known."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def with_learning_rate(config: OptimizerConfig, model: nn.Module) -> OptimizerConfig:
    """Return the options with the default learning rate of the model, if none is set."""
    if config.lr is not None:
        return config
    pretrained = _FULL_LR if trains_all(model) else _LORA_LR
    return replace(config, lr=_TINY_LR if is_tiny(model) else pretrained)


def with_max_tokens(config: SamplingConfig, model: Any, reply_tokens: int) -> SamplingConfig:
    """Return the options with the default length of a reply of the model, if none is set.

    Args:
        config: The options.
        model: A Hugging Face model.
        reply_tokens: What the environment asks for; see :attr:`rllm_gym.core.TextEnv.reply_tokens`.
    """
    if config.max_tokens is not None:
        return config
    if is_tiny(model):
        return replace(config, max_tokens=_TINY_REPLY_TOKENS)
    lengths = [length for length in (config.context_length, context_length(model)) if length]
    return replace(config, max_tokens=min([reply_tokens, *(max(1, length // 2) for length in lengths)]))


def size_note(model: nn.Module, chosen: Mapping[str, object]) -> list[str]:
    """Return a line for the user that says which kind of model it is and which options were chosen for it, if any."""
    kind = "tiny (fewer than 10 M)" if is_tiny(model) else "pretrained (10 M or more)"
    options = ", ".join(f"{name}={value}" for name, value in chosen.items())
    line = f"the model has {num_weights(model) / 1e6:,.1f} M weights and counts as {kind}: {options}"
    return [line] if chosen else []
