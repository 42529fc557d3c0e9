"""All sampler backends by name. A name is one of this package, or ``my_module:MY_BACKEND`` for an object elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trainers.option_checks import check_options_type, find_object
from trainers.sampler_backends.backend import SamplerBackend, SamplerOptions
from trainers.sampler_backends.openai import OPENAI
from trainers.sampler_backends.torch import TORCH
from trainers.sampler_backends.vllm import VLLM, VLLM_SERVER

SAMPLER_BACKENDS: dict[str, SamplerBackend] = {backend.name: backend for backend in (TORCH, VLLM, VLLM_SERVER, OPENAI)}
"""The backends of this package by name."""


def find_backend(name: object) -> SamplerBackend:
    """Return the backend with a name, or the object ``my_module:MY_BACKEND``.

    Raises:
        ConfigError: There is none, or its options are not a dataclass with defaults.
    """
    backend = find_object(name, SAMPLER_BACKENDS, SamplerBackend, "sampler.backend")
    check_options_type(backend.options, SamplerOptions, backend.name)
    return backend


def options_type(chosen: Mapping[str, Any]) -> type[SamplerOptions]:
    """Return the type of the options of the chosen backend; only the option ``backend`` is read."""
    return find_backend(chosen.get("backend", TORCH.name)).options


def owners_of(option: str) -> list[str]:
    """Return the backends of this package that have an option."""
    return [
        f"sampler.backend={name}"
        for name, backend in SAMPLER_BACKENDS.items()
        if option in {entry.name for entry in fields(backend.options)}
    ]
