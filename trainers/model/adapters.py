"""Low-rank adapters on a frozen base through PEFT: creating, saving and merging them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.config import ModelConfig
from trainers.config.model import lora_of
from trainers.model.loading import ModelUnusable
from trainers.model.quantization import dequantized_weight

ADAPTER = "default"
"""PEFT's name of the shared adapter; adapters of roles have the role's name."""

TRAINED_ON = "trained_on.json"
"""File next to an adapter whose base was quantized during training. It records the quantization and the compute
dtype, for which PEFT's own file has no field."""


def peft_name(adapter: str) -> str:
    """Return PEFT's name of the adapter of a role, or of the shared adapter ``""``."""
    return adapter or ADAPTER


def add_adapters(base: Any, config: ModelConfig, seed: int, adapters: Sequence[str] = ("",)) -> Any:
    """Add adapters to a model. They are initialized to have no effect, only they are trainable, and the first is
    active.

    Args:
        base: The model.
        config: Tuning options.
        seed: Seed of the adapters' initial weights, which differ from adapter to adapter.
        adapters: Roles with an adapter of their own; ``""`` is the adapter shared by all others.

    Raises:
        ModelUnusable: The targets do not fit the model, the base is itself an adapter, or a role has the name of a
            module of the model.
    """
    from peft import LoraConfig, get_peft_model

    folder = Path(config.path)
    if (folder / "adapter_config.json").is_file():
        raise ModelUnusable(
            f"model.path={config.path!r} is itself an adapter, and an adapter of an adapter could not be loaded "
            f"without it; merge it first (`rllm-gym merge {config.path} --output FOLDER`; in Python: PEFT's "
            "merge_and_unload), or use model.tuning=full"
        )
    lora = lora_of(config)
    targets: str | list[str] = lora.targets
    if lora.targets != "all-linear":
        targets = [name.strip() for name in lora.targets.split(",")]
    alpha = float(lora.alpha)
    settings = LoraConfig(
        r=lora.rank,
        # PEFT annotates int, but float works: it only divides by it.
        lora_alpha=int(alpha) if alpha.is_integer() else alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    _check_names(base, adapters)
    # PEFT writes this name into the adapter, which should find its base from any working directory.
    base.name_or_path = str(folder.resolve()) if folder.is_dir() else config.path
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = get_peft_model(base, settings, peft_name(adapters[0]))
            for adapter in adapters[1:]:
                model.add_adapter(peft_name(adapter), settings)
    except ValueError as error:
        raise ModelUnusable(f"model.lora.targets={lora.targets!r} does not fit the model: {error}") from error
    ends = (base.get_input_embeddings(), base.get_output_embeddings())
    if any(hasattr(end, "lora_A") for end in ends):
        raise ModelUnusable(
            f"model.lora.targets={lora.targets!r} adapts the embeddings or the output head, which often share "
            "one weight and which samplers do not support; name linear layers of the blocks, or use all-linear"
        )
    targets = _short_targets(base)
    for adapter in adapters:
        model.peft_config[peft_name(adapter)].target_modules = targets
    activate(model, adapters[0])
    return model


def activate(model: Any, adapter: str) -> None:
    """Make this adapter active. All adapters stay trainable."""
    model.set_adapter(peft_name(adapter))
    for name, parameter in model.named_parameters():
        if _ADAPTER_WEIGHT.search(name):
            parameter.requires_grad_(True)  # PEFT freezes the inactive ones


def adapter_of(parameter_name: str) -> str:
    """Return the role whose adapter has this parameter, by its name in a PEFT model; ``""`` for the shared adapter."""
    match = _ADAPTER_WEIGHT.search(parameter_name)
    if match is None:
        raise ValueError(f"{parameter_name!r} is not a weight of an adapter")
    return "" if match["adapter"] == ADAPTER else match["adapter"]


_ADAPTER_WEIGHT = re.compile(r"\.lora_[AB]\.(?P<adapter>[^.]+)\.")


def _check_names(base: Any, adapters: Sequence[str]) -> None:
    """Check that no adapter has the name of a module: PEFT matches adapters by any part of a parameter's name, and
    would lose or mix up weights.
    """
    parts = {part for name, _ in base.named_parameters() for part in name.split(".")} | _PARTS_OF_PEFT
    if taken := [adapter for adapter in adapters if adapter in parts]:
        raise ModelUnusable(
            f"roles.{taken[0]}.adapter=own: the model has a module named {taken[0]!r}, which PEFT would confuse with "
            "the adapter; give the role another name in the workflow"
        )


_PARTS_OF_PEFT = {"base_model", "base_layer", "lora_A", "lora_B"}


def _short_targets(base: Any) -> list[str]:
    """Return the adapted modules in PEFT's usual form (``q_proj``), or by full names if a short name matches other
    modules.
    """
    layers = {name: hasattr(module, "lora_A") for name, module in base.named_modules() if ".base_layer" not in name}
    adapted = [name for name, has in layers.items() if has]
    ends = {name.rpartition(".")[2] for name in adapted}
    same = {name for name in layers if name.rpartition(".")[2] in ends} == set(adapted)
    return sorted(ends if same else adapted)


def save_adapters(model: Any, folder: Path, config: ModelConfig, adapters: Sequence[str]) -> list[Path]:
    """Write each adapter in the format of PEFT, transformers and vLLM. The files are reproducible byte for byte.

    The shared adapter is written to the folder itself, the adapter of a role to a subfolder with the role's name.

    Returns:
        The folder of each adapter."""
    # The embeddings are never trained; without this option PEFT would query the hub to find out whether they were.
    model.save_pretrained(folder, save_embedding_layers=False)
    folders = [folder / adapter if adapter else folder for adapter in adapters]
    if config.tuning == "qlora":
        for item in folders:
            (item / TRAINED_ON).write_text(json.dumps({"quantization": "nf4", "dtype": config.dtype}) + "\n")
    return folders


@torch.no_grad()
def merged_tensors(model: Any, adapter: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of every weight of the plain model with an adapter merged into it.

    The sum with ``scale · B A`` is computed in float32 and cast to the base's dtype.
    """
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            yield f"{name}.weight", _merge(module, peft_name(adapter))
            if (bias := module.get_base_layer().bias) is not None:
                yield f"{name}.bias", bias.detach()
        elif ".base_layer" not in name and ".lora_" not in name:
            for leaf, parameter in module.named_parameters(recurse=False):
                yield f"{name}.{leaf}", dequantized_weight(module) if leaf == "weight" else parameter.detach()
            for leaf, buffer in module.named_buffers(recurse=False):
                if leaf not in module._non_persistent_buffers_set:
                    yield f"{name}.{leaf}", buffer


def _merge(module: Any, adapter: str) -> Tensor:
    weight = dequantized_weight(module.get_base_layer())
    merged: Tensor = (weight.float() + module.get_delta_weight(adapter).float()).to(weight.dtype)
    return merged
