"""Conversion between configurations and nested mappings. An unknown key is an error that names the nearest option."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trainers.config.checks import ConfigError
from trainers.config.other_names import OTHER_NAMES

Config = TypeVar("Config")


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
    """Return every option as a dotted path."""
    keys = []
    for name, hint in get_type_hints(config_type).items():
        keys.append(name)
        if dataclasses.is_dataclass(hint):
            keys += [f"{name}.{inner}" for inner in known_keys(cast(type, hint))]
    return keys


def _build(config_type: type, default: Any, content: Mapping[str, Any], where: str, prefix: str) -> Any:
    hints = get_type_hints(config_type)
    for key in content:
        if key not in hints:
            raise ConfigError(f"{where}: unknown option {prefix}{key!s}{_suggestion(str(key), config_type, prefix)}")
    if default is None:
        default = config_type()
    values: dict[str, Any] = {}
    for key, value in content.items():
        hint, path = hints[key], f"{prefix}{key}"
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {path} is a section: it must be a mapping of options, not {value!r}")
            values[key] = _build(cast(type, hint), getattr(default, key), value, where, f"{path}.")
        else:
            values[key] = _convert(hint, value, where, path)
    return dataclasses.replace(default, **values)


def _suggestion(key: str, config_type: type, prefix: str) -> str:
    keys = known_keys(config_type)
    same = same_meaning(key, keys) if not prefix else []
    if same:
        return f"; did you mean {' or '.join(same)}?"
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5) or [
        known for known in keys if known.rsplit(".", 1)[-1] == key
    ]
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; known options: {', '.join(known for known in keys if '.' not in known)}"


def same_meaning(key: str, keys: Sequence[str]) -> list[str]:
    """Return the options among ``keys`` that other trainers call ``key``."""
    return [option for option in OTHER_NAMES.get(key.rpartition(".")[2], ()) if option in keys]


def _convert(hint: Any, value: Any, where: str, path: str) -> Any:
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
