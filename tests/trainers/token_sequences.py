"""Token sequences of the tests: sampled once, with one version of the weights, and without rewards."""

from __future__ import annotations

from collections.abc import Sequence

from rllm_gym.core import TokenSequence


def token_sequence(ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float] = ()) -> TokenSequence:
    """Return a sequence whose tokens were sampled where ``mask`` is 1, with log-probs 0 by default."""
    turns, zeros = tuple(0 if sampled else -1 for sampled in mask), (0.0,) * len(mask)
    return TokenSequence(tuple(ids), tuple(mask), tuple(logprobs) or zeros, turns, zeros, turns)
