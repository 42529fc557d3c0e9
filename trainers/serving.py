"""The sampler that serves the policy while it learns: the embedded torch sampler, on a copy of the base model."""

from __future__ import annotations

import torch

from rllm_gym.samplers.protocol import Sampler
from trainers.config import TrainConfig
from trainers.model import Policy, load_causal_lm


def make_sampler(policy: Policy, config: TrainConfig) -> Sampler:
    """An embedded sampler with the base weights; pushes bring it up to date."""
    from rllm_gym.samplers import TorchSampler

    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    model = load_causal_lm(config.model.path, dtype=dtype).to(policy.device).eval()
    return TorchSampler(model, policy.tokenizer, deterministic=config.deterministic)
