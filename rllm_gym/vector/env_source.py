"""Resolve environment ids, and find the spaces that all slots share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import Text

Env = str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]]


def resolve(env_id: Env) -> EnvSpec | Callable[..., Any]:
    """Return the registered spec of an id (``"module:id"`` imports the module first), or the argument itself.

    Raises:
        gymnasium.error.Error: There is no such id; Gymnasium's message names the nearest.
        TypeError: It is neither an id, nor a spec, nor callable.
    """
    if isinstance(env_id, str):
        module, colon, name = env_id.partition(":")
        importlib.import_module(module if colon else "rllm_gym")  # registers the ids
        return gymnasium.spec(name if colon else env_id)
    if isinstance(env_id, EnvSpec) or callable(env_id):
        return env_id
    raise TypeError(f"env_id must be an id, an EnvSpec or a callable; got {type(env_id).__name__}")


def common_space(what: str, spaces: Mapping[str, gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return one space for all: the one they share, or for texts the one with the greatest length."""
    first, *others = spaces.values()
    if all(space == first for space in others):
        return first
    if all(isinstance(space, Text) for space in spaces.values()):
        return Text(max(space.max_length for space in spaces.values()))  # type: ignore[attr-defined]
    raise RuntimeError(f"the {what} spaces of the environments are incompatible: {dict(spaces)}")
