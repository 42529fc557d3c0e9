"""Read configurations from a YAML file and the command line, which takes precedence.

An unknown option is an error; see :mod:`trainers.config.mapping`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro
import yaml

from trainers.config import ConfigError
from trainers.config.mapping import (
    NO_VALUE,
    Config,
    Word,
    from_mapping,
    option_types,
    read_word,
    sections_of,
    to_mapping,
    variants_of,
)

RECIPES = Path(__file__).resolve().parent / "recipes"
"""Folder of the presets in this package; ``--config frozen_lake_lora`` names one without folder and suffix."""


def read_command_line(
    config_type: type[Config], argv: Sequence[str], *, program: str, description: str, has_more: bool = False
) -> Config:
    """Read a configuration from ``[--config FILE] [--option value …]``.

    Args:
        config_type: Class of the configuration.
        argv: The words of the command line.
        program: Name of the command.
        description: Printed by ``--help``, above all options.
        has_more: Whether ``--help`` prints only the description, and ``--help-all`` all options.

    Raises:
        ConfigError: The file or an option is invalid; the message lists all unknown options and values of the wrong
            type in both.
        SystemExit: The command line asked for help, which was printed.
    """
    if has_more and "--help-all" not in argv and not _HELP.isdisjoint(argv):
        print(f"usage: {program} [--config FILE] [--OPTION VALUE ...]\n\n{description}")
        raise SystemExit(0)
    parsed = _parse([word for word in argv if word not in _HELP])
    file = parsed.pop("config", None)
    if file is not None and not isinstance(file, Word):
        raise ConfigError(f"config={file!r}: there can be only one file")
    if file is NO_VALUE:
        raise ConfigError("config has no value; write --config FILE, or the name of a recipe")
    content = _read_yaml(file) if file else {}
    selectors = _select(config_type, content, parsed)
    asks_for_help = not _HELP.isdisjoint(argv)
    sections = sections_of(config_type)
    for key, value in (selectors if asks_for_help else parsed).items():
        if value is NO_VALUE and key in sections:  # switches the section on
            content[key] = content.get(key) or {}
        else:
            _set(content, key, value)
    if asks_for_help:
        _drop_options_of_others(config_type, content)
    where = f"configuration of {program}" if file is None else f"configuration of {program} with {find_file(file)}"
    config = from_mapping(config_type, content, where=where)
    if asks_for_help:
        tyro.cli(
            config_type,
            args=["--help"],
            default=_with_all_sections(config),
            prog=program,
            description=description,
            config=(tyro.conf.AvoidSubcommands,),
        )
    return config


_HELP = frozenset({"-h", "--help", "--help-all"})


def load_yaml(config_type: type[Config], file: str | Path) -> Config:
    """Read a configuration from a YAML file, or from a recipe of this package by its bare name.

    Raises:
        ConfigError: The file does not exist or is not a mapping, a key is unknown, or a value has the wrong type.
    """
    return from_mapping(config_type, _read_yaml(file), where=f"configuration {find_file(file)}")


def _read_yaml(file: str | Path) -> dict[str, Any]:
    path = find_file(file)
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
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


def _select(config_type: type, content: dict[str, Any], parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line that decide which other options there are, for example the algorithm.

    A file may contain every option, like ``config.yaml`` of a run. If the command line chooses another algorithm,
    backend or tuning, only the name of the algorithm and the options that differ from their defaults are kept.
    """
    selectors: dict[str, Any] = {}
    for section, variants in variants_of(config_type).items():
        chosen = {key: parsed[key] for name in variants.selectors if (key := f"{section}.{name}") in parsed}
        own = content.get(section, {})
        if chosen and isinstance(own, Mapping):
            first = variants.selectors[0]
            # The loss of a file is chosen if it is not the own loss of the file's algorithm.
            alone = to_mapping(variants.type_of({key: own[key] for key in own if key == first})())
            defaults = to_mapping(variants.type_of(own)()) | {
                key: alone[key] for key in variants.selectors if key in alone
            }
            content[section] = {
                key: value for key, value in own.items() if key == first or _differs(value, defaults.get(key, ...))
            }
        selectors |= chosen
    return selectors


def _drop_options_of_others(config_type: type, content: dict[str, Any]) -> None:
    """Remove from a file what only another algorithm, backend or tuning has: the help shows the options of the chosen
    one, also if a run would need a change of the file."""
    for section, variants in variants_of(config_type).items():
        own = content.get(section)
        if isinstance(own, Mapping):
            kind = variants.type_of(own)
            content[section] = {
                key: value
                for key, value in own.items()
                if str(key) in option_types(kind) or not variants.owners(str(key))
            }


def _differs(value: Any, default: Any) -> bool:
    """Return whether an option, or any option of a section, is not the default."""
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return any(_differs(inner, default.get(key, ...)) for key, inner in value.items())
    return bool(value != default)


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the options in ``--option value``, ``--option=value``, ``--switch`` and ``--no-switch``.

    Raises:
        ConfigError: A word belongs to no option.
    """
    found: dict[str, list[Word]] = {}
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            values = found[name.replace("-", "_")] = [Word(value)] if equals else []
        elif not found:
            raise ConfigError(f"{word!r} belongs to no option; options are written as --option value")
        else:
            values.append(Word(word))
    parsed: dict[str, Any] = {}
    for key, values in found.items():
        section, dot, option = key.rpartition(".")
        if not values and option.startswith("no_"):
            parsed[f"{section}{dot}{option.removeprefix('no_')}"] = False
        else:
            parsed[key] = NO_VALUE if not values else values[0] if len(values) == 1 else values
    return parsed


def _set(content: dict[str, Any], key: str, value: Any) -> None:
    """Set an option, given as a dotted path, in nested mappings."""
    name, dot, rest = key.partition(".")
    # Names in a file, such as those of roles, may contain "-".
    name = next((known for known in content if str(known).replace("-", "_") == name), name)
    if not dot:
        content[name] = value
        return
    own = read_word(content.get(name))
    if own is not None and own is not True and not isinstance(own, Mapping):
        raise ConfigError(f"{name}={str(own)!r} is not a mapping, so it has no entry {rest.replace('_', '-')}")
    content[name] = dict(own) if isinstance(own, Mapping) else {}
    _set(content[name], rest, value)


def _with_all_sections(config: Any) -> Any:
    """Return the configuration with the defaults of the sections that are ``None``, to show their options."""
    variants, found = variants_of(type(config)), {}
    for name, kind in sections_of(type(config)).items():
        section = getattr(config, name)
        if section is None:
            section = variants[name].type_of({})() if name in variants else kind()
        found[name] = _with_all_sections(section)
    return dataclasses.replace(config, **found)


def write_yaml(path: Path, config: Any) -> None:
    """Write a configuration that :func:`load_yaml` can read."""
    path.write_text(yaml.safe_dump(to_mapping(config), sort_keys=False))
