"""Merging an adapter into its base as one model that does not need PEFT. The result is verified and written
atomically.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from rllm_gym.chat.tokenizer import load_tokenizer
from rllm_gym.samplers.model_names import check_model_name
from trainers.config import ConfigError
from trainers.config.merge import MergeConfig
from trainers.model import ModelUnusable
from trainers.model.adapters import TRAINED_ON
from trainers.model.loading import check_adapter_complete, load_causal_lm
from trainers.model.quantization import dequantized_copy, load_quantized_lm
from trainers.option_checks import raise_if_any

_REQUIRED = {"adapter": "rllm-gym merge ADAPTER", "output": "--output FOLDER"}
# Maximum difference by rounding of the merged model's logits, relative to their scale.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A merged model that was written.

    Attributes:
        output: The output folder.
        base: The base the adapter was merged into.
        parameters: Number of weights of the model.
        dtype: Data type of the weights.
        max_logit_difference: Largest difference of a logit between the merged model and the base with the adapter,
            before rounding to ``dtype``.
        quantized: Whether the adapter was trained on an NF4 base.
    """

    output: Path
    base: str
    parameters: int
    dtype: torch.dtype
    max_logit_difference: float
    quantized: bool


def merge_adapter(config: MergeConfig) -> MergeResult:
    """Write the merged model and its tokenizer.

    Raises:
        ConfigError: ``config.adapter`` is not an adapter, its base is missing or a different model, or the output
            exists or cannot be written. In all cases nothing was written.
    """
    raise_if_any([f"{name} is missing; write {use}" for name, use in _REQUIRED.items() if not getattr(config, name)])
    output = Path(config.output)
    if output.exists():
        raise ConfigError(f"--output {config.output} exists already and is not overwritten; use a new folder")
    try:
        check_model_name(config.adapter, "adapter_config.json")
    except FileNotFoundError as error:
        raise ConfigError(f"{config.adapter} is not an adapter: {error}") from error
    base_path = config.base or _base_of(config.adapter)
    trained_on = _trained_on(config.adapter)
    if config.nf4 and trained_on is None:
        raise ConfigError(
            f"--nf4: {config.adapter} is not marked as trained on an NF4 base (no {TRAINED_ON} in its folder), and "
            "merging it into a rounded base would degrade it; remove --nf4"
        )
    model, gap = _merge(config, base_path, trained_on if config.nf4 else None)
    kept = model.dtype if config.dtype == "same" else getattr(torch, config.dtype)
    model = model.to(kept)
    _write(model, _tokenizer(config.adapter, base_path), output)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return MergeResult(output, base_path, parameters, kept, gap, trained_on is not None)


def _base_of(adapter: str) -> str:
    from peft import PeftConfig

    folder = Path(adapter)
    if folder.is_dir() and not (folder / "adapter_config.json").is_file():  # PEFT would look for it on the hub
        full = (folder / "config.json").is_file()
        what = "a full model, which needs no merging" if full else "no adapter_config.json"
        raise ConfigError(f"{adapter} is not an adapter: it contains {what}")
    try:
        settings = PeftConfig.from_pretrained(adapter)
    except (ValueError, OSError, TypeError) as error:
        what = "its adapter_config.json is unreadable" if folder.is_dir() else "there is no such adapter on the hub"
        raise ConfigError(f"{adapter} is not an adapter: {what} ({error})") from error
    base = settings.base_model_name_or_path
    if not base:
        raise ConfigError(f"{adapter} does not name its base model; set it with --base")
    return str(base)


def _trained_on(adapter: str) -> torch.dtype | None:
    """Return the compute dtype of the NF4 base the adapter was trained on; ``None`` for an unquantized base."""
    file = Path(adapter) / TRAINED_ON
    if not file.is_file():
        return None
    try:
        dtype: torch.dtype = getattr(torch, json.loads(file.read_text())["dtype"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} was not written by rllm-gym ({type(error).__name__}: {error}); remove it") from error
    return dtype


def _merge(config: MergeConfig, base_path: str, nf4: torch.dtype | None) -> tuple[Any, float]:
    from peft import PeftModel

    # The base needs at least the output's precision: rounding the sum to less would lose most of the adapter.
    dtype = torch.float32 if config.dtype == "float32" else None
    try:
        if nf4 is None:
            base = load_causal_lm(base_path, dtype=dtype)
        else:
            quantized = load_quantized_lm(base_path, dtype=nf4, device=torch.device("cpu"))
            base = dequantized_copy(quantized, base_path).to(dtype or nf4)
    except ModelUnusable as error:
        raise ConfigError(
            f"the base of {config.adapter} is {base_path!r}, which cannot be loaded; set its current location with "
            f"--base ({error})"
        ) from error
    try:
        adapted = PeftModel.from_pretrained(base, config.adapter).eval()
        check_adapter_complete(adapted, config.adapter)
        expected_TV = _logits(adapted)
        merged = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, OSError, KeyError, AttributeError, SafetensorError) as error:
        if isinstance(error, ModelUnusable):
            raise
        raise ConfigError(
            f"the adapter {config.adapter} cannot be merged into {base_path!r}; check that it is its base ({error})"
        ) from error
    gap = (_logits(merged) - expected_TV).abs().max().item()
    if not gap <= _TOLERANCE[merged.dtype] * max(1.0, expected_TV.abs().max().item()):
        raise ConfigError(
            f"{config.adapter} cannot be merged into {base_path!r}: the logits of the merged model differ by {gap:.3g} "
            "from those of the base with the adapter"
        )
    return merged, gap


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    vocabulary = model.config.get_text_config().vocab_size
    ids_BT = torch.arange(1, 17)[None] * 7 % vocabulary
    logits_TV: torch.Tensor = model(input_ids=ids_BT, use_cache=False).logits[0].float()
    return logits_TV


def _tokenizer(adapter: str, base: str) -> Any | None:
    for folder in (adapter, base):
        try:
            return load_tokenizer(folder)
        except (OSError, ValueError):
            continue
    return None


def _write(model: Any, tokenizer: Any | None, output: Path) -> None:
    """Write to a temporary folder first, so that a crash or a full disk leaves no partial output."""
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        for file in filter(Path.is_file, partial.rglob("*")):
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        os.rename(partial, output)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"--output {output}: the model cannot be written ({error}); partial output was removed"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
