"""Split batched actions, seeds and options into single ones, and batch spaces, observations and infos.

Infos have the same form as in Gymnasium's own vector environments: an array per key and a mask under ``_key``. Only
where those would fail or lose something (values of several types under one key) is the array one of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rllm_gym.core import Text
from rllm_gym.runtime.env_host import StepResult

ResetOptions = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
Seeds = int | Sequence[int | None] | np.ndarray | None

_DTYPES = {kind: np.dtype(kind) for kind in (int, float, bool)} | {str: np.dtype(object)}


def common_space(what: str, found: Mapping[str, gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return one space for all: the one they share, or for texts the one with the greatest length."""
    first, *others = found.values()
    if all(space == first for space in others):
        return first
    if all(isinstance(space, Text) for space in found.values()):
        return Text(max(space.max_length for space in found.values()))  # type: ignore[attr-defined]
    raise RuntimeError(f"the {what} spaces of the environments are incompatible: {dict(found)}")


def batch_observations(space: gymnasium.Space[Any], observations: Sequence[Any]) -> Any:
    """Batch observations as Gymnasium's ``concatenate`` does; texts become a tuple."""
    if isinstance(space, spaces.Text):
        return tuple(observations)
    return concatenate(space, observations, create_empty_array(space, n=len(observations)))  # type: ignore[arg-type]


def empty_observation(space: gymnasium.Space[Any]) -> Any:
    """Return a placeholder for the observation of an environment that has none yet.

    ``None`` for a custom space of the user.
    """
    if isinstance(space, spaces.Text):
        return ""
    if isinstance(space, spaces.Dict):
        return {key: empty_observation(part) for key, part in space.items()}
    empty = create_empty_array(space, n=1)
    return None if empty is None else next(iter(iterate(batch_space(space, 1), empty)))


def batch_infos(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one dictionary of arrays, with a mask ``_key`` for every ``key``.

    Numbers and bools become arrays of their type, arrays are stacked, dictionaries batched recursively, everything else
    goes into arrays of objects (``None`` where an environment lacks the key; ``fault`` and ``fault_kind`` are always
    ``str``, with ``""`` where there was none).
    """
    count = len(infos)
    keys = tuple(infos[0])
    if "final_obs" in keys or (count > 1 and any(tuple(info) != keys for info in infos)):
        return _batch_different_infos(infos)
    batched: dict[str, Any] = {}
    masks = _masks(len(keys), count).copy()  # one array: they cost more than the values
    for key, mask, values in zip(keys, masks, zip(*map(dict.values, infos))):
        kind = type(values[0])
        dtype = _DTYPES.get(kind)
        if count > 1 and len(set(map(type, values))) > 1:
            batched[key] = _batch_values(key, values, None, count)
        elif dtype is not None:
            try:
                batched[key] = np.array(values, dtype)
            except OverflowError:  # an integer beyond 64 bits
                batched[key] = np.array(values, object)
        else:
            batched[key] = batch_infos(values) if kind is dict else _batch_values(key, values, None, count)
        batched[f"_{key}"] = mask
    return batched


@lru_cache(16)
def _masks(keys: int, count: int) -> np.ndarray:
    return np.ones((keys, count), np.bool_)


def _batch_different_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As :func:`batch_infos`, also for ``final_obs`` and for infos with different keys, or another order."""
    batched: dict[str, Any] = {}
    count = len(infos)
    for key in dict.fromkeys(key for info in infos for key in info):
        mask = np.array([key in info for info in infos], dtype=np.bool_)
        values = [info[key] for info in infos if key in info]
        batched[key] = _batch_values(key, values, np.flatnonzero(mask), count)
        batched[f"_{key}"] = mask
    for key in ("fault", "fault_kind"):
        if key in batched:
            batched[key][~batched[f"_{key}"]] = ""
    return batched


def _batch_values(key: str, values: Sequence[Any], indices: np.ndarray | None, count: int) -> Any:
    """Batch the values of a key; ``indices`` are the environments that have it, ``None`` for all."""
    if key != "final_obs" and all(isinstance(value, dict) for value in values):
        if indices is None:
            return batch_infos(values)
        entries: list[dict[str, Any]] = [{} for _ in range(count)]
        for index, value in zip(indices, values):
            entries[index] = value
        return batch_infos(entries)
    kinds = set(map(type, values))
    # An array of the first value's type, as Gymnasium makes it, would truncate floats.
    kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else object
    rows = slice(None) if indices is None else indices
    column: np.ndarray
    if key == "final_obs":
        pass
    elif kind in (int, float, bool) or issubclass(kind, np.number):
        try:
            column = np.zeros(count, dtype=kind)
            column[rows] = values
            return column
        except OverflowError:  # an integer beyond 64 bits
            pass
    elif issubclass(kind, np.ndarray) and len({(value.shape, value.dtype) for value in values}) == 1:
        column = np.zeros((count, *values[0].shape), dtype=values[0].dtype)
        column[rows] = values
        return column
    column = np.empty(count, dtype=object)  # of None
    for index, value in zip(range(count) if indices is None else indices, values):
        column[index] = value
    return column


def split_actions(space: gymnasium.Space[Any], batched: gymnasium.Space[Any], actions: Any, count: int) -> list[Any]:
    """Return one action per environment.

    Raises:
        TypeError: The actions are one string, or one of them is not a string.
        ValueError: There are too many or too few.
    """
    text = isinstance(space, spaces.Text)
    if text and isinstance(actions, (str, bytes)):
        raise TypeError(
            f"actions must be a sequence of {count} strings, one per environment; got one {type(actions).__name__}"
        )
    listed: list[Any]
    if text and isinstance(actions, np.ndarray):
        listed = actions.tolist()
    else:
        listed = list(actions if text else iterate(batched, actions))
    if len(listed) != count:
        raise ValueError(f"got {len(listed)} actions for {count} environments; pass one per environment")
    if text:
        for index, action in enumerate(listed):
            if not isinstance(action, str):
                raise TypeError(f"action {index} must be a str (the model's raw reply); got {type(action).__name__}")
    return listed


def split_seeds(seed: Seeds, indices: Sequence[int]) -> list[int | None]:
    """Return one seed per environment: ``seed + index`` for an integer, the elements of a sequence.

    Raises:
        ValueError: The sequence has another length.
        TypeError: A seed is not an integer.
        gymnasium.error.Error: A seed is below 0, as a single environment would raise it.
    """
    if seed is None:
        return [None] * len(indices)
    if isinstance(seed, int | np.integer):
        listed: list[int | None] = [int(seed) + index for index in indices]
    elif isinstance(seed, Iterable):
        listed = list(seed)
    else:
        raise TypeError(f"seed={seed!r} must be a whole number, or a sequence with one per environment")
    if len(listed) != len(indices):
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={len(indices)} but got length={len(listed)}."
        )
    for index, item in zip(indices, listed):
        if item is not None and not isinstance(item, int | np.integer):
            raise TypeError(f"the seed of environment {index} is a {type(item).__name__}, not a whole number")
        if item is not None and item < 0:
            raise gymnasium.error.Error(f"the seed of environment {index} is {item}; it must be 0 or more")
    return [None if item is None else int(item) for item in listed]


def split_options(options: ResetOptions, count: int) -> list[dict[str, Any] | None]:
    """Return one dictionary of options per environment.

    A list, tuple or array under a key has one value per environment; any other value is used for all. A sequence of
    dictionaries has one per environment.

    Raises:
        ValueError: A list has another length than there are environments.
        TypeError: It is neither a dictionary nor a sequence of dictionaries.
    """
    if options is None:
        return [None] * count
    if not isinstance(options, Mapping):
        if not isinstance(options, Sequence) or not all(
            entry is None or isinstance(entry, Mapping) for entry in options
        ):
            raise TypeError(f"options={options!r:.200} must be a dictionary, or a sequence with one per environment")
        if len(options) != count:
            raise ValueError(f"options has {len(options)} entries for {count} environments; pass one per environment")
        return [None if entry is None else dict(entry) for entry in options]
    entry: list[dict[str, Any] | None] = [{} for _ in range(count)]
    for key, value in options.items():
        shared = not isinstance(value, list | tuple | np.ndarray)
        if not shared and len(value) != count:
            raise ValueError(
                f"options[{key!r}] has {len(value)} entries for {count} environments; pass one per environment, "
                "or one for all"
            )
        listed: Iterable[Any] = [value] * count if shared else value
        for one, item in zip(entry, listed):
            assert one is not None
            one[key] = item
    return entry


def checked_mask(mask: Any, count: int) -> list[int]:
    """Return the environments selected by ``options["reset_mask"]``; raises as Gymnasium does.

    Raises:
        TypeError: It is not an array of bools.
        ValueError: Its shape is not ``(count,)``, or nothing in it is true.
    """
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (count,):
        raise ValueError(f"`options['reset_mask']` must have shape `({count},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return [int(index) for index in np.flatnonzero(mask)]


def batch_results(
    space: gymnasium.Space[Any], results: Sequence[StepResult]
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Batch results of ``step``."""
    observations, rewards, terminations, truncations, infos = zip(*results)
    return (
        batch_observations(space, observations),
        np.array(rewards, _DTYPES[float]),
        np.array(terminations, _DTYPES[bool]),
        np.array(truncations, _DTYPES[bool]),
        batch_infos(infos),
    )


def format_indices(indices: Sequence[int]) -> str:
    """Return ``environment 3`` or ``environments 3, 5, 7, …``, for messages."""
    shown = ", ".join(map(str, indices[:8])) + (f" and {len(indices) - 8} more" if len(indices) > 8 else "")
    return f"environment {shown}" if len(indices) == 1 else f"environments {shown}"
