"""The rules of the test side for what the program may answer, and what it may request.

The program may be asked about an object, but never whether the object equals what the test expects. Comparisons of its
objects with plain values are decided here. Comparisons of two of its objects are made by their class, and accepted only
if the class also distinguishes other objects. Operators that would reveal an expected value to the program are allowed
only on objects that the test itself created.
"""

from __future__ import annotations

import builtins
import copy
import random
import sys
from typing import Any

from .argument_mutation import ArgumentMutator, altered_arguments, different_value
from .codec import Tree, Uncodable
from .files import Files
from .operations import BINARY, Operations
from .peer import Peer, Transport, is_simple
from .proxies import ARITHMETIC, ORDER, Constructed, Remote, RemoteType, Unsupported, link_of

_REFUSED_TYPES = frozenset({"module", "frame", "code", "traceback", "cell"})
_REFUSED_PACKAGES = frozenset({"_pytest", "pluggy", (__package__ or "inside").split(".")[0]})

_READABLE = frozenset({"__name__", "__qualname__", "__doc__"})
_FRAMES = frozenset({"gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code", "tb_frame", "tb_next"})
_METHODS_OF_PLAIN = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint"})
"""Methods that a test calls with what it expects."""

_MEASURING = frozenset({"sub", "rsub", *ORDER})
"""Operators with which a test measures the distance of a result from what it expects."""

_CHANGING = frozenset(
    {"call", "setattr", "delattr", "setitem", "delitem", "exit", *(f"i{name}" for name in ARITHMETIC)}
)
_OF_MOCKS = frozenset({"configure_mock", "attach_mock", "mock_add_spec", "reset_mock", "called"})


class GuardedPeer(Peer):
    """The test side.

    Args:
        transport: As in :class:`Peer`.
        served: Answers the program's requests.
        detached: Whether the program gets copies.
        mutation: The number of the request before which to change the arguments, and how to change them.
        alter: The number of the test's object to create from other values, and which of its values to change.
    """

    def __init__(
        self,
        transport: Transport,
        served: ObjectServer,
        *,
        detached: bool = False,
        mutation: tuple[int, str] | None = None,
        alter: tuple[int, str] | None = None,
    ) -> None:
        super().__init__(transport, served, first=0, guarded=True, detached=detached)
        self.served = served
        self.files: Files | None = None
        self._mutation, self._alter, self._detached = mutation, alter, detached
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._named: set[type] = set()
        self._num_requests = self._constructed = 0
        self.changing_calls: list[int] = []
        """Numbers of the requests during which the program changed data of the test."""
        self.mutation_changed_inputs = False
        self.believed_equalities: set[int] = set()
        """Objects created by the test for which the program's claim of equality with others was accepted."""

    def ask(self, operation: str, *operands: Any) -> Any:
        number, self._num_requests = self._num_requests, self._num_requests + 1
        if self._mutation is not None and number == self._mutation[0]:
            mutate = ArgumentMutator(self._mutation[1], self.served.test_module)
            mutate(operands)
            self.mutation_changed_inputs = mutate.changed
        if operation == "getattr" and operands[1] in _METHODS_OF_PLAIN and isinstance(operands[0], Remote):
            return self._of_plain(*operands)
        if self.files is not None and operation in ("call", "set module"):
            self.files.name(operands)
        before = self.heap.changed_by_other + self.served.changes
        try:
            result = super().ask(operation, *operands)
        finally:
            if self.heap.changed_by_other + self.served.changes != before and len(self.changing_calls) < 10_000:
                self.changing_calls.append(number)
        self._note_class(operation, operands, result)
        return result

    def _of_plain(self, target: Any, name: str) -> Any:
        """Answer such a method of a program's result on this side, because the program must not answer it."""
        link, plain = link_of(target), type(target)._rllm_facts.get("plain")
        if type(plain) is str:
            return getattr(self._contents(target, plain), name)
        if link is not None and link.owned and link.named:
            return super().ask("getattr", target, name)
        raise Unsupported(f"{name} of a {type(target).__name__} that the program returned", link)

    def _note_class(self, operation: str, operands: tuple[Any, ...], result: Any) -> None:
        # A class in place of a function is called for a result, which then is not an object created by the test.
        if operation == "module" and type(result) is tuple and len(result) == 2:
            name, found = operands[0], result[1]
        elif operation == "entry":
            name, found = operands[0][-1][0], result
        elif operation == "getattr":
            name, found = operands[1], result
        else:
            return
        if isinstance(found, RemoteType) and type(name) is str and name.lstrip("_")[:1].isupper():
            self._named.add(found)

    def construct(self, cls: RemoteType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number, self._constructed = self._constructed, self._constructed + 1
        if self._alter is not None and number == self._alter[0]:
            args, kwargs = altered_arguments(self._alter[1], args, kwargs)
        created = super().construct(cls, args, kwargs)
        link = link_of(created)
        if link is not None and type(created) is cls and link.received == 1 and not isinstance(created, tuple):
            link.owned, link.named = True, cls in self._named
            if is_simple((args, kwargs)):
                link.constructed = Constructed(number, cls, args, kwargs)
        return created

    def _proxy(self, number: Any, cls: Any, flavour: Any) -> Any:
        constructed = super()._proxy(number, cls, flavour)
        link = link_of(constructed)
        if link is not None and link.received > 1:
            link.owned = False
        return constructed

    def operate(self, operation: str, target: Any, *args: Any) -> Any:
        link = link_of(target)
        owned = link is not None and link.owned
        result = super().operate(operation, target, *args)
        if operation in ("iter", "next"):
            link.owned = owned
        elif operation in ("neg", "pos", "invert"):
            _own(result, *([link] if owned else []))
        return result

    # Answers of the program

    def equal(self, left: Any, right: object) -> Any:
        if left is right:
            return True
        plain = type(left)._rllm_facts.get("plain")
        if type(plain) is str:
            return self._contents(left, plain) == right
        link, other = link_of(left), link_of(right)
        if link is None or other is None or not isinstance(right, Remote):
            return NotImplemented
        if "__eq__" not in _methods(left) and "__eq__" not in _methods(right):
            return False
        if not self._compares_equal(
            left, right, [None, _random.randrange(10**6), _random.random(), "".join(_letters())]
        ):
            return False
        created = other.constructed or link.constructed
        if created is not None and (created.args or created.kwargs):
            self.believed_equalities.add(created.number)
        if other.constructed is not None:
            decoys = self._decoys(other.constructed)
        elif link.constructed is not None:
            decoys, left, right = self._decoys(link.constructed), right, left
        else:
            decoys = []
        return not decoys or self._compares_equal(left, right, decoys, all_of_them=True)

    def _compares_equal(self, left: Any, right: Any, unrelated: list[Any], *, all_of_them: bool = False) -> bool:
        """Return whether the class calls them equal, but none of the unrelated values. The order is shuffled."""
        candidates = [(item, False) for item in unrelated] + [(right, True)]
        _random.shuffle(candidates)
        answers = self.ask("equals", left, [item for item, _ in candidates])
        if type(answers) is not list or [type(item) for item in answers] != [bool] * len(candidates):
            raise self._break("a comparison must return True or False")
        if not next(answer for answer, (_, is_right) in zip(answers, candidates) if is_right):
            return False
        fooled = [answer for answer, (_, is_right) in zip(answers, candidates) if not is_right]
        if all(fooled) if all_of_them else any(fooled):
            raise self._break(f"objects of {type(left).__name__} are equal to whatever they are compared with")
        return True

    def _decoys(self, constructed: Constructed) -> list[Any]:
        """Return objects of a class created from other arguments than this one."""
        _, cls, args, kwargs = constructed
        decoys = []
        values = [*args, *kwargs.values()]
        for position in [*range(min(len(values), 4)), None, None]:
            changed = [
                different_value(value) if position in (index, None) else value for index, value in enumerate(values)
            ]
            if not changed:
                break
            try:
                decoy = self.ask("call", cls, tuple(changed[: len(args)]), dict(zip(kwargs, changed[len(args) :])))
            except Exception:
                continue
            if isinstance(decoy, Remote):
                decoys.append(decoy)
        return decoys

    def _contents(self, value: Any, base: str) -> Any:
        kinds = {"bool": int, "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes}
        kinds |= {"list": list, "dict": dict, "tuple": tuple, "set": set, "frozenset": frozenset}
        kind = kinds.get(base)
        link = link_of(value)
        if link is not None and link.contents is not None:
            return link.contents[0]
        contents = self.ask("contents", value, base)
        if type(contents) is not kind:
            raise self._break(f"a {type(contents).__name__} in place of a {base}")
        # Immutable content is requested once, so that it cannot differ between comparisons.
        if link is not None and base not in ("list", "dict", "set"):
            link.contents = (contents,)
        return contents

    def binary(self, operation: str, left: Any, right: Any, *modulo: Any) -> Any:
        link = link_of(left)
        if not isinstance(right, Remote) and (link is None or not link.owned):
            plain = type(left)._rllm_facts.get("plain")
            if type(plain) is str:
                return BINARY[operation](self._contents(left, plain), right, *modulo)
            what = f"{operation} of a {type(left).__name__} that the program returned and a {type(right).__name__}"
            self.unsupported.append(what)
            raise TypeError(f"unsupported operand types: {what}")
        links = [found for found in (link, link_of(right)) if found is not None and found.owned]
        plain_right = not isinstance(right, Remote)
        own = link is not None and link.constructed is not None and link.received == 1 and link.named
        if plain_right and operation in _MEASURING and not own:
            what = f"{operation} of a {type(left).__name__} that an operator made and a {type(right).__name__}"
            raise Unsupported(what, link)
        result = self.ask(operation, left, right, *modulo)
        for found in links:
            found.owned = True
        if plain_right and not own and not isinstance(result, Remote):
            what = (
                f"{operation} of a {type(left).__name__} and a {type(right).__name__} that is a {type(result).__name__}"
            )
            raise Unsupported(what, link)
        if operation not in ORDER:
            _own(result, *links)
        return result

    def contains(self, target: Any, item: Any) -> bool:
        link = link_of(target)
        if isinstance(item, Remote) or (link is not None and link.owned and link.named):
            return bool(self.ask("contains", target, item))
        if "__iter__" in _methods(target) or "__getitem__" in _methods(target):
            return any(entry is item or entry == item for entry in target)
        what = f"'in' for a {type(target).__name__} that the program returned and that cannot be iterated"
        self.unsupported.append(what)
        raise TypeError(what)

    # Requests of the program

    def object_to_tree(self, value: Any) -> Tree:
        if self._detached and not isinstance(value, type | BaseException) and self.served.is_own(value):
            held = self._copies.get(id(value))
            if held is None:
                held = self._copies[id(value)] = (value, _copied(value))
            value = held[1]
        return super().object_to_tree(value)

    def check_export(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__ == "builtins" and kind.__name__ in _REFUSED_TYPES:
            raise Uncodable(f"the test gives the program a {kind.__name__}")
        for base in (value if isinstance(value, type) else kind).__mro__:
            module = base.__module__
            if type(module) is str and (module == "unittest.case" or module.split(".")[0] in _REFUSED_PACKAGES):
                raise Uncodable(f"the test gives the program a {base.__name__} of {module}")


class ObjectServer:
    """The handler of the program's requests to objects that the test gave it: callbacks, helpers, files, mocks.

    Args:
        test_module: Name of the test's module. Attributes of objects of its classes may be set.
    """

    def __init__(self, test_module: str) -> None:
        self.test_module = test_module
        self.changes = 0
        """How often the program may have changed an object of the test."""
        self._operations = Operations()
        self.peer: GuardedPeer | None = None

    def __call__(self, operation: str, operands: list[Any]) -> Any:
        if operation.startswith("builtin ") and operation[8:] in patched_builtins():
            return getattr(builtins, operation[8:])(*operands[0], **operands[1])
        if self.peer is None or not operands or not self.peer.is_exported(operands[0]):
            raise TypeError(f"{operation} of something the test did not give")
        target = operands[0]
        if operation in ("getattr", "setattr", "delattr"):
            name = operands[1] if len(operands) > 1 else None
            if type(name) is not str:
                raise TypeError("an attribute's name must be text")
            self._check_name(target, name)
            if operation != "getattr":
                self._check_settable(target, name)
        if operation in _CHANGING and self.is_own(getattr(target, "__self__", target)):
            self.changes += 1
        return self._operations.do(operation, operands)

    def is_own(self, value: Any) -> bool:
        """Return whether the test may later check what the program did to this value."""
        return type(value).__module__ == self.test_module or isinstance(value, list | dict | set | bytearray)

    def _check_name(self, target: Any, name: str) -> None:
        private = name.startswith("__") and name.endswith("__") and name not in _READABLE
        if private or name in _FRAMES:
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {name[:100]!r}")
        if _is_mock(target) and (name in _OF_MOCKS or name.startswith(("assert_", "_mock"))):
            raise AttributeError(f"a mock's {name[:100]!r} is the test's")

    def _check_settable(self, target: Any, name: str) -> None:
        kind = type(target)
        if name.startswith("__") or isinstance(target, type) or kind.__module__ != self.test_module:
            raise AttributeError(f"{kind.__name__!r} object attribute {name[:100]!r} is read-only")


_random = random.SystemRandom()


_BUILTINS = {name: getattr(builtins, name) for name in ("input", "open", "print")}
_STDIN = sys.stdin


def patched_builtins() -> list[str]:
    """Return the builtins that the test has replaced, by a mock or by a file in place of standard input."""
    names = [name for name, function in _BUILTINS.items() if getattr(builtins, name) is not function]
    return names if sys.stdin is _STDIN or "input" in names else [*names, "input"]


def _letters() -> list[str]:
    return [chr(_random.randrange(97, 123)) for _ in range(8)]


def _methods(value: Any) -> list[str]:
    return type(value)._rllm_facts["methods"] if isinstance(type(value), RemoteType) else []


def _is_mock(value: Any) -> bool:
    return any(base.__module__ == "unittest.mock" for base in type(value).__mro__)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _own(result: Any, *sources: Any) -> None:
    """Mark the result of an operator on the test's objects as one of the test's objects."""
    link = link_of(result)
    if sources and link is not None and isinstance(result, Remote):
        link.owned, link.named = True, all(source.named for source in sources)
