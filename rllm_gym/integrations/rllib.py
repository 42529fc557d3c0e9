"""RLlib on text environments: ours in numbers, under a name that its workers on every node can make."""

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
    """Make an environment known to RLlib, with observations as vectors and actions as numbers; its name::

        config = PPOConfig().environment(register("lake", "rllm/FrozenLake-v0", size=3))

    Args:
        name: What RLlib calls it.
        env_id: As for :func:`~rllm_gym.integrations.features.make_numeric`, and so ``choices`` and ``features``.
        **env_kwargs: Of the environment; those of ``.environment(env_config=…)`` go before them.

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
