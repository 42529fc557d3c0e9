"""Conversion between configurations and nested mappings: YAML files, and the words of a command line.

Every problem is reported, in one form: the option, its value, and what to write instead.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from trainers.config.other_names import instead_of, options_named
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


def switched_by(option: str, without: type, with_it: type, section: str) -> Variants:
    """Return how the type of a section depends on whether one of its options is set."""

    def owners(name: str) -> list[str]:
        kinds = {f"no {section}.{option}": without, f"{section}.{option}": with_it}
        return [owner for owner, kind in kinds.items() if name in option_types(kind)]

    return Variants(lambda chosen: with_it if chosen.get(option) else without, (option,), owners)


def variants_of(config_type: type) -> dict[str, Variants]:
    """Return the sections whose options depend on some of them."""
    return {
        entry.name: entry.metadata["variants"]
        for entry in dataclasses.fields(config_type)
        if "variants" in entry.metadata
    }


def option_types(config_type: type) -> dict[str, Any]:
    """Return the type of each option: of each field."""
    hints = get_type_hints(config_type)
    return {name: hint for name, hint in hints.items() if hint is not ClassVar and get_origin(hint) is not ClassVar}


def sections_of(config_type: type) -> dict[str, type]:
    """Return the types of the sections, also of those that can be ``None``."""
    found = {}
    for name, hint in option_types(config_type).items():
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
    reader = _MappingReader(config_type)
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
    for name in option_types(config_type):
        keys.append(name)
        if name in sections:
            kind = variants[name].type_of({}) if name in variants else sections[name]
            keys += [f"{name}.{inner}" for inner in known_keys(kind)]
    return keys


def same_meaning(key: str, config_type: type) -> list[str]:
    """Return the options that other trainers call ``key``."""
    return [option for option in options_named(key.rpartition(".")[2]) if has_option(config_type, option)]


def has_option(config_type: type, option: str) -> bool:
    """Return whether the configuration has the option, given as a dotted path, at least with some settings."""
    section, _, name = option.partition(".")
    variants = variants_of(config_type)
    return option in known_keys(config_type) or (section in variants and bool(variants[section].owners(name)))


class _MappingReader:
    """Builds the sections of one configuration and collects all problems."""

    def __init__(self, config_type: type) -> None:
        self.problems: list[str] = []
        self._config_type = config_type

    def section(
        self, kind: type, default: Any, content: Mapping[str, Any], prefix: str, variants: Variants | None = None
    ) -> Any:
        """Build a section; options with problems keep their defaults."""
        default = default if type(default) is kind else kind()
        hints, sections, nested = option_types(kind), sections_of(kind), variants_of(kind)
        values: dict[str, Any] = {}
        for key, value in content.items():
            path = f"{prefix}{key}"
            try:
                if key not in hints:
                    known_elsewhere = (
                        instead_of(path.rpartition(".")[2])
                        or same_meaning(path, self._config_type)
                        or (variants is not None and variants.owners(str(key)))
                    )
                    for unknown, inner in [(str(key), value)] if known_elsewhere else _leaves(str(key), value):
                        self.problems.append(self._unknown(unknown, inner, kind, prefix, variants))
                elif key not in sections:
                    values[key] = self._value(hints[key], value, path)
                elif type(None) in get_args(hints[key]) and _is_none(value):
                    values[key] = None
                elif not isinstance(value, Mapping):
                    off = ", or write none (null in a file)" if type(None) in get_args(hints[key]) else ""
                    raise ConfigError(
                        f"{path}={_shown(value)} is a section; set its options, for example "
                        f"{path}.{next(iter(option_types(sections[key])))}{off}"
                    )
                else:
                    own = nested.get(key)
                    inner_kind = own.type_of(value) if own else sections[key]
                    values[key] = self.section(inner_kind, getattr(default, key), value, f"{path}.", own)
            except ConfigError as error:
                self.problems.append(str(error))
        return dataclasses.replace(default, **values)

    def _value(self, hint: Any, value: Any, path: str) -> Any:
        """Convert a value to the type of its option."""
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any:
            return read_word(value)
        if value is NO_VALUE:
            if bool in (hint, *arguments):
                return True
            raise ConfigError(f"{path} has no value; write --{path.replace('_', '-')} VALUE")
        if origin in (Union, types.UnionType):
            return self._alternative(arguments, value, path)
        if origin is Literal:
            for argument in arguments:
                if value == argument and type(value) in (type(argument), Word):
                    return argument
                if isinstance(value, Word) and value == str(argument):
                    return argument
            raise ConfigError(f"{path}={_shown(value)} is not one of {', '.join(map(str, arguments))}")
        kind: Any = origin or hint
        if isinstance(kind, type) and issubclass(kind, Mapping):
            return self._mapping(arguments[1] if arguments else Any, read_word(value), path)
        if kind in _SEQUENCES:
            return self._sequence(kind, arguments, value, path)
        if isinstance(value, Word):
            if kind is bool and value.lower() not in _SWITCHES:
                raise ConfigError(f"{path}={_shown(value)} must be true or false")
            return _SWITCHES[value.lower()] if kind is bool else _converted(kind, str(value), path)
        if kind is float and not isinstance(value, bool):
            return _converted(kind, value, path)  # YAML 1.1 parses 1e-4 as a string
        if kind in (bool, int, str) or isinstance(value, kind):
            if isinstance(value, kind) and (kind is not int or not isinstance(value, bool)):
                return value
            raise ConfigError(f"{path}={_shown(value)} must be of type {kind.__name__}")
        return _converted(kind, value, path)

    def _alternative(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        """Convert a value to the first of several types that accepts it; text is the last of those for one value."""
        if type(None) in arguments and _is_none(value):
            return None
        several = isinstance(value, list | tuple)
        alternatives = [argument for argument in arguments if argument is not type(None)]
        alternatives.sort(key=lambda kind: (((get_origin(kind) or kind) in _SEQUENCES) != several, kind is str))
        problem: ConfigError | None = None
        for alternative in alternatives:
            try:
                return self._value(alternative, value, path)
            except ConfigError as error:
                problem = problem or error
        assert problem is not None
        raise problem

    def _sequence(self, kind: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        if isinstance(value, Word):
            read = read_word(value) if value.startswith("[") else value
            value = read if isinstance(read, list) else [value]
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}={_shown(value)} must be a list")
        each = arguments[0] if arguments else Any
        items = [self._value(each, item, f"{path}[{index}]") for index, item in enumerate(value)]
        return tuple(items) if kind is tuple else items

    def _mapping(self, item: Any, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f'{path}={_shown(value)} must be a mapping, for example {{"name": value}}')
        if not dataclasses.is_dataclass(item):
            return {str(name): self._value(item, inner, f"{path}.{name}") for name, inner in value.items()}
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
        leaf = path.rpartition(".")[2]
        if instead_of(leaf) and not same_meaning(path, self._config_type):
            return f"{problem}: {instead_of(leaf)}"
        if owners := variants.owners(key) if variants else []:
            return f"{problem} here; it is one only with {' or '.join(owners)}"
        keys = [f"{prefix}{known}" for known in known_keys(kind)]
        near = (
            same_meaning(path, self._config_type)
            or difflib.get_close_matches(path, keys, n=1, cutoff=0.7)
            or [known for known in known_keys(self._config_type) if known.rpartition(".")[2] == leaf]
            or difflib.get_close_matches(path, known_keys(self._config_type), n=1, cutoff=0.6)
        )
        if near:
            return f"{problem}; did you mean {' or '.join(near)}?"
        return f"{problem}; the options of {prefix[:-1] or 'this command'} are {', '.join(option_types(kind))}"


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options in an unknown section, or the option itself."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


_SEQUENCES: tuple[Any, ...] = (tuple, list, collections.abc.Sequence)
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read_word(value: Any) -> Any:
    """Return the value of a word whose option has no type: JSON, else the text itself."""
    if isinstance(value, Mapping):
        return {name: read_word(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [read_word(item) for item in value]
    if value is NO_VALUE:
        return True
    if not isinstance(value, Word):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    if value.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[value.lower()]
    return str(value)


def _converted(kind: Any, value: Any, path: str) -> Any:
    """Convert a word, or a value of a file, to a type of a single value."""
    try:
        return kind(value)
    except Exception:  # the type may be a user's
        expected = "a number" if kind is float else f"of type {kind.__name__}"
        raise ConfigError(f"{path}={_shown(value)} must be {expected}") from None


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
