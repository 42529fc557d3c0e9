"""Tracks which weights the sampler serves, trained and frozen ones by name, and syncs those that changed.

The caller ensures that no episodes are in progress during a weight sync.
"""

from __future__ import annotations

from typing import Any

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.config import Cast, TrainConfig
from trainers.config.roles import BASE
from trainers.model import Policy
from trainers.opponents import OpponentPool
from trainers.rollouts import Rollouts
from trainers.serving import base_weights, weights_for


class ServedWeights:
    """Syncs changed weights to the sampler. The opponents' state is stored in checkpoints.

    Args:
        policy: The trained model.
        rollouts: Owner of the sampler.
        cast: Roles of the run.
        config: Options of the run.

    Attributes:
        version: Version of the policy's weights that the sampler has; -1 before the first weight sync.
        pool: The frozen opponents, if there are any.
    """

    def __init__(self, policy: Policy, rollouts: Rollouts, cast: Cast, config: TrainConfig) -> None:
        self._policy = policy
        self._rollouts = rollouts
        self._cast = cast
        self._config = config
        self._plays_base = BASE in cast.served(rollouts.world.roles)
        self._beside: set[str] = set()  # names of the frozen weights that the sampler has
        self.version = -1
        self.pool = OpponentPool(config.opponents, config.seed) if config.opponents.role else None

    def lacks(self, version: int, step: int) -> bool:
        """Return whether a weight sync is needed after this many steps."""
        return self.version != version or (self.pool is not None and self.pool.due(step))

    def copy_opponent(self, step: int) -> None:
        """Add a copy of the current weights to the pool, if one is due after this many steps."""
        if self.pool is not None and self.pool.due(step):
            self.pool.take(step, self._copied())

    def push(self, version: int) -> None:
        """Sync the current weights and missing frozen ones to the sampler, and drop frozen ones that are no longer
        used.

        No episode may be in progress.

        Raises:
            SamplerError: The sampler died, or does not serve the weights it was given.
        """
        if self._plays_base:
            self._serve(base_weights())
        if self.pool is not None:
            for name in sorted(self._beside - {BASE, *self.pool.names}):  # drop first to make room
                self._rollouts.drop(name)
                self._beside.discard(name)
            for name in self.pool.names:
                if name not in self._beside:
                    self._serve(self.pool.update(name, self._copied()))
            self._rollouts.meet(self.pool.names)
        self._rollouts.push(weights_for(self._policy, self._config))
        self.version = version

    def forget(self) -> None:
        """Reset the record of served frozen weights after the sampler was replaced."""
        self._beside.clear()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.pool is None else self.pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.pool is not None and state:
            self.pool.load_state_dict(state)

    def _serve(self, update: WeightUpdate) -> None:
        if update.name not in self._beside:
            self._rollouts.serve_beside(update)
            self._beside.add(update.name)

    def _copied(self) -> WeightUpdate:
        """Return the current weights that opponents are copies of."""
        of = self._config.opponents.of
        self._policy.activate(self._cast.weights(of) if of else self._policy.adapters[0])
        return self._policy.weight_update()
