"""RLlib on text environments: register them with numeric observations and actions, for workers on every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from rllm_gym.integrations.features import HashedFeatures, make_numeric


def register(
    name: str,
    env_id: str,
    *,
    choices: Sequence[str] | None = None,
    features: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = HashedFeatures,
    **env_kwargs: Any,
) -> str:
    """Register an environment with RLlib, with observations as vectors and actions as integers; return its name::

        config = PPOConfig().environment(register("lake", "rllm/FrozenLake-v0", size=3))

    Args:
        name: Its name in RLlib.
        env_id: As for :func:`~rllm_gym.integrations.features.make_numeric`, and so ``choices`` and ``features``.
        **env_kwargs: Arguments of the environment; those of ``.environment(env_config=…)`` take precedence.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[rllib]'``.
    """
    try:
        from ray.tune import register_env
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"RLlib needs {error.name}: pip install 'rllm-gym[rllib]'", name=error.name
        ) from error
    register_env(
        name, lambda config: make_numeric(env_id, choices=choices, features=features, **{**env_kwargs, **config})
    )
    return name
