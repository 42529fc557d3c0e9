"""The state of a checkpoint besides the learner's tensors, and the checks before a run is resumed from one.

The state contains everything that determines the continuation of a run: random generators, the position in the data,
the curriculum, the entropy weight and the algorithm. What must be unchanged is compared by content (fingerprints of
the frozen weights and of the tasks), since paths are not reliable.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rllm_gym.core import Task
from trainers.model import Policy

# Enough values of each tensor to distinguish two models, few enough to be fast.
_VALUES_PER_TENSOR = 64
_TASKS_COMPARED = 64

# Adapters of another shape or scale have other weights, and optimizers other states.
_FIXED = ("model.tuning", "model.lora.", "optimizer.name")
_NOT_COMPARED = ("resume", "progress", "output")


def generator_states() -> dict[str, Any]:
    """Return the states of all global random generators, in types that a checkpoint can contain."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state()  # noqa: NPY002 - the global generator is what is to be saved
    kind, keys, position, has_gauss, cached = legacy
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, keys.tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Restore the states of :func:`generator_states`. GPUs that did not exist then keep their state."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)


def fingerprints(policy: Policy, tasks: Any) -> dict[str, str]:
    """Return fingerprints of the content that must be unchanged in a resumed run, by description."""
    return {
        "the model's frozen weights": weights_fingerprint(policy.model),
        "the tokenizer's ids": tokenizer_fingerprint(policy.tokenizer),
        "the training tasks": tasks_fingerprint(tasks),
    }


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Compute the SHA-256 over names, shapes and first values of frozen parameters, which checkpoints do not
    contain.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            first = parameter.detach().flatten()[:_VALUES_PER_TENSOR].cpu()
            if first.is_floating_point():  # so that it is independent of the precision
                first = first.to(torch.bfloat16).view(torch.int16)
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(first.numpy().tobytes())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Compute the SHA-256 of the vocabulary and the chat template."""
    content = json.dumps([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template], default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def tasks_fingerprint(tasks: Any) -> str:
    """Compute the SHA-256 over the number of tasks and up to 64 of them, evenly spaced."""
    size = len(tasks)
    digest = hashlib.sha256(str(size).encode())
    for index in sorted({position * size // _TASKS_COMPARED for position in range(_TASKS_COMPARED)}):
        task = tasks[index]
        name = [task.task_id, task.content] if isinstance(task, Task) else task
        digest.update(json.dumps(name, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def resume_blockers(state: Mapping[str, Any], fingerprints: Mapping[str, str], config: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a run cannot be resumed from a checkpoint; empty if it can.

    Args:
        state: The state of the checkpoint.
        fingerprints: Fingerprints of the current run, by description.
        config: The current options.
    """
    changes = config_changes(state["config"], config)
    if options := [change for change in changes if change.startswith(_FIXED)]:
        return options  # they are the reason why the weights differ as well
    return [
        f"{what} differ from those of the checkpoint"
        for what, fingerprint in fingerprints.items()
        if state["fingerprints"][what] != fingerprint
    ]


def config_changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the options that differ, except those that do not affect training."""
    changed = []
    for key, value in now.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and isinstance(before.get(key), dict) and not key.endswith("kwargs"):
            changed += config_changes(before[key], value, f"{path}.")
        elif before.get(key) != value and path not in _NOT_COMPARED:
            changed.append(f"{path} {before.get(key)!r} → {value!r}")
    return changed
