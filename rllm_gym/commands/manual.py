"""An environment's manual: what its class docstring says, read for the list, the website and the help."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rllm_gym.core import TextEnv
from rllm_gym.envs import TABLE


@dataclass(frozen=True, slots=True)
class Argument:
    """One keyword argument of an environment's constructor; ``default`` is Python source text."""

    name: str
    default: str


@dataclass(frozen=True, slots=True)
class Manual:
    """What is known about one id.

    Attributes:
        env_id: The id that ``gym.make`` takes.
        entry_point: ``module:class``.
        kwargs: What the id fixes.
        summary: The docstring's first line.
        text: The whole docstring, dedented.
        arguments: Constructor arguments with their defaults, the fixed ones filled in.
        missing: The module that cannot be imported here, ``""`` where the environment can be made.
    """

    env_id: str
    entry_point: str
    kwargs: dict[str, Any]
    summary: str
    text: str
    arguments: tuple[Argument, ...] = field(default=())
    missing: str = ""


def manuals() -> list[Manual]:
    """The manuals of all ids of the package, in the order of its table."""
    return [manual(env_id) for env_id in TABLE]


def manual(env_id: str) -> Manual:
    """The manual of one registered id.

    Raises:
        KeyError: The id is not registered.
    """
    spec = gymnasium.registry[env_id]
    entry_point = spec.entry_point if isinstance(spec.entry_point, str) else repr(spec.entry_point)
    try:
        creator: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    except ModuleNotFoundError as error:
        missing = error.name or "a package"
        return Manual(env_id, entry_point, dict(spec.kwargs), f"(needs {missing})", "", (), missing)
    text = inspect.getdoc(creator) or ""
    return Manual(env_id, entry_point, dict(spec.kwargs), _first_line(text), text, _arguments(creator, spec.kwargs))


def sections(text: str) -> dict[str, str]:
    """A docstring's ``## Heading`` sections; what comes before the first is under ``""``."""
    parts = re.split(r"^##\s+(.+?)\s*$", text, flags=re.MULTILINE)
    found = {"": parts[0].strip()}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        found[heading] = body.strip()
    return found


def _first_line(text: str) -> str:
    paragraph = text.strip().split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _arguments(creator: Any, fixed: dict[str, Any]) -> tuple[Argument, ...]:
    """Keyword arguments of the constructor; those a subclass passes on to its parents are collected on the way."""
    found: dict[str, str] = {}
    classes = [cls for cls in creator.__mro__ if issubclass(cls, TextEnv)] if inspect.isclass(creator) else [creator]
    for cls in classes:
        constructor = cls.__dict__.get("__init__") if inspect.isclass(cls) else cls
        if constructor is None:
            continue
        passes_on = False
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
            elif parameter.name != "self" and parameter.kind is not parameter.VAR_POSITIONAL:
                value = fixed.get(parameter.name, parameter.default)
                found.setdefault(parameter.name, "" if value is parameter.empty else repr(value))
        if not passes_on:
            break
    return tuple(Argument(name, default) for name, default in found.items())
