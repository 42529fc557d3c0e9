"""Self-play against frozen copies: a pool of what the policy was, each served under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from rllm_gym.core import stream_seed
from rllm_gym.samplers.protocol import WeightUpdate
from trainers.config import OpponentsConfig


class OpponentPool:
    """Copies of weights by the step they were made at. Its state goes into checkpoints.

    Args:
        config: How many, how often, and which one goes.
        seed: Decides it where chance does.
    """

    def __init__(self, config: OpponentsConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._copies: dict[int, dict[str, Tensor]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What a sampler serves them under, oldest first."""
        return tuple(_name(step) for step in self._copies)

    def due(self, step: int) -> bool:
        """Whether what the policy is after so many steps is to be copied. The first copy is always due: a run that is
        resumed with opponents may have been begun without."""
        return not self._copies or (step % self._config.every == 0 and step not in self._copies)

    def take(self, step: int, update: WeightUpdate) -> None:
        """Copy weights, and let one of the others go if there is one too many."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in update.tensors}
        if len(self._copies) == self._config.pool:
            steps = list(self._copies)
            chance = stream_seed("evict", self._seed, step) if self._config.evict == "random" else 0
            del self._copies[steps[chance % len(steps)]]
        self._copies[step] = copied

    def update(self, name: str, like: WeightUpdate) -> WeightUpdate:
        """One of them, for a sampler.

        Args:
            name: Of those in :attr:`names`.
            like: An update of the weights they are copies of.
        """
        step = next(step for step in self._copies if _name(step) == name)
        return replace(like, tensors=list(self._copies[step].items()), name=name, probe=None)

    def state_dict(self) -> dict[str, Any]:
        return {"copies": dict(self._copies)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._copies = dict(list(state["copies"].items())[-self._config.pool :])  # it may have been made larger


def _name(step: int) -> str:
    return f"opponent.{step}"  # no role has a dot in its name
