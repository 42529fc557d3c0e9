"""Creates an environment or a game from what a user names: an id, a class or a function."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import pettingzoo


def is_game(env_id: str) -> bool:
    """Return whether an id (``"module:id"`` imports the module first) is a PettingZoo game and not an environment."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return name not in gymnasium.registry and name in pettingzoo.aec_registry


def make_env(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    """Create an environment, or a game. The exceptions of its constructor are not converted.

    Args:
        source: A registered id (``"module:id"`` imports the module first), or a callable.
        kwargs: Its keyword arguments.
    """
    if not isinstance(source, str):
        return source(**kwargs)
    if is_game(source):
        return pettingzoo.make("aec", source.rpartition(":")[2], **kwargs)
    return gymnasium.make(source, **kwargs)


def make_env_with_split(
    source: str | Callable[..., Any], kwargs: Mapping[str, Any], split: str
) -> tuple[Any, dict[str, Any]]:
    """Create an environment with ``split=split``, or without if it does not take this argument.

    The environment is tried, because its signature does not say what it takes: constructors and functions with
    ``**kwargs`` pass the argument on to a parent class, or to another environment.

    Returns:
        The environment, and the keyword arguments that it was created with; they contain ``split`` if it takes one.
    """
    with_split = {**kwargs, "split": split}
    try:
        return make_env(source, with_split), with_split
    except TypeError as error:
        if not re.search(r"unexpected keyword argument 'split'|takes no arguments", str(error)):
            raise
        return make_env(source, kwargs), dict(kwargs)
