"""Sampler backends: what generates the replies during training. See :class:`SamplerBackend`."""

from trainers.sampler_backends.backend import CacheMemory, SamplerBackend, SamplerOptions, SamplerSetup
from trainers.sampler_backends.openai import OpenAIOptions
from trainers.sampler_backends.registry import SAMPLER_BACKENDS, find_backend
from trainers.sampler_backends.vllm import VllmOptions

__all__ = [
    "SAMPLER_BACKENDS",
    "CacheMemory",
    "OpenAIOptions",
    "SamplerBackend",
    "SamplerOptions",
    "SamplerSetup",
    "VllmOptions",
    "find_backend",
]
