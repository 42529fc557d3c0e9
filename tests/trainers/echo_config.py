"""Configuration of a run of a few seconds in the echo environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainers.config import TrainConfig
from trainers.config.mapping import from_mapping
from trainers.tiny_model import make_tiny_model


def echo_config(folder: Path, **sections: Any) -> TrainConfig:
    """Return the options of a short run in ``folder``, updated with ``sections``."""
    model = folder / "tiny"
    if not model.exists():
        make_tiny_model(model, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    options: dict[str, Any] = {
        "output": str(folder / "run"),
        "steps": 4,
        "progress": False,
        "env": {"id": "echo_env:test/Echo-v0"},
        "model": {"path": str(model), "tuning": "full"},
        "sampling": {"max_tokens": 3},
        "algorithm": {"group_size": 4, "groups_per_step": 4},
        "optimizer": {"lr": 0.003, "warmup_steps": 1},
        "validation": {"every": 2, "tasks": 6, "samples": 2},
        "checkpoint": {"every": 1},
    }
    for name, value in sections.items():
        options[name] = {**(options.get(name) or {}), **value} if isinstance(value, dict) else value
    return from_mapping(TrainConfig, options)
