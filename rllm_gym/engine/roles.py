"""The configuration of the roles that the agents of a workflow can have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rllm_gym.samplers.protocol import SamplingParams


@dataclass(frozen=True, slots=True)
class Role:
    """The configuration of the agents of a role.

    Attributes:
        weights: Name of the sampler's weights that sample their replies: ``""`` for the policy's, or a name under which
            weights were synced. Of several names (a pool of opponents) one is chosen per episode, the same in all
            episodes of a group.
        trainable: Whether their tokens may be trained on.
        params: Their sampling parameters; ``None``: the engine's.
        max_response_tokens: Tokens that each of them may sample per episode; ``None``: the engine's limit.

    Raises:
        ValueError: The pool is empty, or a limit is below 1.
    """

    weights: str | tuple[str, ...] = ""
    trainable: bool = True
    params: SamplingParams | None = None
    max_response_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str):
            object.__setattr__(self, "weights", tuple(self.weights))
            if not self.weights:
                raise ValueError("weights=() must contain at least one name")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise ValueError(f"max_response_tokens={self.max_response_tokens!r} must be at least 1, or None")

    def weights_for(self, role: str, group: str) -> str:
        """Return the weights of this role in the episodes of ``group``, chosen by SHA-256 of the group and the role.

        >>> Role(weights=("step-20", "step-40")).weights_for("opponent", "task-7@3")
        'step-40'
        """
        if isinstance(self.weights, str):
            return self.weights
        return self.weights[hash_choice(len(self.weights), group, role)]


def hash_choice(options: int, *parts: str) -> int:
    """Return an index below ``options``, chosen by SHA-256 of the parts."""
    digest = hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % options
