"""Compact tokenized examples, their length limit, and the selection of held-out ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rllm_gym.core import TokenSequence
from trainers.batching import Row
from trainers.config import ConfigError, LengthConfig


@dataclass(frozen=True, slots=True)
class TokenizedSequence:
    """A token sequence as arrays, a fifth of the size of a :class:`~rllm_gym.core.TokenSequence`.

    Attributes:
        ids_T: Token ids.
        mask_T: Which tokens are trained on.
        weight_N: Weight of each token that is trained on.
    """

    ids_T: NDArray[np.int32]
    mask_T: NDArray[np.bool_]
    weight_N: NDArray[np.float32]

    @classmethod
    def of(cls, sequence: TokenSequence, weights: Sequence[float]) -> TokenizedSequence:
        """Convert a token sequence.

        Args:
            sequence: The tokens.
            weights: Weight of each turn.
        """
        mask_T = np.array(sequence.mask, dtype=bool)
        weight_N = np.array(weights, dtype=np.float32)[np.array(sequence.turns)[mask_T]]
        return cls(np.array(sequence.ids, dtype=np.int32), mask_T, weight_N)

    @property
    def num_trained(self) -> int:
        return len(self.weight_N)

    def __len__(self) -> int:
        return len(self.ids_T)

    def row(self) -> Row:
        """Return the learner's row, with the target ``weight``."""
        length = len(self)
        zeros = (0.0,) * length
        mask_T = self.mask_T.astype(int)
        sequence = TokenSequence(
            ids=tuple(self.ids_T.tolist()),
            mask=tuple(mask_T.tolist()),
            logprobs=zeros,
            versions=tuple((-1 + mask_T).tolist()),
            rewards=zeros,
            turns=tuple((-1 + mask_T).tolist()),
        )
        return Row(sequence, {"weight": self.weight_N.astype(np.float64)})

    def content(self) -> bytes:
        """Return bytes that are equal for sequences with the same ids and the same mask."""
        return self.ids_T.tobytes() + self.mask_T.tobytes()


class LengthLimit:
    """Truncates or drops examples that are too long, and counts them.

    Args:
        config: How to handle examples that are too long.
        context: Context length of the model, or ``None`` if unknown.

    Attributes:
        seen: Number of examples checked.
        too_long: Number of examples that were too long.
    """

    def __init__(self, config: LengthConfig, context: int | None) -> None:
        limits = [limit for limit in (config.max_length, context) if limit is not None]
        self.limit: int | None = min(limits, default=None)
        self._config = config
        self.seen = 0
        self.too_long = 0

    def fit(self, sequences: Sequence[TokenSequence], where: str) -> list[TokenSequence] | None:
        """Return the sequences of one example, truncated if necessary; ``None`` if it is dropped.

        Raises:
            ConfigError: It is too long and ``length.too_long=error``.
        """
        self.seen += 1
        limit = self.limit
        longest = max(map(len, sequences), default=0)
        if limit is None or longest <= limit:
            return list(sequences)
        self.too_long += 1
        if self._config.too_long == "error":
            raise ConfigError(
                f"{where or 'a demonstration'} has {longest} tokens, but the limit is {limit} (length.max_length, or "
                "the model's context length); use length.too_long=drop to drop such examples, or cut_left or cut_right "
                "to truncate them"
            )
        if self._config.too_long == "drop":
            return None
        at_the_end = self._config.too_long == "cut_right"
        kept = [cut(sequence, limit, keep_start=at_the_end) for sequence in sequences]
        return kept if any(any(sequence.mask) for sequence in kept) else None

    def note(self) -> str:
        """Return one line about examples that were too long; empty if there were none."""
        if not self.too_long:
            return ""
        done = "were dropped" if self._config.too_long == "drop" else "were cut, or dropped if no reply remained"
        return f"{self.too_long} of {self.seen} examples have more than {self.limit} tokens and {done}"


def cut(sequence: TokenSequence, length: int, *, keep_start: bool) -> TokenSequence:
    """Return the first or the last tokens of a sequence. The first one is never trained on, since it has no context."""
    part = slice(None, length) if keep_start else slice(max(0, len(sequence) - length), None)
    fields = {name: getattr(sequence, name)[part] for name in TokenSequence.__slots__}
    return replace(sequence, **{**fields, "mask": (0, *fields["mask"][1:])})


def split_held_out(keys: Sequence[str], fraction: float, seed: int) -> set[str]:
    """Select the keys of held-out examples: this fraction of the distinct ones, at least one, chosen by a hash of
    the content.

    Raises:
        ConfigError: There are too few distinct keys.
    """
    distinct = sorted(
        set(keys), key=lambda key: hashlib.sha256(f"{seed} {key}".encode("utf-8", "surrogatepass")).digest()
    )
    number = max(1, round(fraction * len(distinct)))
    if number >= len(distinct):
        raise ConfigError(
            f"validation.fraction={fraction} of {len(distinct)} distinct task(s) leaves none to train on; use "
            "validation.file, or more data"
        )
    return set(distinct[:number])


def fingerprint(examples: Sequence[bytes]) -> str:
    """Compute the SHA-256 of the examples in order, to check on resume that the data is unchanged."""
    digest = hashlib.sha256(str(len(examples)).encode())
    for example in examples:
        digest.update(hashlib.sha256(example).digest())
    return digest.hexdigest()
