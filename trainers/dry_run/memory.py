"""Estimate of a run's memory by part, from the model's configuration alone: no weights are read.

Activations are counted: the model runs on fake tensors, and the tensors saved by autograd are summed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import sdpa_mask

from trainers.config import ModelConfig, OptimizerConfig
from trainers.config.model import shares_base
from trainers.model.adapters import add_adapters
from trainers.model.loading import ModelUnusable
from trainers.model.token_logprobs import TILE_BYTES

# NF4: half a byte per weight, an 8-bit scale per 64 weights, a 32-bit scale per 256 of those (Dettmers et al. 2023).
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# bitsandbytes: one byte per moment and a 32-bit scale per 256 of them; smaller tensors keep 32 bits.
_BLOCK, _MIN_SIZE_8BIT = 256, 4096
_COUNTED = "rllm_gym_counted"


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The largest microbatch: rows, columns with padding, and the number of sampled tokens."""

    rows: int
    columns: int
    sampled: int


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """Memory requirements of the sampler.

    Attributes:
        tokens: Tokens of all concurrent conversations.
        limit: Maximum number of bytes of the key-value cache; conversations that do not fit wait.
        merges: Whether it is the embedded sampler, which shares the trainer's base or merges adapters into a copy, and
            allocates memory as needed. Others allocate the whole limit at the start.
        sets: Number of named weight sets that it serves at a time.
        sleeps: Whether its memory is freed during updates.
    """

    tokens: int
    limit: int
    merges: bool = True
    sets: int = 1
    sleeps: bool = False


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of each part, by name.

    Attributes:
        resident: Memory allocated permanently.
        activations: Memory saved by a forward pass for the backward pass.
        transient: Temporary memory in addition to that; only one of these parts at a time.
        step: Memory of an optimizer step, after the activations are freed.
        freed: The part of ``resident`` that is freed during updates.
    """

    resident: Mapping[str, int]
    activations: int
    transient: Mapping[str, int]
    step: int
    freed: int = 0

    @property
    def peak(self) -> int:
        """Peak memory in bytes."""
        update = max(self.activations + max(self.transient.values()), self.step)
        return sum(self.resident.values()) + max(update - self.freed, 0)


def model_shape(config: ModelConfig, adapters: Sequence[str] = ("",)) -> Any:
    """Build the model with its adapters on the ``meta`` device.

    Raises:
        ModelUnusable: The model has no configuration, or the adapters do not fit it.
    """
    path = config.path
    if (Path(path) / "adapter_config.json").is_file():
        from peft import PeftConfig

        path = str(PeftConfig.from_pretrained(path).base_model_name_or_path)
    try:
        settings = AutoConfig.from_pretrained(path)
        adapted = config.tuning != "full"
        dtype = torch.bfloat16 if adapted and config.dtype == "bfloat16" else torch.float32
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation=_COUNTED)
            if adapted:
                model = add_adapters(model, config, seed=0, adapters=adapters)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelUnusable):
            raise
        raise ModelUnusable(f"model.path={config.path!r} has no readable configuration: {error}") from error
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train(bool(config.gradient_checkpointing))


def estimate_memory(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    batch: BatchShape,
    *,
    reference: bool = False,
    teacher: str = "",
    sampler: SamplerShape | None = None,
    adapters: Sequence[str] = ("",),
    opponents: int = 0,
) -> MemoryEstimate:
    """Estimate the memory of a run's tensors. The interpreter and its libraries need about half a gigabyte in addition.

    Args:
        config: Options of the model.
        optimizer: Options of the optimizer.
        batch: The largest microbatch.
        reference: Whether a KL term needs a reference model.
        teacher: Folder or hub id of a frozen model on the same device; empty for none.
        sampler: The sampler on the same device; ``None`` if it is elsewhere.
        adapters: Names of the adapters, if roles have their own.
        opponents: Number of copies of one of them, or of the model, that are kept on the CPU.

    Raises:
        ModelUnusable: The model has no configuration, or the adapters do not fit it.
    """
    model = model_shape(config, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = _frozen_bytes(model, quantized=config.tuning == "qlora")
    trained_bytes = 4 * sum(parameter.numel() for parameter in trained)
    full = config.tuning == "full"
    text = model.config.get_text_config()
    resident = {
        "weights": trained_bytes if full else frozen,
        "adapters": 0 if full else trained_bytes,
        "gradients": trained_bytes,
        "optimizer states": _state_bytes(trained, optimizer),
        "reference": trained_bytes if reference and full else 0,
        "teacher": _teacher_bytes(teacher, config) if teacher else 0,
        "opponents": 0 if on_gpu(config.device) else opponents * trained_bytes // len(adapters),
    }
    sampler_bytes = {} if sampler is None else _sampler_bytes(model, config, sampler)
    freed = sum(sampler_bytes.values()) if sampler is not None and sampler.sleeps else 0
    saved, block = activation_bytes(model, config, batch)
    transient = {
        "a block's backward pass": block,
        "log-probs": _logprob_bytes(text, batch, head_trained=full, device=config.device),
    }
    return MemoryEstimate(resident | sampler_bytes, saved, transient, _step_bytes(trained, config), freed)


def activation_bytes(model: Any, config: ModelConfig, batch: BatchShape) -> tuple[int, int]:
    """Return the bytes saved by a forward pass, and the temporary bytes of the backward pass of one block.

    Args:
        model: The model from :func:`model_shape`.
        config: Options of the model.
        batch: Shape of the microbatch.

    Raises:
        ModelUnusable: The model cannot run on fake tensors.
    """
    text = model.config.get_text_config()
    kept = _count_kept(model, config, batch)
    # A few of the widest tensors exist at the same time within a block.
    width: int = max(getattr(text, "intermediate_size", 0) or 0, 4 * text.hidden_size)
    block = 3 * batch.rows * batch.columns * width * (2 if config.dtype == "bfloat16" else 4)
    if config.gradient_checkpointing:  # the block is recomputed, now with its activations
        model.train(False)
        block += _count_kept(model, config, batch) // text.num_hidden_layers
        model.train(True)
    return kept, block


def _count_kept(model: Any, config: ModelConfig, batch: BatchShape) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode

    body = (model.get_base_model() if config.tuning != "full" else model).base_model
    amp = torch.autocast("cpu", torch.bfloat16) if config.dtype == "bfloat16" else contextlib.nullcontext()
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with FakeTensorMode():
        weights = _on_cpu(body.named_parameters(remove_duplicate=False)) | _on_cpu(body.named_buffers())
        own = {tensor.untyped_storage()._cdata for tensor in weights.values()}
        inputs = {"input_ids": torch.zeros(batch.rows, batch.columns, dtype=torch.long), "use_cache": False}
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), amp:
                torch.func.functional_call(body, weights, args=(), kwargs=inputs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise ModelUnusable(
                f"{type(model).__name__} reads the values of its tensors, so its memory cannot be estimated: {error}"
            ) from error
    return sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in own)


def _on_cpu(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return fake CPU tensors of the same shapes: autocast does not support ``meta`` tensors."""
    copies: dict[int, Tensor] = {}
    result = {}
    for name, tensor in named:
        if id(tensor) not in copies:
            copies[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
        result[name] = copies[id(tensor)]
    return result


def _counted_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention that saves what the kernels of all devices and layouts save: queries, keys, values, result, and one
    number per query. Which kernel torch would select for fake tensors is unrelated."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    out, _ = attend(query.to(value.dtype), key.to(value.dtype), value, 0.0, True)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_COUNTED, _counted_attention)
AttentionMaskInterface.register(_COUNTED, sdpa_mask)


def _frozen_bytes(model: Any, *, quantized: bool) -> int:
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = plain.get_output_embeddings()
    linear = {id(module.weight) for module in plain.modules() if isinstance(module, nn.Linear) and module is not head}
    total = 0.0
    for parameter in model.parameters():
        if not parameter.requires_grad:
            small = quantized and id(parameter) in linear
            total += parameter.numel() * (_NF4_BYTES if small else parameter.itemsize)
    return int(total)


def _teacher_bytes(path: str, config: ModelConfig) -> int:
    model = model_shape(ModelConfig(path=path, tuning="full"))
    weights = int(sum(parameter.numel() for parameter in model.parameters()))
    return (2 if config.dtype == "bfloat16" else 4) * weights


def _state_bytes(trained: list[nn.Parameter], optimizer: OptimizerConfig) -> int:
    is_8bit = optimizer.name.endswith("8bit")
    total = 0
    for parameter in trained:
        size = parameter.numel()
        total += 2 * (size + 4 * -(-size // _BLOCK)) if is_8bit and size >= _MIN_SIZE_8BIT else 8 * size
    return total


def _step_bytes(trained: list[nn.Parameter], config: ModelConfig) -> int:
    """Return AdamW's temporary memory: one tensor at a time on a CPU, none in the fused kernels of a GPU."""
    return 0 if on_gpu(config.device) else 8 * max(parameter.numel() for parameter in trained)


def _logprob_bytes(text: Any, batch: BatchShape, *, head_trained: bool, device: str) -> int:
    """Return the memory of :func:`trainers.model.token_logprobs.linear_logprobs`: its tiles, and its results per
    token.
    """
    tile = min(TILE_BYTES["cuda" if on_gpu(device) else "cpu"], 4 * batch.sampled * text.vocab_size)
    hidden: int = 4 * batch.sampled * text.hidden_size
    head: int = 4 * text.vocab_size * text.hidden_size if head_trained else 0
    total: int = 3 * tile + 3 * hidden + head
    return total


def _sampler_bytes(model: Any, config: ModelConfig, sampler: SamplerShape) -> dict[str, int]:
    plain = model.get_base_model() if config.tuning != "full" else model
    item = 2 if config.dtype == "bfloat16" else 4
    base = item * sum(parameter.numel() for name, parameter in plain.named_parameters() if ".lora_" not in name)
    shared = sampler.merges and shares_base(config, gpu=on_gpu(config.device))
    if shared:  # it has only its own copies of the adapters
        base = 0
        adapted = item * sum(parameter.numel() for name, parameter in plain.named_parameters() if ".lora_" in name)
        adapted //= max(1, len(getattr(model, "peft_config", ())))
    else:
        # The embedded sampler keeps the base of adapted weights: merging always starts from the base.
        adapted = item * sum(
            module.get_base_layer().weight.numel() for module in plain.modules() if hasattr(module, "lora_A")
        )
    text = plain.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache: int = 2 * text.num_hidden_layers * heads * width * item * sampler.tokens
    return {
        # vLLM's share of a GPU holds both weights and cache.
        "sampler's weights": base if sampler.merges or not on_gpu(config.device) else 0,
        # Each additional set stores what differs from the base: the adapted weights, or all.
        "sampler's adapters" if shared else "sampler's unmerged base": adapted if sampler.merges else 0,
        "sampler's named weights": (sampler.sets - 1) * (adapted or base) if sampler.merges else 0,
        "sampler's keys and values": min(cache, sampler.limit) if sampler.merges else sampler.limit,
    }


def on_gpu(device: str) -> bool:
    """Return whether ``model.device`` is a GPU."""
    return torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
