"""A frozen 4-bit base, and the dequantized model that computes the same results.

NF4 with doubly quantized scales (Dettmers et al. 2023, sections 3 and 4) through bitsandbytes, on GPUs and CPUs.
Samplers cannot merge adapters into 4-bit weights: they get the same weights, rounded to NF4 and back.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from trainers.model.loading import ModelUnusable, load_causal_lm

# PEFT imports bitsandbytes, which on some CPUs warns of a missing optional kernel, also if nothing is quantized.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def load_quantized_lm(path: str, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Load a causal model whose linear layers, except the output head, have NF4 weights and compute in ``dtype``.

    Raises:
        ModelUnusable: The model cannot be loaded, has no layer to quantize, or bitsandbytes cannot be imported.
    """
    check_bitsandbytes("model.tuning=qlora")
    from bitsandbytes.nn import Linear4bit
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    model = load_causal_lm(path, dtype=dtype, quantization_config=settings, device_map={"": device})
    quantized = [module for module in model.modules() if isinstance(module, Linear4bit)]
    if not quantized:
        raise ModelUnusable(
            f"model.path={path!r} has no linear layer that can be quantized to 4 bits; use model.tuning=lora"
        )
    for module in quantized:
        # In evaluation mode bitsandbytes would repack the weights for a CPU kernel without a backward pass, and the
        # gradient would then be computed from shuffled weights. We train in evaluation mode, since dropout is
        # disabled.
        module.support_avx512bf16_for_cpu = False
    return model


def check_bitsandbytes(option: str, *, instead: str = "lora") -> None:
    """Check that bitsandbytes can be imported.

    Raises:
        ModelUnusable: The option needs bitsandbytes, and importing it failed.
    """
    try:
        import bitsandbytes.optim  # noqa: F401
    except ImportError as error:
        raise ModelUnusable(
            f"{option} needs bitsandbytes ({error}): pip install bitsandbytes, or use {instead}"
        ) from error


def dequantized_weight(layer: Any) -> Tensor:
    """Return the weight ``[out, in]`` that a linear layer computes with, in its dtype before quantization."""
    weight: Tensor = layer.weight
    if getattr(weight, "quant_state", None) is None:
        return weight.data
    from bitsandbytes.functional import dequantize_4bit

    plain: Tensor = dequantize_4bit(weight.data, weight.quant_state)  # type: ignore[attr-defined]
    return plain


@torch.no_grad()
def dequantized_copy(model: Any, path: str) -> Any:
    """Build an unquantized model with exactly the weights that a quantized one computes with.

    Args:
        model: The model from :func:`load_quantized_lm`; adapters on it are ignored.
        path: The path it was loaded from.
    """
    plain = load_causal_lm(path, dtype=model.dtype).to(model.device)
    for name, module in model.named_modules():
        if getattr(getattr(module, "weight", None), "quant_state", None) is not None:
            plain.get_submodule(name.removesuffix(".base_layer")).weight.copy_(dequantized_weight(module))
    return plain.eval()
