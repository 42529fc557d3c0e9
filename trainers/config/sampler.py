"""Checks of the sampler's options against each other; the options are those of :mod:`trainers.sampler_backends`."""

from __future__ import annotations

from typing import Literal

from trainers.config.model import ModelConfig
from trainers.sampler_backends import SamplerOptions, find_backend


def synced_weights(sampler: SamplerOptions, model: ModelConfig) -> Literal["full", "lora"]:
    """Return what the sampler is sent: full weights, or adapters."""
    return find_backend(sampler.backend).sends(sampler, model.tuning)


def check_sampler(sampler: SamplerOptions, model: ModelConfig, problems: list[str], *, deterministic: bool) -> None:
    name, backend = sampler.backend, find_backend(sampler.backend)
    if type(sampler) is not backend.options:
        problems.append(f"sampler.backend={name} needs the options {backend.options.__name__}")
    sampler.check(problems)
    if deterministic and not backend.deterministic:
        problems.append(
            f"deterministic=True with sampler.backend={name}, whose batches depend on timing; use sampler.backend=torch"
        )
    if "full" not in backend.updates and model.tuning != "lora":
        problems.append(
            f"model.tuning={model.tuning} with sampler.backend={name}, which can only load LoRA adapters on its base "
            "model; use model.tuning=lora, or another backend"
        )
