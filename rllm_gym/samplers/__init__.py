"""Samplers: token ids in, token ids with log-probs out. Each sampler is imported on first use."""

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
    from rllm_gym.samplers.vllm import VLLMSampler, VLLMServerSampler

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


def __getattr__(name: str) -> Any:
    # Importing torch takes a second, and only ``TorchSampler`` needs it.
    if name == "TorchSampler":
        from rllm_gym.samplers.torch_sampler import TorchSampler

        return TorchSampler
    if name == "OpenAISampler":
        from rllm_gym.samplers.openai_compatible import OpenAISampler

        return OpenAISampler
    if name == "RateLimit":
        from rllm_gym.samplers.rate_limit import RateLimit

        return RateLimit
    if name in ("VLLMSampler", "VLLMServerSampler"):
        from rllm_gym.samplers import vllm

        return getattr(vllm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
