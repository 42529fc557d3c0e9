"""Training of language models on episodes, on one machine. Independent of any particular environment or prompt text.

Start with :mod:`trainers.loop` (``train``) and :mod:`trainers.config`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.algorithms import Algorithm, algorithm_options
    from trainers.callbacks import Callback
    from trainers.config import ConfigError, DpoConfig, SftConfig, TrainConfig
    from trainers.fine_tuning.dpo import DpoResult
    from trainers.fine_tuning.sft import SftResult
    from trainers.loop import TrainResult, train
    from trainers.tiny_model import make_tiny_model
    from trainers.train_env import TrainEnv

__all__ = [
    "Algorithm",
    "Callback",
    "ConfigError",
    "DpoConfig",
    "DpoResult",
    "SftConfig",
    "SftResult",
    "TrainConfig",
    "TrainEnv",
    "TrainResult",
    "algorithm_options",
    "make_tiny_model",
    "read_metrics",
    "train",
]

_MODULES = {
    "Algorithm": "algorithms",
    "Callback": "callbacks",
    "ConfigError": "config",
    "DpoConfig": "config",
    "DpoResult": "fine_tuning.dpo",
    "SftConfig": "config",
    "SftResult": "fine_tuning.sft",
    "TrainConfig": "config",
    "TrainResult": "loop",
    "TrainEnv": "train_env",
    "algorithm_options": "algorithms",
    "make_tiny_model": "tiny_model",
    "read_metrics": "run.metrics",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    # Import lazily: torch and transformers take seconds to import, which ``rllm-gym train --help`` should avoid.
    if name in _MODULES:
        return getattr(import_module(f"trainers.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'trainers' has no attribute {name!r}")
