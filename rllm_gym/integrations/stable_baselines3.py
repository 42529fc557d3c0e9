"""Stable-Baselines3 on text environments: its vector environment over numeric versions, with its success rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from rllm_gym.integrations.features import HashedFeatures, make_numeric

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


class ReportSuccess(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Sets ``info["is_success"]`` at the end of an episode: Stable-Baselines3 logs it as ``rollout/success_rate``."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = {**info, "is_success": bool(info.get("success", False))}
        return observation, reward, terminated, truncated, info


def make_vec_env(
    env_id: str,
    n_envs: int = 1,
    *,
    seed: int | None = None,
    vec_env_cls: type[VecEnv] | None = None,
    choices: Sequence[str] | None = None,
    features: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = HashedFeatures,
    **env_kwargs: Any,
) -> VecEnv:
    """Create Stable-Baselines3's vector environment of ``n_envs`` monitored, numeric environments::

        model = PPO("MlpPolicy", make_vec_env("rllm/FrozenLake-v0", 8))

    Args:
        env_id: As for :func:`~rllm_gym.integrations.features.make_numeric`, and so ``choices`` and ``features``.
        n_envs: Number of environments.
        seed: The first episode of environment ``i`` has ``seed + i``.
        vec_env_cls: ``DummyVecEnv`` (default) or ``SubprocVecEnv``.
        **env_kwargs: Arguments of the environment.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[stable-baselines3]'``.
    """
    try:
        from stable_baselines3.common import env_util
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Stable-Baselines3 needs {error.name}: pip install 'rllm-gym[stable-baselines3]'", name=error.name
        ) from error
    return env_util.make_vec_env(
        partial(make_numeric, env_id, choices=choices, features=features, **env_kwargs),
        n_envs,
        seed=seed,
        wrapper_class=ReportSuccess,
        vec_env_cls=vec_env_cls,
    )
