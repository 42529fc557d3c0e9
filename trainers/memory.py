"""How much memory a run will need, part by part, from the model's configuration alone: no weights are read.

Activations are counted, not guessed: the model runs on tensors without content, and what autograd keeps is summed up.
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
from trainers.model.adapters import with_adapters
from trainers.model.attention import TREE_ATTENTION, Tree
from trainers.model.loading import ModelUnusable
from trainers.model.token_logprobs import TILE_BYTES

# NF4: half a byte a weight, an 8-bit scale for 64 of them, a 32-bit scale for 256 of those (Dettmers et al. 2023).
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# bitsandbytes: a byte a moment and a 32-bit scale for 256 of them; tensors below this size keep 32 bits.
_BLOCK, _LEAST_8BIT = 256, 4096
_COUNTED = "rllm_gym_counted"


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The largest micro-batch: rows, columns with padding, and the sampled tokens in them."""

    rows: int
    columns: int
    sampled: int


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """What draws the replies.

    Attributes:
        tokens: Of all conversations under way at once.
        limit: Most bytes for their keys and values; what does not fit waits.
        merges: It is the embedded sampler, which merges adapters into its weights and takes memory as it needs it.
            Others take all of the limit when they start.
        sets: Sets of weights that it serves at a time, each under a name.
    """

    tokens: int
    limit: int
    merges: bool = True
    sets: int = 1


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of each part, by name.

    Attributes:
        held: What is there all the time.
        kept: What a forward pass keeps for the backward pass.
        passing: What comes and goes on top of it, one after the other.
        step: What an optimizer step needs for itself, when all of those are gone.
    """

    held: Mapping[str, int]
    kept: int
    passing: Mapping[str, int]
    step: int

    @property
    def peak(self) -> int:
        """Most bytes at a time."""
        return sum(self.held.values()) + max(self.kept + max(self.passing.values()), self.step)


def model_shape(config: ModelConfig, adapters: Sequence[str] = ("",)) -> Any:
    """The model with its adapters, without content.

    Raises:
        ModelUnusable: There is no configuration of it, or the adapters do not fit it.
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
                model = with_adapters(model, config, seed=0, adapters=adapters)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelUnusable):
            raise
        raise ModelUnusable(f"model.path={config.path!r} has no configuration that can be read: {error}") from error
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train(config.gradient_checkpointing)


def estimate_memory(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    batch: BatchShape,
    *,
    reference: bool = False,
    sampler: SamplerShape | None = None,
    adapters: Sequence[str] = ("",),
    opponents: int = 0,
) -> MemoryEstimate:
    """What a run needs for its tensors. The interpreter and its libraries come on top: half a gigabyte or so.

    Args:
        config: The model.
        optimizer: How it learns.
        batch: The largest micro-batch.
        reference: A KL term asks for a reference model.
        sampler: What draws the replies on the same device; ``None`` if that is elsewhere.
        adapters: The names of the adapters, where roles have their own.
        opponents: Copies that are kept of one of them, or of the model, on the CPU.

    Raises:
        ModelUnusable: There is no configuration of the model, or the adapters do not fit it.
    """
    model = model_shape(config, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = _frozen_bytes(model, quantized=config.tuning == "qlora")
    trained_bytes = 4 * sum(parameter.numel() for parameter in trained)
    whole = config.tuning == "full"
    text = model.config.get_text_config()
    held = {
        "weights": trained_bytes if whole else frozen,
        "adapters": 0 if whole else trained_bytes,
        "gradients": trained_bytes,
        "optimizer states": _state_bytes(trained, optimizer),
        "reference": _reference_bytes(model, config) if reference and whole else 0,
        "opponents": 0 if on_gpu(config.device) else opponents * trained_bytes // len(adapters),
    }
    if sampler is not None:
        held |= _sampler_bytes(model, config, sampler)
    kept, block = activation_bytes(model, config, batch)
    passing = {
        "a block's backward pass": block,
        "log-probs": _logprob_bytes(text, batch, head_trained=whole, device=config.device),
    }
    return MemoryEstimate(held, kept, passing, _step_bytes(trained, config))


def activation_bytes(model: Any, config: ModelConfig, batch: BatchShape) -> tuple[int, int]:
    """What autograd keeps of a forward pass, and what the backward pass of one block adds for a while.

    Args:
        model: From :func:`model_shape`.
        config: Of the model.
        batch: Its shape.

    Raises:
        ModelUnusable: The model cannot run without content.
    """
    text = model.config.get_text_config()
    kept = _count_kept(model, config, batch)
    # A few of the widest tensors are on their way through a block.
    width: int = max(getattr(text, "intermediate_size", 0) or 0, 4 * text.hidden_size)
    block = 3 * batch.rows * batch.columns * width * (2 if config.dtype == "bfloat16" else 4)
    if config.gradient_checkpointing:  # the block is computed again, and kept this time
        model.train(False)
        block += _count_kept(model, config, batch) // text.num_hidden_layers
        model.train(True)
    return kept, block


def shares_prompts(model: Any, config: ModelConfig) -> bool:
    """Whether sequences may be laid out as a tree, as far as can be told without weights: see
    :func:`trainers.model.attention.teach_trees`, which tries it.

    Args:
        model: From :func:`model_shape`.
        config: Of the model.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = model.get_base_model() if config.tuning != "full" else model
    plain.set_attn_implementation(TREE_ATTENTION)
    try:
        with FakeTensorMode(), torch.no_grad():
            weights = _on_cpu(plain.base_model.named_parameters(remove_duplicate=False))
            weights |= _on_cpu(plain.base_model.named_buffers())
            ids = torch.zeros(1, 8, dtype=torch.long)
            layout = {"attention_mask": torch.empty(1, 1, 1, 1), "position_ids": ids, "tree": Tree()}
            torch.func.functional_call(plain.base_model, weights, args=(ids,), kwargs={"use_cache": False, **layout})
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False
    finally:
        plain.set_attn_implementation(_COUNTED)
    return True


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
                f"{type(model).__name__} looks at the values of its tensors, so its memory cannot be told beforehand: "
                f"{error}"
            ) from error
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


def _on_cpu(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of the same shapes that pass for ones on a CPU: those on ``meta`` know no autocast."""
    made: dict[int, Tensor] = {}
    result = {}
    for name, tensor in named:
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
        result[name] = made[id(tensor)]
    return result


def _counted_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention that keeps what the kernels of every device and layout keep: queries, keys, values, the result, and one
    number a query. (Which kernel torch would choose for tensors without content is another question.)"""
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


def _state_bytes(trained: list[nn.Parameter], optimizer: OptimizerConfig) -> int:
    eight = optimizer.name.endswith("8bit")
    total = 0
    for parameter in trained:
        size = parameter.numel()
        total += 2 * (size + 4 * -(-size // _BLOCK)) if eight and size >= _LEAST_8BIT else 8 * size
    return total


def _step_bytes(trained: list[nn.Parameter], config: ModelConfig) -> int:
    """AdamW works through a tensor at a time on a CPU, and through all of them at once on a GPU."""
    sizes = [4 * parameter.numel() for parameter in trained]
    return sum(sizes) if on_gpu(config.device) else 2 * max(sizes)


def _reference_bytes(model: Any, config: ModelConfig) -> int:
    if config.reference == "cpu" and on_gpu(config.device):
        return 0
    size: int = sum(parameter.numel() for parameter in model.parameters())
    return size * (2 if config.reference == "bfloat16" else 4)


def _logprob_bytes(text: Any, batch: BatchShape, *, head_trained: bool, device: str) -> int:
    """The tiles of :func:`trainers.model.token_logprobs.linear_logprobs`, and what it keeps of each token."""
    tile = min(TILE_BYTES["cuda" if on_gpu(device) else "cpu"], 4 * batch.sampled * text.vocab_size)
    hidden: int = 4 * batch.sampled * text.hidden_size
    head: int = 4 * text.vocab_size * text.hidden_size if head_trained else 0
    total: int = 3 * tile + 3 * hidden + head
    return total


def _sampler_bytes(model: Any, config: ModelConfig, sampler: SamplerShape) -> dict[str, int]:
    plain = model.get_base_model() if config.tuning != "full" else model
    item = 2 if config.dtype == "bfloat16" else 4
    base = item * sum(parameter.numel() for name, parameter in plain.named_parameters() if ".lora_" not in name)
    # Merging always begins at the base, so the embedded sampler keeps the weights that adapters change.
    adapted = item * sum(
        module.get_base_layer().weight.numel() for module in plain.modules() if hasattr(module, "lora_A")
    )
    text = plain.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    cache: int = 2 * text.num_hidden_layers * heads * width * item * sampler.tokens
    return {
        # vLLM's share of a GPU holds both.
        "sampler's weights": base if sampler.merges or not on_gpu(config.device) else 0,
        # Of each further set what differs from the base: the weights it adapts, or all.
        "sampler's base of merges": adapted if sampler.merges else 0,
        "sampler's named weights": (sampler.sets - 1) * (adapted or base) if sampler.merges else 0,
        "sampler's keys and values": min(cache, sampler.limit) if sampler.merges else sampler.limit,
    }


def on_gpu(device: str) -> bool:
    """Whether ``model.device`` is a GPU."""
    return torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
