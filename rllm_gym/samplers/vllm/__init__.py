"""vLLM as a sampler, in this process or as a separate server process. Imported only on use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_gym.samplers.vllm.in_process import VLLMSampler
    from rllm_gym.samplers.vllm.server import VLLMServerSampler

__all__ = ["VLLMSampler", "VLLMServerSampler", "make_vllm"]


def make_vllm(path: str | Path, *, server: bool = False, **options: Any) -> VLLMSampler | VLLMServerSampler:
    """Start a vLLM sampler for the model at ``path``.

    Args:
        path: A Hugging Face folder or the id of a model.
        server: Run vLLM in a separate process (:class:`VLLMServerSampler`) instead of this one (:class:`VLLMSampler`).
        options: Options of those classes: ``max_batch``, ``lora_rank``, ``dtype``, ``seed``, ``context_length`` ….

    Raises:
        SamplerError: vLLM is not installed or did not start; the message says why.
        ValueError: An option does not fit.
    """
    if server:
        from rllm_gym.samplers.vllm.server import VLLMServerSampler

        return VLLMServerSampler(path, **options)
    from rllm_gym.samplers.vllm.in_process import VLLMSampler

    return VLLMSampler(path, **options)


def __getattr__(name: str) -> Any:
    # vLLM takes seconds to import, and each class can be used without the other.
    if name == "VLLMSampler":
        from rllm_gym.samplers.vllm.in_process import VLLMSampler

        return VLLMSampler
    if name == "VLLMServerSampler":
        from rllm_gym.samplers.vllm.server import VLLMServerSampler

        return VLLMServerSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
