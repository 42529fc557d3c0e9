"""Conversion between configurations and nested mappings: YAML files, and the words of a command line.

Every problem is reported, in one form: the option, its value, and what to write instead.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from trainers.config.other_names import NO_OPTION, OTHER_NAMES
from trainers.option_checks import ConfigError, raise_if_any

Config = TypeVar("Config")


class Word(str):
    """The value of an option on the command line: text, which the type of the option says how to read."""

    __slots__ = ()


NO_VALUE = Word()
"""The value of an option on the command line that no value follows: yes for a switch, an error for others."""


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


def sections_of(config_type: type) -> dict[str, type]:
    """Return the types of the sections, also of those that can be ``None``."""
    found = {}
    for name, hint in get_type_hints(config_type).items():
        for kind in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(kind) and get_origin(hint) is not Mapping:
                found[name] = cast(type, kind)
    return found


def from_mapping(config_type: type[Config], content: Mapping[str, Any], *, where: str = "configuration") -> Config:
    """Build a dataclass from nested mappings, for example the content of a YAML file. Missing options keep their
    defaults.

    Raises:
        ConfigError: Options are unknown (the message names the nearest known ones), or values have the wrong type; the
            message lists all of them.
    """
    reader = _Reader(config_type)
    config = reader.section(config_type, None, content, "")
    raise_if_any(reader.problems, where)
    return cast(Config, config)


def to_mapping(config: Any) -> dict[str, Any]:
    """Convert a configuration to plain YAML and JSON types: the inverse of :func:`from_mapping`."""
    return {entry.name: to_plain(getattr(config, entry.name)) for entry in dataclasses.fields(config)}


def known_keys(config_type: type) -> list[str]:
    """Return every option as a dotted path; of a section with variants, those that it has by default."""
    keys = []
    variants, sections = variants_of(config_type), sections_of(config_type)
    for name in get_type_hints(config_type):
        keys.append(name)
        if name in sections:
            kind = variants[name].type_of({}) if name in variants else sections[name]
            keys += [f"{name}.{inner}" for inner in known_keys(kind)]
    return keys


def same_meaning(key: str, config_type: type) -> list[str]:
    """Return the options that other trainers call ``key``."""
    return [option for option in OTHER_NAMES.get(key.rpartition(".")[2], ()) if has_option(config_type, option)]


def has_option(config_type: type, option: str) -> bool:
    """Return whether the configuration has the option, given as a dotted path, at least with some settings."""
    section, _, name = option.partition(".")
    variants = variants_of(config_type)
    return option in known_keys(config_type) or (section in variants and bool(variants[section].owners(name)))


class _Reader:
    """Builds the sections of one configuration and collects all problems."""

    def __init__(self, config_type: type) -> None:
        self.problems: list[str] = []
        self._config_type = config_type

    def section(
        self, kind: type, default: Any, content: Mapping[str, Any], prefix: str, variants: Variants | None = None
    ) -> Any:
        """Build a section; options with problems keep their defaults."""
        default = default if type(default) is kind else kind()
        hints, sections, nested = get_type_hints(kind), sections_of(kind), variants_of(kind)
        values: dict[str, Any] = {}
        for key, value in content.items():
            path = f"{prefix}{key}"
            try:
                if key not in hints:
                    known_elsewhere = (
                        path in NO_OPTION
                        or same_meaning(path, self._config_type)
                        or (variants is not None and variants.owners(str(key)))
                    )
                    for unknown, inner in [(str(key), value)] if known_elsewhere else _leaves(str(key), value):
                        self.problems.append(self._unknown(unknown, inner, kind, prefix, variants))
                elif key not in sections:
                    values[key] = self._value(hints[key], value, path)
                elif type(None) in get_args(hints[key]) and _is_none(value):
                    values[key] = None
                elif value is NO_VALUE and key not in nested:
                    values[key] = sections[key]()
                elif not isinstance(value, Mapping):
                    raise ConfigError(f"{path}={_shown(value)} is a section; set its options, for example {path}.NAME")
                else:
                    own = nested.get(key)
                    words = {name: word for name, word in value.items() if isinstance(word, str)}
                    inner_kind = own.type_of(words) if own else sections[key]
                    values[key] = self.section(inner_kind, getattr(default, key), value, f"{path}.", own)
            except ConfigError as error:
                self.problems.append(str(error))
        return dataclasses.replace(default, **values)

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        """Convert a value to the type of its option."""
        origin, arguments = get_origin(hint), get_args(hint)
        if value is NO_VALUE:
            if hint is bool:
                return True
            raise ConfigError(f"{path} has no value; write --{path.replace('_', '-')} VALUE")
        if origin in (Union, types.UnionType):
            if type(None) in arguments and _is_none(value):
                return None
            alternatives = [argument for argument in arguments if argument is not type(None)]
            several = get_origin(alternatives[-1]) is tuple and isinstance(value, list | tuple)
            return self._value(alternatives[-1 if several else 0], value, path)
        if hint is not str and value not in arguments:
            value = _read(value)
        if origin is tuple:
            return tuple(self._value(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
        if origin is Mapping:
            return self._mapping(arguments[1], value, path)
        if origin is Literal:
            if value in arguments and not isinstance(value, bool):
                return arguments[arguments.index(value)]
            raise ConfigError(f"{path}={_shown(value)} is not one of {', '.join(map(str, arguments))}")
        if hint is float and not isinstance(value, bool):
            # YAML 1.1 parses 1e-4 as a string.
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{path}={_shown(value)} must be a number") from None
        if isinstance(value, hint) and (hint is not int or not isinstance(value, bool)):
            return str(value) if hint is str else value
        raise ConfigError(f"{path}={_shown(value)} must be of type {hint.__name__}")

    def _mapping(self, item: Any, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f'{path}={_shown(value)} must be a mapping, for example {{"name": value}}')
        if not dataclasses.is_dataclass(item):
            return {str(name): _read(inner) for name, inner in value.items()}
        if wrong := next((name for name, options in value.items() if not isinstance(options, Mapping)), None):
            raise ConfigError(
                f"{path}.{wrong}={_shown(value[wrong])} must be a mapping of options: "
                f"{', '.join(known_keys(cast(type, item)))}"
            )
        return {
            str(name): self.section(cast(type, item), None, options, f"{path}.{name}.")
            for name, options in value.items()
        }

    def _unknown(self, key: str, value: Any, kind: type, prefix: str, variants: Variants | None) -> str:
        """Return the problem of an option that does not exist."""
        path = f"{prefix}{key}"
        problem = f"{path}{'' if value is NO_VALUE else f'={_shown(value)}'} is not an option"
        if path in NO_OPTION:
            return f"{problem}: {NO_OPTION[path]}"
        if owners := variants.owners(key) if variants else []:
            return f"{problem} here; it is one only with {' or '.join(owners)}"
        keys = [f"{prefix}{known}" for known in known_keys(kind)]
        leaf = path.rpartition(".")[2]
        near = (
            same_meaning(path, self._config_type)
            or difflib.get_close_matches(path, keys, n=1, cutoff=0.7)
            or [known for known in known_keys(self._config_type) if known.rpartition(".")[2] == leaf]
            or difflib.get_close_matches(path, known_keys(self._config_type), n=1, cutoff=0.6)
        )
        if near:
            return f"{problem}; did you mean {' or '.join(near)}?"
        return f"{problem}; the options of {prefix[:-1] or 'this command'} are {', '.join(get_type_hints(kind))}"


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options in an unknown section, or the option itself."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _read(value: Any) -> Any:
    """Return the value that a word of the command line, also in a mapping or list, has in YAML."""
    if isinstance(value, Mapping):
        return {name: _read(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    try:
        return yaml.safe_load(value) if isinstance(value, Word) else value
    except yaml.YAMLError:
        return str(value)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, Word) and value.lower() in ("none", "null"))


def _shown(value: Any) -> str:
    text = repr(str(value) if isinstance(value, Word) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def to_plain(value: Any) -> Any:
    """Convert a value to plain YAML and JSON types."""
    if dataclasses.is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value
