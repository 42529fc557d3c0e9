"""Encoding of values as JSON trees: exact plain types only, and decoding never runs code.

Immutable values (numbers, text, tuples, dates) are copied. Mutable ones (lists, dicts, arrays) are kept in the heap and
identified by their number there. Everything else stays where it is, and the other side gets a stand-in for it. The
codec gets both from its :class:`ObjectTable`.

Types are checked with ``type(value) is``: an ``int`` subclass with its own ``__eq__`` does not count as an ``int``.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .extreme_numbers import ExtremeNumbers

MAX_NODES = 2_000_000
"""Maximum number of values in one message."""

MAX_DEPTH = 100
"""Maximum nesting of tuples. Lists and dicts may nest deeper, because they are not nested in a message."""

_SMALL = 1 << 53

Tree = Any


class Uncodable(Exception):
    """This value cannot be sent to the other side."""


class ForbiddenType(Uncodable):
    """The other side must not get an object of this type."""


class MalformedMessage(Exception):
    """A message that a well-behaved side never sends."""


class ObjectTable(Protocol):
    """Storage for values that are not copied."""

    def container_to_tree(self, value: Any) -> Tree | None:
        """Return the tree that identifies this mutable container, or this stand-in; ``None`` for anything else."""

    def container_from_tree(self, number: Any) -> Any: ...

    def object_to_tree(self, value: Any) -> Tree:
        """Return the tree that identifies an object kept on this side or on the other side."""

    def object_from_tree(self, tree: list[Any]) -> Any: ...


class Codec:
    """An encoder and decoder of the values of one message at a time; :meth:`begin` starts the next.

    Args:
        objects: Holds the containers and objects.
        hostile: Whether the other side may send anything. Globals are then looked up by name only if they are harmless.
    """

    def __init__(self, objects: ObjectTable, *, hostile: bool) -> None:
        self._objects = objects
        self._hostile = hostile
        self._left = MAX_NODES
        self._depth = 0
        self._nan = math.nan
        self.extreme: ExtremeNumbers | None = None
        """Finds and changes numbers of the other side; ``None``: they are left as they are."""

    def constant(self, name: str) -> float:
        """Return the number with this name; a NaN is the object that was sent last, which equals itself in a list."""
        value = self._nan if name == "NaN" else float(name)
        return value if self.extreme is None else self.extreme.changed(value)

    def begin(self) -> None:
        self._left = MAX_NODES
        self._depth = 0

    def encode(self, value: Any) -> Tree:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            if value != value:
                self._nan = value
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else ["i", hex(value)]
        if kind is str:
            return value if value.isascii() or _is_text(value) else ["s", value.encode("utf-8", "surrogatepass").hex()]
        self._left -= 1
        if self._left < 0:
            raise Uncodable(f"a message of more than {MAX_NODES:,} values")
        writer = _WRITERS.get(kind)
        if writer is not None and (tree := writer(self, value)) is not None:
            return tree
        tree = self._objects.container_to_tree(value)
        if tree is not None:
            return tree
        for module, write in _LAZY_WRITERS:
            if module in sys.modules and (tree := write(self, value)) is not None:
                return tree
        tree = _global_to_tree(value, everything=self._hostile)
        return self._objects.object_to_tree(value) if tree is None else tree

    def encode_all(self, values: Iterable[Any]) -> list[Tree]:
        """Return the trees of the children of a container or tuple, with a fast path for plain numbers."""
        items = list(values)
        self._left -= len(items)
        if self._left < 0:
            raise Uncodable(f"a message of more than {MAX_NODES:,} values")
        if items and all(type(item) is int for item in items) and min(items) > -_SMALL and max(items) < _SMALL:
            return items
        encode = self.encode
        return [encode(item) for item in items]

    def encode_nested(self, values: Iterable[Any]) -> list[Tree]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Uncodable(f"tuples nested more than {MAX_DEPTH} deep")
        trees = self.encode_all(values)
        self._depth -= 1
        return trees

    def decode(self, tree: Tree) -> Any:
        """Return the value of a tree; raises :class:`MalformedMessage` for one that :meth:`encode` cannot make."""
        if type(tree) is not list:
            if type(tree) is dict:
                raise MalformedMessage("an object where a value was expected")
            return tree
        self._left -= 1
        if self._left < 0:
            raise MalformedMessage(f"a message of more than {MAX_NODES:,} values")
        if not tree or type(tree[0]) is not str:
            raise MalformedMessage("a value without a tag")
        reader = _READERS.get(tree[0])
        if reader is None:
            return self._objects.object_from_tree(tree)
        return reader(self, *tree[1:])

    def decode_all(self, trees: Any) -> list[Any]:
        if type(trees) is not list:
            raise MalformedMessage("the values are not a list")
        decode = self.decode
        return [decode(tree) if type(tree) is list or type(tree) is dict else tree for tree in trees]

    def decode_nested(self, trees: Any) -> list[Any]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedMessage(f"tuples nested more than {MAX_DEPTH} deep")
        values = self.decode_all(trees)
        self._depth -= 1
        return values

    def container(self, number: Any) -> Any:
        return self._objects.container_from_tree(number)

    def global_named(self, module: Any, name: Any) -> Any:
        return _global_from_tree(module, name, everything=not self._hostile)


def expect(value: Any, *kinds: type) -> Any:
    """Return the value if it is of exactly one of these types."""
    if type(value) not in kinds:
        raise MalformedMessage(f"a {type(value).__name__} where a {kinds[0].__name__} was expected")
    return value


def to_base64(data: bytes | bytearray | memoryview) -> str:
    import binascii  # loading it takes as long as a short program

    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: Any) -> bytes:
    import binascii

    return binascii.a2b_base64(expect(text, str), strict_mode=True)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# Copied types: one writer per type, one reader per tag


def _slice(codec: Codec, value: slice) -> Tree:
    return ["sl", *codec.encode_nested((value.start, value.stop, value.step))]


def _write_view(codec: Codec, value: memoryview) -> Tree | None:
    """Write a view of consecutive bytes. One of a ``bytearray`` stays a view of the shared container."""
    if value.format != "B" or value.ndim != 1 or not value.contiguous or type(value.obj) not in (bytes, bytearray):
        return None
    if type(value.obj) is bytes or not len(value):
        return ["mv", codec.encode(bytes(value)), 0, len(value)]
    import ctypes

    start, base = (ctypes.addressof(ctypes.c_char.from_buffer(item)) for item in (value, value.obj))
    return ["mv", codec.encode(value.obj), start - base, len(value)]


_WRITERS: dict[type, Callable[[Codec, Any], Tree | None]] = {
    complex: lambda codec, value: ["c", value.real, value.imag],
    bytes: lambda codec, value: ["b", to_base64(value)],
    tuple: lambda codec, value: ["t", codec.encode_nested(value)],
    frozenset: lambda codec, value: ["fs", codec.encode_nested(value)],
    range: lambda codec, value: ["rg", *codec.encode_all((value.start, value.stop, value.step))],
    slice: _slice,
    type(Ellipsis): lambda codec, value: ["el"],
    type(NotImplemented): lambda codec, value: ["ni"],
    type({}.keys()): lambda codec, value: ["dk", codec.encode_nested(value)],
    type({}.values()): lambda codec, value: ["dv", codec.encode_nested(value)],
    type({}.items()): lambda codec, value: ["di", codec.encode_nested(value)],
    memoryview: _write_view,
    re.Pattern: lambda codec, value: ["re", codec.encode(value.pattern), value.flags],
}


def _read_int(codec: Codec, digits: Any) -> int:
    return int(expect(digits, str), 16)


def _read_text(codec: Codec, data: Any) -> str:
    return bytes.fromhex(expect(data, str)).decode("utf-8", "surrogatepass")


def _read_complex(codec: Codec, real: Any, imaginary: Any) -> complex:
    return complex(expect(real, float), expect(imaginary, float))


def _read_range(codec: Codec, *bounds: Any) -> range:
    start, stop, step = (expect(codec.decode(bound), int) for bound in bounds)
    return range(start, stop, step)


def _read_pattern(codec: Codec, pattern: Any, flags: Any) -> re.Pattern[Any]:
    # Python sets the flag for text patterns itself, and rejects it for bytes patterns.
    return re.compile(expect(codec.decode(pattern), str, bytes), expect(flags, int) & ~re.DEBUG)


def _read_pairs(codec: Codec, trees: Any) -> Any:
    pairs = codec.decode_nested(trees)
    if not all(type(pair) is tuple and len(pair) == 2 for pair in pairs):
        raise MalformedMessage("the items are not pairs")
    return dict(pairs).items()


def _read_view(codec: Codec, tree: Any, start: Any, length: Any) -> memoryview:
    data = expect(codec.decode(tree), bytes, bytearray)
    if not 0 <= expect(start, int) <= start + expect(length, int) <= len(data):
        raise MalformedMessage("a view of bytes that are not there")
    return memoryview(data)[start : start + length]


_READERS: dict[str, Callable[..., Any]] = {
    "i": _read_int,
    "s": _read_text,
    "c": _read_complex,
    "b": lambda codec, data: from_base64(data),
    "t": lambda codec, trees: tuple(codec.decode_nested(trees)),
    "fs": lambda codec, trees: frozenset(codec.decode_nested(trees)),
    "rg": _read_range,
    "sl": lambda codec, start, stop, step: slice(*codec.decode_nested([start, stop, step])),
    "el": lambda codec: Ellipsis,
    "ni": lambda codec: NotImplemented,
    "dk": lambda codec, trees: dict.fromkeys(codec.decode_nested(trees)).keys(),
    "dv": lambda codec, trees: dict(enumerate(codec.decode_nested(trees))).values(),
    "di": _read_pairs,
    "mv": _read_view,
    "re": _read_pattern,
    "@": lambda codec, number: codec.container(number),
    "g": lambda codec, module, name: codec.global_named(module, name),
}


# Types of modules that are checked only if a program has imported the module


def _write_decimal(codec: Codec, value: Any) -> Tree | None:
    return ["dec", str(value)] if type(value) is sys.modules["decimal"].Decimal else None


def _write_fraction(codec: Codec, value: Any) -> Tree | None:
    if type(value) is not sys.modules["fractions"].Fraction:
        return None
    return ["fr", *codec.encode_all((value.numerator, value.denominator))]


def _write_uuid(codec: Codec, value: Any) -> Tree | None:
    return ["uuid", value.hex] if type(value) is sys.modules["uuid"].UUID else None


_PATHS = ("PurePosixPath", "PureWindowsPath", "PosixPath")


def _write_path(codec: Codec, value: Any) -> Tree | None:
    name = type(value).__name__
    if name not in _PATHS or type(value) is not getattr(sys.modules["pathlib"], name):
        return None
    return ["path", name, codec.encode(str(value))]


def _write_datetime(codec: Codec, value: Any) -> Tree | None:
    module = sys.modules["datetime"]
    kind = type(value)
    if kind is module.timedelta:
        return ["td", value.days, value.seconds, value.microseconds]
    if kind is module.date:
        return ["date", value.isoformat()]
    if kind is module.timezone:
        return ["tz", codec.encode(value.utcoffset(None)), codec.encode(value.tzname(None))]
    if kind in (module.datetime, module.time):
        naive = value.replace(tzinfo=None).isoformat()
        return [kind.__name__, naive, value.fold, codec.encode(value.tzinfo)]
    return None


def _write_zone(codec: Codec, value: Any) -> Tree | None:
    if type(value) is not sys.modules["zoneinfo"].ZoneInfo or value.key is None:
        return None
    return ["zone", value.key]


_NUMPY_TYPE = r"[<>|=](?:[biufc][0-9]{1,2}|\?|[SU][0-9]{1,6}|[mM]8(?:\[[0-9]{0,6}[a-zA-Zμ]{1,7}\])?)"


def numpy_type(text: Any) -> Any:
    """Return the numpy type of a description; raises :class:`MalformedMessage` for all but plain types of fixed
    size.
    """
    import numpy as np

    if not re.fullmatch(_NUMPY_TYPE, expect(text, str)):
        raise MalformedMessage(f"a numpy type {text[:40]!r}")
    return np.dtype(text)


def _write_numpy(codec: Codec, value: Any) -> Tree | None:
    numpy = sys.modules["numpy"]
    if (
        isinstance(value, numpy.generic)
        and type(value) is value.dtype.type
        and re.fullmatch(_NUMPY_TYPE, value.dtype.str)
    ):
        return ["np", value.dtype.str, to_base64(value.tobytes())]
    if type(value) is numpy.dtype or type(value).__mro__[1:2] == (numpy.dtype,):
        return ["npt", value.str] if re.fullmatch(_NUMPY_TYPE, value.str) else None
    return None


_LAZY_WRITERS: tuple[tuple[str, Callable[[Codec, Any], Tree | None]], ...] = (
    ("numpy", _write_numpy),
    ("decimal", _write_decimal),
    ("fractions", _write_fraction),
    ("datetime", _write_datetime),
    ("zoneinfo", _write_zone),
    ("uuid", _write_uuid),
    ("pathlib", _write_path),
)


def _read_decimal(codec: Codec, text: Any) -> Any:
    import decimal

    value = decimal.Decimal(expect(text, str))
    return value if codec.extreme is None or value.is_snan() else codec.extreme.changed(value)


def _read_fraction(codec: Codec, numerator: Any, denominator: Any) -> Any:
    import fractions

    return fractions.Fraction(expect(codec.decode(numerator), int), expect(codec.decode(denominator), int))


def _read_uuid(codec: Codec, text: Any) -> Any:
    import uuid

    return uuid.UUID(hex=expect(text, str))


def _read_path(codec: Codec, name: Any, text: Any) -> Any:
    import pathlib

    if name not in _PATHS:
        raise MalformedMessage("unknown kind of path")
    return getattr(pathlib, name)(expect(codec.decode(text), str))


def _read_timedelta(codec: Codec, days: Any, seconds: Any, microseconds: Any) -> Any:
    import datetime

    return datetime.timedelta(expect(days, int), expect(seconds, int), expect(microseconds, int))


def _read_date(codec: Codec, text: Any) -> Any:
    import datetime

    return datetime.date.fromisoformat(expect(text, str))


def _read_timezone(codec: Codec, offset: Any, name: Any) -> Any:
    import datetime

    delta = expect(codec.decode(offset), datetime.timedelta)
    zone = datetime.timezone(delta)
    label = expect(codec.decode(name), str)
    return zone if zone.tzname(None) == label else datetime.timezone(delta, label)


def _zone_of(codec: Codec, tree: Any) -> Any:
    zone = codec.decode(tree)
    if zone is not None and type(zone).__module__ not in ("datetime", "zoneinfo"):
        raise MalformedMessage("invalid time zone")
    return zone


def _read_datetime(codec: Codec, text: Any, fold: Any, zone: Any) -> Any:
    import datetime

    moment = datetime.datetime.fromisoformat(expect(text, str))
    return moment.replace(fold=expect(fold, int), tzinfo=_zone_of(codec, zone))


def _read_time(codec: Codec, text: Any, fold: Any, zone: Any) -> Any:
    import datetime

    moment = datetime.time.fromisoformat(expect(text, str))
    return moment.replace(fold=expect(fold, int), tzinfo=_zone_of(codec, zone))


def _read_zone(codec: Codec, key: Any) -> Any:
    import zoneinfo

    return zoneinfo.ZoneInfo(expect(key, str))


def _read_numpy(codec: Codec, kind: Any, data: Any) -> Any:
    import numpy as np

    dtype = numpy_type(kind)
    raw = from_base64(data)
    if len(raw) != dtype.itemsize:
        raise MalformedMessage("a numpy scalar of the wrong size")
    if not raw:
        return dtype.type()
    value = np.frombuffer(raw, dtype)
    return (value if codec.extreme is None else codec.extreme.changed_array(value))[0]


_READERS |= {
    "dec": _read_decimal,
    "fr": _read_fraction,
    "uuid": _read_uuid,
    "path": _read_path,
    "td": _read_timedelta,
    "date": _read_date,
    "tz": _read_timezone,
    "datetime": _read_datetime,
    "time": _read_time,
    "zone": _read_zone,
    "np": _read_numpy,
    "npt": lambda codec, kind: numpy_type(kind),
}


# Globals that both sides have under the same name

_HARMLESS_BUILTINS = frozenset(
    {
        "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "complex", "dict",
        "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "int", "isinstance",
        "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object", "oct", "ord", "pow", "print",
        "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
    }
)  # fmt: skip
_HARMLESS_MODULES = frozenset({"math", "cmath", "typing", "datetime", "decimal", "fractions", "string", "bisect"})
_HARMLESS_NAMES = frozenset(
    {
        *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple")),
        *(("itertools", name) for name in ("chain", "combinations", "count", "cycle", "permutations", "product")),
        *(("functools", name) for name in ("reduce", "partial", "cmp_to_key")),
        *(("operator", name) for name in ("add", "mul", "sub", "itemgetter")),
        ("copy", "deepcopy"),
        ("copy", "copy"),
        ("enum", "Enum"),
        ("abc", "ABC"),
        ("io", "StringIO"),
    }
)
_MODULES_OF_ERRORS = frozenset(
    {
        "asyncio.exceptions",
        "binascii",
        "concurrent.futures._base",
        "configparser",
        "copy",
        "csv",
        "dataclasses",
        "decimal",
        "json.decoder",
        "queue",
        "re",
        "sqlite3",
        "sre_constants",
        "statistics",
        "struct",
        "subprocess",
        "urllib.error",
        "xml.etree.ElementTree",
        "zipfile",
        "zlib",
        "zoneinfo._common",
    }
)
"""Globals that hidden tests may accept from a program by name: standard, without hidden behaviour, executing no
argument."""

_PUBLISHED = {"_io": "io", "_operator": "operator", "_bisect": "bisect", "_functools": "functools"}


def _global_to_tree(value: Any, *, everything: bool) -> Tree | None:
    """Return the tree of a function, class or typing form that both sides have; ``None`` if only this side has it."""
    if type(value) in _NAMED or isinstance(value, type):
        # Methods of builtin types, such as str.upper, have a type and no module.
        home = getattr(value, "__objclass__", value)
        module, name = getattr(home, "__module__", None), getattr(value, "__qualname__", None)
    elif type(value).__module__ == "typing":
        module, name = "typing", getattr(value, "_name", None)
    else:
        return None
    if type(module) is not str or type(name) is not str:
        return None
    module = _PUBLISHED.get(module, "collections" if name in ("OrderedDict", "defaultdict", "deque") else module)
    if module == "builtins" and name == "NoneType":
        return ["g", "types", "NoneType"]
    try:
        found = _global_from_tree(module, name, everything=everything)
    except (MalformedMessage, ImportError):
        return None
    return ["g", module, name] if found is value else None


_NAMED = (type(lambda: None), type(len), type(str.upper), type(object.__repr__))


def _global_from_tree(module: Any, name: Any, *, everything: bool) -> Any:
    expect(module, str)
    expect(name, str)
    if not everything and not _is_harmless(module, name):
        raise MalformedMessage(f"{module[:40]}.{name[:40]} by name")
    if module.split(".")[0] not in sys.stdlib_module_names | {"numpy"}:
        raise MalformedMessage(f"{module[:40]} by name")
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        if not hasattr(found, part):
            raise MalformedMessage(f"{module[:40]}.{name[:40]} by name")
        found = getattr(found, part)
    return found


def _is_harmless(module: str, name: str) -> bool:
    if module == "builtins":
        import builtins

        kind = getattr(builtins, name, None)
        return name in _HARMLESS_BUILTINS or (isinstance(kind, type) and issubclass(kind, BaseException))
    if (module, name) == ("types", "NoneType") or (module, name) in _HARMLESS_NAMES:
        return True
    if module == "numpy":
        return name.isidentifier() and isinstance(getattr(sys.modules.get("numpy", math), name, None), type)
    if module == "typing" and not name[:1].isupper():
        return False
    if module in _MODULES_OF_ERRORS and name.isidentifier():
        try:
            __import__(module)
        except ImportError:  # sqlite3 may be absent
            return False
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return True
    return module in _HARMLESS_MODULES and name.isidentifier() and not name.startswith("_")
