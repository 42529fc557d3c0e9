"""Read configurations from a YAML file and the command line, which takes precedence.

An unknown key is an error; see :mod:`trainers.config.mapping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro
import yaml

from trainers.config import ConfigError
from trainers.config.mapping import Config, from_mapping, known_keys, same_meaning, to_mapping

RECIPES = Path(__file__).resolve().parent / "recipes"
"""Folder of the presets in this package; ``--config frozen_lake_lora`` names one without folder and suffix."""


def read_command_line(config_type: type[Config], argv: Sequence[str], *, program: str, description: str) -> Config:
    """Read a configuration from ``[--config FILE] [--option value …]``.

    Raises:
        ConfigError: The file or a key in it is invalid, or an option has its name from another trainer.
        SystemExit: The command line is invalid or asks for help; tyro has printed the message.
    """
    words, file = _take_config_option(list(argv))
    _check_option_names(config_type, words)
    default = load_yaml(config_type, file) if file else config_type()
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
    path = find_file(file)
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if content is None:
        content = {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} must be a mapping of options, not a {type(content).__name__}")
    return from_mapping(config_type, content, where=str(path))


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


def _check_option_names(config_type: type, words: Sequence[str]) -> None:
    keys = known_keys(config_type)
    for word in words:
        name = word.partition("=")[0]
        key = name.removeprefix("--").replace("-", "_")
        same = same_meaning(key, keys) if name.startswith("--") and key not in keys else []
        if same:
            options = " or ".join("--" + option.replace("_", "-") for option in same)
            raise ConfigError(f"unknown option {name}; did you mean {options}?")


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
