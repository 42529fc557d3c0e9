"""Writing an adapter and its base as one model: options of `rllm-gym merge`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class MergeConfig:
    """An adapter and its base as one model."""

    adapter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ADAPTER")]
    """Folder (or hub id) of a PEFT adapter: LoRA, rsLoRA or DoRA."""
    output: str
    """Folder to write; it must not exist."""
    base: str = ""
    """The base model, where it no longer lies where the adapter says."""
    dtype: Literal["same", "float32", "bfloat16", "float16"] = "same"
    """Type of the weights written; `same` keeps the base's. Sums are made before rounding."""
    nf4: bool = False
    """Merge into the base rounded to NF4 and back, for adapters trained with model.tuning=qlora: the result computes
    exactly what was trained. Without it they are merged into the base's own weights, which mostly is a little better
    and never quite what was measured while training."""
