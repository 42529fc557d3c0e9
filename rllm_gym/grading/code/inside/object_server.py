"""Answers the program's requests to objects of the test: what it may read, call and change, and what it changed."""

from __future__ import annotations

import builtins
import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .argument_mutation import different_value, is_alterable, is_data, plain_attributes
from .lazy_random import LazyRandom
from .operations import Operations
from .proxies import ARITHMETIC, NAMES, Remote

_READABLE = frozenset({"__name__", "__qualname__", "__doc__", "__annotations__", "__defaults__", "__kwdefaults__"})
_FRAMES = frozenset({"gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code", "tb_frame", "tb_next"})
_OTHER_VALUES = 4
_CHANGING = frozenset(
    {"call", "setattr", "delattr", "setitem", "delitem", "exit", *(f"i{name}" for name in ARITHMETIC)}
)
_OF_MOCKS = frozenset({"configure_mock", "attach_mock", "mock_add_spec", "reset_mock", "called", "call_args"})
_OF_MOCKS |= {"call_args_list", "call_count", "method_calls", "mock_calls"}
question_random = LazyRandom()
"""Decides what is asked of the program, and in which order."""


class ServedPeer(Protocol):
    """What an object server needs of the test side; see :class:`GuardedPeer`."""

    detached: bool
    vocabulary: Callable[[], Sequence[Any]]

    def is_exported(self, value: Any) -> bool: ...

    def equals_everything(self, value: Any) -> BaseException: ...


class ClassAttribute(NamedTuple):
    """An attribute of a class of the test that the program sets."""

    cls: type
    name: str


class ObjectServer:
    """The handler of the program's requests to objects that the test gave it: callbacks, helpers, files, mocks.

    Args:
        test_module: Name of the test's module. Attributes of objects of its classes may be set.
    """

    def __init__(self, test_module: str) -> None:
        self.test_module = test_module
        self.changed: list[Any] = []
        """Objects of the test that the program may have changed."""
        self.failed_assertions: dict[int, AssertionError] = {}
        """By function or generator of the test that the program called: the assertion that it failed last."""
        self.hides_failures = False
        """Whether the program does not learn of them."""
        self.decorated: frozenset[str] = frozenset()
        """Names of the test's classes to which it applies decorators. The program may define methods of them."""
        self.data_classes: Callable[[str], type | None] = lambda name: None
        """Returns a class of the test that only holds data, for programs that do not define it."""
        self._operations = Operations()
        self.peer: ServedPeer | None = None

    def __call__(self, operation: str, operands: list[Any]) -> Any:
        if operation.startswith("builtin ") and operation[8:] in patched_builtins():
            return getattr(builtins, operation[8:])(*operands[0], **operands[1])
        if operation == "test class" and operands and type(operands[0]) is str:
            return self.data_classes(operands[0])
        if operation in ("poll", "cancel"):
            return self._operations.do(operation, operands)
        if self.peer is None or not operands or not self._is_given(operands[0]):
            raise TypeError(f"{operation} of something the test did not give")
        target = operands[0]
        if operation in ("getattr", "setattr", "delattr"):
            name = operands[1] if len(operands) > 1 else None
            if type(name) is not str:
                raise TypeError("an attribute's name must be text")
            if operation == "setattr" and self._is_decorated(target):
                return self._define(target, name, operands[2])
            self._check_name(target, name)
            if operation != "getattr":
                self._check_settable(target, name)
                if self.is_own_class(target):
                    self.changed.append(ClassAttribute(target, name))
                    if self.peer.detached:
                        return None
        owner = getattr(target, "__self__", target)
        if operation in _CHANGING and self.is_own(owner):
            self.changed.append(owner)
        try:
            result = self._operations.do(operation, operands)
        except AssertionError as error:
            self.failed_assertions[id(owner)] = error
            if self.hides_failures:
                return None
            raise
        self.failed_assertions.pop(id(owner), None)  # of a function that is called again until it passes
        return result

    def _is_given(self, value: Any) -> bool:
        """Return whether the test gave this to the program. Named tuples are copied; their class is what it gave."""
        return self.peer is not None and self.peer.is_exported(type(value) if issubclass(type(value), tuple) else value)

    def is_own(self, value: Any) -> bool:
        """Return whether the test may later check what the program did to this value."""
        kind = type(value)
        return kind.__module__ == self.test_module or issubclass(kind, list | dict | set | bytearray) or is_data(value)

    def is_own_class(self, value: Any) -> bool:
        return isinstance(value, type) and value.__module__ == self.test_module

    def _is_decorated(self, target: Any) -> bool:
        return isinstance(target, type) and target.__module__ == self.test_module and target.__name__ in self.decorated

    def _define(self, cls: type, name: str, value: Any) -> None:
        """Set an attribute of a class that the test gives to a decorator of the program."""
        if name.startswith("__") and name.endswith("__") and name not in NAMES:
            raise AttributeError(f"type object {cls.__name__!r} attribute {name[:100]!r} is read-only")
        setattr(cls, name, _DefinedEquality(value, self) if name == "__eq__" and isinstance(value, Remote) else value)

    def check_equality(self, answers: Callable[[Any], Any], other: Any) -> Any:
        """Return what such a method answers; breaks off if it is the same for objects with other content.

        An attribute counts or does not: some of its values may not be equal to the true one and others not.
        """
        others: list[tuple[str, Any]] = [("", other)]
        for name, item in vars(other).items() if type(other).__module__ == self.test_module else ():
            for _ in range(_OTHER_VALUES if is_alterable(item) else 0):
                others.append((name, copy.copy(other)))
                vars(others[-1][1])[name] = different_value(item, self.peer.vocabulary if self.peer else tuple)
        question_random.shuffle(others)
        found: dict[str, list[Any]] = {}
        for name, item in others:
            found.setdefault(name, []).append(answers(item))
        (answer,) = found.pop("")
        if answer and found and self.peer is not None:
            alike = [len({bool(item) for item in items}) == 1 for items in found.values()]
            if not all(alike) or all(map(all, found.values())):
                raise self.peer.equals_everything(other)
        return answer

    def _check_name(self, target: Any, name: str) -> None:
        private = name.startswith("__") and name.endswith("__") and name not in _READABLE
        own = type(target).__module__ == self.test_module and not isinstance(target, type)
        if name == "__dict__" and (own or is_data(target)):
            return
        if private or name in _FRAMES:
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {name[:100]!r}")
        if _is_mock(target) and (name in _OF_MOCKS or name.startswith(("assert_", "_mock"))):
            raise AttributeError(f"a mock's {name[:100]!r} is the test's")

    def _check_settable(self, target: Any, name: str) -> None:
        kind = type(target)
        own_class = self.is_own_class(target) and not name.startswith("__")
        if own_class and (name not in dir(target) or name in plain_attributes(target)):
            return  # data; what the class does stays the test's
        own = kind.__module__ == self.test_module or is_data(target)
        if name.startswith("__") or isinstance(target, type) or not own:
            raise AttributeError(f"{kind.__name__!r} object attribute {name[:100]!r} is read-only")


class _DefinedEquality:
    """The ``__eq__`` that a decorator of the program gives a class of the test."""

    def __init__(self, function: Any, served: ObjectServer) -> None:
        self._function, self._served = function, served

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return (
            self
            if obj is None
            else lambda other: self._served.check_equality(lambda item: self._function(obj, item), other)
        )

    def __call__(self, obj: Any, other: Any) -> Any:
        return self.__get__(obj)(other)


_BUILTINS = {name: getattr(builtins, name) for name in ("input", "open", "print")}
STDIN = sys.stdin


def patched_builtins() -> list[str]:
    """Return the builtins that the test has replaced, by a mock or by a file in place of standard input."""
    names = [name for name, function in _BUILTINS.items() if getattr(builtins, name) is not function]
    return names if sys.stdin is STDIN or "input" in names else [*names, "input"]


def _is_mock(value: Any) -> bool:
    return any(base.__module__ == "unittest.mock" for base in type(value).__mro__)
