"""Wrappers for libraries that support only numbers: text observations as vectors, text actions as integers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

_BYTES = 256


class HashedFeatures(gymnasium.ObservationWrapper[np.ndarray, Any, str], RecordConstructorArgs):
    """Words, pairs of words and words by position in the text, as ``size`` numbers that are 0 or 1.

    Feature hashing (Weinberger et al., 2009): every feature sets one number, chosen by a checksum of it. There is no
    vocabulary, every text has a vector, and the same text has the same vector in every process. A word's position is
    its number in the line and the line's number, counted from the last one: a board at the end of a text keeps its
    positions whatever precedes it.

    Args:
        env: An environment with text observations.
        size: Length of the vector. With fewer numbers, more features share one.

    Raises:
        TypeError: The observations of ``env`` are not text.
        ValueError: ``size`` is below 1.
    """

    def __init__(self, env: gymnasium.Env[str, Any], size: int = 1024) -> None:
        RecordConstructorArgs.__init__(self, size=size)
        gymnasium.ObservationWrapper.__init__(self, env)
        _require_text(env.observation_space, "observations")
        if size < 1:
            raise ValueError(f"size={size!r} must be at least 1")
        self.size = size
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: str) -> np.ndarray:
        vector = np.zeros(self.size, np.float32)
        vector[[zlib.crc32(feature) % self.size for feature in _features(observation)]] = 1.0
        return vector


class TokenIds(gymnasium.ObservationWrapper[np.ndarray, Any, str], RecordConstructorArgs):
    """The last ``length`` token ids of the text, padded at the front.

    Args:
        env: An environment with text observations.
        length: Number of token ids.
        encode: Function from a text to token ids, from 0 to ``vocabulary_size - 1``, such as ``tokenizer.encode``.
            ``None``: the bytes of its UTF-8 form, each plus 1, with 0 as padding.
        vocabulary_size: Number of different token ids; required with ``encode``, and only allowed with it.
        pad_id: Padding token id; only with ``encode``.

    Raises:
        TypeError: The observations of ``env`` are not text.
        ValueError: ``length`` is below 1, or an argument is missing or has no effect.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, Any],
        length: int = 512,
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        vocabulary_size: int | None = None,
        pad_id: int | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, length=length, encode=encode, vocabulary_size=vocabulary_size, pad_id=pad_id
        )
        gymnasium.ObservationWrapper.__init__(self, env)
        _require_text(env.observation_space, "observations")
        if length < 1:
            raise ValueError(f"length={length!r} must be at least 1")
        if encode is None and (vocabulary_size is not None or pad_id is not None):
            raise ValueError("vocabulary_size and pad_id need encode=, which is not given")
        if encode is not None and vocabulary_size is None:
            raise ValueError("encode= needs vocabulary_size=, the number of token ids (len(tokenizer))")
        if vocabulary_size is not None and vocabulary_size < 1:
            raise ValueError(f"vocabulary_size={vocabulary_size!r} must be at least 1")
        if pad_id is not None and not 0 <= pad_id < (vocabulary_size or 1):
            raise ValueError(f"pad_id={pad_id!r} must be in 0..{(vocabulary_size or 1) - 1}")
        self.length = length
        self._encode = encode or _as_bytes
        self._pad_id = pad_id or 0
        self._max_id = (vocabulary_size or _BYTES + 1) - 1
        self.observation_space = spaces.Box(0, self._max_id, (length,), np.int64)

    def observation(self, observation: str) -> np.ndarray:
        ids = list(self._encode(observation))[-self.length :]
        padded_T = np.array([self._pad_id] * (self.length - len(ids)) + ids, np.int64)
        if not (padded_T.min() >= 0 and padded_T.max() <= self._max_id):
            raise ValueError(f"encode returned a token id outside 0..{self._max_id}; increase vocabulary_size")
        return padded_T


class DiscreteActions(gymnasium.ActionWrapper[Any, np.int64, str], RecordConstructorArgs):
    """Discrete actions: action ``n`` is the ``n``-th text of ``choices``.

    Args:
        env: An environment with text actions.
        choices: The texts. ``None`` uses the environment's own list (``discrete_actions``), such as the four moves of
            ``rllm/FrozenLake-v0``.

    Raises:
        TypeError: The actions of ``env`` are not text, or a choice is not.
        ValueError: There are no choices.
    """

    def __init__(self, env: gymnasium.Env[Any, str], choices: Sequence[str] | None = None) -> None:
        RecordConstructorArgs.__init__(self, choices=choices)
        gymnasium.ActionWrapper.__init__(self, env)
        _require_text(env.action_space, "actions")
        if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices or ()):
            raise TypeError(f"choices={choices!r} must be a list of texts, one for each action")
        self.choices: tuple[str, ...] = tuple(
            getattr(env.unwrapped, "discrete_actions", ()) if choices is None else choices
        )
        if not self.choices:
            raise ValueError(
                f"choices={choices!r}: {type(env.unwrapped).__name__} defines no discrete actions; give the "
                'texts, for example choices=["yes", "no"]'
            )
        self.action_space = spaces.Discrete(len(self.choices))

    def action(self, action: int | np.int64) -> str:
        if not self.action_space.contains(action):
            raise ValueError(f"action={action!r} must be in 0..{len(self.choices) - 1}, the indices of {self.choices}")
        return self.choices[int(action)]


def make_numeric(
    env_id: str,
    *,
    choices: Sequence[str] | None = None,
    features: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]] = HashedFeatures,
    **env_kwargs: Any,
) -> gymnasium.Env[np.ndarray, Any]:
    """Return ``gymnasium.make(env_id, **env_kwargs)`` with numeric observations and actions.

    For a library that creates its environments itself, possibly in other processes, pass
    ``functools.partial(make_numeric, "rllm/FrozenLake-v0", size=3)``.

    Args:
        env_id: An id of this package, or any id with text observations and actions.
        choices: As for :class:`DiscreteActions`.
        features: Wrapper that makes vectors: :class:`HashedFeatures`, :class:`TokenIds`, or either with other arguments
            (``functools.partial(HashedFeatures, size=256)``).
        **env_kwargs: Arguments of the environment.
    """
    return features(DiscreteActions(gymnasium.make(env_id, **env_kwargs), choices))


def _features(text: str) -> Iterator[bytes]:
    for line_number, line in enumerate(reversed(text.splitlines())):
        before = b""
        for place, word in enumerate(line.encode("utf-8", "surrogatepass").split()):
            yield word
            yield before + b" " + word
            yield b"%d %d %s" % (line_number, place, word)
            before = word


def _as_bytes(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode("utf-8", "surrogatepass")]


def _require_text(space: gymnasium.Space[Any], what: str) -> None:
    if not isinstance(space, spaces.Text):
        raise TypeError(f"the {what} of this environment are {space}, not text; wrap the text environment itself")
