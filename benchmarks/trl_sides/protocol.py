"""Shared code of both sides of ``vs_trl.py``: commands and answers as lines, initial adapters, gradients, memory."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Libraries print to standard output, so the answers use a separate pipe.
_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**content: Any) -> None:
    _ANSWERS.write(json.dumps(content) + "\n")
    _ANSWERS.flush()


def next_command() -> dict[str, Any]:
    """Read the next command.

    Raises:
        SystemExit: The input is closed.
    """
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    command: dict[str, Any] = json.loads(line)
    return command


def reward(text: str) -> float:
    """Return a number that differs between replies; the other side uses the same function."""
    return zlib.crc32(text.encode()) % 1000 / 1000


def load_adapters(parameters: dict[str, torch.nn.Parameter], file: str) -> None:
    """Load the initial adapters from the file, or draw them and write it, so that both sides start with the same."""
    path = Path(file)
    if not path.exists():
        generator = np.random.default_rng(0)
        drawn = {
            name: (0.02 * generator.standard_normal(tuple(value.shape))).astype(np.float32)
            for name, value in parameters.items()
        }
        np.savez(path, **drawn)
    with np.load(path) as arrays, torch.no_grad():
        if set(arrays.files) != set(parameters):
            raise SystemExit(f"adapters differ in names: {sorted(set(arrays.files) ^ set(parameters))[:6]}")
        for name, value in parameters.items():
            value.copy_(torch.from_numpy(arrays[name]))


def gradient_of(parameters: dict[str, torch.nn.Parameter], step: Callable[[], float], file: str) -> float:
    """Run one step and write its gradient before clipping. Return its loss."""
    gradient: dict[str, Any] = {}

    def keep(name: str) -> Callable[[torch.Tensor], None]:
        # Called after each micro-batch: the last call sees the sum.
        return lambda parameter: gradient.__setitem__(name, parameter.grad.clone())  # type: ignore[union-attr]

    hooks = [value.register_post_accumulate_grad_hook(keep(name)) for name, value in parameters.items()]
    loss = step()
    for hook in hooks:
        hook.remove()
    np.savez(file, **{name: value.numpy() for name, value in gradient.items()})
    return loss


def grown_mib(step: Callable[[], float]) -> float:
    """Return how far the resident memory rose during a step."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":")]
    return int(line.split()[1])


def serve(side: Any, describe: Callable[[dict[str, Any]], str], begin: Callable[..., None]) -> None:
    """Answer commands until the input is closed."""
    update: Any = None
    while True:
        command = next_command()
        match command["do"]:
            case "settings":
                answer(settings=describe(json.loads(Path(command["data"]).read_text())))
            case "prepare":
                update = side(json.loads(Path(command["data"]).read_text()))
                answer(ready=True)
            case "gradient":
                answer(loss=gradient_of(update.parameters, update.step, command["file"]))
            case "update":
                began = time.process_time()
                update.step()
                answer(cpu=time.process_time() - began)
            case "memory":
                answer(mib=grown_mib(update.step))
            case "begin":
                begin(json.loads(Path(command["data"]).read_text()), command["steps"])
            case other:
                raise SystemExit(f"unknown command {other!r}")
