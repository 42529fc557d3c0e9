"""The rules of the test side for what the program may answer, and what it may request.

The program may be asked about an object, but never whether the object equals what the test expects. Comparisons of its
objects with plain values are decided here. Comparisons of two of its objects are made by their class, and accepted only
if the class also distinguishes other objects. Operators that would reveal an expected value to the program are allowed
only on objects that the test itself created.
"""

from __future__ import annotations

import builtins
import copy
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .argument_mutation import (
    ArgumentMutator,
    altered_operands,
    attributes_of,
    different_value,
    is_alterable,
    is_data,
    plain_attributes,
)
from .codec import ForbiddenType, Tree
from .files import Files
from .lazy_random import LazyRandom
from .operations import BINARY, Operations
from .peer import Peer, Transport, is_simple
from .proxies import ARITHMETIC, NAMES, ORDER, Constructed, Link, Remote, RemoteType, Unsupported, link_of
from .shared_containers import is_container, snapshot_of

_REFUSED_TYPES = frozenset({"module", "frame", "code", "traceback", "cell"})
_REFUSED_PACKAGES = frozenset({"_pytest", "pluggy", (__package__ or "inside").split(".")[0]})

_READABLE = frozenset({"__name__", "__qualname__", "__doc__"})
_FRAMES = frozenset({"gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code", "tb_frame", "tb_next"})
_METHODS_OF_PLAIN = frozenset({"startswith", "endswith", "issubset", "issuperset", "isdisjoint"})
"""Methods that a test calls with what it expects."""

_MEASURING = frozenset({"sub", "rsub", *ORDER})
"""Operators with which a test measures the distance of a result from what it expects."""

_IN_PLACE = frozenset({"setattr", "delattr", "setitem", "delitem", *(f"i{name}" for name in ARITHMETIC)})
_NO_VALUES = frozenset({"equals", "contents", "module", "entry", "names", "load", "set module", "patch", "unpatch"})
_NO_VALUES |= {"subclass", "functions"}
"""Requests whose operands are not arguments of the test."""
_MAX_LINEAGE = 200
_MAX_ROUNDS = 4
_MAX_REACHED = 100_000
_RAISED = object()
_MAX_EQUALITIES = 1000
_OTHER_VALUES = 4
_MAX_ORDERS = 20
_PIPES = frozenset({"or", "ror", "rshift", "rrshift", "lshift", "rlshift", "matmul", "rmatmul"})
"""Operators that no test applies to what it expects, to measure a distance."""

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
        mutation: The number of the request before which to change the arguments, how to change them, and whether to
            change everything that the program was ever given.
        alter: The number of a request to make with other arguments, which of them to change, and which equality
            matters then: the requests on which one of the two objects depends, and the other does not.
        probe: Whether to make objects like those of the test, and to ask about these too. Classes that count their
            objects notice it, so the tests need not pass then.
    """

    def __init__(
        self,
        transport: Transport,
        served: ObjectServer,
        *,
        detached: bool = False,
        mutation: tuple[int, str, bool] | None = None,
        alter: tuple[int, str, list[int]] | None = None,
        probe: bool = False,
    ) -> None:
        super().__init__(transport, served, first=0, guarded=True, detached=detached)
        self._probe = probe
        self.served = served
        self.files: Files | None = None
        self._mutation, self._alter, self.detached = mutation, alter, detached
        self._altered: tuple[Any, ...] = ()
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._started: dict[int, int] = {}
        self._mutator: ArgumentMutator | None = None
        self._entered: dict[int, dict[Any, Any]] = {}
        self._stdin: Any = _STDIN
        self._named: set[type] = set()
        self._num_requests = self._unnumbered = self._depth = 0
        self.orders = 0
        """How many comparisons by order of two objects of the program there were."""
        self.claims: dict[str, bool] = {}
        """By comparison of two objects of the program: whether it was always true. See :meth:`_note_claim`."""
        self.probed_orders: list[bool] = []
        """For each order that was probed: whether it shows nothing but which object was made first."""
        self.changing_calls: list[tuple[int, str]] = []
        """The requests during which the program changed data of the test: the number, and how: ``"in_place"``, its
        arguments as functions do that change them in place; ``"levelled"``, in this way, but it emptied one or made
        its elements equal; ``"rearranged"``, only their order, and it returns a number;
        ``"direct"``, its arguments otherwise; ``"delayed"``, other data."""
        self.mutation_changed_inputs = False
        self.mutation_result = ""
        """The content of the changed arguments after the request before which they were mutated, or its result if it
        only rearranged them."""
        self.believed_equalities: list[list[int]] = []
        """Comparisons in which the program's claim of equality was accepted: the requests on which one of the two
        objects depends, and the other does not."""
        self.altered_equality: bool | None = None
        """The answer of the equality that was named in ``alter``; ``None`` if it was not reached."""
        self.altered_to_same = False
        """Whether both of its objects were made from the same arguments then: that they are equal shows nothing."""
        self.test_text = ""
        self.vocabulary: Callable[[], Sequence[Any]] = tuple
        """Returns the constants of the test."""

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
            original = sys.stdin is _STDIN
            super().ask("unpatch" if original else "patch", "sys", [], "stdin", *([] if original else [sys.stdin]))
        if operation == "enter":
            self._entered[id(operands[0])] = self.heap.snapshots() | self._class_data()
        lists, objects = len(self.heap.changed_by_other), len(self.served.changed)
        given = GivenData(operands, self.served) if operation == "call" and len(operands) == 3 else None
        result: Any = _RAISED
        try:
            result = super().ask(operation, *operands)
        finally:
            changed, touched = self.heap.changed_by_other[lists:], self.served.changed[objects:]
            if operation == "exit":
                # A context manager that restores what was there when it was entered makes nothing easier.
                before = self._entered.pop(id(operands[0]), {})
                changed = [item for item in changed if not _restored(item[0], before.get(id(item[0])))]
                now = self._class_data()
                touched = [
                    item for item in touched if type(item) is not ClassAttribute or now.get(item) != before.get(item)
                ]
            if (changed or touched) and len(self.changing_calls) < 10_000:
                how = "delayed" if given is None else given.kind_of_change(changed, touched, result)
                self.changing_calls.append((number, how))
                if mutate is not None:
                    content = repr(result) if how == "rearranged" else _content([obj for obj, _ in changed])
                    self.mutation_result = content[:1000]
            if self._mutator is not None and self._mutation is not None and self._mutation[2]:
                # Of all that the program was ever given, only what it changes from now on matters.
                items = {id(item) for item in [*(obj for obj, _ in changed), *touched]}
                names = {(id(item.cls), item.name) for item in touched if type(item) is ClassAttribute}
                self.mutation_changed_inputs |= not self._mutator.changed.isdisjoint(items | names)
            if self._depth == 1:
                self.heap.changed_by_other.clear()
                self.served.changed.clear()
        if operation == "start" and type(result) is tuple and type(result[0]) is int:
            self._started[result[0]] = number
        self._note_class(operation, operands, result)
        if operands and number >= 0 and not polled and operation not in _NO_VALUES:
            self._note_lineage(number, operation, operands, result)
        return result

    def _class_data(self) -> dict[ClassAttribute, Any]:
        """Return the data in classes of the test that the program was given, as texts."""
        classes = [cls for cls, _ in self._exports.values() if self.served.is_own_class(cls)]
        return {
            ClassAttribute(cls, name): repr(item) for cls in classes for name, item in plain_attributes(cls).items()
        }

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
        raise Unsupported(f"{name} of a {type(target).__name__} that the program returned", link)

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
        if link is not None and type(created) is cls and link.born > before and not isinstance(created, tuple):
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

    def operate(self, operation: str, target: Any, *args: Any) -> Any:
        link = link_of(target)
        owned = link is not None and link.owned
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

    # Answers of the program

    def equal(self, left: Any, right: object) -> Any:
        if left is right:
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
        found = {base for item in bases for base in item.__mro__ if base.__module__ == "builtins"}
        ends = [base for base in found if not any(base is not other and issubclass(other, base) for other in found)]
        expected = [base for base in ends if re.search(rf"\b{base.__name__}\b", self.test_text)]
        return (Exception,) if len(ends) > 2 or len(expected) > 1 else bases

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
        if not isinstance(right, Remote):
            # A class that the test names may define when its objects equal numbers or lists.
            own = facts.get("own_equality") is True and type(left) in self._named and type(left).__name__ != "Solution"
            if own and link.lineage and self._plain_decoys(right):
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
        requests = self._requests_of(left, right)
        if requests and requests not in self.believed_equalities and len(self.believed_equalities) < _MAX_EQUALITIES:
            self.believed_equalities.append(requests)
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
                decoy = None if same else self._made(constructed, changed)
                if decoy is not None:
                    decoys.append(decoy)
                    break
        return decoys

    def _made(self, constructed: Constructed, values: list[Any]) -> Any:
        """Return an object of a class created from these arguments; ``None`` if it cannot be."""
        cls, args, kwargs = constructed
        self._unnumbered += 1
        try:
            made = self.ask("call", cls, tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :])))
        except Exception:
            return None
        finally:
            self._unnumbered -= 1
        return made if type(made) is cls else None

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
        piped = operation in _PIPES and type(left) in self._named
        if operation == "radd" and type(right) is int and right == 0:
            return self.ask(operation, left, right)  # sum() begins with it, whatever the test expects
        if not isinstance(right, Remote) and (link is None or not link.owned) and not piped:
            plain = type(left)._rllm_facts.get("plain")
            if type(plain) is str:
                return BINARY[operation](self._contents(left, plain), right, *modulo)
            what = f"{operation} of a {type(left).__name__} that the program returned and a {type(right).__name__}"
            self.unsupported.append(what)
            raise TypeError(f"unsupported operand types: {what}")
        links = [found for found in (link, link_of(right)) if found is not None and found.owned]
        plain_right = not isinstance(right, Remote)
        own = link is not None and link.constructed is not None and link.received == 1 and link.named
        own = own or piped
        if plain_right and operation in _MEASURING and not own:
            what = f"{operation} of a {type(left).__name__} that an operator made and a {type(right).__name__}"
            raise Unsupported(what, link)
        if operation in ORDER and not plain_right:
            result = self._ordered(operation, left, right)
        else:
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
        made = links[0].constructed
        if operation in ("lt", "gt") and links[0] is link_of(left):
            again = self._made(made, [*made.args, *made.kwargs.values()])
            if again is not None and link_of(again).received == 1:
                self.probed_orders.append(self._holds(operation, right, again))
                return
        other = right if links[0] is link_of(left) else left
        decoys = [decoy for _ in range(_MAX_ROUNDS) for decoy in self._decoys(made)]
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
        if "__iter__" in _methods(target) or "__getitem__" in _methods(target):
            return any(entry is item or entry == item for entry in target)
        what = f"'in' for a {type(target).__name__} that the program returned and that cannot be iterated"
        self.unsupported.append(what)
        raise TypeError(what)

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

    def check_export(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__ == "builtins" and kind.__name__ in _REFUSED_TYPES:
            raise ForbiddenType(f"the test gives the program a {kind.__name__}")
        for base in (value if isinstance(value, type) else kind).__mro__:
            module = base.__module__
            if type(module) is str and (module == "unittest.case" or module.split(".")[0] in _REFUSED_PACKAGES):
                raise ForbiddenType(f"the test gives the program a {base.__name__} of {module}")


class ClassAttribute(NamedTuple):
    """An attribute of a class of the test that the program sets."""

    cls: type
    name: str


class GivenData:
    """What a request gives the program: the containers and objects of the test that its arguments lead to.

    Args:
        operands: The operands of the call.
        served: Knows which objects are the test's.
    """

    def __init__(self, operands: tuple[Any, ...], served: ObjectServer) -> None:
        self._operands = operands[1:]
        self._served = served
        # The program may relink objects, so what they lead to is found before. Containers are found when it is needed.
        self._objects = self._reached(self._operands) if self._has_objects() else None

    def _has_objects(self) -> bool:
        args, kwargs = self._operands
        return any(self._served.is_own(value) and not is_container(value) for value in [*args, *kwargs.values()])

    def _reached(self, value: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        waiting = [value]
        while waiting and len(found) < _MAX_REACHED:
            item = waiting.pop()
            if id(item) in found or not (is_container(item) or type(item) is tuple or self._served.is_own(item)):
                continue
            found[id(item)] = item
            if isinstance(item, dict):
                waiting += item.values()
            elif isinstance(item, list | tuple | set | deque):
                waiting += item
            if isinstance(item, memoryview):
                waiting.append(item.obj)
            elif not is_container(item):
                waiting += attributes_of(item).values()
        return found

    def kind_of_change(self, changed: list[tuple[Any, Any]], touched: list[Any], result: Any) -> str:
        """Return how a call changed data, as in :attr:`GuardedPeer.changing_calls`.

        A function that works in place changes its arguments while it runs, and returns nothing or one of them. One that
        leaves nothing of them, by emptying a list or making all its elements equal, may want to make a test easy.
        """
        reached = self._objects if self._objects is not None else self._reached(self._operands)
        if any(id(item) not in reached for item in [*(obj for obj, _ in changed), *touched]):
            return "delayed"
        if result is not None and (id(result) not in reached or type(result) is tuple):
            number = type(result) in (int, float) and not touched
            return "rearranged" if number and all(_rearranged(obj, before) for obj, before in changed) else "direct"
        # What a function returns is shorter only if it is a result rather than its argument.
        if any(_degenerate(obj, before) for obj, before in changed):
            return "levelled"
        if any(obj is result and _shrunk(obj, before) for obj, before in changed):
            return "direct"
        if self._objects is not None:
            left = self._reached(self._operands if result is None else result)
            if self._count_objects(left) < self._count_objects(reached):
                return "direct"
        return "in_place"

    def _count_objects(self, found: dict[int, Any]) -> int:
        return sum(type(item).__module__ == self._served.test_module for item in found.values())


def _restored(obj: Any, before: Any) -> bool:
    """Return whether a container has the plain elements that it had in a snapshot of it."""
    now = snapshot_of(obj)
    return before is not None and is_simple(now) and is_simple(before) and repr(now) == repr(before)


def _shrunk(obj: Any, before: Any) -> bool:
    """Return whether a container has fewer elements than in a snapshot of it."""
    if isinstance(obj, dict):
        return len(obj) < len(before[0])
    return isinstance(obj, list | deque | set) and len(obj) < len(before)


def _rearranged(obj: Any, before: Any) -> bool:
    """Return whether a list has the elements that it had in a snapshot of it, at least two, in another order."""
    if not isinstance(obj, list) or not is_simple(obj, 1) or len(obj) != len(before) or len(obj) < 2:
        return False
    return sorted(map(repr, obj)) == sorted(map(repr, before))


def _degenerate(obj: Any, before: Any) -> bool:
    """Return whether a container was emptied, or all its elements were made equal."""
    if isinstance(obj, dict):
        old, new = list(before[1]), list(obj.values())
    elif isinstance(obj, list | deque):
        old, new = list(before), list(obj)
    elif hasattr(obj, "dtype") and not obj.dtype.hasobject:
        return _constant(obj.tobytes(), obj.itemsize) and not _constant(before[1], obj.itemsize)
    else:
        return not isinstance(obj, bytearray) and hasattr(obj, "__len__") and bool(len(before)) and not len(obj)
    if not old or not is_simple(old) or not is_simple(new):
        return bool(old) and not new
    return not new or (len(new) > 1 and all(item == new[0] for item in new) and any(item != old[0] for item in old))


def _constant(data: bytes, size: int) -> bool:
    return data == data[:size] * (len(data) // size)


def _content(objects: list[Any]) -> str:
    """Return a text that is equal for equal contents; empty if there is too little or it cannot be told."""
    import hashlib  # takes as long as all the rest of a short run

    texts = [
        hashlib.sha256(obj.tobytes()).hexdigest() if hasattr(obj, "tobytes") else repr(obj)[:100_000]
        for obj in objects
        if hasattr(obj, "tobytes") or is_simple(obj)
    ]
    if len(texts) < len(objects) or not any(len(obj) > 1 for obj in objects):
        return ""
    return hashlib.sha256("\n".join(texts).encode("utf-8", "replace")).hexdigest()


class ObjectServer:
    """The handler of the program's requests to objects that the test gave it: callbacks, helpers, files, mocks.

    Args:
        test_module: Name of the test's module. Attributes of objects of its classes may be set.
    """

    def __init__(self, test_module: str) -> None:
        self.test_module = test_module
        self.changed: list[Any] = []
        """Objects of the test that the program may have changed."""
        self.decorated: frozenset[str] = frozenset()
        """Names of the test's classes to which it applies decorators. The program may define methods of them."""
        self.data_classes: Callable[[str], type | None] = lambda name: None
        """Returns a class of the test that only holds data, for programs that do not define it."""
        self._operations = Operations()
        self.peer: GuardedPeer | None = None

    def __call__(self, operation: str, operands: list[Any]) -> Any:
        if operation.startswith("builtin ") and operation[8:] in patched_builtins():
            return getattr(builtins, operation[8:])(*operands[0], **operands[1])
        if operation == "test class" and operands and type(operands[0]) is str:
            return self.data_classes(operands[0])
        if operation in ("poll", "cancel"):
            return self._operations.do(operation, operands)
        if self.peer is None or not operands or not self.peer.is_exported(operands[0]):
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
        return self._operations.do(operation, operands)

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
        _random.shuffle(others)
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
        if name == "__dict__" and type(target).__module__ == self.test_module and not isinstance(target, type):
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


_random = LazyRandom()


def seed(value: int) -> None:
    """Ask the same questions again in another run."""
    _random.seed(value)


_BUILTINS = {name: getattr(builtins, name) for name in ("input", "open", "print")}
_STDIN = sys.stdin


def patched_builtins() -> list[str]:
    """Return the builtins that the test has replaced, by a mock or by a file in place of standard input."""
    names = [name for name, function in _BUILTINS.items() if getattr(builtins, name) is not function]
    return names if sys.stdin is _STDIN or "input" in names else [*names, "input"]


def _links(value: Any, depth: int = 3) -> Iterator[Link]:
    """Yield the links of the stand-ins in a value."""
    link = link_of(value)
    if link is not None:
        yield link
    elif depth and type(value) in (list, tuple, dict):
        for item in (value.values() if type(value) is dict else value) if len(value) <= 100 else ():
            yield from _links(item, depth - 1)


def _same_arguments(left: Any, right: Any) -> bool:
    """Return whether two objects were created from the same plain arguments."""
    made = [link.constructed for link in (link_of(left), link_of(right)) if link is not None and link.constructed]
    return len(made) == 2 and all(map(is_simple, made[0][1:])) and made[0] == made[1]


def _letters() -> list[str]:
    return [chr(_random.randrange(97, 123)) for _ in range(8)]


def _methods(value: Any) -> list[str]:
    return type(value)._rllm_facts["methods"] if isinstance(type(value), RemoteType) else []


def _is_mock(value: Any) -> bool:
    return any(base.__module__ == "unittest.mock" for base in type(value).__mro__)


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
    if sources and link is not None and isinstance(result, Remote):
        link.owned, link.named = True, all(source.named for source in sources)
