"""Low-rank adapters on a frozen base, through PEFT: made, and merged into the weights they adapt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.config import ModelConfig
from trainers.model.loading import ModelUnusable
from trainers.model.quantization import dequantized_weight

ADAPTER = "default"
"""PEFT's name of the one adapter there is."""

TRAINED_ON = "trained_on.json"
"""Beside an adapter whose base was quantised while it was trained: how, and the type it computed in, for which PEFT's
own file has no place."""


def with_adapters(base: Any, config: ModelConfig, seed: int) -> Any:
    """The base with adapters that change nothing yet; only they are trained.

    Raises:
        ModelUnusable: The targets do not fit the model, or the base is itself an adapter.
    """
    from peft import LoraConfig, get_peft_model

    folder = Path(config.path)
    if (folder / "adapter_config.json").is_file():
        raise ModelUnusable(
            f"model.path={config.path!r} is itself an adapter, and a new one on top of it would fit no model on disk; "
            f"write the merged model first (`rllm-gym merge {config.path} --output FOLDER`; in Python: PEFT's "
            "merge_and_unload), or use model.tuning=full"
        )
    targets: str | list[str] = config.lora.targets
    if config.lora.targets != "all-linear":
        targets = [name.strip() for name in config.lora.targets.split(",")]
    alpha = float(config.lora.alpha)
    settings = LoraConfig(
        r=config.lora.rank,
        # PEFT says int and divides like a float.
        lora_alpha=int(alpha) if alpha.is_integer() else alpha,
        target_modules=targets,
        lora_dropout=0.0,
        use_rslora=config.lora.variant == "rslora",
        use_dora=config.lora.variant == "dora",
        bias="none",
        task_type="CAUSAL_LM",
    )
    # PEFT writes this name into the adapter, which should find its base from any working directory.
    base.name_or_path = str(folder.resolve()) if folder.is_dir() else config.path
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = get_peft_model(base, settings)
    except ValueError as error:
        raise ModelUnusable(f"model.lora.targets={config.lora.targets!r} does not fit the model: {error}") from error
    ends = (base.get_input_embeddings(), base.get_output_embeddings())
    if any(hasattr(end, "lora_A") for end in ends):
        raise ModelUnusable(
            f"model.lora.targets={config.lora.targets!r} adapts the embeddings or the output head, which often are one "
            "and the same weight and which samplers do not adapt; name linear layers of the blocks, or use all-linear"
        )
    model.peft_config[ADAPTER].target_modules = _short_targets(base)
    return model


def _short_targets(base: Any) -> list[str]:
    """The adapted modules as PEFT users write them (``q_proj``), by their full names where a short one fits others."""
    layers = {name: hasattr(module, "lora_A") for name, module in base.named_modules() if ".base_layer" not in name}
    adapted = [name for name, has in layers.items() if has]
    ends = {name.rpartition(".")[2] for name in adapted}
    same = {name for name in layers if name.rpartition(".")[2] in ends} == set(adapted)
    return sorted(ends if same else adapted)


def save_adapter(model: Any, folder: Path, config: ModelConfig) -> None:
    """Write the adapter as PEFT, transformers and vLLM load it. The same adapter gives the same bytes."""
    # The embeddings are never trained; PEFT would ask the hub whether they might have been.
    model.save_pretrained(folder, save_embedding_layers=False)
    if config.tuning == "qlora":
        (folder / TRAINED_ON).write_text(json.dumps({"quantization": "nf4", "dtype": config.dtype}) + "\n")


@torch.no_grad()
def merged_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of every weight of the plain model, with the adapters in it, one at a time.

    LoRA adds ``scale · B A``; DoRA then gives each row of the sum its own length (Liu et al. 2024, eq. 5). Sums are
    made in float32, and the base's type is kept.
    """
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            yield f"{name}.weight", _merge(module)
            if (bias := module.get_base_layer().bias) is not None:
                yield f"{name}.bias", bias.detach()
        elif ".base_layer" not in name and ".lora_" not in name:
            for leaf, parameter in module.named_parameters(recurse=False):
                yield f"{name}.{leaf}", dequantized_weight(module) if leaf == "weight" else parameter.detach()
            for leaf, buffer in module.named_buffers(recurse=False):
                if leaf not in module._non_persistent_buffers_set:
                    yield f"{name}.{leaf}", buffer


def _merge(module: Any) -> Tensor:
    weight = dequantized_weight(module.get_base_layer())
    total = weight.float() + module.get_delta_weight(ADAPTER).float()
    if ADAPTER in module.lora_magnitude_vector:
        length = torch.linalg.norm(total, dim=1, keepdim=True)
        total = total * (module.lora_magnitude_vector[ADAPTER].weight.float()[:, None] / length)
    merged: Tensor = total.to(weight.dtype)
    return merged
