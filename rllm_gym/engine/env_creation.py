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


def is_game(env_id: str) -> bool:
    """Return whether an id (``"module:id"`` imports the module first) is a PettingZoo game and not an environment."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return name not in gymnasium.registry and name in pettingzoo.aec_registry


def make_env(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    """Create an environment, or a game. Other exceptions of its constructor are not converted.

    Args:
        source: A registered id (``"module:id"`` imports the module first), or a callable.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: It has no argument of a name, or needs one that is not given; names the arguments.
    """
    try:
        if not isinstance(source, str):
            return source(**kwargs)
        if is_game(source):
            return pettingzoo.make("aec", source.rpartition(":")[2], **kwargs)
        return gymnasium.make(source, **kwargs)
    except TypeError as error:
        if (explanation := _argument_problem(source, kwargs, str(error))) is None:
            raise
        raise TypeError(explanation) from error


def _argument_problem(source: str | Callable[..., Any], kwargs: Mapping[str, Any], message: str) -> str | None:
    """Return what is wrong with the names of the arguments; ``None`` if they are not the reason for the message."""
    if found := re.search(r"missing \d+ required [\w-]+ arguments?: ((?:'\w+'|, and|, | and )+)", message):
        return f"the argument {found[1]} is missing"
    found = re.search(r"got an unexpected keyword argument '(\w+)'", message)
    if found is None or found[1] not in kwargs or (isinstance(source, str) and _spec(source) is None):
        return None
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = _parameters(_constructor(source, kwargs))
    known = [name for name, kind in parameters.items() if kind not in fixed and name != "self"]
    near = difflib.get_close_matches(found[1], known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no argument {found[1]!r}; {hint}The arguments are {', '.join(known) or 'none'}"


def make_env_with_split(
    source: str | Callable[..., Any], kwargs: Mapping[str, Any], split: str
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
    constructor = _constructor(source, kwargs)
    parameters = _parameters(constructor)
    if "split" in {*kwargs, *parameters}:
        return make_env(source, with_split), with_split
    env = make_env(source, kwargs)
    opaque = inspect.Parameter.VAR_KEYWORD in parameters.values()
    if opaque and type(env.unwrapped) is not constructor and "split" in _parameters(type(env.unwrapped)):
        env.close()
        return make_env(source, with_split), with_split
    return env, dict(kwargs)


def _constructor(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the class or function that creates the environment."""
    if not isinstance(source, str):
        return source
    spec = _spec(source)
    if spec is None:  # an id without version, or none
        with make_env(source, kwargs) as env:
            spec = env.spec
    module, _, name = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
    constructor: Callable[..., Any] = getattr(importlib.import_module(module), name) if module else spec.entry_point
    return constructor


def _spec(env_id: str) -> Any:
    """Return the spec of an id, ``None`` if there is none, or if the id has no version."""
    registry: Mapping[str, Any] = pettingzoo.aec_registry if is_game(env_id) else gymnasium.registry
    return registry.get(env_id.rpartition(":")[2])


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
