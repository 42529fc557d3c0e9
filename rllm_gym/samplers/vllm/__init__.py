"""vLLM as a sampler: in this process, or as a server in one of its own. Imported only where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_gym.samplers.vllm.in_process import VLLMSampler
    from rllm_gym.samplers.vllm.server import VLLMServerSampler

__all__ = ["VLLMSampler", "VLLMServerSampler", "make_vllm"]


def make_vllm(path: str | Path, *, server: bool = False, **options: Any) -> VLLMSampler | VLLMServerSampler:
    """A vLLM sampler for the model at ``path``, started and ready.

    Args:
        path: A Hugging Face folder or the id of a model.
        server: In a process of its own (:class:`VLLMServerSampler`) instead of this one (:class:`VLLMSampler`).
        options: As those classes take them: ``max_batch``, ``lora_rank``, ``dtype``, ``seed``, ``context_length`` ….

    Raises:
        SamplerError: vLLM is not installed or did not start; says why.
        ValueError: An option does not fit.
    """
    if server:
        from rllm_gym.samplers.vllm.server import VLLMServerSampler

        return VLLMServerSampler(path, **options)
    from rllm_gym.samplers.vllm.in_process import VLLMSampler

    return VLLMSampler(path, **options)


def __getattr__(name: str) -> Any:
    # vLLM takes seconds to import, and either class can be had without the other.
    if name == "VLLMSampler":
        from rllm_gym.samplers.vllm.in_process import VLLMSampler

        return VLLMSampler
    if name == "VLLMServerSampler":
        from rllm_gym.samplers.vllm.server import VLLMServerSampler

        return VLLMServerSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
