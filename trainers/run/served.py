"""Which weights the sampler has: those that learn, each under its name, and frozen ones beside them.

What lives here is what must be pushed, and when nothing must. That episodes under way are not disturbed is the run's.
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
    """Pushes what changed. What it remembers of opponents goes into checkpoints.

    Args:
        policy: What learns.
        rollouts: Where the sampler is.
        cast: Who plays as what.
        config: Of the run.

    Attributes:
        version: Of the policy's weights that the sampler has; -1 before the first push.
        pool: The frozen opponents, where there are some.
    """

    def __init__(self, policy: Policy, rollouts: Rollouts, cast: Cast, config: TrainConfig) -> None:
        self._policy = policy
        self._rollouts = rollouts
        self._cast = cast
        self._config = config
        self._plays_base = BASE in cast.served(rollouts.world.roles)
        self._beside: set[str] = set()  # the names of frozen weights that the sampler has
        self.version = -1
        self.pool = OpponentPool(config.opponents, config.seed) if config.opponents.role else None

    def lacks(self, version: int, step: int) -> bool:
        """Whether something is to be pushed after so many steps."""
        return self.version != version or (self.pool is not None and self.pool.due(step))

    def copy_opponent(self, step: int) -> None:
        """What was learnt joins the pool, if a copy is due after so many steps."""
        if self.pool is not None and self.pool.due(step):
            self.pool.take(step, self._copied())

    def push(self, version: int) -> None:
        """Give the sampler the present weights, and the frozen ones it has not; drop those nobody plays with any more.

        Nothing may be under way.

        Raises:
            SamplerError: It died, or does not serve what it was given.
        """
        if self._plays_base:
            self._serve(base_weights())
        if self.pool is not None:
            for name in sorted(self._beside - {BASE, *self.pool.names}):  # first: there is room for the pool alone
                self._rollouts.drop(name)
                self._beside.discard(name)
            for name in self.pool.names:
                if name not in self._beside:
                    self._serve(self.pool.update(name, self._copied()))
            self._rollouts.meet(self.pool.names)
        self._rollouts.push(weights_for(self._policy, self._config))
        self.version = version

    def forget(self) -> None:
        """Another sampler took the place of the one that had them."""
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
        """The present weights of which the opponents are copies."""
        of = self._config.opponents.of
        self._policy.activate(self._cast.weights(of) if of else self._policy.adapters[0])
        return self._policy.weight_update()
