"""The sampler that serves the policy while it learns."""

from __future__ import annotations

import torch

from rllm_gym.samplers.protocol import Sampler
from trainers.config import TrainConfig
from trainers.model import Policy


def make_sampler(policy: Policy, config: TrainConfig) -> Sampler:
    """A sampler with the base weights of the policy; pushes bring it up to date."""
    from rllm_gym.samplers import TorchSampler

    return TorchSampler(
        policy.sampling_model(),  # not the model on disk: a base in 4 bits computes something else
        policy.tokenizer,
        max_batch=config.env.parallel,
        deterministic=config.deterministic,
        num_threads=torch.get_num_threads(),
    )
