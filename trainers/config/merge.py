"""Options of ``rllm-gym merge``, which merges an adapter into its base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class MergeConfig:
    """Options for merging an adapter into its base model."""

    adapter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ADAPTER")] = ""
    """Folder (or hub id) of a PEFT adapter: LoRA, rsLoRA or DoRA."""
    output: str = ""
    """Output folder; it must not exist."""
    base: str = ""
    """The base model, if it is not at the location recorded in the adapter."""
    dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """Data type of the written weights; ``same`` keeps the base's. Sums are computed before rounding."""
    nf4: bool = False
    """Merge into the base rounded to NF4 and back, for adapters trained with model.tuning=qlora: the result computes
    exactly what was trained. Otherwise the adapter is merged into the base's original weights, which is usually
    slightly better but never exactly what was measured during training."""
