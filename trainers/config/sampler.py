"""Options of the sampler, which generates the replies during training: one type per kind of backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from trainers.config.model import ModelConfig, lora_of
from trainers.json_object import JsonObject
from trainers.option_checks import idle


@dataclass(frozen=True)
class SamplerConfig:
    """The sampler, which generates the replies during training. The other options depend on ``backend``."""

    backend: Literal["torch", "vllm", "vllm-server", "openai"] = "torch"
    """``torch``: built in, runs in this process, no dependencies. ``vllm``: vLLM in this process, much faster on a GPU.
    ``vllm-server``: vLLM in a separate process; the run survives a crash of it. ``openai``: an endpoint operated by
    others that accepts token ids and loads LoRA adapters. For the options of a backend, use
    ``--sampler.backend vllm --help``."""
    restarts: int = 2
    """Number of consecutive restarts of a sampler that died, with the current weights. Requests in progress are
    repeated."""

    @property
    def merges(self) -> bool:
        """Whether adapters are synced merged into the base, as whole weights."""
        return False


@dataclass(frozen=True)
class VllmSamplerConfig(SamplerConfig):
    """vLLM, in this process (``backend=vllm``) or in a separate one (``backend=vllm-server``)."""

    backend: Literal["torch", "vllm", "vllm-server", "openai"] = "vllm"
    merge_adapters: bool = False
    """Sync adapters merged into the base, as whole weights: each weight sync is slower and each token faster. vLLM
    requires it for DoRA."""
    gpu_memory: float = 0.5
    """Fraction of a GPU's memory that vLLM uses for weights and cache."""
    engine_args: JsonObject = field(default_factory=dict)
    """Additional arguments of ``vllm.EngineArgs``, for example ``kv_cache_memory_bytes``, which is 1 GiB on a CPU."""

    @property
    def merges(self) -> bool:
        return self.merge_adapters


@dataclass(frozen=True)
class OpenAISamplerConfig(SamplerConfig):
    """An endpoint operated by others (``backend=openai``)."""

    backend: Literal["torch", "vllm", "vllm-server", "openai"] = "openai"
    url: str = ""
    """URL of the endpoint, for example ``http://localhost:8000/v1``. The API key is read from OPENAI_API_KEY."""
    model: str = ""
    """Name of the base model at the endpoint."""
    adapter_folder: str = ""
    """A folder that the endpoint can read as well: adapters are written there and loaded from it."""


_BACKENDS: dict[str, type[SamplerConfig]] = {
    "torch": SamplerConfig,
    "vllm": VllmSamplerConfig,
    "vllm-server": VllmSamplerConfig,
    "openai": OpenAISamplerConfig,
}


def sampler_type(chosen: Mapping[str, Any]) -> type[SamplerConfig]:
    """Return the type of the options of the chosen backend; only the option ``backend`` is read."""
    return _BACKENDS.get(chosen.get("backend", "torch"), SamplerConfig)


def sampler_owners(option: str) -> list[str]:
    """Return the backends that have an option of the sampler."""
    return [
        f"sampler.backend={backend}"
        for backend, kind in _BACKENDS.items()
        if option in {entry.name for entry in fields(kind)}
    ]


def check_sampler(sampler: SamplerConfig, model: ModelConfig, problems: list[str], *, deterministic: bool) -> None:
    backend = sampler.backend
    if type(sampler) is not _BACKENDS[backend]:
        problems.append(f"sampler.backend={backend} needs the options {_BACKENDS[backend].__name__}")
    if sampler.restarts < 0:
        problems.append(f"sampler.restarts={sampler.restarts} must be 0 or more")
    if backend != "torch" and deterministic:
        problems.append(
            f"deterministic=True with sampler.backend={backend}, whose batches depend on timing; use "
            "sampler.backend=torch"
        )
    if isinstance(sampler, VllmSamplerConfig):
        if not 0 < sampler.gpu_memory <= 1:
            problems.append(f"sampler.gpu_memory={sampler.gpu_memory} must be in (0, 1]")
        if model.tuning == "full":
            idle(sampler, "sampler.", ("merge_adapters",), "with model.tuning=full, which has no adapters", problems)
    if lora_of(model).variant == "dora" and backend != "torch" and not sampler.merges:
        hint = "use sampler.backend=torch" if backend == "openai" else "set sampler.merge_adapters=True"
        problems.append(f"sampler.backend={backend} does not support DoRA adapters (model.lora.variant=dora); {hint}")
    if isinstance(sampler, OpenAISamplerConfig):
        problems += [
            f"sampler.{name} is missing: sampler.backend=openai requires it"
            for name in ("url", "model", "adapter_folder")
            if not getattr(sampler, name)
        ]
        if model.tuning != "lora":
            problems.append(
                f"model.tuning={model.tuning} with sampler.backend=openai: the endpoint can only load LoRA adapters "
                "on its base model; use model.tuning=lora, or another backend"
            )
