"""Low-rank adapters on a frozen base, through PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainers.config import ModelConfig
from trainers.model.loading import ModelUnusable


def with_adapters(base: Any, config: ModelConfig, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    folder = Path(config.path)
    if (folder / "adapter_config.json").is_file():
        raise ModelUnusable(
            f"model.path={config.path!r} is itself an adapter, and a new one on top of it would fit no model on disk; "
            "write the merged model first (peft: AutoPeftModelForCausalLM.from_pretrained(...).merge_and_unload()"
            ".save_pretrained(...)), or use model.tuning=full"
        )
    targets: str | list[str] = config.lora.targets
    if config.lora.targets != "all-linear":
        targets = [name.strip() for name in config.lora.targets.split(",")]
    settings = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,  # PEFT says int and divides like a float
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # PEFT writes this name into the adapter, which should find its base from any working directory.
    base.name_or_path = str(folder.resolve()) if folder.is_dir() else config.path
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return get_peft_model(base, settings)
    except ValueError as error:
        raise ModelUnusable(f"model.lora.targets={config.lora.targets!r} does not fit the model: {error}") from error
