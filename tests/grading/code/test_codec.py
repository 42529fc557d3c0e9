"""Values between two processes: what an honest side sends arrives, and a hostile side cannot forge values."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import json
import math
import queue
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rllm_gym.grading.code.inside.guard import GuardedPeer
from rllm_gym.grading.code.inside.object_server import ObjectServer
from rllm_gym.grading.code.inside.operations import Operations
from rllm_gym.grading.code.inside.peer import ConversationError, Peer


class Pipe:
    """A transport within this process."""

    def __init__(self, outgoing: queue.SimpleQueue[Any], incoming: queue.SimpleQueue[Any]) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    def send(self, question: bool, message: bytes) -> None:
        self._outgoing.put((question, message))

    def receive(self) -> tuple[bool, bytes]:
        item = self._incoming.get(timeout=60)
        if item is None:
            raise EOFError
        return item


class Pair:
    """Both sides: the tests' side here, the program's in a thread that answers ``echo`` and all operations."""

    def __init__(self) -> None:
        to_program: queue.SimpleQueue[Any] = queue.SimpleQueue()
        to_tests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_program = to_program
        served = ObjectServer(__name__)
        self.tests = GuardedPeer(Pipe(to_program, to_tests), served)
        served.peer = self.tests
        operations = Operations()
        self.code = Peer(
            Pipe(to_tests, to_program),
            lambda name, values: self._serve(operations, name, values),
            first=1,
            guarded=False,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _serve(self, operations: Operations, name: str, values: list[Any]) -> Any:
        if name == "echo":
            return values[0]
        if name == "apply":
            return values[0](*values[1:])
        return operations.do(name, values)

    def _run(self) -> None:
        try:
            self.code.serve_forever()
        except ConversationError:
            return

    def close(self) -> None:
        self._to_program.put(None)
        self._thread.join(60)


@pytest.fixture
def pair() -> Iterator[Pair]:
    created = Pair()
    yield created
    created.close()


HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(datetime.timezone(datetime.timedelta(minutes=90), "x")))
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
    | st.sampled_from([..., NotImplemented, int, len, ValueError, np.float32(1.5), np.int64(3), np.bool_(True)]),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
VALUES = st.recursive(
    HASHABLE
    | st.binary(max_size=9).map(bytearray)
    | st.lists(st.integers(-99, 99)).map(lambda xs: array.array("i", xs)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(collections.OrderedDict)
        | st.lists(inner, max_size=4).map(lambda items: collections.deque(items, 9))
        | st.sets(HASHABLE, max_size=4)
        | st.tuples(inner, inner)
        | st.lists(st.floats(), min_size=4, max_size=4).map(lambda xs: np.array(xs).reshape(2, 2))
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    """Return whether type and value are equal at every level; NaN equals NaN and -0.0 differs from 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (left == right and str(left) == str(right))
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, decimal.Decimal):
        return str(left) == str(right)
    if isinstance(left, list | tuple | collections.deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, set | frozenset):
        return same(sorted(map(repr, left)), sorted(map(repr, right)))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(VALUES)
def test_every_plain_value_is_transferred(pair: Pair, value: Any) -> None:
    # Sent and returned inside a list: the outermost object would be the identical object again.
    answer = pair.tests.ask("apply", list, (value,))
    assert same(answer, [value])
    assert same(pair.tests.ask("echo", (value, 1)), (value, 1))


def test_shared_and_cyclic_containers_keep_their_shape(pair: Pair) -> None:
    inner: list[Any] = [1]
    outer: Any = {"a": inner, "b": [inner, inner]}
    outer["self"] = outer
    answer = pair.tests.ask("echo", (outer, inner))
    assert answer[0] is outer
    assert answer[1] is inner
    created = pair.tests.ask("apply", lambda: [outer, outer["a"]])
    assert created[0] is outer
    assert created[1] is inner


def test_mutations_are_visible_on_the_other_side(pair: Pair) -> None:
    values = [3, 1, 2]
    assert pair.tests.ask("call", list.sort, (values,), {}) is None
    assert values == [1, 2, 3]
    assert pair.tests.changing_calls == [(0, "in_place")]
    table: dict[str, list[int]] = {"a": []}
    pair.tests.ask("call", dict.update, (table, {"b": [1]}), {})
    assert table == {"a": [], "b": [1]}
    numbers = np.array([3.0, 1.0])
    pair.tests.ask("call", np.ndarray.sort, (numbers,), {})
    assert numbers.tolist() == [1.0, 3.0]


def test_unreferenced_containers_are_released(pair: Pair) -> None:
    for number in range(50):
        assert pair.tests.ask("echo", ([number, {"a": [number]}],))[0][0] == number
    pair.tests.ask("echo", 1)
    assert len(pair.tests.heap._entries) <= 4
    assert len(pair.code.heap._entries) <= 4


def test_unreferenced_objects_are_released(pair: Pair) -> None:
    for _ in range(50):
        iterator = pair.tests.ask("iter", (1, 2))
        assert next(iterator) == 1
        del iterator
    pair.tests.ask("echo", 1)
    assert len(pair.code._exports) <= 4


def test_subclasses_of_plain_types_are_not_transferred_as_plain(pair: Pair) -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    pair.code._serve = lambda name, values: Liar(7) if name == "make" else int.__index__(values[0])
    answer = pair.tests.ask("make")
    assert type(answer) is not int
    assert isinstance(answer, int)
    assert answer != 5
    assert 5 not in [answer]
    assert answer == 7


def test_exceptions_keep_their_type(pair: Pair) -> None:
    with pytest.raises(ZeroDivisionError):
        pair.tests.ask("apply", divmod, 1, 0)
    with pytest.raises(json.JSONDecodeError) as raised:
        pair.tests.ask("apply", json.loads, "{")
    assert raised.value.pos == 1

    class Own(KeyError):
        pass

    error = Own("x")

    def fail() -> None:
        raise error

    with pytest.raises(Own) as own:
        pair.tests.ask("apply", fail)
    assert own.value is error


def test_exceptions_that_steer_the_runner_do_not_keep_their_type(pair: Pair) -> None:
    def serve(name: str, values: list[Any]) -> Any:
        raise values[0]("x")

    pair.code._serve = serve
    for kind in (KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration):
        with pytest.raises(RuntimeError):
            pair.tests.ask("call", kind)


def test_only_objects_that_the_tests_pass_can_be_used(pair: Pair) -> None:
    secret = [31337]

    def callback() -> int:
        return secret[0] - 31337

    stolen: list[Any] = []

    def serve(name: str, values: list[Any]) -> Any:
        target = values[0]
        for attribute in ("__globals__", "__closure__", "__code__", "__self__", "__class__", "__reduce__", "gi_frame"):
            for operation in ("getattr", "delattr"):
                try:
                    stolen.append(pair.code.ask(operation, target, attribute))
                except (AttributeError, TypeError):
                    continue
        for operation, operands in (
            ("getattr", ("text", "format")),
            ("call", (print, ("x",), {})),
            ("setattr", (target, "__code__", 1)),
            ("setattr", (target, "attribute", 1)),
            ("no such", (target,)),
        ):
            try:
                stolen.append(pair.code.ask(operation, *operands))
            except (AttributeError, TypeError):
                continue
        return 1

    pair.code._serve = serve
    assert pair.tests.ask("call", callback) == 1
    assert stolen == []
    assert secret == [31337]


class Item:
    """A class of the tests, of which the program is told with the first instance."""


@pytest.mark.parametrize("wrap", [lambda one, two: [one, [two]], lambda one, two: [one, {"key": two}]])
@pytest.mark.parametrize("own", [lambda: lambda: None, Item])
def test_objects_of_one_class_cross_alone_and_in_containers_of_one_message(pair: Pair, wrap: Any, own: Any) -> None:
    one, two = own(), own()
    both = tuple(wrap(one, two))
    assert pair.tests.ask("echo", both) == both
    changed: list[Any] = []
    assert pair.tests.ask("echo", changed) is changed
    changed.append(own())
    assert pair.tests.ask("echo", (own(), changed))[1] == changed


def test_what_a_message_that_is_not_sent_contained_is_sent_later(pair: Pair) -> None:
    item, inner = Item(), [Item()]
    with pytest.raises(Exception, match="records"):
        pair.tests.ask("echo", (item, inner, [np.zeros(1, dtype=[("a", int)])]))
    assert pair.tests.ask("echo", (item, inner)) == (item, inner)
    inner.append(np.zeros(1, dtype=[("a", int)]))
    with pytest.raises(Exception, match="records"):
        pair.tests.ask("echo", inner)
    inner[1] = 5
    assert pair.tests.ask("apply", len, inner) == 2


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(
        ["@", "o", "x", "X", "t", "g", "err", "xe", "ge", "nt", "nd", "list", "dict", "i", "np", "re", "fs"]
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)
TAGS = "@ o x X t g err xe ge nt i s c b np npt re fs dk di dec fr uuid path td date tz datetime time zone sl rg"
TAGGED = st.builds(
    lambda tag, rest: [tag, *rest],
    st.sampled_from(TAGS.split()),
    st.lists(JSON, max_size=5),
)


class FixedResponse:
    """A transport on which the other side gives the same response to every request."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def send(self, question: bool, message: bytes) -> None:
        pass

    def receive(self) -> tuple[bool, bytes]:
        return False, self._answer


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {"answer": st.sampled_from(["ok", "error", "x"]) | JSON, "v": st.lists(TAGGED | JSON, max_size=2) | JSON},
        optional={
            "classes": st.lists(JSON) | JSON,
            "new": st.lists(JSON) | JSON,
            "set": JSON,
            "gone": JSON,
            "del": JSON,
        },
    )
)
def test_a_hostile_message_only_ends_the_connection(message: dict[str, Any]) -> None:
    peer = GuardedPeer(FixedResponse(json.dumps(message).encode()), ObjectServer(__name__))
    try:
        peer.ask("anything")
    except ConversationError:
        assert peer.broken
    except StopIteration:
        pytest.fail("the end of an iteration was raised where nothing iterates")
    except Exception:
        assert message["answer"] == "error"


def test_an_invalid_message_ends_the_connection() -> None:
    for data in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"answer":"ok"}', b'{"v":1e999999}'):
        with pytest.raises(ConversationError):
            GuardedPeer(FixedResponse(data), ObjectServer(__name__)).ask("anything")


def test_decimals_fractions_and_dates_are_exact(pair: Pair) -> None:
    for value in (decimal.Decimal("1.50"), fractions.Fraction(1, 3), uuid.UUID(int=7), datetime.UTC):
        assert same(pair.tests.ask("echo", value), value)
