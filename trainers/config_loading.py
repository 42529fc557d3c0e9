"""Read configurations from a YAML file and the command line, which takes precedence.

An unknown key is an error; see :mod:`trainers.config.mapping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro
import yaml

from trainers.config import ConfigError
from trainers.config.mapping import (
    Config,
    from_mapping,
    has_option,
    known_keys,
    owned,
    same_meaning,
    to_mapping,
    variants_of,
)

RECIPES = Path(__file__).resolve().parent / "recipes"
"""Folder of the presets in this package; ``--config frozen_lake_lora`` names one without folder and suffix."""


def read_command_line(config_type: type[Config], argv: Sequence[str], *, program: str, description: str) -> Config:
    """Read a configuration from ``[--config FILE] [--option value …]``.

    Raises:
        ConfigError: The file or a key in it is invalid, or an option has its name from another trainer.
        SystemExit: The command line is invalid or asks for help; tyro has printed the message.
    """
    words, file = _take_config_option(list(argv))
    content, where = (_read_yaml(file), str(find_file(file))) if file else ({}, "command line")
    content = _with_selectors(config_type, words, content)
    default = from_mapping(config_type, content, where=where)
    _check_option_names(config_type, words, default)
    return tyro.cli(
        config_type,
        args=words,
        default=default,
        prog=program,
        description=description,
    )


def load_yaml(config_type: type[Config], file: str | Path) -> Config:
    """Read a configuration from a YAML file, or from a recipe of this package by its bare name.

    Raises:
        ConfigError: The file does not exist or is not a mapping, a key is unknown, or a value has the wrong type.
    """
    return from_mapping(config_type, _read_yaml(file), where=str(find_file(file)))


def _read_yaml(file: str | Path) -> dict[str, Any]:
    path = find_file(file)
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} must be a mapping of options, not a {type(content).__name__}")
    return dict(content)


def find_file(file: str | Path) -> Path:
    """Return the path of the file, or of the recipe with that name."""
    path = Path(file)
    if path.is_file():
        return path
    recipe = RECIPES / f"{file}.yaml"
    if path.name == str(file) and recipe.is_file():
        return recipe
    known = ", ".join(sorted(entry.stem for entry in RECIPES.glob("*.yaml")))
    raise ConfigError(f"no configuration file {str(file)!r}; use a path, or one of the recipes: {known}")


def _with_selectors(config_type: type, words: Sequence[str], content: dict[str, Any]) -> dict[str, Any]:
    """Add the options of the command line that decide which other options there are, for example the algorithm.

    A file may contain every option, like ``config.yaml`` of a run. If the command line chooses another algorithm,
    backend or tuning, only the name of the algorithm and the options that differ from their defaults count.
    """
    given = [(_key(word), word.partition("=")[2] or following) for word, following in pairwise([*words, ""])]
    for section, variants in variants_of(config_type).items():
        chosen = {key: value for key, value in given if key in [f"{section}.{name}" for name in variants.selectors]}
        own = content.get(section, {})
        if chosen and isinstance(own, Mapping):
            first = variants.selectors[0]
            # The loss of a file is chosen if it is not the own loss of the file's algorithm.
            alone = to_mapping(variants.type_of({key: own[key] for key in own if key == first})())
            defaults = to_mapping(variants.type_of(own)()) | {key: alone[key] for key in variants.selectors}
            changed = {
                key: value for key, value in own.items() if key == first or _differs(value, defaults.get(key, ...))
            }
            content[section] = changed | {key.rpartition(".")[2]: value for key, value in chosen.items()}
    return content


def _differs(value: Any, default: Any) -> bool:
    """Return whether an option, or any option of a section, is not the default."""
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return any(_differs(inner, default.get(key, ...)) for key, inner in value.items())
    return bool(value != default)


def _check_option_names(config_type: type, words: Sequence[str], default: object) -> None:
    """Check for options with their names from another trainer, and options that need another algorithm."""
    variants = variants_of(config_type)
    for word in words:
        key = _key(word)
        section, _, option = key.partition(".")
        known = section in variants and hasattr(getattr(default, section), option.partition(".")[0])
        if not key or known or (section not in variants and key in known_keys(config_type)):
            continue
        name = word.partition("=")[0]
        if section in variants and (answer := owned(option, variants[section].owners)):
            raise ConfigError(f"unknown option {name}{answer}")
        if not has_option(config_type, key) and (same := same_meaning(key, config_type)):
            options = " or ".join("--" + option.replace("_", "-") for option in same)
            raise ConfigError(f"unknown option {name}; did you mean {options}?")


def _key(word: str) -> str:
    """Return the dotted path of an option on the command line; empty for other words."""
    name = word.partition("=")[0]
    return name.removeprefix("--").replace("-", "_") if name.startswith("--") else ""


def _take_config_option(words: list[str]) -> tuple[list[str], str | None]:
    """Split off ``--config FILE`` (or ``--config=FILE``) at any position."""
    file: str | None = None
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--config":
            if position + 1 == len(words):
                raise ConfigError("--config needs a file or the name of a recipe")
            position += 1
            file = words[position]
        elif word.startswith("--config="):
            file = word.removeprefix("--config=")
        else:
            rest.append(word)
        position += 1
    return rest, file


def write_yaml(path: Path, config: Any) -> None:
    """Write a configuration that :func:`load_yaml` can read."""
    path.write_text(yaml.safe_dump(to_mapping(config), sort_keys=False))
