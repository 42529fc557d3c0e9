"""The sampler that serves the policy while it learns: the embedded torch sampler, on a copy of the base model."""

from __future__ import annotations

import torch

from rllm_gym.samplers.protocol import Sampler
from trainers.model import Policy


def make_sampler(policy: Policy, *, max_batch: int, deterministic: bool) -> Sampler:
    """An embedded sampler with the policy's base weights; pushes bring it up to date."""
    from rllm_gym.samplers import TorchSampler

    return TorchSampler(
        policy.sampling_model(),
        policy.tokenizer,
        max_batch=max_batch,
        deterministic=deterministic,
        num_threads=torch.get_num_threads(),
    )
