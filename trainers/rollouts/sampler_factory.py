"""The sampler that serves the policy during training, and the weights it is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from rllm_gym.samplers.protocol import Probe, Sampler, WeightUpdate
from trainers.config import TrainConfig
from trainers.config.model import lora_of
from trainers.config.roles import BASE
from trainers.config.sampler import synced_weights
from trainers.model import Policy
from trainers.sampler_backends import SamplerSetup, find_backend

# Various letters, digits and symbols, so that nearly every change of the weights changes some of the log-probs.
_PROBE_TEXT = "The quick brown fox jumps over 13 lazy dogs. 7 x 6 = 42; f(a, b) -> {'c': [d]}?"
_PROBE_TOKENS = 32


def make_sampler(policy: Policy, config: TrainConfig) -> Sampler:
    """Create a sampler with the base weights of the policy; weight syncs update it.

    Raises:
        SamplerError: The sampler did not start; the message has the reason.
    """
    adapters = synced_weights(config.sampler, config.model) == "lora"
    setup = SamplerSetup(
        load_model=policy.sampling_model,
        share_model=policy.shared_base if policy.shares_base else None,
        model_path=lambda: policy.write_sampling_base(Path(config.output) / "sampling_base"),
        tokenizer=policy.tokenizer,
        parallel=config.env.parallel,
        context_length=config.sampling.context_length,
        dtype=config.model.dtype,
        seed=config.seed,
        deterministic=config.deterministic,
        lora_rank=lora_of(config.model).rank if adapters else 0,
        max_adapters=len(policy.adapters) + bool(config.opponents.role) * config.opponents.pool if adapters else 1,
        pauses=not config.asynchrony.steps_ahead,
        output=Path(config.output),
    )
    return find_backend(config.sampler.backend).make(config.sampler, setup)


def active_weights(policy: Policy, config: TrainConfig) -> WeightUpdate:
    """Return the weights of the active adapter, or of the model, in the form that the sampler loads."""
    return policy.weight_update(merged=synced_weights(config.sampler, config.model) == "full")


def weights_for(policy: Policy, config: TrainConfig) -> list[WeightUpdate]:
    """Return the current weights of every adapter, with a probe if the sampler needs one. With several steps ahead,
    replies in progress continue with them.
    """
    updates = []
    for adapter in policy.adapters:
        policy.activate(adapter)
        update = replace(active_weights(policy, config), in_flight=config.asynchrony.steps_ahead > 1)
        if find_backend(config.sampler.backend).needs_probe:
            update = replace(update, probe=make_probe(policy))
        updates.append(update)
    return updates


def base_weights() -> WeightUpdate:
    """Return an update that serves the model before training by name: an adapter without tensors."""
    return WeightUpdate((), "lora", {"r": 1}, name=BASE)


@torch.no_grad()
def make_probe(policy: Policy) -> Probe:
    """Compute the current weights' log-probs of a fixed short text, at temperature 1."""
    ids = list(policy.tokenizer(_PROBE_TEXT, add_special_tokens=False)["input_ids"])[:_PROBE_TOKENS]
    ids_BT = torch.tensor([ids], device=policy.device)
    with torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=policy.config.dtype == "bfloat16"):
        logits_BTV = policy.model(input_ids=ids_BT, use_cache=False).logits
    logp_TV = torch.log_softmax(logits_BTV[0, :-1].float(), dim=-1)
    return Probe(tuple(ids), tuple(logp_TV.gather(-1, ids_BT[0, 1:, None]).squeeze(-1).tolist()))
