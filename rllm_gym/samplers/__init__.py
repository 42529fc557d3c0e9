"""Samplers: token ids in, token ids with log-probs out. Each sampler is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rllm_gym.samplers.protocol import (
    Completion,
    Probe,
    Sampler,
    SamplerError,
    SamplingParams,
    SamplingRequest,
    WeightUpdate,
)
from rllm_gym.samplers.scripted import ScriptedSampler

if TYPE_CHECKING:
    from rllm_gym.samplers.openai_compatible import OpenAISampler
    from rllm_gym.samplers.rate_limit import RateLimit
    from rllm_gym.samplers.torch_sampler import TorchSampler
    from rllm_gym.samplers.vllm.in_process import VLLMSampler
    from rllm_gym.samplers.vllm.server import VLLMServerSampler

__all__ = [
    "Completion",
    "OpenAISampler",
    "Probe",
    "RateLimit",
    "Sampler",
    "SamplerError",
    "SamplingParams",
    "SamplingRequest",
    "ScriptedSampler",
    "TorchSampler",
    "VLLMSampler",
    "VLLMServerSampler",
    "WeightUpdate",
]


# torch, vLLM and aiohttp are imported only for the samplers that need them.
_MODULES = {
    "OpenAISampler": "openai_compatible",
    "RateLimit": "rate_limit",
    "TorchSampler": "torch_sampler",
    "VLLMSampler": "vllm.in_process",
    "VLLMServerSampler": "vllm.server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
