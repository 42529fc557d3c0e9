"""Creation of the sampler that serves the policy during training. Backends are imported only when used."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from rllm_gym.samplers.protocol import Probe, Sampler, WeightUpdate
from trainers.config import OpenAISamplerConfig, TrainConfig, VllmSamplerConfig
from trainers.config.model import lora_of
from trainers.config.roles import BASE
from trainers.model import Policy

# Various letters, digits and symbols, so that nearly every change of the weights changes some of the log-probs.
_PROBE_TEXT = "The quick brown fox jumps over 13 lazy dogs. 7 x 6 = 42; f(a, b) -> {'c': [d]}?"
_PROBE_TOKENS = 32
# Seconds. The server's default is longer than an episode may take by default.
_VLLM_TIMEOUT = 600.0


def make_sampler(policy: Policy, config: TrainConfig) -> Sampler:
    """Create a sampler with the base weights of the policy; weight syncs update it.

    Raises:
        SamplerError: The sampler did not start; the message has the reason.
    """
    options = config.sampler
    if isinstance(options, OpenAISamplerConfig):
        from rllm_gym.samplers.openai_compatible import OpenAISampler

        return OpenAISampler(
            model=options.model,
            base_url=options.url,
            token_ids=True,
            tokenizer=policy.tokenizer,
            adapter_folder=options.adapter_folder,
            parallel=config.env.parallel,
        )
    if not isinstance(options, VllmSamplerConfig):
        from rllm_gym.samplers import TorchSampler

        return TorchSampler(
            policy.sampling_model(),  # not the model on disk: a 4-bit base computes different results
            policy.tokenizer,
            max_batch=config.env.parallel,
            deterministic=config.deterministic,
            num_threads=torch.get_num_threads(),
        )
    from rllm_gym.samplers.vllm import make_vllm

    adapters = policy.adapted and not options.merge_adapters
    server = options.backend == "vllm-server"
    return make_vllm(
        policy.write_sampling_base(Path(config.output) / "sampling_base"),
        server=server,
        tokenizer=policy.tokenizer,
        max_batch=config.env.parallel,
        context_length=config.sampling.context_length,
        lora_rank=lora_of(config.model).rank if adapters else 0,
        max_adapters=len(policy.adapters) + bool(config.opponents.role) * config.opponents.pool if adapters else 1,
        dtype=config.model.dtype,
        seed=config.seed,
        memory=options.gpu_memory,
        timeout=_VLLM_TIMEOUT,
        engine_args=dict(options.engine_args),
        **({"log": Path(config.output) / f"vllm-{os.environ.get('RANK', '0')}.log"} if server else {}),
    )


def weights_for(policy: Policy, config: TrainConfig) -> list[WeightUpdate]:
    """Return the current weights of every adapter in the backend's format. For vLLM, which runs its own model code,
    each update has a probe."""
    updates = []
    for adapter in policy.adapters:
        policy.activate(adapter)
        update = policy.weight_update(merged=policy.adapted and config.sampler.merges)
        if config.sampler.backend.startswith("vllm"):
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
