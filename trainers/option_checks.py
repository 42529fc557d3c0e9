"""Types of options with their ranges, helpers of other checks, and the error that lists all problems."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rllm_gym.core import importing

_Kind = TypeVar("_Kind")


class ConfigError(ValueError):
    """An option is unknown, impossible, or would have no effect. The message names the option and how to fix it."""


@dataclass(frozen=True)
class Range:
    """The values that an option can have. Written in its type, so that it is checked wherever the option is."""

    text: str
    contains: Callable[[Any], bool]


_ABOVE_0 = Range("above 0", lambda value: value > 0)
AT_LEAST_0 = Range("0 or more", lambda value: value >= 0)
PositiveInt = Annotated[int, _ABOVE_0]
PositiveFloat = Annotated[float, _ABOVE_0]
NonNegativeInt = Annotated[int, AT_LEAST_0]
NonNegativeFloat = Annotated[float, AT_LEAST_0]
Fraction = Annotated[float, Range("between 0 and 1", lambda value: 0 < value < 1)]
UnitFloat = Annotated[float, Range("in [0, 1]", lambda value: 0 <= value <= 1)]


def check_ranges(section: Any, problems: list[str], prefix: str = "") -> None:
    """Report all options of a configuration, in all its sections, that are outside their :class:`Range`; ``None`` is
    accepted.
    """
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        value = getattr(section, name)
        if is_dataclass(value):
            check_ranges(value, problems, f"{prefix}{name}.")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if is_dataclass(item):
                    check_ranges(item, problems, f"{prefix}{name}.{key}.")
        elif value is not None:
            problems += [
                f"{prefix}{name}={value!r} must be {limits.text}"
                for limits in _ranges(hint)
                if not limits.contains(value)
            ]


def _ranges(hint: Any) -> Iterator[Range]:
    for argument in get_args(hint):
        if isinstance(argument, Range):
            yield argument
        elif get_origin(hint) in (Union, UnionType):
            yield from _ranges(argument)


def raise_if_any(problems: list[str], where: str = "configuration") -> None:
    """Raise an error that lists all problems of the configuration ``where``, if there are any.

    Raises:
        ConfigError: There are problems.
    """
    if problems:
        raise ConfigError(f"invalid {where}:\n" + "\n".join(f"  - {problem}" for problem in problems))


def import_object(path: str, option: str) -> Any:
    """Import the object named ``module:name``.

    Raises:
        ConfigError: There is no such module or name, or the module raised an error when it was imported.
    """
    try:
        return importing.import_object(path, option)
    except ValueError as error:
        raise ConfigError(str(error)) from error.__cause__


def find_object(name: object, table: Mapping[str, _Kind], kind: type[_Kind], option: str) -> _Kind:
    """Return the object that an option names: an entry of a table, or the object ``my_module:NAME``.

    Raises:
        ConfigError: There is none, or the object is of another type.
    """
    if isinstance(name, str) and name in table:
        return table[name]
    if not isinstance(name, str) or ":" not in name:
        article = "an" if kind.__name__.startswith("A") else "a"
        example = re.findall("[A-Z][a-z]+", kind.__name__)[-1].upper()
        raise ConfigError(
            f"{option}={name!r} is not one of {', '.join(table)}; name {article} {kind.__name__} of your own as "
            f"my_module:MY_{example}"
        )
    found = import_object(name, option)
    if not isinstance(found, kind):
        package = kind.__module__.rpartition(".")[0]
        raise ConfigError(f"{option}={name!r} has type {type(found).__name__}, not {package}.{kind.__name__}")
    return found


def check_options_type(options: type, base: type, owner: str) -> None:
    """Check that the options of a user's algorithm, loss or sampler are a dataclass whose fields have defaults.

    Args:
        options: The class.
        base: The class that it must be derived from.
        owner: Name of the object that it belongs to.

    Raises:
        ConfigError: They are not.
    """
    if not isinstance(options, type):
        raise ConfigError(f"the options of {owner!r} must be a dataclass, not an instance: {options!r}")
    if "__dataclass_fields__" not in vars(options):
        raise ConfigError(
            f"{options.__name__}, the options of {owner!r}, is not a dataclass: decorate it with "
            "@dataclass(frozen=True)"
        )
    if not issubclass(options, base):
        raise ConfigError(
            f"{options.__name__}, the options of {owner!r}, must be derived from {base.__module__}.{base.__name__}"
        )
    without_default = [
        entry.name
        for entry in fields(cast("Any", options))
        if entry.default is MISSING and entry.default_factory is MISSING
    ]
    if without_default:
        raise ConfigError(f"{options.__name__}.{without_default[0]} has no default; every option needs one")
