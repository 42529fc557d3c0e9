"""Self-play against frozen copies: a pool of earlier policy weights, each served under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.config import OpponentsConfig


class OpponentPool:
    """Copies of weights by the step they were made at. The state is stored in checkpoints.

    Args:
        config: Size of the pool and interval.
    """

    def __init__(self, config: OpponentsConfig) -> None:
        self._config = config
        self._copies: dict[int, dict[str, Tensor]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names a sampler serves them under, oldest first."""
        return tuple(_name(step) for step in self._copies)

    def due(self, step: int) -> bool:
        """Return whether to copy the policy after this many steps. The first copy is always due, since a resumed run
        may have started without opponents."""
        return not self._copies or (step % self._config.every == 0 and step not in self._copies)

    def add_copy(self, step: int, update: WeightUpdate) -> None:
        """Copy weights, and remove the oldest if the pool is full."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in update.tensors}
        if len(self._copies) == self._config.pool:
            del self._copies[next(iter(self._copies))]
        self._copies[step] = copied

    def update(self, name: str, like: WeightUpdate) -> WeightUpdate:
        """Return the update for a sampler of one copy.

        Args:
            name: One of :attr:`names`.
            like: An update of the weights it is a copy of.
        """
        step = next(step for step in self._copies if _name(step) == name)
        return replace(like, tensors=list(self._copies[step].items()), name=name, probe=None)

    def state_dict(self) -> dict[str, Any]:
        return {"copies": dict(self._copies)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._copies = dict(list(state["copies"].items())[-self._config.pool :])  # the pool may have been larger


def _name(step: int) -> str:
    return f"opponent.{step}"  # role names have no dots
