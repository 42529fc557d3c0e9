"""The rules of the test side for what the program may answer.

The program may be asked about an object, but never whether the object equals what the test expects. Comparisons of its
objects with plain values are decided here. Comparisons of two of its objects are made by their class, and accepted only
if the class also distinguishes other objects. Operators that would reveal an expected value to the program are allowed
only on objects that the test itself created.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .argument_mutation import (
    ArgumentMutator,
    altered_operands,
    different_value,
    is_alterable,
    plain_attributes,
)
from .changed_data import GivenData, content_of, equal_to, restored
from .codec import ForbiddenType, Tree
from .extreme_numbers import ExtremeNumbers
from .files import Files
from .object_server import STDIN, ClassAttribute, ObjectServer
from .object_server import question_random as _random
from .operations import BINARY, UNARY
from .peer import Peer, Transport, is_simple
from .proxies import ARITHMETIC, ORDER, Constructed, Link, Remote, RemoteType, UnsupportedOperation, link_of

_REFUSED_TYPES = frozenset({"module", "frame", "code", "traceback", "cell"})
_REFUSED_PACKAGES = frozenset({"_pytest", "pluggy", (__package__ or "inside").split(".")[0]})

_METHODS_OF_PLAIN = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint"})
"""Methods that a test calls with what it expects."""

_MEASURING = frozenset({"sub", "rsub", "xor", "rxor", *ORDER})
"""Operators with which a test measures the distance of a result from what it expects."""

_NUMBERS = frozenset({"bool", "int", "float", "complex"})
_IN_PLACE = frozenset({"setattr", "delattr", "setitem", "delitem", *(f"i{name}" for name in ARITHMETIC)})
_NO_VALUES = frozenset({"equals", "contents", "module", "entry", "names", "load", "set module", "patch", "unpatch"})
_NO_VALUES |= {"subclass", "functions"}
"""Requests whose operands are not arguments of the test."""
_EXITS = frozenset({"exit", "await_aexit"})
_MAX_LINEAGE = 200
_MAX_ROUNDS = 4
_RAISED = object()
_MAX_EQUALITIES = 1000
_MAX_ORDERS = 20
_FEW_BYTES, _FEW_AT_ONCE = 1 << 20, 1 << 14
"""How much the program may have sent, in all and in a message, if the size of what the test sends is the test's own."""
_LARGE_NUMBER = re.compile(rb'\d{4}|\de|"i"')
_PIPES = frozenset({"or", "ror", "rshift", "rrshift", "lshift", "rlshift", "matmul", "rmatmul"})
"""Operators that no test applies to what it expects, to measure a distance."""


class GuardedPeer(Peer):
    """The test side.

    Args:
        transport: As in :class:`Peer`.
        served: Answers the program's requests.
        detached: Whether the program gets copies.
        returned: The number of a request, and what the test gets from it instead of a container that it was given: a
            ``"copy"``, or ``"other"`` values that are equal to it; instead of a number, an equal or another ``float``.
        mutation: The number of the request before which to change the arguments, how to change them, and whether to
            change everything that the program was ever given.
        alter: The number of a request to make with other arguments, which of them to change, and which equality
            matters then: the requests on which one of the two objects depends, and the other does not.
        probe: Whether to make objects like those of the test, and to ask about these too. Classes that count their
            objects notice it, so the tests need not pass then.
        extreme: How to change infinite and undefined numbers of the program, see :class:`ExtremeNumbers`.
    """

    def __init__(
        self,
        transport: Transport,
        served: ObjectServer,
        *,
        detached: bool = False,
        returned: tuple[int, str] | None = None,
        mutation: tuple[int, str, bool] | None = None,
        alter: tuple[int, str, list[int]] | None = None,
        probe: bool = False,
        extreme: str = "",
    ) -> None:
        super().__init__(transport, served, first=0, guarded=True, detached=detached)
        self.extreme = self._codec.extreme = ExtremeNumbers(extreme)
        self._probe = probe
        self.served = served
        self.files: Files | None = None
        self._mutation, self._alter, self.detached, self._returned = mutation, alter, detached, returned
        self._altered: tuple[Any, ...] = ()
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._started: dict[int, int] = {}
        self._mutator: ArgumentMutator | None = None
        self._entered: dict[int, dict[Any, Any]] = {}
        self._stdin: Any = STDIN
        self._named: set[type] = set()
        self._num_requests = self._unnumbered = self._depth = self._bytes_received = 0
        self._constants: dict[tuple[int, str, str], tuple[Any, Any]] = {}
        """By number of a class or object of the program, ``getattr`` or ``getitem``, and name: the object, which keeps
        its number while it is referred to, and what it answered before the tests."""
        self.orders = 0
        """How many comparisons by order of two objects of the program there were."""
        self.claims: dict[str, bool] = {}
        """By comparison of two objects of the program: whether it was always true. See :meth:`_note_claim`."""
        self.probed_orders: list[bool] = []
        """For each order that was probed: whether it shows nothing but which object was made first."""
        self.changing_calls: list[tuple[int, str]] = []
        """The requests during which the program changed data of the test: the number, and how: ``"in_place"``, its
        arguments as functions do that change them in place; ``"returned"``, in this way, and it returns one;
        ``"levelled"``, in one of these ways, but it emptied one or made its elements equal; ``"rearranged"``, only
        their order, and it returns a number;
        ``"direct"``, its arguments otherwise; ``"delayed"``, other data."""
        self.mutation_changed_inputs = False
        self.mutation_result = ""
        """The content of the changed arguments after the request before which they were mutated, or its result if it
        only rearranged them."""
        self.believed_equalities: list[tuple[list[int], list[int]]] = []
        """Comparisons in which the program's claim of equality was accepted: the requests on which one of the two
        objects depends, and the other does not; and those on which both depend."""
        self.same_objects: list[tuple[list[int], list[int]]] = []
        """For each object that two functions or classes returned, and that a test found to be the same: the requests
        on which the arguments of the first depend, and those of the second."""
        self.measured: list[tuple[int, list[int], bool]] = []
        """Operations between an object of the program and a plain value, which may be what the test expects: the number
        of the request, those on which the object depends, and whether most other values may have the same answer, such
        as yes or no."""
        self.altered_equality: bool | None = None
        """The answer of the equality that was named in ``alter``; ``None`` if it was not reached."""
        self.altered_refused = False
        """Whether the program raised an exception for the altered arguments."""
        self.altered_to_same = False
        """Whether both of its objects were made from the same arguments then: that they are equal shows nothing."""
        self.test_text = ""
        self.vocabulary: Callable[[], Sequence[Any]] = tuple
        """Returns the constants of the test."""

    def _received(self) -> tuple[bool, bytes]:
        question, data = super()._received()
        self._bytes_received += len(data)
        self.large_answers = (
            self.large_answers
            or self._bytes_received > _FEW_BYTES
            or len(data) > _FEW_AT_ONCE
            or _LARGE_NUMBER.search(data) is not None
        )
        return question, data

    def check_cancelled(self, error: BaseException) -> None:
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not isinstance(error, asyncio.CancelledError) or "CancelledError" in self.test_text:
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:  # outside of an event loop
            task = None
        if task is None or not task.cancelling():
            raise RuntimeError("the program cancelled what the test awaits") from None

    def fix_constant(self, owner: Any, operation: str, name: str) -> None:
        """Let an attribute or item of an object of the program never be what the program returned elsewhere."""
        self._constants[(_number_of(owner), operation, name)] = (owner, self.ask(operation, owner, name))

    def in_context(self) -> bool:
        """Return whether the test is in a ``with`` block of the program."""
        return bool(self._entered)

    def ask(self, operation: str, *operands: Any) -> Any:
        self._depth += 1
        try:
            return self._ask(operation, operands)
        finally:
            self._depth -= 1

    def _ask(self, operation: str, operands: tuple[Any, ...]) -> Any:
        # Requests that decide a comparison have no number: how many there are may differ from run to run.
        number = -1 if self._unnumbered else self._num_requests
        if operation in ("poll", "cancel"):
            # How many of these there are depends on time: what they change, the request that started the work changes.
            number = self._started.get(operands[0], -1)
        else:
            self._num_requests += not self._unnumbered
        mutate = None
        polled = operation in ("poll", "cancel")
        if self._mutation is not None and number == self._mutation[0] and not polled:
            consistent = _random.randrange(1 << 62) if number == 0 else None
            mutate = self._mutator = ArgumentMutator(self._mutation[1], self.served.test_module, consistent)
            mutate(operands)
            if self._mutation[2]:
                self.heap.on_new = mutate
                for value in [*self.heap.own(), *(entry[0] for entry in self._exports.values())]:
                    mutate(value)
            self.mutation_changed_inputs = bool(mutate.changed) and not self._mutation[2]
        if self._alter is not None and number == self._alter[0] and not polled:
            operands = self._altered = altered_operands(self._alter[1], operation, operands, self.vocabulary)
        if operation == "getattr" and operands[1] in _METHODS_OF_PLAIN and isinstance(operands[0], Remote):
            return self._of_plain(*operands)
        if self.files is not None and operation in ("call", "set module"):
            self.files.name(operands)
        if self._depth == 1 and sys.stdin is not self._stdin and not type(sys.stdin).__module__.startswith("_pytest"):
            self._stdin = sys.stdin
            original = sys.stdin is STDIN
            super().ask("unpatch" if original else "patch", "sys", [], "stdin", *([] if original else [sys.stdin]))
        failed = operands[-1] if operation in _EXITS and isinstance(operands[-1], AssertionError) else None
        if failed is not None and self.served.hides_failures:
            return False
        if operation == "enter":
            self._entered[id(operands[0])] = self.heap.snapshots() | self._class_data()
        lists, objects = len(self.heap.changed_by_other), len(self.served.changed)
        received = GivenData(operands, self.served) if operation == "call" and len(operands) == 3 else None
        result: Any = _RAISED
        try:
            result = super().ask(operation, *operands)
        except Exception:
            self.altered_refused |= self._alter is not None and number == self._alter[0] and not polled
            raise
        finally:
            changed, touched = self.heap.changed_by_other[lists:], self.served.changed[objects:]
            if operation == "exit":
                # A context manager that restores what was there when it was entered makes nothing easier.
                before = self._entered.pop(id(operands[0]), {})
                changed = [item for item in changed if not restored(item[0], before.get(id(item[0])))]
                now = self._class_data()
                touched = [
                    item for item in touched if type(item) is not ClassAttribute or now.get(item) != before.get(item)
                ]
            if (changed or touched) and len(self.changing_calls) < 10_000:
                how = "delayed" if received is None else received.kind_of_change(changed, touched, result)
                self.changing_calls.append((number, how))
                if mutate is not None:
                    content = repr(result) if how == "rearranged" else content_of([obj for obj, _ in changed])
                    self.mutation_result = content[:1000]
            if self._mutator is not None and self._mutation is not None and self._mutation[2]:
                # Of all that the program was ever given, only what it changes from now on matters.
                items = {id(item) for item in [*(obj for obj, _ in changed), *touched]}
                names = {(id(item.cls), item.name) for item in touched if type(item) is ClassAttribute}
                self.mutation_changed_inputs |= not self._mutator.changed.isdisjoint(items | names)
            if self._depth == 1:
                self.heap.changed_by_other.clear()
                self.served.changed.clear()
        if failed is not None and result:
            self.served.failed_assertions[id(failed)] = failed
        if operation == "start" and type(result) is tuple and type(result[0]) is int:
            self._started[result[0]] = number
        self._note_class(operation, operands, result)
        if self._constants:
            self._check_constant(operation, operands, result)
        if operands and number >= 0 and not polled and operation not in _NO_VALUES:
            self._note_lineage(number, operation, operands, result)
            if operation == "call":
                self._note_return(number, operands, result)
        if self._returned is not None and number == self._returned[0] and received:
            return self._replaced(result, received, self._returned[1])
        return result

    def _check_constant(self, operation: str, operands: tuple[Any, ...], result: Any) -> None:
        if operation in ("getattr", "getitem") and type(operands[1]) is str:
            key = (_number_of(operands[0]), operation, operands[1])
            link = link_of(result)
            # What is no object of the program is compared by its value, and settings may change. A new object is made
            # by a property, and equal to nothing that the test got before.
            known = link is not None and link.received > 1
            if key in self._constants and known and result is not self._constants[key][1]:
                raise self._break(f"{operands[1]} is one object before the tests and another one later")
        elif operation in ("setattr", "delattr"):
            self._constants.pop((_number_of(operands[0]), "getattr", operands[1]), None)

    @staticmethod
    def _replaced(result: Any, received: GivenData, how: str) -> Any:
        if type(result) in (int, float):
            return float(result if how == "copy" else different_value(result))
        if received.returns(result):
            return copy.copy(result) if how == "copy" else equal_to(result, different_value(result))
        return result

    def _class_data(self) -> dict[ClassAttribute, Any]:
        """Return the data in classes of the test that the program was given, as texts."""
        classes = [cls for cls, _ in self._exports.values() if self.served.is_own_class(cls)]
        return {
            ClassAttribute(cls, name): repr(item) for cls in classes for name, item in plain_attributes(cls).items()
        }

    def _note_return(self, number: int, operands: tuple[Any, ...], result: Any) -> None:
        """Record which function or class of the program returned an object."""
        called, *arguments = operands
        requests: set[int] = set()
        for link in _links(arguments):
            requests |= link.lineage
            link.returned_by.clear()
        link, owner = link_of(result), link_of(called)
        if link is None or link is owner or (owner is not None and owner.receiver is not None):
            return
        if any(map(is_alterable, [*arguments[0], *arguments[1].values()])):
            requests.add(number)
        link.returned_by[:] = [*link.returned_by[-1:], (_number_of(called), sorted(requests)[-20:])]

    def _note_lineage(self, number: int, operation: str, operands: tuple[Any, ...], result: Any) -> None:
        """Record which requests the objects of the program depend on."""
        target = link_of(operands[0])
        receiver = target.receiver if target is not None and operation == "call" else None
        receiver = target if operation in _IN_PLACE else receiver
        results = [link for link in _links(result) if link is not target and link.born > number]
        if receiver is None and not results:
            return
        found = frozenset().union(*(link.lineage for link in _links(operands)))
        if operation == "getattr":
            for link in results:
                link.receiver = target
        elif operation == "call":
            found |= {number} if any(map(is_alterable, [*operands[1], *operands[2].values()])) else set()
        elif any(map(is_alterable, operands[1:])):
            found |= {number}
        for link in results if receiver is None else [*results, receiver]:
            if len(link.lineage) < _MAX_LINEAGE:
                link.lineage |= found

    def _of_plain(self, target: Any, name: str) -> Any:
        """Answer such a method of a program's result on this side, because the program must not answer it."""
        link, plain = link_of(target), type(target)._rllm_facts.get("plain")
        if type(plain) is str:
            return getattr(self._contents(target, plain), name)
        if link is not None and link.owned and link.named:
            return super().ask("getattr", target, name)
        raise UnsupportedOperation(f"{name} of a {type(target).__name__} that the program returned", link)

    def _note_class(self, operation: str, operands: tuple[Any, ...], result: Any) -> None:
        # A class in place of a function is called for a result, which then is not an object created by the test.
        if operation == "subclass":
            self._named.add(result)
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
        before = self._num_requests
        if self._probe and {"__eq__", "__lt__", "__gt__", "__le__", "__ge__"} & set(cls._rllm_facts["methods"]):
            # So that objects are not made, nor contents seen, in the order of the test.
            self._decoys(Constructed(cls, args, kwargs), most=_random.randrange(3))
        self._altered = ()
        created = super().construct(cls, args, kwargs)
        if self._altered:
            _, args, kwargs = self._altered
        link = link_of(created)
        if link is not None and type(created) is cls and link.born > before:
            link.named = cls in self._named
            # An object of a class that the test derived is received by the test's own ``__init__`` too.
            link.owned = link.received == 1
            if any(map(is_alterable, [*args, *kwargs.values()])):
                link.constructed = Constructed(cls, args, kwargs)
        return created

    def _proxy(self, number: Any, cls: Any, flavour: Any) -> Any:
        constructed = super()._proxy(number, cls, flavour)
        link = link_of(constructed)
        if link is not None and link.received == 1:
            link.born = self._num_requests
        elif link is not None:
            link.owned = False
        return constructed

    def _named_tuple(self, cls: Any, trees: Any) -> Any:
        created = super()._named_tuple(cls, trees)
        link = link_of(created)
        if link is not None:
            link.born = self._num_requests
        return created

    def operate(self, operation: str, target: Any, *args: Any) -> Any:
        link = link_of(target)
        owned = link is not None and link.owned
        facts = type(target)._rllm_facts
        if operation == "len":
            return self._length(target)
        if operation in UNARY and facts.get("plain") in _NUMBERS and type(target) not in self._named:
            # Of a result, what a test compares and the tolerance it derives from it must be of one number.
            return UNARY[operation](self._contents(target, facts["plain"]), *args)
        result = super().operate(operation, target, *args)
        if operation in ("iter", "next"):
            link.owned = owned
        elif operation == "bool" and link is not None and link.answers:
            raise self._break(f"the answer of {type(target).__name__} to a comparison is neither True nor False")
        elif operation == "bool" and not owned:
            # What is true for one assertion may not be false for the next, so that guessing their order is of no use.
            self._unnumbered += 1
            if any(
                super(GuardedPeer, self).operate(operation, target) is not result
                for _ in range(_random.randrange(1, 4))
            ):
                raise self._break(f"the truth of a {type(target).__name__} changes when it is asked for")
            self._unnumbered -= 1
        elif operation in ("neg", "pos", "invert"):
            _own(result, *([link] if owned else []))
        return result

    def _length(self, target: Any) -> int:
        """Return the length of an object, which may not be another one for each assertion about it."""
        lengths = self.ask("lengths", target, _random.randrange(2, 5))
        if type(lengths) is not list or not all(type(length) is int for length in lengths):
            raise self._break("a length must be an integer")
        if len(set(lengths)) != 1:
            raise self._break(f"the length of a {type(target).__name__} changes when it is asked for")
        return int(lengths[0])

    # Answers of the program

    def note_same(self, value: Any) -> None:
        """Record that the test found an object to be the same as itself, if two functions or classes returned it."""
        link = link_of(value)
        if link is None or len(link.returned_by) < 2 or len(self.same_objects) >= _MAX_EQUALITIES:
            return
        (first, left), (second, right) = link.returned_by
        if first != second and left and right and (left, right) not in self.same_objects:
            self.same_objects.append((left, right))

    def equal(self, left: Any, right: object) -> Any:
        if left is right:
            self.note_same(left)
            return True
        self._unnumbered += 1
        try:
            answer = self._equal(left, right)
        finally:
            self._unnumbered -= 1
        if self._alter is not None and self._requests_of(left, right) == self._alter[2]:
            self.altered_to_same |= _same_arguments(left, right)
            self.altered_equality = answer is True and self.altered_equality is not False
        return answer

    def allowed_bases(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        """Return the bases of a class of the program; those that make an exception of all kinds that a test expects
        are replaced.
        """
        found = {base for item in bases for base in item.__mro__ if not isinstance(base, RemoteType)}
        ends = [base for base in found if not any(base is not other and issubclass(other, base) for other in found)]
        expected = [base for base in ends if re.search(rf"\b{base.__name__}\b", self.test_text)]
        return (Exception,) if len(ends) > 2 or len(expected) > 1 else bases

    @property
    def num_requests(self) -> int:
        """How many numbered requests the tests have made."""
        return self._num_requests

    def _requests_of(self, left: Any, right: object) -> list[int]:
        """Return the requests on which one of two objects depends, and the other does not."""
        link, other = link_of(left), link_of(right)
        lineage: frozenset[int] = frozenset() if link is None else link.lineage
        return sorted(lineage if other is None else lineage ^ other.lineage)[-20:]

    def _equal(self, left: Any, right: object) -> Any:
        facts = type(left)._rllm_facts
        link, other = link_of(left), link_of(right)
        plain = facts.get("plain")
        if link is None:
            return NotImplemented
        content = _LIBRARY_CONTENT.get((facts["module"], facts["name"]))
        if content is not None and (type(right) is type(left) or isinstance(right, _comparable(left))):
            return content(left) == content(right)
        if not isinstance(right, Remote):
            # A class that the test names may define when its objects equal numbers or lists.
            own = facts.get("own_equality") is True and self._is_named(left)
            # One made from nothing is a constant, and what is empty or 0 is no secret.
            constant = link.owned and is_simple(right) and not right
            if own and (link.lineage or constant) and self._plain_decoys(right):
                equal = self._distinguishes(left, right, self._plain_decoys)
                if isinstance(equal, Remote):
                    return equal
                return self._believe(left, right) if equal else NotImplemented
            return self._contents(left, plain) == right if type(plain) is str else NotImplemented
        if other is None:
            return NotImplemented
        if type(plain) is str:
            same = self._contents(left, plain) == right
            return self._believe(left, right) if same is True else same
        if "__eq__" not in _methods(left) and "__eq__" not in _methods(right):
            return False
        unrelated = [None, _random.randrange(10**6), _random.random(), "".join(_letters())]
        equal, *fooled = self._answers(left, right, unrelated)
        if equal is None:
            return self.expression("eq", left, right)
        # A class of numbers modulo 7 equals a random number now and then, but not a text.
        if equal and fooled.count(True) > 1:
            raise self.equals_everything(left)
        if equal:
            self._believe(left, right)
            if self._probe and other.constructed is not None:
                equal = self._distinguishes(left, right, lambda _: self._decoys(other.constructed, link.constructed))
            elif self._probe and link.constructed is not None:
                equal = self._distinguishes(right, left, lambda _: self._decoys(link.constructed))
        self._note_claim("eq", left, right, equal)
        return equal

    def expression(self, operation: str, left: Any, right: Any) -> Any:
        """Return the object that a class answers with, such as a condition of a query; it has no truth value here."""
        found = self.ask(f"{operation} object", left, right)
        link = link_of(found)
        if link is None:
            raise self._break("a comparison must return True, False or an object")
        link.answers = True
        return found

    def _distinguishes(self, left: Any, right: Any, decoys_of: Callable[[Any], list[Any]]) -> Any:
        """Return whether the class calls them equal, or the object that it answers with; breaks off if it calls all
        the decoys equal too.
        """
        for _ in range(_MAX_ROUNDS):
            decoys = decoys_of(right)
            equal, *fooled = self._answers(left, right, decoys)
            if equal is None:
                return self.expression("eq", left, right)
            # By chance a few decoys may be equal, such as two cards of the same rank.
            if not equal or not decoys or not all(fooled):
                return equal
        raise self.equals_everything(left)

    def equals_everything(self, value: Any) -> BaseException:
        return self._break(f"objects of {type(value).__name__} are equal to whatever they are compared with")

    def _answers(self, left: Any, right: Any, others: list[Any]) -> list[bool | None]:
        """Return whether the class calls an object equal to another one, and to each of the others, asked in random
        order; ``None``: it answers with an object."""
        candidates = list(enumerate([right, *others]))
        _random.shuffle(candidates)
        answers = self.ask("equals", left, [item for _, item in candidates])
        if type(answers) is not list or len(answers) != len(candidates):
            raise self._break("a comparison must return True or False")
        if any(item is not None and type(item) is not bool for item in answers):
            raise self._break("a comparison must return True or False")
        found = dict(zip([at for at, _ in candidates], answers))
        return [found[at] for at in range(len(candidates))]

    def _note_claim(self, operation: str, left: Any, right: Any, answer: Any) -> None:
        """Record an answer under what the two objects depend on: other objects must make no difference to it."""
        links = [link_of(left), link_of(right)]
        key = f"{operation} {[sorted(link.lineage)[-20:] for link in links]}"
        if type(answer) is bool and (key in self.claims or len(self.claims) < _MAX_EQUALITIES):
            self.claims[key] = answer and self.claims.get(key, True)

    def _believe(self, left: Any, right: object) -> bool:
        requests, links = self._requests_of(left, right), [link_of(left), link_of(right)]
        if requests and len(self.believed_equalities) < _MAX_EQUALITIES:
            shared = frozenset.intersection(*(frozenset() if link is None else link.lineage for link in links))
            claim = requests, sorted(shared)[-20:]
            if claim not in self.believed_equalities:
                self.believed_equalities.append(claim)
        return True

    def _plain_decoys(self, value: Any) -> list[Any]:
        """Return values of the same type as a plain one; empty if there are none."""
        decoys: list[Any] = []
        for _ in range(8 if is_alterable(value) and not hasattr(value, "flat") else 0):
            decoy = different_value(value, self.vocabulary)
            if type(decoy) is type(value) and decoy != value and decoy not in decoys:
                decoys.append(decoy)
        return decoys

    def _decoys(
        self, constructed: Constructed, equal: Constructed | None = None, *, most: int | None = None
    ) -> list[Any]:
        """Return objects of a class created from other arguments than this one, and one that it may be equal to."""
        decoys = []
        values = [*constructed.args, *constructed.kwargs.values()]
        alterable = [index for index, value in enumerate(values) if is_alterable(value)]
        for position in [None, None, *alterable[:4]][:most] if alterable else ():
            for _ in range(_MAX_ROUNDS):  # a class may refuse what its arguments must not be
                changed = [
                    different_value(value, self.vocabulary) if position == index or position is None else value
                    for index, value in enumerate(values)
                ]
                same = equal is not None and is_simple(changed) and changed == [*equal.args, *equal.kwargs.values()]
                decoy = None if same else self._instance(constructed, changed)
                if decoy is not None:
                    decoys.append(decoy)
                    break
        return decoys

    def _instance(self, constructed: Constructed, values: list[Any]) -> Any:
        """Return an object of a class created from these arguments; ``None`` if it cannot be."""
        cls, args, kwargs = constructed
        self._unnumbered += 1
        try:
            instance = self.ask("call", cls, tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :])))
        except Exception:
            return None
        finally:
            self._unnumbered -= 1
        return instance if type(instance) is cls else None

    def plain_contents(self, value: Any) -> Any:
        """Return the plain value within an object of the program; ``None`` if there is none."""
        plain = type(value)._rllm_facts.get("plain") if isinstance(value, Remote) else None
        return self._contents(value, plain) if type(plain) is str else None

    def _contents(self, value: Any, base: str) -> Any:
        kinds = {"bool": int, "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes}
        kinds |= {"list": list, "dict": dict, "tuple": tuple, "set": set, "frozenset": frozenset}
        kind = kinds.get(base)
        link = link_of(value)
        if link is not None and link.contents is not None:
            return link.contents[0]
        if issubclass(type(value), tuple):
            return tuple(tuple.__iter__(value))
        contents = self.ask("contents", value, base)
        if type(contents) is not kind:
            raise self._break(f"a {type(contents).__name__} in place of a {base}")
        # Immutable content is requested once, so that it cannot differ between comparisons.
        if link is not None and base not in ("list", "dict", "set"):
            link.contents = (contents,)
        return contents

    def _is_named(self, value: Any) -> bool:
        """Return whether the test names the class of an object of the program."""
        return type(value) in self._named and type(value).__name__ != "Solution"

    def _note_measured(self, number: int, operation: str, target: Any, value: Any, answer: Any) -> None:
        if self._unnumbered or answer is False or len(self.measured) >= _MAX_EQUALITIES:
            return
        strict = operation not in (*ORDER, "contains") and type(value) in (int, float, complex)
        self.measured.append((number, sorted(link_of(target).lineage - {number})[-20:], not strict))

    def binary(self, operation: str, left: Any, right: Any, *modulo: Any) -> Any:
        link = link_of(left)
        named = self._is_named(left)
        if operation == "radd" and type(right) is int and right == 0:
            return self.ask(operation, left, right)  # sum() begins with it, whatever the test expects
        plain_right = not _is_object(right)
        if plain_right and (link is None or not link.owned):
            plain = type(left)._rllm_facts.get("plain")
            if type(plain) is str and not (named and operation in _PIPES):
                return BINARY[operation](self._contents(left, plain), right, *modulo)
            if not named:
                what = f"{operation} of a {type(left).__name__} that the program returned and a {type(right).__name__}"
                raise UnsupportedOperation(what, link)
        links = [found for found in (link, link_of(right)) if found is not None and found.owned]
        if plain_right and operation in _MEASURING and not named:
            what = f"{operation} of a {type(left).__name__} that an operator made and a {type(right).__name__}"
            raise UnsupportedOperation(what, link)
        number = self._num_requests
        if operation in ORDER and not plain_right:
            result = self._ordered(operation, left, right)
        else:
            result = self.ask(operation, left, right, *modulo)
        for found in links:
            found.owned = True
        if plain_right and not named and not _is_object(result):
            what = (
                f"{operation} of a {type(left).__name__} and a {type(right).__name__} that is a {type(result).__name__}"
            )
            raise UnsupportedOperation(what, link)
        if plain_right and operation not in _PIPES and (operation in _MEASURING or not _is_object(result)):
            self._note_measured(number, operation, left, right, result)
        if operation not in ORDER:
            _own(result, *links)
        return result

    def _ordered(self, operation: str, left: Any, right: Any) -> Any:
        """Return what the program answers; breaks off if its objects come before and after each other.

        Some comparisons of many are checked. The question whether the order holds the other way round is asked before
        or after, at random: so it does not help a program to agree with what it is asked first.
        """
        self.orders += 1
        if _random.randrange(self.orders) > _MAX_ORDERS:
            return self.ask(operation, left, right)
        first = _random.random() < 0.5
        reversed_too = first and self._holds(operation, right, left)
        result = self.ask(operation, left, right)
        self._note_claim(operation, left, right, result)
        if result is not True:
            return result
        reversed_too = reversed_too if first else self._holds(operation, right, left)
        if reversed_too and operation in ("lt", "gt"):
            raise self._break(f"two objects of {type(left).__name__} are less than each other")
        if self._probe and (reversed_too or operation in ("lt", "gt")):
            self._probe_order(operation, left, right)
        return result

    def _probe_order(self, operation: str, left: Any, right: Any) -> None:
        """Record whether an order holds for whatever the objects are made of.

        The left object comes before the right one: so it does not come after it if it is made again, later.
        """
        links = [link for link in (link_of(left), link_of(right)) if link.constructed is not None]
        if not links:
            return
        constructed = links[0].constructed
        if operation in ("lt", "gt") and links[0] is link_of(left):
            again = self._instance(constructed, [*constructed.args, *constructed.kwargs.values()])
            if again is not None and link_of(again).received == 1:
                self.probed_orders.append(self._holds(operation, right, again))
                return
        other = right if links[0] is link_of(left) else left
        decoys = [decoy for _ in range(_MAX_ROUNDS) for decoy in self._decoys(constructed)]
        if operation in ("lt", "gt"):
            self.probed_orders.append(all(self._holds(operation, other, item) for item in decoys))
        elif decoys:
            both = ("le", "ge")
            self.probed_orders.append(all(self._holds(name, item, other) for item in decoys for name in both))

    def _holds(self, operation: str, left: Any, right: Any) -> bool:
        self._unnumbered += 1
        try:
            return self.ask(operation, left, right) is True
        except Exception:
            return False
        finally:
            self._unnumbered -= 1

    def contains(self, target: Any, item: Any) -> bool:
        link = link_of(target)
        if isinstance(item, Remote) or (link is not None and link.owned and link.named):
            return bool(self.ask("contains", target, item))
        plain = type(target)._rllm_facts.get("plain")
        if type(plain) is str:
            return item in self._contents(target, plain)
        if self._is_named(target) and "__contains__" in _methods(target):
            number = self._num_requests
            found = bool(self.ask("contains", target, item))
            self._note_measured(number, "contains", target, item, found)
            return found
        if "__iter__" in _methods(target) or "__getitem__" in _methods(target):
            return any(entry is item or entry == item for entry in target)
        what = f"'in' for a {type(target).__name__} that the program returned and that cannot be iterated"
        raise UnsupportedOperation(what, link)

    # Requests of the program

    def object_to_tree(self, value: Any) -> Tree:
        if self._mutator is not None and self._mutation is not None and self._mutation[2]:
            self._mutator(value)
        if self.detached and not isinstance(value, type | BaseException) and self.served.is_own(value):
            held = self._copies.get(id(value))
            if held is None:
                held = self._copies[id(value)] = (value, _copied(value))
            value = held[1]
        return super().object_to_tree(value)

    def _class_to_tree(self, cls: Any) -> Tree:
        # The class of an object that the program gets may hold data too.
        if self._mutator is not None and self._mutation is not None and self._mutation[2]:
            self._mutator(cls)
        return super()._class_to_tree(cls)

    def check_export(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__ == "builtins" and kind.__name__ in _REFUSED_TYPES:
            raise ForbiddenType(f"the test gives the program a {kind.__name__}")
        for base in (value if isinstance(value, type) else kind).__mro__:
            module = base.__module__
            if type(module) is str and (module == "unittest.case" or module.split(".")[0] in _REFUSED_PACKAGES):
                raise ForbiddenType(f"the test gives the program a {base.__name__} of {module}")


def seed(value: int) -> None:
    """Ask the same questions again in another run."""
    _random.seed(value)


_LIBRARY_CONTENT: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("argparse", "Namespace"): vars,
    ("types", "SimpleNamespace"): vars,
    ("collections", "ChainMap"): dict,
    ("collections", "UserDict"): dict,
    ("collections", "UserList"): list,
    ("builtins", "mappingproxy"): dict,
    ("statistics", "NormalDist"): lambda value: (value.mean, value.stdev),
}
"""What objects of the standard library are compared by: it is copied, and compared on this side."""


def _comparable(value: Any) -> tuple[type, ...]:
    """Return the classes of which objects may equal one of the standard library."""
    shown = value.__class__
    return (shown, dict) if issubclass(shown, Mapping) else (shown, list) if issubclass(shown, Sequence) else (shown,)


def _links(value: Any, depth: int = 3) -> Iterator[Link]:
    """Yield the links of the stand-ins in a value."""
    link = link_of(value)
    if link is not None:
        yield link
    elif depth and type(value) in (list, tuple, dict):
        for item in (value.values() if type(value) is dict else value) if len(value) <= 100 else ():
            yield from _links(item, depth - 1)


def _number_of(value: Any) -> int:
    """Return the number of an object or class of the program; 0 for anything else."""
    link = value._rllm_class_link if isinstance(value, RemoteType) else link_of(value)
    return 0 if link is None else link.number


def _is_object(value: Any) -> bool:
    """Return whether this is an object of the program, or a named tuple of a class of the program."""
    kind = type(value)
    return isinstance(kind, RemoteType) and issubclass(kind, Remote | tuple)


def _same_arguments(left: Any, right: Any) -> bool:
    """Return whether two objects were created from the same plain arguments."""
    origins = [link.constructed for link in (link_of(left), link_of(right)) if link is not None and link.constructed]
    return len(origins) == 2 and all(map(is_simple, origins[0][1:])) and origins[0] == origins[1]


def _letters() -> list[str]:
    return [chr(_random.randrange(97, 123)) for _ in range(8)]


def _methods(value: Any) -> list[str]:
    return type(value)._rllm_facts["methods"] if isinstance(type(value), RemoteType) else []


def _copied(value: Any) -> Any:
    if isinstance(value, memoryview):
        return memoryview(bytearray(value))
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _own(result: Any, *sources: Any) -> None:
    """Mark the result of an operator on the test's objects as one of the test's objects."""
    link = link_of(result)
    if sources and link is not None and _is_object(result):
        link.owned, link.named = True, all(source.named for source in sources)
