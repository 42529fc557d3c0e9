"""The sampler that serves the policy while it learns: the embedded torch sampler, on a copy of the base model."""

from __future__ import annotations

import torch

from rllm_gym.samplers.protocol import Sampler
from trainers.model import Policy, load_causal_lm


def make_sampler(policy: Policy, path: str, *, max_batch: int, deterministic: bool) -> Sampler:
    """An embedded sampler with the base weights at ``path``; pushes bring it up to date."""
    from rllm_gym.samplers import TorchSampler

    dtype = torch.bfloat16 if policy.config.dtype == "bfloat16" else torch.float32
    model = load_causal_lm(path, dtype=dtype).to(policy.device).eval()
    return TorchSampler(
        model, policy.tokenizer, max_batch=max_batch, deterministic=deterministic, num_threads=torch.get_num_threads()
    )
