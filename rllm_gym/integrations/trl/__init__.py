"""TRL on any environment: ``rollout_func`` and ``environment_factory`` for its ``GRPOTrainer``.

``rollout_func`` runs whole episodes with this project's engine and agents, and passes the sampled tokens to TRL;
``environment_factory`` gives TRL an object whose one tool is the environment's ``step``, for models that were trained
to call tools. Written for TRL 1.16, whose two arguments of these names are experimental.
"""

from __future__ import annotations

from typing import Any

from rllm_gym.integrations.trl.environments import EnvironmentFactory, TRLToolEnvironment
from rllm_gym.integrations.trl.rollouts import RolloutFunction
from rllm_gym.runtime.env_building import Env

__all__ = ["EnvironmentFactory", "RolloutFunction", "TRLToolEnvironment", "environment_factory", "rollout_func"]


def rollout_func(env: Env, **arguments: Any) -> RolloutFunction:
    """Return the ``rollout_func`` of a ``GRPOTrainer`` for ``env``; see :class:`RolloutFunction` for the arguments.

    >>> rollout = rollout_func("rllm/FrozenLake-v0")                                            # doctest: +SKIP
    >>> GRPOTrainer(model, reward_funcs=rollout.reward, rollout_func=rollout,                   # doctest: +SKIP
    ...             train_dataset=rollout.dataset(), args=GRPOConfig(...)).train()
    """
    return RolloutFunction(env, **arguments)


def environment_factory(env: Env, **arguments: Any) -> EnvironmentFactory:
    """Return the ``environment_factory`` of a ``GRPOTrainer``; see :class:`EnvironmentFactory` for the arguments.

    >>> factory = environment_factory("rllm/FrozenLake-v0")                                     # doctest: +SKIP
    >>> GRPOTrainer(model, environment_factory=factory, train_dataset=factory.dataset(),        # doctest: +SKIP
    ...             args=GRPOConfig(...)).train()
    """
    return EnvironmentFactory(env, **arguments)
