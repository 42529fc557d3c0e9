"""The model of ``rllm-gym eval`` and ``rllm-gym serve-agent``: the sampler that its options describe."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rllm_gym.chat.tokenizer import load_tokenizer
from rllm_gym.commands.endpoint import endpoint_sampler
from rllm_gym.commands.errors import CommandError
from rllm_gym.samplers import Sampler, ScriptedSampler
from rllm_gym.samplers.model_names import check_model_name

_SCRIPTED = "scripted:"
# For smaller models a second thread costs more than it gains, and ten times more on a busy machine.
_SMALL_MODEL = 50_000_000


def add_model_arguments(group: Any) -> None:
    """Add the options of a model in this process."""
    group.add_argument(
        "--model.device", dest="device", help="auto, cpu, cuda, cuda:1, ... (default: auto, the GPU if available)"
    )
    group.add_argument(
        "--model.dtype",
        dest="dtype",
        choices=["auto", "float32", "bfloat16"],
        help="dtype of the weights (default: auto, as saved)",
    )


def check_model(path: str) -> None:
    """Check that a model in this process exists, before anything is loaded.

    Raises:
        CommandError: There is no such file or folder, and no such id on the hub.
    """
    if path.startswith(_SCRIPTED):
        if not Path(path.removeprefix(_SCRIPTED)).is_file():
            raise CommandError(f"--model.path {path}: there is no such file; write one reply per line to it")
        return
    import torch  # noqa: F401 - where it is not installed, the error names the extra

    try:
        check_model_name(path)
    except OSError as error:
        raise _loading_error(path, error) from error


def sampler_of(options: argparse.Namespace) -> Sampler:
    """Return the sampler for ``--url`` or ``--model.path``.

    Raises:
        CommandError: The model cannot be loaded, or an option is wrong.
    """
    if options.url is not None:
        return endpoint_sampler(options)
    if options.model.startswith(_SCRIPTED):
        path = options.model.removeprefix(_SCRIPTED)
        try:
            return ScriptedSampler(Path(path), per_conversation=True, cycle=True)
        except (OSError, ValueError) as error:
            raise CommandError(f"--model.path {options.model}: {error}") from error
    return _torch_sampler(options.model, options.device or "auto", options.dtype or "auto")


def _torch_sampler(path: str, device: str, dtype: str) -> Sampler:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from rllm_gym.samplers import TorchSampler

    logging.disable_progress_bar()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise CommandError(
            f"--model.device {device} is not available ({reason}); use auto to select an available device"
        ) from error
    weights = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        check_model_name(path)
        if (Path(path) / "adapter_config.json").is_file():
            from peft import AutoPeftModelForCausalLM

            # Merged, because unmerged adapters decode 1.5 times slower.
            adapted: Any = AutoPeftModelForCausalLM.from_pretrained(path, dtype=weights)
            model, base = adapted.merge_and_unload(), adapted.peft_config["default"].base_model_name_or_path
        else:
            model, base = AutoModelForCausalLM.from_pretrained(path, dtype=weights), path
        has_tokenizer = (Path(path) / "tokenizer_config.json").is_file()
        tokenizer = load_tokenizer(path if has_tokenizer else base)
        is_small = model.num_parameters() < _SMALL_MODEL and not os.environ.get("OMP_NUM_THREADS")
        return TorchSampler(model.to(device).eval(), tokenizer, num_threads=1 if is_small else None)
    except (OSError, ValueError, RuntimeError) as error:
        raise _loading_error(path, error) from error


def _loading_error(path: str, error: Exception) -> CommandError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CommandError(
        f"--model.path {path} cannot be loaded: {first_line} (expected a directory with config.json and weights, "
        "the directory of an adapter, or a hub id, which needs network access)"
    )


def positive(text: str) -> int:
    """Return a positive integer; for ``type=`` of an argument."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return value
