"""Stand-ins for objects of the other side: objects, classes, functions, generators, coroutines, exceptions.

Stand-ins of classes are classes, and stand-ins of their objects are instances of these, so that ``isinstance``,
``type`` and ``except`` work on this side. Operations on an object are forwarded to the other side; *comparisons* are
not.
"""

from __future__ import annotations

import functools
import sys
import types
from abc import ABCMeta
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .codec import MalformedMessage


class RemoteOperations(Protocol):
    """The operations that stand-ins request of the other side; :class:`Peer` implements them.

    Attributes:
        released: Numbers of deleted stand-ins, and how often each was received.
        unsupported: Features that the test needs and this grader does not support.
        ungradable: Why the test cannot be run, whatever the program.
        guarded: Whether the other side is untrusted.
    """

    guarded: bool

    released: list[tuple[int, int]]
    unsupported: list[str]
    ungradable: str

    def ask(self, operation: str, *operands: Any) -> Any: ...

    def check_cancelled(self, error: BaseException) -> None: ...

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def construct(self, cls: RemoteType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def close(self, generator: Any) -> None: ...

    def operate(self, operation: str, target: Any, *args: Any) -> Any: ...

    def signature(self, target: Any) -> Any: ...

    def code(self, target: Any) -> Any: ...

    def awaited(self, target: Any) -> Any: ...

    def equal(self, left: Any, right: object) -> Any: ...

    def expression(self, operation: str, left: Any, right: Any) -> Any: ...

    def binary(self, operation: str, left: Any, right: Any, *modulo: Any) -> Any: ...

    def contains(self, target: Any, item: Any) -> bool: ...


class Constructed(NamedTuple):
    """How this side created an object: its class and arguments."""

    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Link:
    """The link from a stand-in to its object on the other side, which may drop the object after the link is deleted."""

    __slots__ = (
        "answers",
        "born",
        "constructed",
        "contents",
        "lineage",
        "named",
        "number",
        "owned",
        "peer",
        "received",
        "receiver",
        "returned_by",
    )

    def __init__(self, peer: RemoteOperations, number: int) -> None:
        self.peer = peer
        self.number = number
        self.received = 0
        self.born = 0
        """How many requests were made before it was received first."""
        self.contents: tuple[Any] | None = None
        """The plain value of an object whose class derives from a plain type, once requested."""
        self.owned = False
        """Whether this side created the object, by calling a class or by an operator on such objects, and never
        received it as another result. Received objects are what a test checks."""
        self.named = False
        """Whether the class was accessed by its own name; the program may put a class in place of a function."""
        self.constructed: Constructed | None = None
        """The arguments it was created from, if this side called its class."""
        self.lineage: frozenset[int] = frozenset()
        """The requests of this side, with arguments that can be altered, on which the object depends."""
        self.answers = False
        """Whether it is what a class of the program answered to a comparison in place of True or False."""
        self.returned_by: list[tuple[int, list[int]]] = []
        """The last functions and classes that returned it when they were called, by number, and the requests on which
        their arguments depend; none from before the program got it as an argument."""
        self.receiver: Link | None = None
        """The link of the object whose method this is."""

    def __del__(self) -> None:
        if self.received and self.number:  # those of named tuples, which are copied, have no number
            self.peer.released.append((self.number, self.received))


class UnsupportedOperation(TypeError):
    """An operation that works within one process but not across two. Reported to the author of the test."""

    def __init__(self, what: str, link: Link | None) -> None:
        super().__init__(f"cannot be graded: {what}")
        if link is not None:
            link.peer.unsupported.append(what)


def link_of(value: Any) -> Any:
    """Return the link of a stand-in for an object or exception; ``None`` for anything else."""
    if isinstance(type(value), RemoteType):
        try:
            return object.__getattribute__(value, "_rllm_link")
        except AttributeError:
            return None
    return None


class RemoteType(type):
    """The metaclass of stand-ins for classes."""

    _rllm_class_link: Link | None
    _rllm_facts: dict[str, Any]
    _rllm_replaced: dict[str, Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        link = cls._rllm_class_link
        if link is None:
            raise TypeError(f"{cls.__name__} cannot be created here")
        if issubclass(cls, RemoteType) and len(args) == 3 and any(isinstance(base, RemoteType) for base in args[1]):
            return _derive(*args, kwargs)
        return link.peer.construct(cls, args, kwargs)

    @property
    def __mro__(cls) -> tuple[type, ...]:
        """The classes that the other side knows, not those of this module."""
        return _without_own(type.__dict__["__mro__"].__get__(cls))

    @property
    def __bases__(cls) -> tuple[type, ...]:  # type: ignore[override]
        return _without_own(type.__dict__["__bases__"].__get__(cls)) or (object,)

    def mro(cls) -> list[type]:
        return type.mro(cls) if type.__dict__["__mro__"].__get__(cls) is None else list(cls.__mro__)

    def __getattr__(cls, name: str) -> Any:
        link = cls._rllm_class_link
        if link is None or _is_private(name):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return link.peer.ask("getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        link = cls._rllm_class_link
        if link is not None and name in NAMES and not link.peer.guarded:
            link.peer.ask("setattr", cls, name, value)  # a decorator of the program, for a class of the test
            return
        if link is None or name.startswith("_abc_") or _is_private(name):
            type.__setattr__(cls, name, value)
            return
        if hasattr(cls, name):
            cls._rllm_replaced.setdefault(name, getattr(cls, name))
        link.peer.ask("setattr", cls, name, value)

    def __delattr__(cls, name: str) -> None:
        link = cls._rllm_class_link
        if link is None:
            type.__delattr__(cls, name)
        elif name in cls._rllm_replaced:
            # Patches look up the replaced object in __dict__, do not find it, and therefore undo themselves by
            # deleting.
            link.peer.ask("setattr", cls, name, cls._rllm_replaced.pop(name))
        else:
            link.peer.ask("delattr", cls, name)

    def __iter__(cls) -> Any:
        return _ask_type(cls, "iter")

    def __len__(cls) -> Any:
        return _ask_type(cls, "len")

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return _ask_type(cls, "getitem", key)

    def __contains__(cls, item: Any) -> bool:
        return any(item is member or item == member for member in _ask_type(cls, "iter"))

    def __dir__(cls) -> Any:
        return _ask_type(cls, "dir")

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        link = cls._rllm_class_link
        decides = link is not None and cls._rllm_facts.get("decides_instances") is True
        return decides and link_of(instance) is None and _ask_type(cls, "isinstance", instance) is True

    def __subclasscheck__(cls, other: type) -> bool:
        if type.__subclasscheck__(cls, other):
            return True
        decides = cls._rllm_class_link is not None and cls._rllm_facts.get("decides_instances") is True
        return decides and not isinstance(other, RemoteType) and _ask_type(cls, "issubclass", other) is True

    # Positional, because a class statement may have a keyword of any name.
    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any], /, **kwargs: Any) -> RemoteType:
        if "_rllm_facts" not in names:
            return _derive(name, bases, names, kwargs)
        return super().__new__(mcs, name, bases, names)

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], /, **kwargs: Any) -> None:
        super().__init__(name, bases, names)


def _without_own(classes: tuple[type, ...]) -> tuple[type, ...]:
    return tuple(cls for cls in classes if cls not in (_Attributes, Remote, RemoteExceptionMixin))


def _derive(name: str, bases: tuple[type, ...], names: dict[str, Any], kwargs: dict[str, Any]) -> RemoteType:
    """Create a class of this side that derives from one of the other side.

    The class is made there, with functions that call back. Its objects live there as well.
    """
    base = next(base for base in bases if isinstance(base, RemoteType))
    link = base._rllm_class_link
    if link is None or any(_is_local(item) for item in bases):
        what = f"class {name} derives from {base.__name__}, which the program defines, and from a class of the tests"
        if link is not None:
            link.peer.ungradable = link.peer.ungradable or what
        raise UnsupportedOperation(what, link)
    cell = names.pop("__classcell__", None)
    members = {key: _member(value) for key, value in names.items() if key not in ("__module__", "__qualname__")}
    created = link.peer.ask("subclass", name, bases, members, kwargs)
    if not isinstance(created, RemoteType):
        raise TypeError(f"{name} is not a class")
    if cell is not None:
        cell.cell_contents = created
    for cls in created.__mro__:
        if isinstance(cls, RemoteType) and cls._rllm_class_link is not None:
            for function in filter(_is_method_name, link.peer.ask("functions", cls)):
                special = function in NAMES
                if special and cls is created:
                    # Operators of its objects are those of stand-ins, also where super() finds those of its bases.
                    if function not in vars(cls) and not issubclass(cls, BaseException):
                        type.__setattr__(cls, function, _operator(function))
                elif function not in vars(cls) or (special and not issubclass(cls, BaseException)):
                    type.__setattr__(cls, function, _InheritedMethod(cls, function))
    return created


def _is_method_name(name: Any) -> bool:
    dunder = type(name) is str and name.startswith("__") and name.endswith("__")
    return type(name) is str and not name.startswith("_rllm") and (not dunder or name in NAMES or name == "__init__")


def _operator(name: str) -> Any:
    return _METHODS[name] if name in _METHODS else getattr(Remote, name)


def refresh(cls: RemoteType) -> RemoteType:
    """Learn the special methods that the other side added to a class."""
    link = cls._rllm_class_link
    if link is None:
        raise TypeError(f"{cls.__name__} is not a class of the program")
    methods, own_equality = link.peer.ask("special methods", cls)
    cls._rllm_facts.update(methods=[name for name in methods if type(name) is str], own_equality=own_equality is True)
    for name in cls._rllm_facts["methods"]:
        if name in _METHODS and name not in vars(cls):
            type.__setattr__(cls, name, _METHODS[name])
    return cls


def _is_local(cls: type) -> bool:
    """Return whether the other side has no such class."""
    return not isinstance(cls, RemoteType) and cls.__module__.split(".")[0] not in sys.stdlib_module_names


def _member(value: Any) -> tuple[Any, ...]:
    if isinstance(value, types.FunctionType):
        return "function", value
    if isinstance(value, classmethod | staticmethod):
        return type(value).__name__, value.__func__
    if isinstance(value, property):
        return "property", value.fget, value.fset, value.fdel
    return "value", value


class _InheritedMethod:
    """A method of a class of the other side that a class of this side overrides, found by ``super()``."""

    def __init__(self, cls: RemoteType, name: str) -> None:
        self._cls = cls
        self._name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        link = self._cls._rllm_class_link
        assert link is not None
        if obj is None:
            return link.peer.ask("getattr", owner, self._name)
        # The first class that has the method is asked through the object; the others are meant by super().
        first = next(cls for cls in type(obj).__mro__ if self._name in vars(cls))
        if first is self._cls and self._name in NAMES:
            return types.MethodType(_operator(self._name), obj)
        if first is self._cls:
            return link.peer.ask("getattr", obj, self._name)
        return link.peer.ask("super", self._cls, obj, self._name)


def _ask_type(cls: RemoteType, operation: str, *args: Any) -> Any:
    link = cls._rllm_class_link
    if link is None:
        raise TypeError(f"{cls.__name__} is not a class of the other process")
    return link.peer.ask(operation, cls, *args)


_VISIBLE = frozenset({"__dict__", "__wrapped__", "__annotations__", "__name__", "__qualname__", "__dataclass_fields__"})
_VISIBLE |= {"__defaults__", "__kwdefaults__", "__match_args__", "__abstractmethods__"}


def _is_private(name: str) -> bool:
    """Return whether the interpreter may look this name up itself. Such names are answered on this side."""
    return name.startswith("__") and name.endswith("__") and name not in _VISIBLE


_pickling: list[RemoteOperations] = []


def _restored(data: bytes) -> Any:
    """Restore an object of the other side that was pickled there, on that side."""
    return _pickling[0].ask("loads", data)


class _Attributes:
    """Forwards attribute access to the other side."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":
            return _link(self).peer.signature(self)
        if name == "__code__":
            return _link(self).peer.code(self)
        if name == "__doc__" or not _is_private(name):
            return _link(self).peer.ask("getattr", self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __copy__(self) -> Any:
        return _link(self).peer.ask("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return _link(self).peer.ask("deepcopy", self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        link = _link(self)
        _pickling[:] = [link.peer]
        return _restored, (link.peer.ask("dumps", self),)


def _link(value: Any) -> Link:
    found: Link | None = link_of(value)
    if found is None:
        raise AttributeError(f"{type(value).__name__!r} object was not created")
    return found


class Remote(_Attributes, metaclass=RemoteType):
    """A stand-in for an object of the other side."""

    # No annotations: stand-ins of functions would show them as theirs.
    __slots__ = ("__weakref__", "_rllm_link")
    _rllm_class_link = None
    _rllm_facts = dict[str, Any]()  # noqa: RUF012 - never changed

    def __setattr__(self, name: str, value: Any) -> None:
        _link(self).peer.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _link(self).peer.ask("delattr", self, name)

    def __str__(self) -> Any:
        return _link(self).peer.ask("str", self)

    def __repr__(self) -> Any:
        return _link(self).peer.ask("repr", self)

    def __format__(self, form: str) -> Any:
        return _link(self).peer.ask("format", self, form)

    def __dir__(self) -> Any:
        return _link(self).peer.ask("dir", self)

    def __eq__(self, other: object) -> Any:
        return _link(self).peer.equal(self, other)

    def __ne__(self, other: object) -> Any:
        peer = _link(self).peer
        answer = peer.equal(self, other)
        if isinstance(answer, Remote):
            return peer.expression("ne", self, other)
        return answer if answer is NotImplemented else not answer

    def __bool__(self) -> bool:
        link = _link(self)
        if link.answers or "__bool__" in type(self)._rllm_facts["methods"]:
            return link.peer.operate("bool", self) is True
        return "__len__" not in type(self)._rllm_facts["methods"] or len(self) > 0

    def __hash__(self) -> Any:
        link = _link(self)
        facts = type(self)._rllm_facts
        if "__hash__" not in facts["methods"] and "__eq__" not in facts["methods"]:
            return hash(("stand-in", link.number))
        return link.peer.ask("hash", self)


class RemoteExceptionMixin(_Attributes):
    """The mixin of stand-ins for exception classes."""

    _rllm_facts = dict[str, Any]()  # noqa: RUF012 - never changed

    def __str__(self) -> Any:
        if "__str__" in type(self)._rllm_facts["methods"]:
            return _link(self).peer.ask("str", self)
        return super().__str__()

    def __repr__(self) -> Any:
        return f"{type(self).__name__}({', '.join(map(repr, self.args))})"


# Methods that the interpreter looks up on a type

UNARY = [
    "len",
    "bool",
    "int",
    "float",
    "complex",
    "index",
    "iter",
    "next",
    "reversed",
    "neg",
    "pos",
    "abs",
    "invert",
    "round",
    "trunc",
    "floor",
    "ceil",
    "bytes",
    "fspath",
    "length_hint",
]
ARITHMETIC = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
]
ORDER = ["lt", "le", "gt", "ge"]
WITH_ARGUMENTS = ["call", "getitem", "setitem", "delitem", "enter", "exit", "get", "set", "delete", "set_name"]
AWAITED = ["aenter", "aexit", "anext"]

NAMES = frozenset(
    [f"__{name}__" for name in UNARY + ORDER + WITH_ARGUMENTS + AWAITED]
    + [f"__{prefix}{name}__" for name in ARITHMETIC for prefix in ("", "r", "i")]
    + ["__contains__", "__await__", "__aiter__", "__eq__", "__hash__", "__str__", "__repr__", "__format__"]
)


def defines_equality(cls: type) -> bool:
    """Return whether a class, or a base of it, defines ``__eq__`` in Python."""
    found = next((vars(base)["__eq__"] for base in cls.__mro__ if "__eq__" in vars(base)), None)
    return type(found) is not type(object.__eq__)


def methods_of(cls: type) -> list[str]:
    """Return the special methods of a class that its stand-in needs too; of a named tuple, those of its own."""
    found = set()
    copied = issubclass(cls, tuple) and hasattr(cls, "_fields")
    for base in cls.__mro__:
        if base not in (object, BaseException, Exception) and not (copied and base is tuple):
            found |= {
                name
                for name, item in vars(base).items()
                if name in NAMES
                and item is not None
                and not (copied and getattr(item, "__module__", "") == "collections")
            }
    return sorted(found)


def _unary(operation: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return _link(self).peer.operate(operation, self, *args)

    return method


def _with_arguments(operation: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        peer = _link(self).peer
        if operation == "call":
            return peer.call(self, args, kwargs)
        # At the end of a with block only the exception is sent: it determines its class, and its traceback stays here.
        return peer.ask(operation, self, *(args[1:2] if operation == "exit" else args))

    return method


def _binary(operation: str) -> Callable[..., Any]:
    def method(self: Any, other: Any, *modulo: Any) -> Any:
        return _link(self).peer.binary(operation, self, other, *modulo)

    return method


def _contains(self: Any, item: Any) -> bool:
    return _link(self).peer.contains(self, item)


def _await(self: Any) -> Any:
    return _link(self).peer.awaited(self).__await__()


def _aiter(self: Any) -> Any:
    return _link(self).peer.ask("aiter", self)


def _awaited(operation: str) -> Callable[..., Any]:
    async def method(self: Any, *args: Any) -> Any:
        return _link(self).peer.ask(f"await_{operation}", self, *(args[1:2] if operation == "aexit" else args))

    return method


_PLAIN: dict[Any, type] = {
    kind.__name__: kind for kind in (int, float, complex, str, bytes, list, dict, tuple, set, frozenset)
}

_METHODS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": _unary(name) for name in UNARY},
    **{f"__{name}__": _with_arguments(name) for name in WITH_ARGUMENTS},
    **{f"__{name}__": _binary(name) for name in ORDER},
    **{f"__{prefix}{name}__": _binary(f"{prefix}{name}") for name in ARITHMETIC for prefix in ("", "r", "i")},
    **{f"__{name}__": _awaited(name) for name in AWAITED},
    "__contains__": _contains,
    "__await__": _await,
    "__aiter__": _aiter,
}


_OF_NAMED_TUPLES = frozenset(
    f"__{name}__"
    for name in (
        *(f"{prefix}{name}" for name in ARITHMETIC for prefix in ("", "r", "i")),
        *("abs", "bool", "ceil", "complex", "float", "floor", "index", "int", "invert", "neg", "pos", "round", "trunc"),
        *("call", "contains", "enter", "exit", "format", "repr", "str"),
    )
)
"""Special methods of named tuples that are forwarded. They are compared, and iterated, as tuples."""


_NOT_SHOWN = frozenset(
    {"asyncio", "_asyncio", "concurrent", "numbers", "decimal", "_decimal", "fractions", "datetime", "typing"}
)
"""Modules that treat objects of their own classes as theirs alone, or whose objects are copied."""

_TYPE_EXPRESSIONS = frozenset({("types", "UnionType"), ("types", "GenericAlias")})
"""Classes whose objects ``typing`` treats in the same way: ``float | None``, ``list[int]``."""


def library_class(facts: dict[str, Any]) -> type | None:
    """Return the class of the standard library that a stand-in stands for; ``None`` if it is another, or not loaded."""
    module, name = facts["module"], facts["name"]
    if (module, name) == ("builtins", "mappingproxy"):
        return types.MappingProxyType
    root = module.split(".")[0]
    if root not in sys.stdlib_module_names or root in _NOT_SHOWN or (module, name) in _TYPE_EXPRESSIONS:
        return None
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and found.__module__ == module != "builtins" else None


_registered = set[type]()


def _shown_class(value: Any) -> type:
    """Return what ``isinstance(value, Namespace)`` asks for after the type, when it asks: modules are loaded later.

    An object of the standard library shows its class, and the class of another one is registered with the abstract
    classes that it derives from.
    """
    kind: Any = type(value)
    found = library_class(kind._rllm_facts)
    if found is None and kind not in _registered:
        _registered.add(kind)
        for base in kind.__mro__:
            facts = base._rllm_facts if isinstance(base, RemoteType) else {}
            abstract = library_class(facts) if facts else None
            if type(abstract) is ABCMeta:
                ABCMeta.register(abstract, kind)
    if found is None and any(map(_is_enum, kind.__mro__)):
        return _shown_enum(kind.__name__, _PLAIN.get(kind._rllm_facts["plain"]))
    return found or kind


def _is_enum(cls: Any) -> bool:
    enum = sys.modules.get("enum")
    found = library_class(cls._rllm_facts) if isinstance(cls, RemoteType) else None
    return enum is not None and found is not None and issubclass(found, enum.Enum)


@functools.cache
def _shown_enum(name: str, plain: type | None) -> type:
    """Return a class for ``isinstance(value, Enum)``: enumerations are not abstract classes."""
    import enum

    found: type = types.new_class(name, (enum.Enum,) if plain is None else (plain, enum.Enum))
    return found


def field_names(cls: type) -> list[str] | None:
    """Return the names of the fields of a data class; ``None`` for other classes."""
    dataclasses = sys.modules.get("dataclasses")
    if dataclasses is None or not dataclasses.is_dataclass(cls):
        return None
    return [item.name for item in dataclasses.fields(cls)]


class _Forwarded:
    """An attribute of a class of the other side, for code that looks for it in the class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        peer = _link(obj).peer if obj is not None else owner._rllm_class_link.peer
        return peer.ask("getattr", owner if obj is None else obj, self._name)


class _Documentation:
    """The documentation of a class, and that of its objects: functions and descriptors have their own."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        link = link_of(obj)
        return self._text if link is None else link.peer.ask("getattr", obj, "__doc__")


def make_class(
    facts: dict[str, Any], bases: tuple[type, ...], link: Link, metaclass: type[RemoteType] = RemoteType
) -> RemoteType:
    """Create the stand-in for a class of the other side.

    Args:
        facts: ``name``, ``module``, ``doc``, ``methods`` (special ones), ``fields`` of a named tuple.
        bases: Stand-ins of its bases, including builtin exceptions.
        link: The link to the class.
        metaclass: The stand-in for the class's own class, if the other side defines that.
    """
    names: dict[str, Any] = {
        "__module__": facts["module"],
        "__qualname__": facts["name"],
        "__doc__": _Documentation(facts["doc"]),
        "_rllm_class_link": None,
        "_rllm_facts": facts,
        "_rllm_replaced": {},
    }
    if not link.peer.guarded:
        names |= {name: _Forwarded(name) for name in facts["names"]}
        if facts["data_fields"] is not None:
            import dataclasses

            # For is_dataclass(), fields() and asdict() of the program.
            made = dataclasses.make_dataclass(facts["name"], facts["data_fields"])
            names["__dataclass_fields__"] = vars(made)["__dataclass_fields__"]
    if not any(issubclass(base, BaseException) for base in bases) and (bases or facts["module"] != "solution"):
        names["__class__"] = property(_shown_class)
    if facts["is_metaclass"] is True:
        bases = (*(base for base in bases if issubclass(base, RemoteType)), RemoteType)
    elif facts["fields"] is not None:
        bases = (_Attributes, namedtuple(facts["name"], facts["fields"]))
        names |= {name: _operator(name) for name in facts["methods"] if name in _OF_NAMED_TUPLES}
        names["_rllm_link"] = Link(link.peer, 0)  # of those that the test makes of another one
    elif any(issubclass(base, BaseException) for base in bases):
        mixed = () if any(issubclass(base, RemoteExceptionMixin) for base in bases) else (RemoteExceptionMixin,)
        bases = (*mixed, *(base for base in bases if issubclass(base, BaseException)))
        names["__hash__"] = BaseException.__hash__
    else:
        names |= {name: _METHODS[name] for name in facts["methods"] if name in _METHODS}
        plain = _PLAIN.get(facts["plain"])
        if plain is not None and not any(map(_is_enum, bases)):
            # isinstance(value, str) asks for it, after the type.
            shown = type(facts["name"], (plain,), {"__module__": facts["module"]})
            names["__class__"] = property(lambda self: shown)
        names["__slots__"] = ()
        bases = bases or (Remote,)
    try:
        created = RemoteType.__new__(metaclass, facts["name"], bases, names)
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"class {facts['name'][:40]!r} cannot be recreated: {error}") from error
    type.__setattr__(created, "_rllm_class_link", link)
    return created
