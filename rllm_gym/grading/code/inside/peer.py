"""One side of the connection: sends requests to the other side, and serves its requests while waiting.

At any time one side is active. It sends a request, and serves the other side's requests until the answer arrives; calls
nest in both directions. The table of exported objects and their numbers is kept here.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
import time
import weakref
from _thread import RLock, allocate_lock
from collections.abc import Callable
from json import dumps, loads
from typing import Any, Protocol

from . import proxies
from .callable_kinds import awaited, callable_kind, wrap_proxy
from .channel import FrameTooLarge
from .codec import Codec, ForbiddenType, MalformedMessage, Tree, Uncodable, expect
from .concurrent_calls import NESTED, ConcurrentCalls
from .proxies import Link, Remote, RemoteType, UnsupportedOperation, link_of
from .shared_containers import SharedContainers

MAX_EXPORTS = 1_000_000
_LARGE_FLOAT = re.compile(rb"e\+?[1-9]\d\d")
_MAX_ERRORS = 16
"""How many builtin exceptions are known again: they hold frames, and there is no weak reference to one."""

_PAUSE_S = 0.001
"""Time between two questions whether a pending call has ended, in seconds."""

BUILTIN_ERRORS: dict[str, type[BaseException]] = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
}
_NEVER_CROSS = (KeyboardInterrupt, GeneratorExit)
_ENDS_OF_ITERATION = (StopIteration, StopAsyncIteration)
_ITERATING = frozenset({"next", "send", "throw", "await_anext", "await_asend"})


def _references_of_an_entry() -> int:
    entry = [object(), 0]
    return sys.getrefcount(entry[0])


_ALONE = _references_of_an_entry()
"""The result of ``sys.getrefcount`` for an object that only the table of exported objects refers to."""


class Transport(Protocol):
    """Carries messages: ``True`` for a request, ``False`` for an answer."""

    def send(self, question: bool, message: bytes) -> None: ...

    def receive(self) -> tuple[bool, bytes]: ...


class ConversationError(BaseException):
    """The other side violated the protocol. ``except Exception`` in test code does not catch it."""


class Peer:
    """One side of the connection.

    Args:
        transport: The connection to the other side.
        serve: Answers a request, given the operation and its operands.
        first: 0 for the test side, 1 for the program side.
        guarded: Whether the other side is untrusted.
        detached: See :class:`.SharedContainers`.
    """

    def __init__(
        self,
        transport: Transport,
        serve: Callable[[str, list[Any]], Any],
        *,
        first: int,
        guarded: bool,
        detached: bool = False,
    ) -> None:
        self._transport = transport
        self._serve = serve
        self.guarded = guarded
        self.heap = SharedContainers(first, detached=detached)
        self._codec = Codec(self, hostile=guarded)
        self._exports: dict[int, list[Any]] = {}
        self._export_numbers: dict[int, int] = {}
        self._classes: dict[int, RemoteType] = {}
        self._new_classes: list[list[Tree]] = []
        """Descriptions of the classes of this side that the other side has not been sent yet."""
        self._next_export = 1
        self._errors: dict[int, BaseException] = {}
        """The last builtin exceptions by number: this side's own ones have positive numbers."""
        self._num_errors = 0
        self._proxies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.kept: dict[int, Any] | None = None
        """Stand-ins that live as long as their objects, for a program with weak references; ``None``: those in use."""
        self.reports_unused = False
        """Whether the other side keeps stand-ins, and learns which objects nothing else refers to."""
        self._wrapped: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()
        # Importing threading takes as long as a short program.
        self._turn = allocate_lock()
        self._alone = RLock()
        """Held from a request to its answer, so that no other thread's request is made within it."""
        self._calls: ConcurrentCalls | None = None
        self._opening = 0
        self.broken = ""
        """The protocol violation of the other side. All its later messages are rejected."""
        self.released: list[tuple[int, int]] = []
        self.unsupported: list[str] = []
        """Features that the test needs and this grader does not support."""
        self.ungradable = ""
        """Why the test cannot be run across two processes, whatever the program. No program can cause it."""
        self.stops: list[int] = []
        """Has an item while the code of this side expects ``StopIteration`` of what it calls."""
        self.large_answers = False
        """Whether the other side sent much, or a number from which this side may have made much."""
        self.attach: Callable[[], dict[str, Any]] = dict
        """Provides additional content of a message: printed text, warnings."""
        self.attached: Callable[[dict[str, Any]], None] = lambda message: None
        # Change the text of a message before it is sent, and before it is read.
        self.outgoing: Callable[[bytes], bytes] = lambda data: data
        self.incoming: Callable[[bytes], bytes] = lambda data: data

    # Requests and answers

    def ask(self, operation: str, *operands: Any) -> Any:
        """Send a request and return the answer; raises the exception that the other side raises."""
        if self.broken:
            raise ConversationError(self.broken)
        threading = sys.modules.get("threading")
        if threading is None or not hasattr(threading, "current_thread"):  # while it is being imported
            return self._result(self._exchange(operation, operands, None), operation)
        thread = threading.current_thread()
        nested = getattr(thread, NESTED, False)
        concurrent = self.guarded and threading.active_count() > 1 and not nested
        with contextlib.nullcontext() if nested else self._alone:
            message = self._exchange(operation, operands, thread.ident if concurrent else None)
            if not concurrent or message.get("answer") != "pending":
                return self._result(message, operation)
            self._opened(message, "answer")
        return self._resumed(operation, thread.ident)

    def _resumed(self, operation: str, thread: int | None) -> Any:
        """Return the answer to a pending call, while the other threads of this side go on."""
        while True:
            time.sleep(_PAUSE_S)
            with self._alone:
                message = self._exchange("resume", (), thread)
                if message.get("answer") != "pending":
                    return self._result(message, operation)
                self._opened(message, "answer")

    def _exchange(self, operation: str, operands: tuple[Any, ...], thread: int | None) -> dict[str, Any]:
        message: dict[str, Any] = {"ask": operation} if thread is None else {"ask": operation, "thread": thread}
        with self._turn:
            try:
                self._send(True, message, operands)
            except (Uncodable, FrameTooLarge) as error:
                self.unsupported.append(str(error))
                # Types are refused only for the test's own values. A size may be the program's doing.
                if isinstance(error, ForbiddenType) or not self.large_answers:
                    self.ungradable = self.ungradable or str(error)
                raise UnsupportedOperation(str(error), None) from error
            return self._receive_answer()

    def _receive_answer(self) -> dict[str, Any]:
        while True:
            question, data = self._received()
            message = self._parsed(data)
            if not question:
                return message
            self._turn.release()
            try:
                outcome = self._answer(message)
            finally:
                self._turn.acquire()
            self._send_answer(*outcome)
            del message, outcome  # which would keep objects of this side

    def serve_forever(self) -> None:
        """Answer requests until the channel closes."""
        while True:
            with self._turn:
                question, data = self._received()
                if not question:
                    raise self._break("unexpected answer: no request is pending")
                message = self._parsed(data)
            outcome = self._answer(message, concurrent=True)
            with self._alone, self._turn:
                self._send_answer(*outcome)
            del message, outcome

    def _answer(self, message: dict[str, Any], *, concurrent: bool = False) -> tuple[str, Any]:
        operation, operands = "", list[Any]()

        def serve() -> tuple[str, Any]:
            return self._outcome(lambda: self._serve(operation, operands))

        opened = self._outcome(lambda: self._opened(message, "ask"))
        if opened[0] == "error":
            return opened
        operation, operands = opened[1]
        thread = message.get("thread") if concurrent else None
        if thread is None:
            return serve()
        self._calls = self._calls or ConcurrentCalls()
        return self._calls.resume(thread) if operation == "resume" else self._calls.begin(thread, serve)

    def _outcome(self, function: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return "ok", function()
        except ConversationError:
            raise
        except BaseException as error:
            # Frames reference the arguments, which would keep them alive on this side.
            error.__traceback__ = error.__traceback__ if self.guarded else self._record_trace(error)
            return "error", error

    @staticmethod
    def _record_trace(error: BaseException) -> None:
        import traceback

        if not hasattr(error, "_rllm_trace"):
            lines = traceback.format_exception(error)
            kept = [line for line in lines if "<library>" not in line]
            try:
                error._rllm_trace = "".join(kept)[-1500:]  # type: ignore[attr-defined]
            except Exception:
                return

    def _send_answer(self, kind: str, value: Any) -> None:
        try:
            self._send(False, {"answer": kind}, [value])
        except Uncodable as error:
            self._send(False, {"answer": "error"}, [TypeError(f"cannot be graded: {error}")])

    def _send(self, question: bool, message: dict[str, Any], values: Any) -> None:
        self._codec.begin()
        try:
            message["v"] = self._codec.encode_nested(values)
            message |= self.heap.write(self._codec)
        except Uncodable:
            self.heap.forget_unsent()
            raise
        message |= self.attach()
        if self.reports_unused:
            message["unused"] = [
                number for number, entry in self._exports.items() if sys.getrefcount(entry[0]) == _ALONE
            ]
        if self._new_classes:
            message["classes"] = self._new_classes
        if self.released:
            message["del"], self.released = self.released, []
        data = dumps(message, separators=(",", ":"), check_circular=False).encode()
        self._transport.send(question, self.outgoing(data))
        # Only now: the classes of a message that could not be sent are described in the next one.
        self._new_classes = []

    def _received(self) -> tuple[bool, bytes]:
        try:
            question, data = self._transport.receive()
        except EOFError as error:
            raise self._break("the other side ended") from error
        return question, self.incoming(data)

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            extreme = self._codec.extreme
            parse = extreme.parsed if extreme is not None and _LARGE_FLOAT.search(data) else None
            found = loads(data, parse_constant=self._codec.constant, parse_float=parse)
            message: dict[str, Any] = expect(found, dict)
            return message
        except (ValueError, RecursionError, MalformedMessage) as error:
            raise self._break(f"invalid message: {type(error).__name__}") from error

    def _break(self, what: str) -> ConversationError:
        self.broken = self.broken or what
        return ConversationError(what)

    def _opened(self, message: dict[str, Any], key: str) -> tuple[str, list[Any]]:
        self._opening += 1
        try:
            self._codec.begin()
            # Before all values and containers, which may be read in another order than they were written in.
            for description in expect(message.get("classes", []), list):
                self._make_class(*expect(description, list))
            self.heap.read(self._codec, message)
            values = self._codec.decode_nested(message["v"])
            self.heap.read_gone(message)
            if self.kept is not None:
                for number in message.get("unused", ()):
                    self.kept.pop(number, None)
            for number, count in expect(message.get("del", []), list):
                self._release(expect(number, int), expect(count, int))
            kind = expect(message[key], str)
        except (MalformedMessage, Uncodable) as error:
            raise self._break(str(error)) from error
        except Exception as error:
            raise self._break(f"a message that cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
        finally:
            self._opening -= 1
        self.attached(message)
        return kind, values

    def _result(self, message: dict[str, Any], operation: str) -> Any:
        kind, values = self._opened(message, "answer")
        if len(values) != 1:
            raise self._break("expected one value, got several")
        value = values[0]
        if kind == "ok":
            return value
        if kind != "error" or not isinstance(value, BaseException):
            raise self._break("invalid error value")
        if isinstance(value, _ENDS_OF_ITERATION) and operation not in _ITERATING and not self.stops:
            # Within map() or zip() the original exception would end the iteration, and skip the remaining cases.
            raise RuntimeError(f"{type(value).__name__} was raised by {operation}") from None
        if self.guarded:
            self.check_cancelled(value)
        raise value from value.__cause__

    def check_cancelled(self, error: BaseException) -> None:
        """Raise an error if the program, rather than the test, cancels what the test awaits: a group ignores it."""

    def _release(self, number: int, count: int) -> None:
        entry = self._exports.get(number)
        if entry is None or count < 1:
            raise MalformedMessage("release of an unknown object id")
        entry[1] -= count
        if entry[1] <= 0:
            del self._exports[number]
            self._export_numbers.pop(id(entry[0]), None)

    # Interface of the codec

    def container_to_tree(self, value: Any) -> Tree | None:
        kind = type(value)
        if issubclass(kind, RemoteType):
            return self._home(value._rllm_class_link)
        if isinstance(kind, RemoteType):
            if issubclass(kind, tuple):  # a stand-in may call itself one
                return ["nt", self._class_to_tree(kind), self._codec.encode_nested(value)]
            link = link_of(value)
            return self._home(link) if link is not None else None
        tree = self.heap.tree_of(value)
        if tree is None and self._wrapped and kind.__module__ == "builtins" and _weak(value):
            link = self._wrapped.get(value)
            return None if link is None else self._home(link)
        return tree

    def container_from_tree(self, number: Any) -> Any:
        return self.heap.named(number)

    def _home(self, link: Link | None) -> Tree:
        if link is None or link.peer is not self:
            raise Uncodable("proxy without an object")
        return ["o", link.number]

    def object_to_tree(self, value: Any) -> Tree:
        self.check_export(value)
        if isinstance(value, type):
            return self._class_to_tree(value)
        if isinstance(value, BaseException):
            return self._error_to_tree(value)
        kind = type(value)
        if issubclass(kind, tuple) and _fields_of(kind) is not None:
            return ["nt", self._class_to_tree(kind), self._codec.encode_nested(tuple.__iter__(value))]
        return ["x", self._export(value), self._class_to_tree(kind), callable_kind(value)]

    def _export(self, value: Any) -> int:
        number = self._export_numbers.get(id(value))
        if number is None:
            if len(self._exports) >= MAX_EXPORTS:
                raise Uncodable(f"more than {MAX_EXPORTS:,} objects at a time")
            number = self._next_export
            self._next_export += 1
            self._exports[number] = [value, 0]
            self._export_numbers[id(value)] = number
        self._exports[number][1] += 1
        return number

    def check_export(self, value: Any) -> None:
        """Raise :class:`Uncodable` for objects that the other side must not reference."""

    def allowed_bases(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        """Return the bases of the stand-in for a class of the other side."""
        return bases

    def is_exported(self, value: Any) -> bool:
        return id(value) in self._export_numbers

    def exported(self, number: Any) -> Any:
        entry = self._exports.get(expect(number, int))
        if entry is None:
            raise MalformedMessage("unknown object id")
        return entry[0]

    def _class_to_tree(self, cls: type) -> Tree:
        if isinstance(cls, RemoteType):
            return self._home(cls._rllm_class_link)
        if id(cls) in self._export_numbers:
            return ["X", self._export(cls)]
        bases: list[Tree] = []
        for base in cls.__bases__:
            if issubclass(base, BaseException):
                bases.append(self._codec.encode(base))
            elif base.__module__ != "builtins" and not issubclass(base, tuple):
                bases.append(self._class_to_tree(base))
        facts = {
            "name": _text(cls.__name__),
            "module": _text(cls.__module__),
            "doc": cls.__doc__[:2000] if type(cls.__doc__) is str else None,
            "methods": proxies.methods_of(cls),
            "fields": _fields_of(cls),
            "plain": _plain_base(cls),
            "data_fields": proxies.field_names(cls) if self.guarded else None,
            "own_equality": proxies.defines_equality(cls),
            "is_metaclass": issubclass(cls, type),
            "names": [name for name, item in vars(cls).items() if self.guarded and _is_public(name, item)][:100],
            "decides_instances": type(type(cls).__instancecheck__) is not type(type.__instancecheck__),
        }
        # That of a class may be one of the program; those of the library are no concern of a test.
        own = type(cls).__module__ == "solution"
        meta = self._class_to_tree(type(cls)) if own else None
        number = self._export(cls)
        self._new_classes.append([number, facts, bases, meta])
        return ["X", number]

    def _error_to_tree(self, error: BaseException) -> Tree:
        try:
            arguments = self._codec.encode_nested(error.args)
        except Uncodable:
            arguments = [_text(str(error))]
        cause = self._codec.encode(error.__cause__) if error.__cause__ is not None else None
        trace = getattr(error, "_rllm_trace", "")
        texts = [_text(trace if type(trace) is str else ""), *_notes_of(error)]
        if BUILTIN_ERRORS.get(type(error).__name__) is type(error):
            return ["err", type(error).__name__, arguments, cause, texts, self._error_number(error)]
        kind = self._codec.encode(type(error))
        if kind[0] == "g":
            state = {name: value for name, value in vars(error).items() if name != "_rllm_trace" and is_simple(value)}
            return ["ge", kind, arguments, cause, texts, self._codec.encode(tuple(state.items()))]
        return ["xe", self._export(error), kind, arguments, cause, texts]

    def _error_number(self, error: BaseException) -> int:
        for number, known in self._errors.items():
            if known is error:
                return number
        self._num_errors += 1
        self._know_error(self._num_errors, error)
        return self._num_errors

    def _know_error(self, number: int, error: BaseException) -> None:
        self._errors[number] = error
        if len(self._errors) > _MAX_ERRORS:
            del self._errors[next(iter(self._errors))]

    def object_from_tree(self, tree: list[Any]) -> Any:
        tag, *rest = tree
        if tag == "o" and len(rest) == 1:
            return self.exported(rest[0])
        if tag == "X" and len(rest) == 1:
            return self._named_class(rest[0])
        if tag == "x" and len(rest) == 3:
            return self._proxy(*rest)
        if tag == "nt" and len(rest) == 2:
            return self._named_tuple(*rest)
        if tag == "err" and len(rest) == 5:
            return self._builtin_error(*rest)
        if tag == "ge" and len(rest) == 5:
            return self._library_error(*rest)
        if tag == "xe" and len(rest) == 5:
            return self._error(*rest)
        raise MalformedMessage("unknown tag")

    def _named_class(self, number: Any) -> RemoteType:
        known = self._classes.get(expect(number, int))
        if known is None:
            raise MalformedMessage("unknown class id")
        return known

    def _make_class(self, number: Any, facts: Any, bases: Any, meta: Any) -> None:
        if expect(number, int) in self._classes:
            raise MalformedMessage("a class is described twice")
        expect(facts, dict)
        for key in ("name", "module"):
            expect(facts.get(key), str)
        expect(facts.get("doc"), str, type(None))
        for name in expect(facts.get("methods"), list) + (expect(facts.get("fields"), list, type(None)) or []):
            expect(name, str)
        base_classes = self.allowed_bases(tuple(self._base(base) for base in expect(bases, list)))
        metaclass = RemoteType if meta is None else self._codec.decode(meta)
        if not isinstance(metaclass, type) or not issubclass(metaclass, RemoteType):
            raise MalformedMessage("the class of a class is not one")
        self._classes[number] = proxies.make_class(facts, base_classes, Link(self, number), metaclass)

    def _base(self, tree: Any) -> type:
        base = self._codec.decode(tree)
        if isinstance(base, RemoteType):
            return base
        if not isinstance(base, type) or not issubclass(base, BaseException):
            raise MalformedMessage("the base of a class is not a class")
        forbidden = not issubclass(base, Exception) or issubclass(base, _ENDS_OF_ITERATION)
        return Exception if self.guarded and forbidden else base

    def _proxy(self, number: Any, cls: Any, flavour: Any) -> Any:
        kind = self._codec.decode(cls)
        if not isinstance(kind, RemoteType) or not issubclass(kind, Remote):
            raise MalformedMessage("the class of an object is not a class")
        held = self._proxies.get(expect(number, int))
        if held is not None:
            link = self._wrapped.get(held) if not isinstance(held, Remote) else link_of(held)
            if link is not None:
                link.received += 1
                return held
        link = Link(self, number)
        link.received = 1
        if flavour == "":
            created = object.__new__(kind)
            object.__setattr__(created, "_rllm_link", link)
            if self.kept is not None:
                self.kept[number] = created
        else:
            proxy = object.__new__(kind)
            object.__setattr__(proxy, "_rllm_link", link)
            created = wrap_proxy(self, flavour, proxy)
            self._wrapped[created] = link
        self._proxies[number] = created
        return created

    def _named_tuple(self, cls: Any, trees: Any) -> Any:
        kind = self._codec.decode(cls)
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise MalformedMessage("the class of a named tuple is not a class")
        items = self._codec.decode_nested(trees)
        if len(items) != len(_fields_of(kind) or ()):
            raise MalformedMessage("a named tuple of the wrong length")
        created = tuple.__new__(kind, items)
        if isinstance(kind, RemoteType):
            link = Link(self, 0)
            link.received = 1
            object.__setattr__(created, "_rllm_link", link)
        return created

    def _builtin_error(self, name: Any, arguments: Any, cause: Any, texts: Any, number: Any) -> Any:
        kind = BUILTIN_ERRORS.get(expect(name, str))
        if kind is None:
            raise MalformedMessage("unknown name of an exception")
        if self.guarded and issubclass(kind, _NEVER_CROSS):
            kind = RuntimeError
        values = self._codec.decode_nested(arguments)
        number = -expect(number, int)  # what is the other side's own there is not so here
        held = self._errors.get(number)
        if type(held) is kind and number:
            return _with_notes(held, texts)
        error = _new_exception(kind, values)
        self._know_error(number, error)
        return self._completed(error, cause, texts)

    def _library_error(self, cls: Any, arguments: Any, cause: Any, texts: Any, state: Any) -> Any:
        kind = self._codec.decode(cls)
        if not isinstance(kind, type) or not issubclass(kind, Exception) or isinstance(kind, RemoteType):
            raise MalformedMessage("the class of an exception is not a class of exceptions")
        error = _new_exception(kind, self._codec.decode_nested(arguments))
        for name, value in dict(self._codec.decode(state)).items():
            if type(name) is str and not name.startswith("__") and is_simple(value):
                vars(error)[name] = value
        return self._completed(error, cause, texts)

    def _error(self, number: Any, cls: Any, arguments: Any, cause: Any, texts: Any) -> Any:
        kind = self._codec.decode(cls)
        if not isinstance(kind, RemoteType) or not issubclass(kind, BaseException):
            raise MalformedMessage("the class of an exception is not a class of exceptions")
        values = self._codec.decode_nested(arguments)
        held = self._proxies.get(expect(number, int))
        link = None if held is None else link_of(held)
        if held is not None and link is not None and type(held) is kind:
            link.received += 1
            return _with_notes(held, texts)
        link = Link(self, number)
        link.received = 1
        error: Any = kind.__new__(kind, *values)
        error.args = tuple(values)
        error._rllm_link = link
        self._proxies[number] = error
        return self._completed(error, cause, texts)

    def _completed(self, error: BaseException, cause: Any, texts: Any) -> BaseException:
        if cause is not None:
            found = self._codec.decode(cause)
            if not isinstance(found, BaseException):
                raise MalformedMessage("the cause of an exception is not an exception")
            error.__cause__ = found
        error._rllm_trace = expect(expect(texts, list)[0], str)[:2000]  # type: ignore[attr-defined]
        return _with_notes(error, texts)

    # Called by stand-ins

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask("call", target, args, kwargs)

    def construct(self, cls: RemoteType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask("call", cls, args, kwargs)

    def close(self, generator: Any) -> None:
        """Close a generator of the other side, unless the garbage collector runs this in the middle of a message."""
        if not self._turn.locked() and not self._opening:
            self.ask("close", generator)

    def operate(self, operation: str, target: Any, *args: Any) -> Any:
        return self.ask(operation, target, *args)

    def signature(self, target: Any) -> Any:
        import inspect

        try:
            rows = self.ask("signature", target)
            kind_type: Any = type(inspect.Parameter.POSITIONAL_ONLY)
            kinds = list(kind_type)
            empty = inspect.Parameter.empty
            parameters = [
                inspect.Parameter(
                    name, kinds[kind], default=([*default, empty])[0], annotation=([*annotation, empty])[0]
                )
                for name, kind, default, annotation in rows[:-1]
            ]
            return inspect.Signature(parameters, return_annotation=([*rows[-1][3], empty])[0])
        except Exception as error:
            raise AttributeError("__signature__") from error

    def code(self, target: Any) -> Any:
        """Return code that does nothing and has the arguments of a function of the test; programs count them."""
        if self.guarded or type(target).__name__ != "function":
            raise AttributeError(f"{type(target).__name__!r} object has no attribute '__code__'")
        parameters = list(self.signature(target).parameters.values())
        kinds = [int(item.kind) for item in parameters]
        parameters.sort(key=lambda item: (0, 1, 3, 2, 4)[item.kind])
        empty = (lambda: None).__code__
        return empty.replace(
            co_argcount=kinds.count(0) + kinds.count(1),
            co_posonlyargcount=kinds.count(0),
            co_kwonlyargcount=kinds.count(3),
            co_nlocals=len(kinds),
            co_varnames=tuple(item.name for item in parameters),
            co_flags=empty.co_flags | 4 * kinds.count(2) | 8 * kinds.count(4),
            co_name=target.__name__,
        )

    def awaited(self, target: Any) -> Any:
        return awaited(self, target)

    def equal(self, left: Any, right: object) -> Any:
        if left is right:
            return True
        return self.ask("eq", left, right)

    def expression(self, operation: str, left: Any, right: Any) -> Any:
        return self.ask(f"{operation} object", left, right)

    def binary(self, operation: str, left: Any, right: Any, *modulo: Any) -> Any:
        return self.ask(operation, left, right, *modulo)

    def contains(self, target: Any, item: Any) -> bool:
        return bool(self.ask("contains", target, item))


def _new_exception(kind: type[BaseException], values: list[Any]) -> BaseException:
    try:
        return kind(*values)
    except (TypeError, ValueError):
        error = kind.__new__(kind, *values)
        error.args = tuple(values)
        return error


def _weak(value: Any) -> bool:
    return hasattr(type(value), "__weakref__") or type(value).__name__ in (
        "generator",
        "coroutine",
        "async_generator",
        "function",
    )


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()


def _is_public(name: Any, item: Any) -> bool:
    """Return whether a program may ask a class of the test whether it has this."""
    return type(name) is str and not name.startswith("_") and (callable(item) or hasattr(type(item), "__get__"))


_PLAIN_BASES = (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset)


def _notes_of(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    return [_text(note[:1000]) for note in notes[:20] if type(note) is str] if type(notes) is list else []


def _with_notes(error: BaseException, texts: Any) -> BaseException:
    """Add the notes that an exception has on the other side."""
    known = _notes_of(error)
    for note in expect(texts, list)[1:21]:
        if expect(note, str) not in known:
            error.add_note(note)
    return error


def _plain_base(cls: type) -> str | None:
    return next((base.__name__ for base in _PLAIN_BASES if issubclass(cls, base)), None)


def _fields_of(cls: type) -> list[str] | None:
    fields = getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
    if type(fields) is not tuple or not all(type(name) is str for name in fields):
        return None
    return list(fields)


def is_simple(value: Any, depth: int = 4) -> bool:
    kind: type = type(value)
    if kind in (int, float, str, bool, type(None)):
        return True
    if depth == 0 or (kind in (list, tuple, dict) and len(value) > 100):
        return False
    if kind is dict:
        return all(is_simple(item, depth - 1) for pair in value.items() for item in pair)
    return (kind is list or kind is tuple) and all(is_simple(item, depth - 1) for item in value)
