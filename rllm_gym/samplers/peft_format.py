"""PEFT's format of an adapter: names of its tensors, and the scale of each module. It imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from rllm_gym.samplers.protocol import WeightUpdate

PREFIX = "base_model.model."
_NAME = re.compile(
    r"^(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.(?!weight$)[^.]+)?(?:\.weight)?$"  # the adapter's name may precede the end
)


def config_of(update: WeightUpdate) -> dict[str, Any]:
    """Return the configuration of an adapter.

    Raises:
        ValueError: The update has none.
    """
    config = dict(update.lora_config or {})
    if "r" not in config:
        raise ValueError("a lora update needs lora_config, the PEFT configuration as a dict (peft_config.to_dict())")
    return config


def module_and_part(name: str) -> tuple[str, str] | None:
    """Return the module and the part (such as ``lora_A``) of a tensor's name; ``None`` for other tensors."""
    match = _NAME.match(name.removeprefix(PREFIX))
    return (match["module"], match["part"]) if match else None


def low_rank_pair(module: str, parts: Mapping[str, Any], kind: str = "lora_") -> tuple[Any, Any]:
    """Return ``lora_A`` ``[r, in]`` and ``lora_B`` ``[out, r]`` of a module, or of an embedding (``lora_embedding_``).

    Raises:
        ValueError: One is missing.
    """
    down, up = parts.get(f"{kind}A"), parts.get(f"{kind}B")
    if down is None or up is None:
        raise ValueError(f"a lora update has only {sorted(parts)} for {module!r}; it needs lora_A and lora_B")
    return down, up


def scale_of(module: str, rank: int, config: Mapping[str, Any]) -> float:
    """Return α/r, or α/√r for rank-stabilised LoRA (Kalajdzievski 2023)."""
    alpha = config.get("lora_alpha", rank)
    # As PEFT's get_pattern_key: a key matches the whole name or a suffix of it after a dot.
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = value
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
