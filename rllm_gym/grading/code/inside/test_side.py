"""The test side: runs the hidden test code, and forwards its uses of the program's objects to the program side.

No code of the program runs here. The verdict is what this side explicitly reports after all tests have run; whether and
how the process ends is irrelevant.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import io
import itertools
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from . import argument_mutation, guard
from .channel import FrameChannel
from .files import Files
from .free_names import (
    OFTEN_DEFINED,
    FreeNames,
    constants_read,
    expected_names,
    missing_module,
    module_named,
    own_value,
)
from .guard import GuardedPeer
from .object_server import ObjectServer, patched_builtins
from .patches import Patches
from .peer import BUILTIN_ERRORS, ConversationError
from .program_values import ProgramValues
from .proxies import NAMES, Remote, RemoteType, refresh
from .purposeful_failures import failing_by_themselves, looks_at_failures
from .runners import RUNNERS, StopTesting, TestReporter, is_empty, is_scalar

MODULE = "test_solution"
_MAIN = "__main__"
"""Module name of a test made of statements: some start with ``if __name__ == "__main__"``."""
_MAX_CONSTANTS = 200
_ITEM_BY_ITEM = re.compile(r"\bfor\b|\bzip\(")


def _constants(trees: list[ast.Module]) -> list[Any]:
    """Return the numbers and short texts of the tests, up to a limit."""
    found = []
    for node in itertools.islice(itertools.chain(*map(ast.walk, trees)), 20_000):
        value = node.value if isinstance(node, ast.Constant) else None
        if type(value) in (int, float) or (type(value) is str and 0 < len(value) < 100):
            found.append(value)
    return found


class TaskRowError(Exception):
    """The test code itself cannot be run, whatever the program."""


class TestRelayConnection:
    """Messages to the relay, including those for the trainer."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel

    def send(self, question: bool, message: bytes) -> None:
        self._channel.send((b"?" if question else b"!") + message)

    def receive(self) -> tuple[bool, bytes]:
        frame = self._channel.receive()
        return frame[:1] == b"?", frame[1:]

    def report(self, message: dict[str, Any]) -> None:
        self._channel.send(b"=" + json.dumps(message).encode())


class Solution(types.ModuleType):
    """The module that a test gets from ``import solution``."""

    _rllm_side: TestSide
    _rllm_replaced: dict[str, Any]
    _rllm_hidden: set[str]

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # Hide names with which pytest is configured, and names that the test defines itself.
            hidden = self._rllm_hidden
            return [
                item for item in self._rllm_side.names() if item not in hidden and not item.startswith(("_", "pytest"))
            ]
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        found, value = self._rllm_side.solution_value(name)
        if not found:
            raise AttributeError(f"module 'solution' has no attribute {name!r}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        found, before = self._rllm_side.solution_value(name)
        if found:
            self._rllm_replaced.setdefault(name, before)
        self._rllm_side.peer.ask("set module", name, value)

    def __delattr__(self, name: str) -> None:
        # Patches look up the replaced object in __dict__, do not find it, and therefore undo themselves by deleting.
        if name in self._rllm_replaced:
            self._rllm_side.peer.ask("set module", name, self._rllm_replaced.pop(name))
        else:
            self._rllm_side.peer.ask("del module", name)

    def __dir__(self) -> list[str]:
        return self._rllm_side.names()


class TestSide:
    """One test run of one program."""

    __test__ = False

    def __init__(self, config: dict[str, Any], wire: TestRelayConnection) -> None:
        self.config = config
        self._wire = wire
        served = ObjectServer(MODULE)
        self.peer = GuardedPeer(
            wire,
            served,
            detached=config["detached"],
            returned=config["returned"],
            mutation=config["mutation"],
            alter=config["alter"],
            probe=config["probe"],
            extreme=config["extreme"],
        )
        served.peer = self.peer
        served.hides_failures = config["hide_failures"]
        self.suppressed = False
        """Whether the program suppressed failed assertions that may fail on purpose."""
        self.peer.reports_unused = config["weak"]
        self._takes_files = False
        self._stdout: Any = None
        self._printed: io.StringIO | None = None
        self._environment: Callable[[], dict[str, Any]] | None = None
        self.peer.attached = self._attached
        self.peer.attach = self._attach
        self.report = TestReporter(lambda message: self._send(message), stop=config["stop"], show=config["show"])

    def _send(self, message: dict[str, Any]) -> None:
        if self.peer.broken:
            raise ConversationError(self.peer.broken)
        self._wire.report({"nonce": self.config["nonce"], **message})

    def _send_error(self, text: str) -> None:
        self._send({"kind": "error", "text": text, "ungradable": self.peer.ungradable[:300]})

    def run(self) -> None:
        try:
            trees = self._parse()
            if self.config["seed"] is not None:
                self._seed(self.config["seed"])  # before the first request, to which data may be changed
            error = self.peer.ask("load")
            if error:
                self._send_error(error if type(error) is str else "the program did not load")
                return
            if not self._run_tests(*trees):
                return
            self._send(
                {
                    "kind": "done",
                    "changing": self.peer.changing_calls[-1000:],
                    "requests": self.peer.num_requests,
                    "mutation_result": self.peer.mutation_result,
                    "mutation_changed_inputs": self.peer.mutation_changed_inputs,
                    "believed": self.peer.believed_equalities,
                    "suppressed": self.suppressed,
                    "same_objects": self.peer.same_objects,
                    "measured": self.peer.measured,
                    "altered_equality": self.peer.altered_equality,
                    "altered_refused": self.peer.altered_refused,
                    "altered_to_same": self.peer.altered_to_same,
                    "extreme": self.peer.extreme.unexpected(self.peer.test_text),
                    "orders": self.peer.orders,
                    "claims": self.peer.claims,
                    "probed_orders": self.peer.probed_orders,
                    "unsupported": [item[:300] for item in self.peer.unsupported[:5]],
                    "ungradable": self.peer.ungradable[:300],
                }
            )
        except TaskRowError as error:
            self._wire.report({"nonce": self.config["nonce"], "kind": "row", "text": str(error)})
        except ConversationError as error:
            message = self.peer.broken or str(error)
            self._wire.report({"nonce": self.config["nonce"], "kind": "broken", "text": message})

    def _parse(self) -> tuple[ast.Module, ast.Module]:
        trees = []
        for key in ("setup", "test"):
            try:
                trees.append(ast.parse(self.config[key], f"{key}.py"))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise TaskRowError(f"the {key} code is not Python: {error}") from error
        return trees[0], trees[1]

    def _run_tests(self, setup: ast.Module, test: ast.Module) -> bool:
        """Run the tests; return False if they could not be run, after reporting the reason to the trainer."""
        path = _path_of(self.config["entry"])
        first = path[0][0]
        solution = Solution("solution")
        solution._rllm_side, solution._rllm_replaced = self, {}
        sys.modules["solution"] = solution
        text = self.config["setup"] + self.config["test"]
        if "sys.path" not in text and (missing := missing_module([setup, test])):
            self.peer.ungradable = f"the test imports {missing!r}, which is not installed in the sandbox"
            self._send_error(self.peer.ungradable)
            return False
        self._adapt_library(text)
        self.peer.vocabulary = functools.cache(lambda: _constants([setup, test]))
        self.peer.test_text = text
        module = types.ModuleType(MODULE)
        sys.modules[MODULE] = module
        namespace = module.__dict__
        if self.config["style"] == "assert":
            namespace["__name__"] = self.peer.served.test_module = _MAIN
        served = self.peer.served
        served.decorated = frozenset(
            node.name
            for node in itertools.chain(ast.walk(setup), ast.walk(test))
            if isinstance(node, ast.ClassDef) and node.decorator_list
        )
        served.data_classes = lambda name: _data_class(namespace.get(name), served.test_module)
        used = FreeNames([setup, test], first)
        meant = {name for name in used.free if own_value(name, used)[0]}
        solution._rllm_hidden = (used.bound | meant | set(dir(builtins))) - {first}
        available = set(self.names())
        imported = []
        for name in used.free:
            own, value = own_value(name, used)
            if name in available and (not own or name in OFTEN_DEFINED):
                own, value = self.solution_value(name)
                imported.append(name)
            if own:
                namespace[name] = value
        try:
            candidate = self.peer.ask("entry", path)
        except Exception as error:
            self._send_error(f"the program does not define {self.config['entry']}: {error}")
            return False
        entry = {first: candidate if len(path) == 1 else self.solution_value(first)[1]}
        namespace |= entry
        runner = RUNNERS[self.config["style"]](self.report, module, test, self.config["test"])
        self.peer.stops = runner.stops
        module.__dict__["_rllm_is"] = self._is
        if _ITEM_BY_ITEM.search(self.peer.test_text):
            runner.values = ProgramValues([setup, test], {*imported, first})
        try:
            exec(compile(runner.checked(setup), "setup.py", "exec", dont_inherit=True), namespace)  # noqa: S102 - this is the sandbox
        except Exception as error:
            # The setup may use names that the program defines.
            self._send_error(f"the code that prepares the tests failed: {type(error).__name__}: {error}")
            return False
        # A setup may define a stub of the tested function, as the prompts of HumanEval do.
        namespace |= entry
        plain = [name for name in imported if type(namespace.get(name)) in (int, float, str, bool)]
        runner.refresh = lambda: namespace.update({name: self.solution_value(name)[1] for name in plain})
        expected = expected_names([setup, test])  # running changes the trees
        self._fix_constants(constants_read([setup, test], set(self.names())))
        runner.run(candidate, {name: namespace[name] for name in imported if name in namespace} | entry)
        for paths in expected:
            self._check_expected(paths)
        self._check_suppressed()
        return True

    def _check_suppressed(self) -> None:
        """Fail a program that suppressed failed assertions of the test, unless the test lets them fail on purpose."""
        errors = list(self.peer.served.failed_assertions.values())
        if not errors:
            return
        trees = list(self._parse())  # running changes them
        purposeful = failing_by_themselves(trees)
        by_themselves = all(_first_function(error, self.peer.served.test_module) in purposeful for error in errors)
        self.suppressed = by_themselves or looks_at_failures(trees)
        if not self.suppressed:
            with contextlib.suppress(StopTesting):
                self.report.outcome("calls", "the program suppressed a failed assertion of a function that it called")

    def _fix_constants(self, constants: list[tuple[list[str], str, str]]) -> None:
        """Let constants of the program stay what they are before the tests, rather than become its last result."""
        for path, operation, name in constants[:_MAX_CONSTANTS]:
            try:
                found, owner = self.solution_value(path[0])
                owner = functools.reduce(getattr, path[1:], owner)
                if found and isinstance(owner, Remote | RemoteType):
                    self.peer.fix_constant(owner, operation, name)
            except Exception:  # what the tests make of it is theirs
                continue

    def _check_expected(self, paths: list[list[str]]) -> None:
        """Fail a program of which all constants, classes or exceptions that its tests expect are the same."""
        values = []
        for path in paths:
            try:
                found, value = self.solution_value(path[0])
                values += [functools.reduce(getattr, path[1:], value)] if found else []
            except Exception:  # then the tests did not get it either
                continue
        # Two numbers or texts may be equal by chance: WIDTH = HEIGHT = 10.
        least = 3 if all(type(value) in (bool, int, float, str, bytes) for value in values) else 2
        if len(values) >= least and all(value is values[0] or value == values[0] for value in values):
            names = ", ".join(".".join(path) for path in paths[:4])
            with contextlib.suppress(StopTesting):
                self.report.outcome("constants", f"what the tests expect is the same for all of them: {names}")

    def _is(self, left: Any, right: Any) -> bool:
        if left is right:
            self.peer.note_same(left)
        return left is right

    def _seed(self, seed: int) -> None:
        """Make this run like others with this seed, except for what the program does."""
        import random

        argument_mutation.seed(seed)
        guard.seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)

    def names(self) -> list[str]:
        names = self.peer.ask("names")
        if type(names) is not list or not all(type(name) is str for name in names):
            raise ConversationError("invalid names")
        return [name for name in names if name.isidentifier()]

    def solution_value(self, name: str) -> tuple[bool, Any]:
        answer = self.peer.ask("module", name)
        if type(answer) is not tuple or len(answer) != 2:
            raise ConversationError("invalid global")
        kind, value = answer
        if kind == "module":
            module = module_named(value) if type(value) is str else None
            return module is not None, module
        return kind == "value", value

    def _attach(self) -> dict[str, Any]:
        names = patched_builtins()
        message: dict[str, Any] = {"patched": names} if names else {}
        if self._printed is not None and self._printed.tell():
            message["printed"] = self._printed.getvalue()
            self._printed.seek(0)
            self._printed.truncate()
        if self._environment is not None:
            message |= self._environment()
        if self.peer.files is not None:
            message |= self.peer.files.changes()
        return message

    def _attached(self, message: dict[str, Any]) -> None:
        if self.peer.files is not None and self._takes_files:
            self.peer.files.take(message)
        for name in ("stdout", "stderr"):
            text = message.get(name)
            if type(text) is str:
                (self._stdout if name == "stdout" and self._stdout is not None else getattr(sys, name)).write(text)
        self._redirect(message.get("redirected") is True and ("ask" in message or self.peer.in_context()))
        warned = message.get("warnings")
        for item in warned[:100] if type(warned) is list else ():
            name, text = item if type(item) is list and len(item) == 2 else ("", "")
            kind = _WARNINGS.get(name if type(name) is str else "", UserWarning)
            warnings.warn(str(text)[:1000], kind, stacklevel=2)
        logged = message.get("logs")
        for item in logged[:1000] if type(logged) is list else ():
            if type(item) is list and [type(part) for part in item] == [str, int, str, list]:
                _log(*item)

    def _redirect(self, on: bool) -> None:
        """Send what the test prints to the program, while the program calls the test, or in a ``with`` block of the
        program, and has replaced standard output.
        """
        if on and self._printed is None:
            self._stdout, self._printed = sys.stdout, io.StringIO()
            sys.stdout = self._printed
        elif not on and self._printed is not None:
            if sys.stdout is self._printed:
                sys.stdout = self._stdout
            self._stdout = self._printed = None

    def _adapt_library(self, text: str) -> None:
        """Redirect library functions that tests call for their effect on the program."""
        if Files.needed(text):
            self.peer.files = Files(guarded=True)
            self._takes_files = not Files.loads_code(text)
            # An archive of the program may be read, but nothing is imported from it.
            sys.path_hooks[:] = [hook for hook in sys.path_hooks if getattr(hook, "__name__", "") != "zipimporter"]
            sys.path_importer_cache.clear()
        patches = Patches(self.peer)
        if "environ" in text or "setenv" in text:
            self._environment = patches.environment
        if "patch" in text:
            patches.of_mock()
        if "monkeypatch" in text and self.config["style"] == "pytest":
            patches.of_pytest()
        if "seed(" in text:
            import random

            random.seed = self._seeding(random.seed, "random")
            if "numpy" in text:
                import numpy as np

                np.random.seed = self._seeding(np.random.seed, "numpy")
        if "logging" in text or "caplog" in text or "Logs(" in text:
            self._forward_log_levels()
        if "approx" in text:
            _require_items_for_approx()
        if "json" in text:
            self._encode_contents()
        for module, names in _OF_OBJECTS.items():
            if module in text:
                imported = importlib.import_module(module)
                for name in names:
                    setattr(imported, name, self._asking(module, name, getattr(imported, name)))

    def _encode_contents(self) -> None:
        """Let ``json`` write objects of subclasses of ``dict`` and other plain types, which stand-ins are not."""
        default = json.JSONEncoder.default

        def encoded(encoder: json.JSONEncoder, o: Any) -> Any:
            found = self.peer.plain_contents(o)
            return default(encoder, o) if found is None else found

        json.JSONEncoder.default = encoded  # type: ignore[method-assign, assignment]

    def _seeding(self, function: Any, name: str) -> Any:
        def seed(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)
            self.peer.ask("seed", name, args, kwargs)

        return seed

    def _forward_log_levels(self) -> None:
        import logging

        set_level, disable = logging.Logger.setLevel, logging.disable

        def set_both(logger: logging.Logger, level: int | str) -> None:
            set_level(logger, level)
            self.peer.ask("log level", logger.name, logger.level)

        def disable_both(level: int = logging.CRITICAL) -> None:
            disable(level)
            self.peer.ask("log level", None, logging.root.manager.disable)

        logging.Logger.setLevel = set_both  # type: ignore[method-assign, assignment]
        logging.disable = disable_both

    def _asking(self, module: str, name: str, function: Any) -> Any:
        def asked(target: Any = None, /, *args: Any, **kwargs: Any) -> Any:
            if isinstance(target, Remote | RemoteType):
                answer = self.peer.ask(module, name, target, args, kwargs)
                return refresh(answer) if isinstance(answer, RemoteType) else answer
            if name == "dataclass" and target is None:
                return functools.partial(asked, **kwargs)
            return function(target, *args, **kwargs)

        return asked


_OF_OBJECTS = {
    "dataclasses": ("asdict", "astuple", "dataclass", "fields", "replace"),
    "inspect": ("getsource", "isasyncgenfunction", "isgeneratorfunction"),
}
"""Functions of the standard library that ask the other side about its objects."""
_WARNINGS = {
    name: kind
    for name, kind in vars(__import__("builtins")).items()
    if isinstance(kind, type) and issubclass(kind, Warning)
}


def _require_items_for_approx() -> None:
    """Let an empty array not be approximately a number: all of its elements are."""
    import pytest

    def checked(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        def approximately(approx: Any, actual: Any) -> bool:
            sides = (approx.expected, actual)
            return not (any(map(is_empty, sides)) and any(map(is_scalar, sides))) and equal(approx, actual)

        return approximately

    of_numbers: Any = type(pytest.approx(0.0))
    of_all: Any = next(base for base in of_numbers.__mro__[1:] if "__eq__" in vars(base))
    of_numbers.__eq__, of_all.__eq__ = checked(of_numbers.__eq__), checked(of_all.__eq__)


def _first_function(error: BaseException, module: str) -> str:
    """Return the name of the test's function that the program called when an error was raised in it."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module:
            return trace.tb_frame.f_code.co_name
        trace = trace.tb_next
    return ""


def _log(name: str, level: int, text: str, raised: list[Any]) -> None:
    import logging

    logging.lastResort = None
    logger = logging.getLogger(name)
    if logger.manager.disable < level:  # its own level has been checked by the program's side, which may have set it
        shown: Any = None
        try:
            if [type(part) for part in raised] == [str, str]:
                raise BUILTIN_ERRORS.get(raised[0], Exception)(raised[1])
        except BaseException:  # also SystemExit, which the program may have logged
            shown = sys.exc_info()
        logger.handle(logging.LogRecord(name, level, "solution.py", 0, text, (), shown))


_NOT_OWN = frozenset({"__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"})
"""What the interpreter puts into a class; the last two since Python 3.13."""


def _data_class(value: Any, module: str) -> type | None:
    """Return a class of the test that does no more than hold data, such as the nodes of a tree; ``None`` for others."""
    if type(value) is not type or value.__module__ != module or value.__bases__ != (object,):
        return None
    allowed = NAMES | _NOT_OWN | {"__init__", "__slots__", "__annotations__"}
    return value if allowed.issuperset(vars(value)) else None


def _path_of(entry: str) -> list[tuple[str, bool]]:
    """Return ``Solution().add`` as a path of names, each with whether it is called."""
    try:
        node: ast.AST = ast.parse(entry, mode="eval").body
    except SyntaxError as error:
        raise TaskRowError(f"entry_point {entry!r} is not a name") from error
    path: list[tuple[str, bool]] = []
    while True:
        called = isinstance(node, ast.Call) and not node.args and not node.keywords
        node = node.func if isinstance(node, ast.Call) and called else node
        if isinstance(node, ast.Name):
            return [(node.id, called), *path]
        if not isinstance(node, ast.Attribute):
            raise TaskRowError(f"entry_point {entry!r} must be like 'add', 'Stack', 'Solution().add'")
        path.insert(0, (node.attr, called))
        node = node.value


def main() -> None:
    wire = TestRelayConnection(FrameChannel())
    config = json.loads(wire._channel.receive())
    sys.setrecursionlimit(10_000)
    TestSide(config, wire).run()
    os._exit(0)
