"""The program side: runs the program as the module ``solution`` and answers requests. Holds no secrets."""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import json
import linecache
import os
import sys
import types
import warnings
from typing import Any

from .channel import FrameChannel
from .files import Files, OwnPaths
from .operations import Operations
from .peer import ConversationError, Peer
from .proxies import defines_equality, methods_of

FILE = "solution.py"
MAX_OUTPUT = 100_000
_TOKEN_BYTES = 8
_MISSING = object()


class RelayConnection:
    """Messages to the relay. Each contains the token of the relay's last message, so none can be sent early."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._token = bytes(_TOKEN_BYTES)

    def send(self, question: bool, message: bytes) -> None:
        self._channel.send(self._token + (b"?" if question else b"!") + message)

    def receive(self) -> tuple[bool, bytes]:
        frame = self._channel.receive()
        self._token = frame[:_TOKEN_BYTES]
        return frame[_TOKEN_BYTES : _TOKEN_BYTES + 1] == b"?", frame[_TOKEN_BYTES + 1 :]


class CapturedOutput:
    """The program's output since the last request, which tests may check."""

    def __init__(self) -> None:
        self._left = MAX_OUTPUT
        self._warnings: list[tuple[str, str]] = []
        self._logs: list[tuple[str, int, str, list[str]]] = []
        self._streams = {}
        for name in ("stdout", "stderr"):
            stream = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="\n", write_through=True)
            setattr(sys, name, stream)
            self._streams[name] = stream
        warnings.simplefilter("always")
        warnings.showwarning = self._show

    def _show(self, message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        if len(self._warnings) < 100:
            self._warnings.append((category.__name__, str(message)[:1000]))

    def take(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, stream in self._streams.items():
            buffer = stream.buffer
            if stream.closed or not buffer.tell():
                continue
            text = buffer.getvalue()[: self._left].decode("utf-8", "replace")
            self._left -= len(text)
            buffer.seek(0)
            buffer.truncate()
            if text:
                found[name] = text
        if self.is_replaced():
            found["redirected"] = True
        if self._warnings:
            found["warnings"], self._warnings = self._warnings, []
        if self._logs:
            found["logs"], self._logs = self._logs, []
        return found

    def is_replaced(self) -> bool:
        """Return whether the program has replaced standard output."""
        return sys.stdout is not self._streams["stdout"]

    def record_logs(self) -> None:
        """Report what the program logs, for handlers of the test."""
        import logging

        call_handlers = logging.Logger.callHandlers

        def called(logger: logging.Logger, record: logging.LogRecord) -> None:
            if len(self._logs) < 1000:
                kind, error, _ = record.exc_info or (None, None, None)
                raised = [] if kind is None else [kind.__name__, str(error)[:1000]]
                self._logs.append((record.name, record.levelno, record.getMessage()[:1000], raised))
            call_handlers(logger, record)

        logging.Logger.callHandlers = called  # type: ignore[method-assign, assignment]


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class ProgramSide:
    """The handler of the test side's requests."""

    def __init__(self, source: str, channel: FrameChannel) -> None:
        self._source = source
        self._operations = Operations()
        self._module = types.ModuleType("solution")
        self._printed = CapturedOutput()
        if "logging" in source:
            self._printed.record_logs()
        self._peer = Peer(RelayConnection(channel), self._serve, first=1, guarded=False)
        self._peer.kept = {} if "weakref" in source else None
        self._undefined: set[str] = set()
        self._files: Files | None = None
        self._patches: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._environment: dict[str, str | None] = {}
        self._peer.attach = self._attach
        self._peer.attached = self._attached
        paths = OwnPaths()
        self._peer.outgoing, self._peer.incoming = paths.outgoing, paths.incoming
        self._patched: frozenset[str] = frozenset()
        for name in ("input", "open", "print"):
            setattr(builtins, name, self._builtin(name, getattr(builtins, name)))

    def run(self) -> None:
        self._peer.serve_forever()

    def _attach(self) -> dict[str, Any]:
        return self._printed.take() | (self._files.changes() if self._files is not None else {})

    def _attached(self, message: dict[str, Any]) -> None:
        self._patched = frozenset(message.get("patched", ()))
        if "printed" in message and self._printed.is_replaced():
            sys.stdout.write(message["printed"])
        if "named" in message:
            self._files = self._files or Files(guarded=False)
            self._files.take(message)
        if "environment" in message:
            self._set_environment(message["environment"])

    def _set_environment(self, wanted: dict[str, str | None]) -> None:
        for name, value in self._environment.items():
            _set_variable(name, value)
        self._environment = {name: os.environ.get(name) for name in wanted}
        for name, value in wanted.items():
            _set_variable(name, value)

    def _patch(self, module: str, path: list[str], name: str, value: Any) -> None:
        """Apply a test's replacement of a standard library object on this side too."""
        target = importlib.import_module(module)
        for part in path:
            target = getattr(target, part)
        self._patches.setdefault((module, *path, name), (target, vars(target).get(name, _MISSING)))
        setattr(target, name, value)

    def _unpatch(self, module: str, path: list[str], name: str) -> None:
        target, value = self._patches.pop((module, *path, name))
        delattr(target, name) if value is _MISSING else setattr(target, name, value)

    def _builtin(self, name: str, function: Any) -> Any:
        """Return a builtin that forwards to the test side while the test has replaced it."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if name in self._patched:
                return self._peer.ask(f"builtin {name}", args, kwargs)
            return function(*args, **kwargs)

        return called

    def _serve(self, operation: str, operands: list[Any]) -> Any:
        if operation == "load":
            return self._load()
        if operation == "names":
            return [name for name in vars(self._module) if not (name.startswith("__") and name.endswith("__"))]
        if operation == "module":
            return self._global(*operands)
        if operation == "set module":
            return setattr(self._module, *operands)
        if operation == "del module":
            return delattr(self._module, *operands)
        if operation == "entry":
            return self._entry(*operands)
        if operation == "equals":
            return [_equal(operands[0], item) for item in operands[1]]
        if operation == "lengths":
            return [len(operands[0]) for _ in range(operands[1])]
        if operation == "contents":
            return _contents(*operands)
        if operation == "subclass":
            return _subclass(*operands)
        if operation == "functions":
            return [name for name, value in vars(operands[0]).items() if isinstance(value, types.FunctionType)]
        if operation == "super":
            cls, target, name = operands
            found = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
            return found.__get__(target, type(target))
        if operation in ("dataclasses", "inspect"):
            name, target, args, kwargs = operands
            return getattr(importlib.import_module(operation), name)(target, *args, **kwargs)
        if operation == "special methods":
            return methods_of(*operands), defines_equality(*operands)
        if operation in ("dumps", "loads"):
            import pickle

            return getattr(pickle, operation)(*operands)
        if operation == "patch":
            return self._patch(*operands)
        if operation == "unpatch":
            return self._unpatch(*operands)
        if operation == "log level":
            return _set_log_level(*operands)
        if operation == "seed":
            return _seed(*operands)
        if operation == "call" and self._undefined:
            self._define_classes()
        return self._operations.do(operation, operands)

    def _define_classes(self) -> None:
        """Take classes from the tests that the program uses and does not define, such as the nodes of a tree."""
        for name in list(self._undefined):
            if name not in vars(self._module):
                found = self._peer.ask("test class", name)
                if not isinstance(found, type):
                    continue
                setattr(self._module, name, found)
            self._undefined.discard(name)

    def _load(self) -> str:
        """Run the program as a module; return the error message, or an empty string."""
        lines = self._source.splitlines(keepends=True)
        linecache.cache[FILE] = (len(self._source), None, lines, FILE)
        try:
            code = compile(self._source, FILE, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            import traceback

            return "".join(traceback.format_exception_only(error))[:4000]
        self._undefined = _undefined_names(self._source)
        sys.modules["solution"] = self._module
        self._module.__file__ = FILE
        try:
            exec(code, self._module.__dict__)  # noqa: S102 - this is the sandbox
        except BaseException as error:
            import traceback

            tail = error.__traceback__.tb_next if error.__traceback__ else None
            return "".join(traceback.format_exception(type(error), error, tail))[-4000:] or "the program ended"
        return ""

    def _global(self, name: str) -> tuple[str, Any]:
        """Return a global of the program: ``("module", name)``, ``("value", value)`` or ``("missing", None)``."""
        if name not in vars(self._module):
            return "missing", None
        value = vars(self._module)[name]
        if type(value) is types.ModuleType and value is sys.modules.get(value.__name__):
            return "module", value.__name__
        return "value", value

    def _entry(self, path: list[tuple[str, bool]]) -> Any:
        """Return the tested object, from a path of names, each with whether it is called to get an object."""
        first, called = path[0]
        if first not in vars(self._module) and len(path) == 1 and isinstance(self._solution(), type):
            path = [("Solution", True), (first, called)]
        found: Any = self._module
        for name, called in path:
            owner, found = found, getattr(found, name)
            if isinstance(owner, type) and isinstance(found, types.FunctionType):
                kind = next(vars(base)[name] for base in owner.__mro__ if name in vars(base))
                if not isinstance(kind, staticmethod):
                    found = getattr(owner(), name)
            if called:
                found = found()
        return found

    def _solution(self) -> Any:
        return vars(self._module).get("Solution")


def _undefined_names(source: str) -> set[str]:
    """Return a few names like those of classes that a program uses and never binds."""
    import ast

    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return set(sorted(name for name in used - bound if name[:1].isupper())[:5])


def _equal(left: Any, right: Any) -> bool | None:
    """Return whether objects are equal; ``None`` if their class answers with another object, which is no answer."""
    try:
        answer = left == right
        own = type(answer).__module__ == "solution" and not isinstance(answer, int)
        return None if own else bool(answer)
    except Exception:
        return False


def _subclass(name: str, bases: tuple[type, ...], members: dict[str, Any], kwargs: dict[str, Any]) -> type:
    """Create a class of the tests that derives from one of the program; its functions call the tests' functions."""

    def fill(names: dict[str, Any]) -> None:
        names["__module__"] = "solution"
        for key, (kind, *values) in members.items():
            functions = (
                [value if value is None else _calling(value, key) for value in values] if kind != "value" else []
            )
            if kind == "property":
                names[key] = property(*functions)
            elif kind == "function":
                names[key] = functions[0]
            else:
                names[key] = {"classmethod": classmethod, "staticmethod": staticmethod}.get(kind, lambda item: item)(
                    (functions or values)[0]
                )

    return types.new_class(name, bases, kwargs, fill)


def _calling(function: Any, name: str) -> Any:
    def method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    method.__name__ = method.__qualname__ = name
    return method


def _contents(value: Any, base: str) -> Any:
    """Return the plain value within an instance of a subclass of a plain type."""
    kinds = {item.__name__: item for item in (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset)}
    kind = kinds[base]
    if kind is bool or kind is int:
        return int.__index__(value)
    if kind is str:
        return str.__str__(value) if type(value) is str else str.__getitem__(value, slice(None))
    if kind is float:
        return float.__float__(value)
    if kind is dict:
        return dict(dict.items(value))
    if kind in (list, tuple, set, frozenset, bytes):
        return kind(kind.__iter__(value))
    return kind(value)


def _set_log_level(name: str | None, level: int) -> None:
    logging = sys.modules.get("logging")
    if logging is not None and name is None:
        logging.disable(level)
    elif logging is not None:
        logging.getLogger(name).setLevel(level)


def _seed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name == "random":
        import random

        random.seed(*args, **kwargs)
    elif "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(*args, **kwargs)


def main() -> None:
    channel = FrameChannel()
    config = json.loads(channel.receive())
    # Calls between the two sides use more of the stack than calls within one process.
    sys.setrecursionlimit(5000)
    try:
        ProgramSide(config["source"], channel).run()
    except (ConversationError, OSError):
        os._exit(0)
