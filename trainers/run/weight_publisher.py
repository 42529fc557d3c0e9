"""Tracks which weights the sampler serves, trained and frozen ones by name, and syncs those that changed.

The caller ensures that no episodes are in progress during a weight sync.
"""

from __future__ import annotations

from typing import Any

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.config import RoleAssignment, TrainConfig
from trainers.config.roles import BASE
from trainers.model import Policy
from trainers.opponents import OpponentPool
from trainers.rollouts import Rollouts
from trainers.sampler_factory import base_weights, weights_for


class WeightPublisher:
    """Syncs changed weights to the sampler. The opponents' state is stored in checkpoints.

    Args:
        policy: The trained model.
        rollouts: Owner of the sampler.
        assignment: Roles of the run.
        config: Options of the run.

    Attributes:
        version: Version of the policy's weights that the sampler has; -1 before the first weight sync.
        pool: The frozen opponents, if there are any.
    """

    def __init__(self, policy: Policy, rollouts: Rollouts, assignment: RoleAssignment, config: TrainConfig) -> None:
        self._policy = policy
        self._rollouts = rollouts
        self._assignment = assignment
        self._config = config
        self._uses_base = BASE in assignment.served(rollouts.train_env.roles)
        self._frozen: set[str] = set()  # names of the frozen weights that the sampler has
        self.version = -1
        self.pool = OpponentPool(config.opponents) if config.opponents.role else None

    def needs_sync(self, version: int, step: int) -> bool:
        """Return whether a weight sync is needed after this many steps."""
        return self.version != version or (self.pool is not None and self.pool.due(step))

    def snapshot_opponent(self, step: int) -> None:
        """Add a copy of the current weights to the pool, if one is due after this many steps."""
        if self.pool is not None and self.pool.due(step):
            self.pool.add_copy(step, self._copied())

    def sync(self, version: int) -> None:
        """Sync the current weights and missing frozen ones to the sampler, and drop frozen ones that are no longer
        used.

        No episode may be in progress.

        Raises:
            SamplerError: The sampler died, or does not serve the weights it was given.
        """
        if self._uses_base:
            self._serve(base_weights())
        if self.pool is not None:
            for name in sorted(self._frozen - {BASE, *self.pool.names}):  # drop first to make room
                self._rollouts.drop(name)
                self._frozen.discard(name)
            for name in self.pool.names:
                if name not in self._frozen:
                    self._serve(self.pool.update(name, self._copied()))
            self._rollouts.set_opponents(self.pool.names)
        self._rollouts.sync_weights(weights_for(self._policy, self._config))
        self.version = version

    def invalidate(self) -> None:
        """Reset the record of served frozen weights after the sampler was replaced."""
        self._frozen.clear()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.pool is None else self.pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.pool is not None and state:
            self.pool.load_state_dict(state)

    def _serve(self, update: WeightUpdate) -> None:
        if update.name not in self._frozen:
            self._rollouts.serve_frozen(update)
            self._frozen.add(update.name)

    def _copied(self) -> WeightUpdate:
        """Return the current weights that opponents are copies of."""
        of = self._config.opponents.of
        self._policy.activate(self._assignment.weights(of) if of else self._policy.adapters[0])
        return self._policy.weight_update()
