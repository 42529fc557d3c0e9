"""Creates an environment or a game from what a user names: an id, a class or a function."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import pettingzoo

from rllm_gym.runtime.env_building import imported_id

SINGLE_PLAYER = "rllm_gym.multiagent.single_player:SinglePlayerGame"
"""Entry point of the games of this package as single-agent environments."""


def is_game(env_id: str) -> bool:
    """Return whether an id (``"module:id"`` imports the module first) is a PettingZoo game. A game of this package is
    also an environment, in which scripted players make the moves of the others.
    """
    name = imported_id(env_id)
    is_environment = name in gymnasium.registry and gymnasium.registry[name].entry_point != SINGLE_PLAYER
    return name in pettingzoo.aec_registry and not is_environment


def is_environment(env_id: str) -> bool:
    """Return whether an id (``"module:id"`` imports the module first) is one of Gymnasium's."""
    return imported_id(env_id) in gymnasium.registry


def make_env(source: str | Callable[..., Any], kwargs: Mapping[str, Any], *, game: bool = False) -> Any:
    """Create an environment, or a game. Other exceptions of its constructor are not converted.

    Args:
        source: A registered id (``"module:id"`` imports the module first), or a callable.
        kwargs: Its keyword arguments.
        game: Whether an id that is both is created as a game of several agents.

    Raises:
        TypeError: It has no argument of a name, or needs one that is not given; names the arguments.
        gymnasium.error.UnregisteredEnv: There is no such id; names the nearest one.
    """
    try:
        if not isinstance(source, str):
            return source(**kwargs)
        if _use_game(source, game):
            return pettingzoo.make("aec", imported_id(source), **kwargs)
        return gymnasium.make(source, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest_id(str(source))
        if not hint:  # Gymnasium's message names the nearest one of its own
            raise
        raise type(error)(f"unknown environment {source!r}{hint}") from error
    except TypeError as error:
        if (explanation := _argument_problem(source, kwargs, str(error), game)) is None:
            raise
        raise TypeError(explanation) from error


def nearest_id(env_id: str) -> str:
    """Return a hint to the nearest id of this package; ``""`` if there is none."""
    known = {name.lower(): name for name in gymnasium.registry if name.startswith("rllm/")}
    wanted = env_id.lower()
    candidates = [wanted, f"rllm/{wanted}", f"rllm/{wanted}-v0", f"{wanted}-v0"]
    for candidate in candidates:
        if candidate in known:
            return f" (did you mean {known[candidate]!r}?)"
    close = difflib.get_close_matches(f"rllm/{wanted.removeprefix('rllm/')}", known, n=1, cutoff=0.6)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


def _use_game(env_id: str, game: bool) -> bool:
    return is_game(env_id) and (game or not is_environment(env_id))


def _argument_problem(
    source: str | Callable[..., Any], kwargs: Mapping[str, Any], message: str, game: bool
) -> str | None:
    """Return what is wrong with the names of the arguments; ``None`` if they are not the reason for the message."""
    if found := re.search(r"missing \d+ required [\w-]+ arguments?: ((?:'\w+'|, and|, | and )+)", message):
        return f"the argument {found[1]} is missing"
    found = re.search(r"got an unexpected keyword argument '(\w+)'", message)
    if found is None or found[1] not in kwargs or (isinstance(source, str) and _spec(source, game) is None):
        return None
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = _parameters(_constructor(source, kwargs, game))
    known = [name for name, kind in parameters.items() if kind not in fixed and name != "self"]
    near = difflib.get_close_matches(found[1], known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no argument {found[1]!r}; {hint}The arguments are {', '.join(known) or 'none'}"


def make_env_with_split(
    source: str | Callable[..., Any], kwargs: Mapping[str, Any], split: str, *, game: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Create an environment with ``split=split`` if it has splits, or without.

    It has splits if its constructor has a parameter ``split``; a class with ``**kwargs`` has the parameters of its base
    classes, too. If ``source`` is something else with ``**kwargs`` (a function, a wrapper), the constructor is that of
    the environment it returns, which is then created twice. A class that takes ``split`` out of its ``**kwargs``
    without naming it has no splits: another one with the same signature could refuse it, or ignore it.

    Returns:
        The environment, and the keyword arguments that it was created with; they contain ``split`` if it has splits.
    """
    with_split = {**kwargs, "split": split}
    constructor = _constructor(source, kwargs, game)
    parameters = _parameters(constructor)
    if "split" in {*kwargs, *parameters}:
        return make_env(source, with_split, game=game), with_split
    env = make_env(source, kwargs, game=game)
    opaque = inspect.Parameter.VAR_KEYWORD in parameters.values()
    if opaque and type(env.unwrapped) is not constructor and "split" in _parameters(type(env.unwrapped)):
        env.close()
        return make_env(source, with_split, game=game), with_split
    return env, dict(kwargs)


def _constructor(source: str | Callable[..., Any], kwargs: Mapping[str, Any], game: bool) -> Callable[..., Any]:
    """Return the class or function that creates the environment."""
    if not isinstance(source, str):
        return source
    spec = _spec(source, game)
    if spec is None:  # an id without version, or none
        with make_env(source, kwargs, game=game) as env:
            spec = env.spec
    module, _, name = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
    constructor: Callable[..., Any] = getattr(importlib.import_module(module), name) if module else spec.entry_point
    return constructor


def _spec(env_id: str, game: bool) -> Any:
    """Return the spec of an id, ``None`` if there is none, or if the id has no version."""
    registry: Mapping[str, Any] = pettingzoo.aec_registry if _use_game(env_id, game) else gymnasium.registry
    return registry.get(imported_id(env_id))


def _parameters(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the kinds of the parameters by name, with those of the base classes that ``**kwargs`` are passed to."""
    classes = inspect.getmro(constructor) if inspect.isclass(constructor) else ()
    constructors = [vars(base)["__init__"] for base in classes if "__init__" in vars(base)] or [constructor]
    found: dict[str, Any] = {}
    for each in constructors:
        try:
            parameters = inspect.signature(each).parameters.values()
        except ValueError:  # of a compiled class, which has no signature
            break
        found |= {parameter.name: parameter.kind for parameter in parameters}
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found
