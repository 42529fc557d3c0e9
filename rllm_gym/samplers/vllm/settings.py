"""Settings of a vLLM engine for training: the samplers' options as vLLM's arguments, and environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.argument_checks import check_int
from rllm_gym.samplers.protocol import WeightUpdate
from rllm_gym.samplers.vllm.adapter import max_rank
from rllm_gym.samplers.vllm.weight_probe import TOLERANCES

WORKER_EXTENSION = "rllm_gym.samplers.vllm.worker_extension.WorkerExtension"
# On a CPU, where prompts are computed whole: maximum number of prompt tokens in one step.
_PROMPT_TOKENS = 8192


@dataclass(frozen=True)
class EngineSettings:
    """Options that both samplers share. See :class:`~rllm_gym.samplers.VLLMSampler`."""

    path: str
    context_length: int
    max_batch: int = 64
    lora_rank: int = 0
    max_adapters: int = 1
    dtype: str = "auto"
    seed: int = 0
    memory: float = 0.5
    cache_gib: float = 1.0
    eager: bool | None = None
    sleep_mode: bool = False
    engine_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_int("max_batch", self.max_batch)
        check_int("lora_rank", self.lora_rank, 0)
        check_int("max_adapters", self.max_adapters)
        if self.max_adapters > 1 and not self.lora_rank:
            raise ValueError(
                f"max_adapters={self.max_adapters} has no effect without lora_rank: no adapter can be loaded"
            )
        if self.dtype not in ("auto", *TOLERANCES):
            raise ValueError(f"dtype={self.dtype!r} must be one of auto, {', '.join(TOLERANCES)}")
        if not 0 < self.memory <= 1:
            raise ValueError(f"memory={self.memory!r} must be a fraction of the GPU's memory, in (0, 1]")
        if not self.cache_gib > 0:
            raise ValueError(f"cache_gib={self.cache_gib!r} must be above 0")
        max_rank(self.lora_rank)

    def arguments(self, *, cuda: bool) -> dict[str, Any]:
        """Return keyword arguments of ``vllm.EngineArgs``."""
        arguments: dict[str, Any] = {
            "model": self.path,
            "dtype": self.dtype,
            "seed": self.seed,
            "max_model_len": self.context_length,
            "max_num_seqs": self.max_batch,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": WORKER_EXTENSION,
            "enable_prefix_caching": True,
            "generation_config": "vllm",
        }
        if self.lora_rank:
            arguments |= {
                "enable_lora": True,
                "max_lora_rank": max_rank(self.lora_rank),
                "max_loras": self.max_adapters,
                "max_cpu_loras": self.max_adapters + (not cuda),  # plus one that stands in for the base
            }
        if cuda:
            arguments["gpu_memory_utilization"] = self.memory
            arguments["enforce_eager"] = bool(self.eager)
            if self.sleep_mode:
                arguments["enable_sleep_mode"] = True
        else:
            # Compiling does not pay for any model that a CPU can train.
            arguments["enforce_eager"] = self.eager is None or self.eager
            arguments["distributed_executor_backend"] = "uni"
            arguments["kv_cache_memory_bytes"] = int(self.cache_gib * (1 << 30))
            # A seeded prompt that is computed in parts crashes vLLM on a CPU ("CPU Generator does not use offset").
            arguments["enable_chunked_prefill"] = False
            arguments["max_num_batched_tokens"] = max(self.context_length, _PROMPT_TOKENS)
        return arguments | dict(self.engine_args)

    def environment(self, *, cuda: bool) -> dict[str, str]:
        """Return the environment variables of an engine. The user's values take precedence for tuning variables."""
        fixed = {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        tuning = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
        if not cuda:
            fixed["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            # Three small functions of vLLM would be compiled with a C++ compiler for ten seconds, without any gain.
            fixed["TORCHDYNAMO_DISABLE"] = "1"
        return {name: os.environ.get(name, value) for name, value in tuning.items()} | fixed


def check_update(update: WeightUpdate, settings: EngineSettings) -> None:
    """Check that an engine with these settings can load an update.

    Raises:
        ValueError: It cannot.
    """
    if update.kind not in ("full", "lora"):
        raise ValueError(f"vLLM supports weight updates of kind 'full' and 'lora'; got kind={update.kind!r}")
    if update.kind == "full" and update.name:
        raise ValueError(
            f"vLLM serves one full model, and this update is a second one, named {update.name!r}; load full weights "
            "without a name and named ones as adapters (kind='lora'), or use the torch sampler"
        )
    if update.kind == "lora" and not settings.lora_rank:
        raise ValueError("a lora update needs a sampler created with lora_rank=, the maximum rank of its adapters")


def has_cuda() -> bool:
    """Return whether vLLM would run on an NVIDIA GPU here."""
    return Path("/dev/nvidiactl").exists()


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process temporarily."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
