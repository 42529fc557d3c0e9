"""Write a PEFT adapter for vLLM: checked, with its scale folded in, to memory-backed storage."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllm_gym.samplers.peft_format import PREFIX, config_of, low_rank_pair, module_and_part, scale_of
from rllm_gym.samplers.protocol import WeightUpdate

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of the maximum rank that an engine can be started with."""


def max_rank(rank: int) -> int:
    """Return the smallest maximum rank of an engine that serves adapters of this rank.

    Raises:
        ValueError: There is none.
    """
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise ValueError(f"lora_rank={rank} is above vLLM's maximum {RANKS[-1]}; load the merged weights (kind='full')")


def write_adapter(update: WeightUpdate, folder: Path, *, rank: int) -> None:
    """Write a ``kind="lora"`` update for vLLM.

    vLLM supports one scale for a whole adapter and ignores ``alpha_pattern`` and similar fields; so the scale of each
    module (plain or rank-stabilised: Kalajdzievski 2023) is folded into its ``lora_B``.

    Args:
        update: The adapter.
        folder: Created here.
        rank: The maximum rank that the engine was started with.

    Raises:
        ValueError: vLLM cannot serve the adapter; nothing was written.
    """
    import torch
    from safetensors.torch import save_file

    config = config_of(update)
    modules = _by_module(update.tensors)
    if config.get("use_dora") or any("lora_magnitude_vector" in parts for parts in modules.values()):
        raise ValueError(
            "vLLM does not serve DoRA; train with LoRA or rsLoRA, load the merged weights (kind='full'), or use the "
            "torch sampler"
        )
    tensors = {}
    highest = 1
    for module, parts in modules.items():
        kind = "lora_embedding_" if "lora_embedding_A" in parts else "lora_"
        down, up = low_rank_pair(module, parts, kind)
        own_rank = int(down.shape[0])
        if own_rank > rank:
            raise ValueError(
                f"the adapter of {module!r} has rank {own_rank}; this engine was started for lora_rank={rank}"
            )
        highest = max(highest, own_rank)
        weight = ".weight" if kind == "lora_" else ""
        tensors[f"{PREFIX}{module}.{kind}A{weight}"] = down.detach().to("cpu").contiguous()
        scaled = (up.detach().to(torch.float32) * scale_of(module, own_rank, config)).to(up.dtype)
        tensors[f"{PREFIX}{module}.{kind}B{weight}"] = scaled.to("cpu").contiguous()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": highest,
        "lora_alpha": highest,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(written))


def zero_adapter(update: WeightUpdate) -> WeightUpdate:
    """Return an adapter of the same layers as the update's that changes nothing.

    vLLM's CPU build computes requests without an adapter with another request's adapter if the two share a batch: the
    index for "no adapter", -1, is read as the last one (``vllm/lora/ops/torch_ops``). There the base is served by this
    adapter.
    """
    tensors = []
    for module, parts in _by_module(update.tensors).items():
        for part, tensor in parts.items():
            side = tensor[:1] if part.endswith("A") else tensor[:, :1]
            weight = "" if part.startswith("lora_embedding") else ".weight"
            tensors.append((f"{PREFIX}{module}.{part}{weight}", side.detach().to("cpu") * 0))
    return WeightUpdate(tensors, "lora", {"r": 1})


def _by_module(tensors: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    modules: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors:
        found = module_and_part(name)
        if found is None:
            raise ValueError(
                f"a lora update has {name!r}, which is not part of an adapter: vLLM cannot load full layers beside one "
                "(modules_to_save, bias). Load the merged weights (kind='full')"
            )
        modules.setdefault(found[0], {})[found[1]] = tensor
    if not modules:
        raise ValueError("a lora update has no tensors")
    return modules
