"""``sampler.backend=torch``: the built-in sampler in this process, on a copy of the model or on its frozen weights."""

from __future__ import annotations

from rllm_gym.samplers.protocol import Sampler
from trainers.sampler_backends.backend import CacheMemory, SamplerBackend, SamplerOptions, SamplerSetup


def make(options: SamplerOptions, setup: SamplerSetup) -> Sampler:
    """Create a :class:`~rllm_gym.samplers.TorchSampler`."""
    import torch

    from rllm_gym.samplers.torch_sampler import TorchSampler

    load = setup.load_model if setup.share_model is None else setup.share_model
    return TorchSampler(
        load(),  # not the model on disk: a 4-bit base computes different results
        setup.tokenizer,
        max_batch=setup.parallel,
        deterministic=setup.deterministic,
        num_threads=torch.get_num_threads(),
        merge_adapters=setup.share_model is None,
    )


def cache_memory(options: SamplerOptions, gpu: bool, available: int) -> CacheMemory:
    """Return the sampler's own limit."""
    return CacheMemory(available // (2 if gpu else 4), preallocated=False)


TORCH = SamplerBackend(
    "torch",
    SamplerOptions,
    make,
    updates=("full", "lora"),
    several_full_models=True,
    deterministic=True,
    cache_memory=cache_memory,
)
