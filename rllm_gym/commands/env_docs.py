"""Manuals of environments, from their class docstrings, for the list, the website and the help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rllm_gym.core import TextEnv
from rllm_gym.engine.env_creation import SINGLE_PLAYER
from rllm_gym.envs import OWN_TASKS, TABLE
from rllm_gym.multiagent import GAMES, TextGame

_GAME = "A game of several agents; with gym.make one part of it, against scripted players."
_REFERENCE = re.compile(r":(?:class|meth|func|attr|mod):`~?([^`]+)`")
_LIST_ENTRY = re.compile(r"    (\S[^:]*): ?(.*)")


@dataclass(frozen=True, slots=True)
class Argument:
    """One keyword argument of an environment's constructor; ``default`` is Python source text."""

    name: str
    default: str


@dataclass(frozen=True, slots=True)
class EnvDocs:
    """The manual of one id.

    Attributes:
        env_id: The id for ``gym.make``.
        entry_point: ``module:class``.
        kwargs: Arguments that the id fixes.
        summary: The docstring's first paragraph, and the fixed arguments.
        text: The whole docstring, dedented.
        arguments: Constructor arguments with their defaults, the fixed ones filled in.
        missing: The module that cannot be imported here, ``""`` if the environment can be created.
    """

    env_id: str
    entry_point: str
    kwargs: dict[str, Any]
    summary: str
    text: str
    arguments: tuple[Argument, ...] = field(default=())
    missing: str = ""


def all_env_docs() -> list[EnvDocs]:
    """Return the manuals of all ids of the package, in the order of its table."""
    return [env_docs(env_id) for env_id in [*TABLE, *OWN_TASKS, *GAMES]]


def env_docs(env_id: str) -> EnvDocs:
    """Return the manual of one registered id.

    Raises:
        KeyError: The id is not registered.
    """
    spec = gymnasium.registry[env_id]
    source = GAMES.get(env_id, spec.entry_point)
    entry_point = source if isinstance(source, str) else repr(source)
    try:
        creator: Any = load_env_creator(source) if isinstance(source, str) else source
    except ImportError as error:
        missing = error.name or str(error)
        return EnvDocs(env_id, entry_point, dict(spec.kwargs), f"(requires {missing})", "", (), missing)
    text = inspect.getdoc(creator) or ""
    if env_id in GAMES:
        opponents: Any = load_env_creator(SINGLE_PLAYER)
        own = [argument for argument in _arguments(creator, {}) if argument.name != "agents"]  # set by the game
        arguments = (*own, *_arguments(opponents, {})[1:3])
        return EnvDocs(env_id, entry_point, {}, f"{_first_line(text)} {_GAME}", text, arguments)
    fixed = ", ".join(f"{name}={value!r}" for name, value in spec.kwargs.items())
    summary = f"{_first_line(text)} Here {fixed}." if fixed else _first_line(text)
    return EnvDocs(env_id, entry_point, dict(spec.kwargs), summary, text, _arguments(creator, spec.kwargs))


def as_markdown(text: str, arguments: Iterable[Argument] = ()) -> str:
    """Convert a docstring to Markdown: argument lists with defaults, fenced examples, references as names.

    >>> text = "One.\\n\\n## Rewards\\n``goal``.\\n\\nArgs:\\n    size: Side,\\n        2 to 10."
    >>> print(as_markdown(text, [Argument("size", "4")]))
    One.
    <BLANKLINE>
    ## Rewards
    ``goal``.
    <BLANKLINE>
    - **size** = `4`: Side, 2 to 10.
    """
    defaults = {argument.name: argument.default for argument in arguments if argument.default}
    lines: list[str] = []
    listing = example = False
    for line in _REFERENCE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text).splitlines():
        stripped = line.strip()
        in_example = stripped.startswith((">>>", "...")) or (example and bool(stripped))
        if in_example != example:
            lines.append("```" if example else "```python")
            example = in_example
        if example:
            lines.append(line)
        elif stripped in ("Args:", "Raises:"):
            listing = True
            lines += [] if stripped == "Args:" else ["**Raises**", ""]
        elif listing and line.startswith("    "):
            entry = _LIST_ENTRY.match(line)
            if entry:
                default = f" = `{defaults[entry[1]]}`" if entry[1] in defaults else ""
                name = entry[1].replace("*", "\\*")  # **kwargs
                lines.append(f"- **{name}**{default}: {entry[2]}")
            elif stripped:
                lines[-1] += f" {stripped}"
        else:
            listing = listing and not stripped
            lines.append(line)
    return "\n".join(lines + ["```"] * example)


def _first_line(text: str) -> str:
    paragraph = text.strip().split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _arguments(creator: Any, fixed: dict[str, Any]) -> tuple[Argument, ...]:
    """Return keyword arguments of the constructor, including those that a subclass passes on to its parents."""
    found: dict[str, str] = {}
    classes = [creator]
    if inspect.isclass(creator):
        classes = [cls for cls in creator.__mro__ if issubclass(cls, TextEnv | TextGame)]
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
