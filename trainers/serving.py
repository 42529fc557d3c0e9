"""The sampler that serves the policy while it learns."""

from __future__ import annotations

import torch

from rllm_gym.samplers.protocol import Sampler
from trainers.config import TrainConfig
from trainers.model import Policy, load_causal_lm


def make_sampler(policy: Policy, config: TrainConfig) -> Sampler:
    """A sampler with the base weights of the policy; pushes bring it up to date."""
    from rllm_gym.samplers import TorchSampler

    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    model = load_causal_lm(config.model.path, dtype=dtype).to(policy.device).eval()
    return TorchSampler(
        model,
        policy.tokenizer,
        max_batch=config.env.parallel,
        deterministic=config.deterministic,
        num_threads=torch.get_num_threads(),
    )
