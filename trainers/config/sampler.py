"""Options of the sampler, which generates the replies during training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainers.config.json_object import JsonObject
from trainers.config.model import ModelConfig
from trainers.option_checks import idle, positive


@dataclass(frozen=True)
class SamplerConfig:
    """The sampler, which generates the replies during training."""

    backend: Literal["torch", "vllm", "vllm-server", "openai"] = "torch"
    """``torch``: built in, runs in this process, no dependencies. ``vllm``: vLLM in this process, much faster on a GPU.
    ``vllm-server``: vLLM in a separate process; the run survives a crash of it. ``openai``: an endpoint operated by
    others that accepts token ids and loads LoRA adapters."""
    restarts: int = 2
    """Number of consecutive restarts of a sampler that died, with the current weights. Requests in progress are
    repeated."""
    merge_adapters: bool = False
    """Sync adapters merged into the base, as whole weights: each weight sync is slower and each token faster. vLLM
    requires it for DoRA."""
    gpu_memory: float = 0.5
    """Fraction of a GPU's memory that vLLM uses for weights and cache."""
    cache_gib: float = 1.0
    """Size of vLLM's key-value cache on a CPU, in GiB."""
    probe_tolerance: float | None = None
    """Largest allowed difference between vLLM's and the trainer's log-probs of a probe text, compared after every
    weight sync. None for a tolerance that covers rounding."""
    engine_args: JsonObject = field(default_factory=dict)
    """Additional arguments of ``vllm.EngineArgs``."""
    timeout: float = 600.0
    """Seconds without any sign of progress before vLLM is considered hung; for an endpoint, the timeout of one
    request."""
    url: str = ""
    """URL of the endpoint, for example ``http://localhost:8000/v1``. The API key is read from OPENAI_API_KEY."""
    model: str = ""
    """Name of the base model at the endpoint."""
    adapter_folder: str = ""
    """A folder that the endpoint can read as well: adapters are written there and loaded from it."""


_VLLM = ("merge_adapters", "gpu_memory", "cache_gib", "probe_tolerance", "engine_args", "timeout")

READ_BY_BACKEND: dict[str, tuple[str, ...]] = {
    "torch": (),
    "vllm": _VLLM,
    "vllm-server": _VLLM,
    "openai": ("url", "model", "adapter_folder", "timeout"),
}
"""Options that only some backends read, by backend."""


def check_sampler(sampler: SamplerConfig, model: ModelConfig, problems: list[str], *, deterministic: bool) -> None:
    backend = sampler.backend
    if sampler.restarts < 0:
        problems.append(f"sampler.restarts={sampler.restarts} must be 0 or more")
    read = READ_BY_BACKEND[backend]
    for name in dict.fromkeys(name for names in READ_BY_BACKEND.values() for name in names):
        if name not in read:
            idle(sampler, "sampler.", (name,), f"with sampler.backend={backend}", problems)
    positive(sampler, "sampler.", ("gpu_memory", "cache_gib", "probe_tolerance", "timeout"), problems)
    if sampler.gpu_memory > 1:
        problems.append(f"sampler.gpu_memory={sampler.gpu_memory} must be in (0, 1]")
    if backend != "torch" and deterministic:
        problems.append(
            f"deterministic=True with sampler.backend={backend}, whose batches depend on timing; use "
            "sampler.backend=torch"
        )
    if model.tuning == "full":
        idle(sampler, "sampler.", ("merge_adapters",), "with model.tuning=full, which has no adapters", problems)
    elif model.lora.variant == "dora" and backend != "torch" and not sampler.merge_adapters:
        hint = "use sampler.backend=torch" if backend == "openai" else "set sampler.merge_adapters=True"
        problems.append(f"sampler.backend={backend} does not support DoRA adapters (model.lora.variant=dora); {hint}")
    if backend == "openai":
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
