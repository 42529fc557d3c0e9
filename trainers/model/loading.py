"""Loading of models and tokenizers from a folder or the hub, and selection of the device."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from rllm_gym import chat
from rllm_gym.samplers.model_names import check_model_name
from trainers.config import ConfigError

_log = logging.getLogger(__name__)


class ModelUnusable(ConfigError):
    """The model cannot be loaded, or computes its logits in an unsupported way."""


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is a GPU if there is one.

    Raises:
        ModelUnusable: The device does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelUnusable(
            f"model.device={name!r} cannot be used ({error}); `auto` selects an available device"
        ) from error
    return device


def load_causal_lm(path: str, *, dtype: torch.dtype | None, **options: Any) -> Any:
    """Load a causal language model from a folder or the hub; an adapter folder is merged into its base.

    Args:
        path: Folder or hub id.
        dtype: Data type of the weights; ``None`` for the type they were saved in.
        options: Additional arguments of ``from_pretrained``.

    Raises:
        ModelUnusable: The model cannot be loaded, lacks weights, or was saved quantized.
    """
    try:
        check_model_name(path)
        if (Path(path) / "adapter_config.json").is_file():
            from peft import AutoPeftModelForCausalLM

            if options:
                raise ModelUnusable(
                    f"model.path={path!r} is an adapter, which cannot be loaded quantized; merge it first: "
                    f"rllm-gym merge {path} --output FOLDER"
                )
            adapted = AutoPeftModelForCausalLM.from_pretrained(path, dtype=dtype)
            check_adapter_complete(adapted, path)
            return _writable(adapted.merge_and_unload())
        if getattr(AutoConfig.from_pretrained(path), "quantization_config", None):
            raise ModelUnusable(
                f"model.path={path!r} was saved quantized, but the sampler needs unquantized weights; use the "
                "unquantized model, with model.tuning=qlora to train on a 4-bit base"
            )
        model, found = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype or "auto", output_loading_info=True, **options
        )
    except (OSError, ValueError) as error:
        if isinstance(error, ModelUnusable):
            raise
        raise ModelUnusable(f"model.path={path!r} cannot be loaded as a causal language model: {error}") from error
    if missing := sorted(found["missing_keys"]):
        raise ModelUnusable(
            f"model.path={path!r} lacks {len(missing)} of the model's weights, such as {missing[0]!r}, which would "
            "be initialized randomly; check that it is complete and was written by save_pretrained"
        )
    return _writable(model)


def shared_copy(model: Any) -> Any:
    """Return a copy of a model's modules and configuration that shares its parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def check_adapter_complete(model: Any, path: str) -> None:
    """Check that an adapter has all its tensors and no others; PEFT would only warn and leave the missing ones
    without effect.

    Args:
        model: The PEFT model loaded from the adapter.
        path: Folder or hub id of the adapter.

    Raises:
        ModelUnusable: The tensors do not match the adapter's configuration.
    """
    from peft import set_peft_model_state_dict
    from peft.utils import load_peft_weights

    found = set_peft_model_state_dict(model, load_peft_weights(path, device="cpu"))
    missing = [name for name in found.missing_keys if ".default" in name]  # the base's tensors are not in the file
    for names, what in ((missing, "lacks"), (list(found.unexpected_keys), "has unexpected")):
        if names:
            raise ModelUnusable(
                f"the adapter {path} {what} {len(names)} tensors, such as {names[0]!r}; check that it is complete "
                "and belongs to this base"
            )


def _writable(model: Any) -> Any:
    """Replace generation settings that transformers loads but refuses to save, which would fail the run at its first
    save.
    """
    settings: Any = getattr(model, "generation_config", None)
    if settings is None:
        return model
    try:
        settings.validate(strict=True)
    except ValueError as error:
        ids = {name: value for name, value in settings.to_dict().items() if name.endswith("_token_id")}
        model.generation_config = GenerationConfig(**ids)
        _log.warning(
            "only the token ids of the model's generation_config.json are kept, since transformers would refuse to "
            "save it: %s",
            str(error).splitlines()[0],
        )
    return model


def load_tokenizer(path: str) -> Any:
    """Load the tokenizer of a folder or hub id.

    Raises:
        ModelUnusable: There is no tokenizer, or it has no chat template.
    """
    try:
        check_model_name(path)
        tokenizer = chat.load_tokenizer(path)
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"model.path={path!r} has no loadable tokenizer: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelUnusable(
            f"the tokenizer of model.path={path!r} has no chat template, so conversations cannot be formatted for the "
            "model; use the instruction-tuned model, or set tokenizer.chat_template and save the tokenizer"
        )
    return tokenizer
