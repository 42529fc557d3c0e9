"""Conversion between configurations and nested mappings. An unknown key is an error that names the nearest option."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trainers.config.other_names import OTHER_NAMES
from trainers.option_checks import ConfigError

Config = TypeVar("Config")


@dataclass(frozen=True)
class Variants:
    """A section whose options depend on some of them. It is the entry ``"variants"`` of the field's metadata.

    Attributes:
        type_of: Returns the type of the section for the options that are set.
        selectors: The options that decide on the type, the most important one first.
        owners: Returns the settings with which an option exists, for example ``["algorithm.name=ppo"]``.
    """

    type_of: Callable[[Mapping[str, Any]], type]
    selectors: tuple[str, ...]
    owners: Callable[[str], list[str]]


def variants_of(config_type: type) -> dict[str, Variants]:
    """Return the sections whose options depend on some of them."""
    return {
        entry.name: entry.metadata["variants"]
        for entry in dataclasses.fields(config_type)
        if "variants" in entry.metadata
    }


def from_mapping(config_type: type[Config], content: Mapping[str, Any], *, where: str = "configuration") -> Config:
    """Build a dataclass from nested mappings, for example the content of a YAML file. Missing options keep their
    defaults.

    Raises:
        ConfigError: A key is unknown (the message names the nearest known one), or a value has the wrong type.
    """
    return cast(Config, _build(config_type, None, content, where, ""))


def to_mapping(config: Any) -> dict[str, Any]:
    """Convert a configuration to plain YAML and JSON types: the inverse of :func:`from_mapping`."""
    return {
        entry.name: to_mapping(value) if dataclasses.is_dataclass(value) else _plain(value)
        for entry in dataclasses.fields(config)
        for value in (getattr(config, entry.name),)
    }


def known_keys(config_type: type) -> list[str]:
    """Return every option as a dotted path; of a section with variants, those that it has by default."""
    keys = []
    variants = variants_of(config_type)
    for name, hint in get_type_hints(config_type).items():
        keys.append(name)
        if name in variants:
            hint = variants[name].type_of({})
        if dataclasses.is_dataclass(hint):
            keys += [f"{name}.{inner}" for inner in known_keys(cast(type, hint))]
    return keys


def owned(option: str, owners: Callable[[str], list[str]] | None) -> str:
    """Return the end of an error message: with which settings the option exists, or "" if with none."""
    found = owners(option) if owners else []
    return f"; it is an option only with {' or '.join(found)}" if found else ""


def _build(
    config_type: type,
    default: Any,
    content: Mapping[str, Any],
    where: str,
    prefix: str,
    owners: Callable[[str], list[str]] | None = None,
) -> Any:
    hints = get_type_hints(config_type)
    for key in content:
        if key not in hints:
            answer = owned(str(key), owners) or _suggestion(str(key), config_type, prefix)
            raise ConfigError(f"{where}: unknown option {prefix}{key!s}{answer}")
    if default is None:
        default = config_type()
    variants = variants_of(config_type)
    values: dict[str, Any] = {}
    for key, value in content.items():
        hint, path = hints[key], f"{prefix}{key}"
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {path} is a section: it must be a mapping of options, not {value!r}")
            if key in variants:
                kind = variants[key].type_of(value)
                values[key] = _build(kind, None, value, where, f"{path}.", variants[key].owners)
            else:
                values[key] = _build(cast(type, hint), getattr(default, key), value, where, f"{path}.")
        else:
            values[key] = _convert(hint, value, where, path)
    return dataclasses.replace(default, **values)


def _suggestion(key: str, config_type: type, prefix: str) -> str:
    keys = known_keys(config_type)
    same = same_meaning(key, config_type) if not prefix else []
    if same:
        return f"; did you mean {' or '.join(same)}?"
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5) or [
        known for known in keys if known.rsplit(".", 1)[-1] == key
    ]
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; known options: {', '.join(known for known in keys if '.' not in known)}"


def same_meaning(key: str, config_type: type) -> list[str]:
    """Return the options that other trainers call ``key``."""
    return [option for option in OTHER_NAMES.get(key.rpartition(".")[2], ()) if has_option(config_type, option)]


def has_option(config_type: type, option: str) -> bool:
    """Return whether the configuration has the option, given as a dotted path, at least with some settings."""
    section, _, name = option.partition(".")
    variants = variants_of(config_type)
    return option in known_keys(config_type) or (section in variants and bool(variants[section].owners(name)))


def _convert(hint: Any, value: Any, where: str, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {path} must be a mapping of options, not {value!r}")
        return _build(cast(type, hint), None, value, where, f"{path}.")
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        alternatives = [argument for argument in arguments if argument is not type(None)]
        if get_origin(alternatives[-1]) is tuple and isinstance(value, list | tuple):
            return _convert(alternatives[-1], value, where, path)
        return _convert(alternatives[0], value, where, path)
    if origin is tuple:
        return tuple(_convert(arguments[0], item, where, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is Mapping and arguments and dataclasses.is_dataclass(arguments[1]):
        if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in value.values()):
            raise ConfigError(
                f"{where}: {path} must map names to options, for example {path}: {{name: {{…}}}}; got {value!r}"
            )
        kind = cast(type, arguments[1])
        return {str(name): _build(kind, None, item, where, f"{path}.{name}.") for name, item in value.items()}
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where}: {path}={value!r} is not one of {', '.join(map(str, arguments))}")
    if hint is float and not isinstance(value, bool):
        # YAML 1.1 parses 1e-4 as a string.
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: {path}={value!r} must be a number") from None
    expected = origin or hint
    if isinstance(value, expected) and (expected is not int or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: {path}={value!r} must be of type {getattr(expected, '__name__', expected)}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
