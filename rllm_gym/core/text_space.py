"""A Gymnasium space of arbitrary Unicode text. Gymnasium's own ``Text`` allows only a fixed alphabet."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

# Samples are short and use a few scripts, so that sampling takes microseconds and still covers accents, astral
# symbols, control characters and combining marks.
_SAMPLE_ALPHABET = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    " \n\t.,;:!?'\"`()[]{}<>/\\|@#$%^&*-_=+~"
    "äßéñøçŁλπΔжя中文日本ا🙂🧊\u0301\u200d\x00"
)
_SAMPLE_MAX_LENGTH = 64


class Text(spaces.Text):
    """The space of all ``str`` of at most ``max_length`` characters, including the empty string.

    A subclass of :class:`gymnasium.spaces.Text`, so that ``check_env``, the vector environments and TorchRL
    recognize it. Only membership and sampling differ.

    Args:
        max_length: Maximum length, in Unicode code points.
        seed: Seed of the random generator that :meth:`sample` uses.
    """

    def __init__(self, max_length: int = 1_000_000, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=_SAMPLE_ALPHABET, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string (at most 64 characters).

        Raises:
            ValueError: A mask or a probability was given; the space has no alphabet to mask.
        """
        if mask is not None or probability is not None:
            raise ValueError(
                "rllm_gym.core.Text.sample does not support mask and probability; it contains every string"
            )
        length = int(self.np_random.integers(0, min(self.max_length, _SAMPLE_MAX_LENGTH) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[int(i)] for i in picks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((Text, self.max_length))

    def __repr__(self) -> str:
        return f"Text(max_length={self.max_length})"


@create_shared_memory.register(Text)
def _refuse_shared_memory(space: Text, n: int = 1, ctx: Any = None) -> Any:
    """Refuse shared memory: Gymnasium stores indices into a fixed alphabet and would return letters ``a`` only.

    Raises:
        CustomSpaceError: Always. ``AsyncVectorEnv`` then asks its caller to set ``shared_memory=False``.
    """
    raise CustomSpaceError(
        f"{space!r} contains any Unicode string, which Gymnasium's shared memory cannot hold: pass "
        "shared_memory=False to AsyncVectorEnv, or omit vectorization_mode to use rllm_gym's own vector "
        "environment"
    )
