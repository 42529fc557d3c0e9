"""A tiny model for vLLM's tests, adapters of it, and log-probs of a completion by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rllm_gym.samplers import Completion, Probe, SamplingParams, SamplingRequest, WeightUpdate
from trainers.tiny_model import make_tiny_model

PROBE_IDS = tuple(range(40, 80))


def tiny(folder: Path) -> Path:
    return make_tiny_model(folder, hidden_size=64, num_heads=2)


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logprobs_of(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Return log-probs of ``ids`` after ``prompt`` by one plain forward pass."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0].double() / (temperature or 1.0)
    logp_TV = logits_TV.log_softmax(-1)
    return [float(logp_TV[len(prompt) - 1 + place, index]) for place, index in enumerate(ids)]


def largest_gap(model: Any, requests: Sequence[SamplingRequest], completions: Sequence[Completion]) -> float:
    """Return the largest difference between a sampler's log-probs and transformers' own."""
    return max(
        abs(ours - theirs)
        for request, reply in zip(requests, completions, strict=True)
        for ours, theirs in zip(
            logprobs_of(model, request.ids, reply.ids, request.params.temperature), reply.logprobs, strict=True
        )
    )


def requests(number: int, tokens: int = 10, **params: Any) -> list[SamplingRequest]:
    return [
        SamplingRequest(tuple(range(30 + i, 45 + 2 * i)), SamplingParams(max_tokens=tokens, **params), seed=i)
        for i in range(number)
    ]


def probe_of(model: Any) -> Probe:
    return Probe(PROBE_IDS, tuple(logprobs_of(model, PROBE_IDS[:1], PROBE_IDS[1:])))


def adapted(folder: Path, seed: int = 0, **changes: Any) -> Any:
    """Return a PEFT model whose adapter changes its output strongly."""
    from peft import LoraConfig, get_peft_model

    settings = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"} | changes
    model = get_peft_model(load(folder), LoraConfig(**settings)).eval()
    randomize_adapter(model, seed)
    return model


def randomize_adapter(model: Any, seed: int) -> None:
    """Give the adapter other weights."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            parameter.data.normal_(0.0, 0.1, generator=generator)


def lora_update(model: Any, probe: Probe | None = None) -> WeightUpdate:
    from peft import get_peft_model_state_dict

    tensors = [(name, tensor.detach().clone()) for name, tensor in get_peft_model_state_dict(model).items()]
    return WeightUpdate(tensors, "lora", model.peft_config["default"].to_dict(), probe or probe_of(model))


def moved(folder: Path, seed: int) -> Any:
    """Return the full model with other weights, the embedding included."""
    model = load(folder)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.03)
    return model


def full_update(model: Any) -> WeightUpdate:
    return WeightUpdate(list(model.state_dict().items()), "full", probe=probe_of(model))


async def check_named_weights(sampler: Any, folder: Path, first: int, *, mixed: bool = True) -> None:
    """Check named adapters beside the base, in one call of mixed requests; versions start at ``first``.

    The sampler serves the base without a name and is left in that state.

    Args:
        mixed: Include requests of the base in the same call; vLLM's CPU build needs a workaround for that.
    """
    reported = {"solver": adapted(folder, 1), "judge": adapted(folder, 2)}
    models = {**reported, "": load(folder), "base": load(folder)}
    updates = [replace(lora_update(model), name=name) for name, model in reported.items()]
    updates.append(WeightUpdate((), "lora", {"r": 1}, name="base"))
    assert [await sampler.sync_weights(update) for update in updates] == [first, first + 1, first + 2]
    together = [replace(item, weights=name) for item in requests(4) for name in (models if mixed else reported)]
    alone = [] if mixed else [replace(item, weights=name) for item in requests(4) for name in ("", "base")]
    asked = together + alone
    replies = await sampler.sample(together) + await sampler.sample(alone)
    for name, model in models.items():
        mine = [place for place, item in enumerate(asked) if item.weights == name]
        assert largest_gap(model, [asked[place] for place in mine], [replies[place] for place in mine]) < 1e-4, name
    expected = {"solver": first, "judge": first + 1, "base": first + 2}
    for item, reply in zip(asked, replies, strict=True):
        assert reply.weight_version == expected.get(item.weights, reply.weight_version)
    # One of them is updated, the other stays.
    reported["solver"] = adapted(folder, 3)
    assert await sampler.sync_weights(replace(lora_update(reported["solver"]), name="solver")) == first + 3
    for name, model in reported.items():
        asked = [replace(item, weights=name) for item in requests(4)]
        assert largest_gap(model, asked, await sampler.sample(asked)) < 1e-4
    with pytest.raises(ValueError, match=r"'sovler'.*'base', 'judge', 'solver'"):
        await sampler.sample([replace(requests(1)[0], weights="sovler")])
    for name in ("solver", "judge", "base"):
        await sampler.drop(name)
        with pytest.raises(ValueError, match=f"'{name}'"):
            await sampler.sample([replace(requests(1)[0], weights=name)])
    with pytest.raises(ValueError, match="'judge'"):
        await sampler.drop("judge")
