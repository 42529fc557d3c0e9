"""The styles of test code and their runners: ``check``, ``assert``, ``unittest``, ``pytest``."""

from __future__ import annotations

import ast
import functools
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .free_names import nodes
from .peer import ConversationError
from .program_values import ProgramValues
from .proxies import Remote, RemoteType
from .test_transformers import AssertionMarker, ErrorReporting, ReachChecker, asserts_within, name_called

MAX_TEXT = 2000


class StopTesting(BaseException):
    """A test failed and the remaining tests are not needed."""


class TestReporter:
    """A reporter of the number of tests and the outcome of each to the trainer.

    Args:
        send: Sends a message.
        stop: Whether to stop at the first failure.
        show: Whether messages may contain expected results.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], *, stop: bool, show: bool) -> None:
        self._send = send
        self.stop = stop
        self.show = show

    def tests(self, count: int) -> None:
        self._send({"kind": "tests", "count": count})

    def outcome(self, name: str, error: BaseException | str | None, *, where: str = "") -> None:
        """Report one test; ``error`` is ``None`` if it passed."""
        message = error if isinstance(error, str) else "" if error is None else self._explained(error, where)
        passed = error is None
        line = 0 if error is None or isinstance(error, str) else _line_of(error)
        self._send(
            {"kind": "outcome", "name": name[:200], "passed": passed, "message": message[:MAX_TEXT], "line": line}
        )
        if not passed and self.stop:
            raise StopTesting

    def _explained(self, error: BaseException, where: str) -> str:
        trace = getattr(error, "_rllm_trace", "")
        if isinstance(trace, str) and trace:
            return f"{where}\n{trace}" if self.show and where else trace
        kind = type(error).__name__
        if not self.show:
            return f"the test failed: {kind}"
        import traceback

        lines = traceback.extract_tb(error.__traceback__)
        own = [line for line in lines if line.filename in ("test.py", "setup.py")]
        place = where or (f"line {own[-1].lineno}" if own else "")
        return f"{place}\n{kind}: {_short(str(error))}".strip()


def _line_of(error: BaseException) -> int:
    """Return the line of the test in which an error was raised; 0 if it was raised elsewhere."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if "_rllm_left" in trace.tb_frame.f_globals:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT // 2 else text[: MAX_TEXT // 2] + " ..."


class Runner:
    """A runner of test code of one style, in a module that contains the names of the program."""

    def __init__(self, report: TestReporter, module: types.ModuleType, tree: ast.Module, text: str) -> None:
        self._report = report
        self._module = module
        self._tree = tree
        self._text = text
        self.refresh: Callable[[], None] = lambda: None
        """Reads the numbers and texts that are globals of the program."""
        self.values: ProgramValues | None = None
        """What the names of the test hold; ``None`` if it compares nothing item by item."""
        self._ended: set[int] = set()
        self._ran: set[int] = set()
        self._shorter = False
        self.stops: list[int] = []
        """Has an item while the test expects ``StopIteration`` of the program itself."""
        module.__dict__.update(_rllm_left=_left, _rllm_ended=self._ended, _rllm_ran=self._ran, _rllm_stops=self.stops)
        module.__dict__.update(
            _rllm_side_by_side=self._side_by_side,
            _rllm_pairing=functools.partial(functools.partial, self._paired),
            _rllm_indexed=self._indexed,
            _rllm_entered=self._entered,
            _rllm_compare=functools.partial(self._compare, True),
            _rllm_compare_arrays=functools.partial(self._compare, False),
        )
        module.__dict__.update({f"_rllm_{name}": getattr(operator, name) for name in ("eq", "ne", "sub")})

    def run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        """Run all tests and report each.

        Args:
            candidate: The tested object.
            entry: Names that the test takes from the program.
        """
        try:
            self._run(candidate, entry)
            if self._ended - self._ran:
                self._report.outcome(
                    "loops", "a loop or function of assertions, or an assertion about several values, was not reached"
                )
            if self._shorter:
                self._report.outcome("loops", "a result has fewer items than what the test compares them with")
        except StopTesting:
            return

    def _side_by_side(self, number: int, function: Callable[..., Any], *values: Any, **named: Any) -> Iterator[Any]:
        """Yield what zip() or map() does; record whether it is nothing although the test gives it something."""
        sized = [len(item) for item in values if type(item) in (list, tuple, range, str, dict)]
        # A list and its slices, or neighbours, differ by one; what the program yields has no length.
        if any(sized) and (len(sized) < len(values) or max(sized) - min(sized) > 1):
            self._ended.add(number)
        for item in function(*values, **named):
            self._ran.add(number)
            yield item

    def _paired(self, roles: str, function: Callable[..., Any], *values: Any, **named: Any) -> Iterator[Any]:
        """Yield what zip() does; record whether a result of the program ended before what the test expects.

        Args:
            roles: For each value, ``r`` for what the program may have returned, ``e`` for what the test expects.
        """
        yielded = [0] * len(values)

        def counted(at: int) -> Iterator[Any]:
            for item in values[at]:
                yielded[at] += 1
                yield item

        yield from function(*map(counted, range(len(values))), **named)
        ends = min(yielded, default=0)
        left = [len(item) - ends if _is_sized(item) else 0 for item in values]
        ended = any(role == "r" and left[at] <= 0 and yielded[at] == ends for at, role in enumerate(roles))
        self._shorter |= ended and all(left[at] > 0 for at, role in enumerate(roles) if role == "e")

    def _indexed(self, expected: Callable[[], tuple[Any, ...]], values: Any) -> Iterator[Any]:
        """Yield the items of a result of the program; record whether it ended before what the test expects."""
        count = 0
        for item in values:
            count += 1
            yield item
        try:
            others = expected()
        except Exception:  # what is made from nothing is not there
            return
        self._shorter |= any(_is_sized(item) and len(item) > count for item in others)

    def _entered(self, number: int, values: Any) -> Iterator[Any]:
        """Yield the items of a result of the program; record whether there never is one."""
        self._ended.add(number)
        for item in values:
            self._ran.add(number)
            yield item

    def _compare(self, with_scalars: bool, number: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compare arrays, or an array with a number; record whether not only one of them is empty, for which the other
        could be anything.
        """
        self._ended.add(number)
        of_numpy = str(getattr(function, "__module__", "")).startswith("numpy")
        if of_numpy:  # which would ask for the length and for the items
            args = tuple(list(item) if isinstance(item, Remote) and _is_sized(item) else item for item in args)
        sides = [item for item in args[:2] if (with_scalars if is_scalar(item) else _is_sized(item))]
        if not (of_numpy or any(map(_is_array, sides))) or len(set(map(is_empty, sides))) < 2:
            self._ran.add(number)
        return function(*args, **kwargs)

    def _run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _execute(self, tree: ast.Module) -> None:
        tree = self.checked(tree)
        if self._report.show:
            tree = ErrorReporting().visit(tree)
            self._module.__dict__["_rllm_equal"] = _assert_equal
        exec(compile(tree, "test.py", "exec", dont_inherit=True), self._module.__dict__)  # noqa: S102 - this is the sandbox

    def checked(self, tree: ast.Module) -> ast.Module:
        """Let a test fail where the program keeps it from making its assertions."""
        ReachChecker(self.values).visit(tree)
        return ast.fix_missing_locations(tree)


def _left(reached: bool, *managers: Any) -> None:
    """Fail if a ``with`` block of the program was left before its last assertion held."""
    if not reached and any(isinstance(item, Remote) or type(item).__name__.endswith("ExitStack") for item in managers):
        raise AssertionError(
            "the program suppressed an exception in a with block before the assertions in it were made"
        )


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and bool(getattr(value, "shape", ()))


def is_empty(value: Any) -> bool:
    """Return whether a value has no items, or none but empty ones."""
    if is_scalar(value):
        return False
    if type(value).__module__ == "numpy":
        return bool(value.size == 0)
    if type(value) in (list, tuple):
        return all(map(is_empty, value))
    return _is_sized(value) and len(value) == 0


def _is_sized(value: Any) -> bool:
    if isinstance(type(value), RemoteType):
        return "__len__" in type(value)._rllm_facts["methods"]
    return hasattr(type(value), "__len__")


def is_scalar(value: Any) -> bool:
    """Return whether numpy compares a value with each item of an array."""
    kind = type(value)
    return kind in (bool, int, float, complex, str) or (kind.__module__ == "numpy" and not _is_array(value))


def _assert_equal(left: Any, right: Any) -> bool:
    if left == right:
        return True
    raise AssertionError(f"got {_short(repr(left))}, expected {_short(repr(right))}")


class CheckRunner(Runner):
    """``def check(candidate)``, as in HumanEval."""

    def _run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        self._report.tests(1)
        try:
            self._execute(self._tree)
            self._module.__dict__["check"](candidate)
        except ConversationError:
            raise
        except BaseException as error:
            self._report.outcome("check", error)
        else:
            self._report.outcome("check", None)


class AssertRunner(Runner):
    """Top-level assert statements, as in MBPP. Each is a test, as is each loop or block of them.

    If there are none, for example because functions contain them all, the whole code is one test.
    """

    _lines: list[str] | None = None

    def _run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        body = self._tree.body
        count = sum(_is_assertion(node) for node in body)
        self._report.tests(max(count, 1))
        if count == 0:
            self._report.outcome("assertions", self._error_of(body) or self._error_of_functions(candidate))
            return
        number = 0
        for node in body:
            is_test = _is_assertion(node)
            number += is_test
            self.refresh()
            error = self._error_of([node])
            if error is None and is_test and not self._asserted:
                error = "no assertion was reached"
            where = self._source_of(node) if self._report.show else ""
            if is_test or error is not None:
                self._report.outcome(f"assert {number}" if is_test else "preparation", error, where=where)
            if error is not None and not is_test:
                return

    def _source_of(self, node: ast.stmt) -> str:
        """Return the beginning of a statement; ``ast.get_source_segment`` takes time quadratic in a line's length."""
        if self._lines is None:
            self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n|$)", self._text)
        found = "".join(self._lines[node.lineno - 1 : node.end_lineno])[: node.col_offset + 2000].encode()
        last = (node.end_col_offset or 0) if node.end_lineno == node.lineno else None
        text = found[node.col_offset : last].decode("utf-8", "replace")
        return text[:500].rstrip()

    def _error_of(self, statements: list[ast.stmt]) -> BaseException | str | None:
        self._asserted = False
        self._module.__dict__["_rllm_asserted"] = self._note
        try:
            self._execute(AssertionMarker().visit(ast.Module(statements, [])))
        except ConversationError:
            raise
        except BaseException as error:
            return error
        return None

    def _error_of_functions(self, candidate: Any) -> BaseException | str | None:
        """Call the test functions that the test code itself did not call."""
        names = [node.name for node in self._tree.body if isinstance(node, ast.FunctionDef) and not self._asserted]
        try:
            for name in names:
                if name == "check":
                    self._module.__dict__[name](candidate)
                elif name.startswith("test"):
                    self._module.__dict__[name]()
        except ConversationError:
            raise
        except BaseException as error:
            return error
        return None if self._asserted else "no assertion was reached"

    def _note(self) -> bool:
        self._asserted = True
        return True


def _is_assertion(node: ast.stmt) -> bool:
    if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
        return any(isinstance(item, ast.Assert) for item in nodes(node))
    return isinstance(node, ast.Assert)


class UnittestRunner(Runner):
    """``unittest.TestCase`` classes."""

    def _run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        import unittest

        # Many files end with a bare call of it; the tests are found and run here.
        unittest.main = lambda *args, **kwargs: None  # type: ignore[assignment]
        assert_is, noted = unittest.TestCase.assertIs, self._module.__dict__["_rllm_is"]

        def assert_same(case: Any, first: Any, second: Any, msg: Any = None) -> None:
            noted(first, second)
            assert_is(case, first, second, msg)

        unittest.TestCase.assertIs = assert_same  # type: ignore[method-assign, assignment]
        try:
            self._execute(self._tree)
        except ConversationError:
            raise
        except BaseException as error:
            self._report.tests(1)
            self._report.outcome("import", error)
            return
        suite = unittest.TestSuite()
        names: list[str] = []
        for value in list(vars(self._module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, unittest.TestCase)
                and value.__module__ == self._module.__name__
            ):
                cases: list[Any] = [
                    case for case in unittest.defaultTestLoader.loadTestsFromTestCase(value) if not _left_out(case)
                ]
                names += [case.id() for case in cases]
                suite.addTests(cases)
        self._report.tests(len(names))
        _unittest_result(self._report).run(suite)


def _left_out(case: Any) -> bool:
    method = getattr(type(case), case._testMethodName, None)
    return bool(getattr(type(case), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False))


def _unittest_result(report: TestReporter) -> Any:
    import unittest

    class Recorded(unittest.TestResult):
        def __init__(self) -> None:
            super().__init__()
            self._failed: dict[str, Any] = {}
            self._succeeded: set[str] = set()

        def run(self, suite: Any) -> None:
            suite.run(self)

        def _fail(self, test: Any, error: Any) -> None:
            error = error[1] if isinstance(error, tuple) else error
            if isinstance(error, ConversationError):
                raise error
            self._failed.setdefault(test.id(), error)

        def addError(self, test: Any, err: Any) -> None:
            self._fail(test, err)

        def addFailure(self, test: Any, err: Any) -> None:
            self._fail(test, err)

        def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
            if error is not None:
                self._fail(test, error)

        def addSkip(self, test: Any, reason: str) -> None:
            self._fail(test, f"skipped while it ran: {reason}")

        def addSuccess(self, test: Any) -> None:
            self._succeeded.add(test.id())

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self._succeeded.add(test.id())

        def addUnexpectedSuccess(self, test: Any) -> None:
            self._fail(test, "succeeded, which was not expected")

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            unfinished = None if test.id() in self._succeeded else "did not run to its end"
            report.outcome(test.id().rpartition(".")[2], self._failed.get(test.id(), unfinished))

    return Recorded()


class PytestRunner(Runner):
    """``test_`` functions and everything else that pytest collects."""

    def _run(self, candidate: Any, entry: Mapping[str, Any]) -> None:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.dont_write_bytecode = True
        import pytest

        names = {"all", "enumerate", "map", "range", "zip"} & set(map(name_called, nodes(self._tree)))  # type: ignore[arg-type]
        blocks = ast.With | ast.AsyncWith | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Is
        functions = (node for node in nodes(self._tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        used = names or "numpy" in self._text or any(isinstance(node, blocks) for node in nodes(self._tree))
        if used or any(map(asserts_within, functions)):
            self._text = ast.unparse(self.checked(self._tree))
            self._tree = ast.parse(self._text)
        name = self._module.__name__
        del sys.modules[name]
        path = os.path.join(os.getcwd(), f"{name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._with_imports(entry))
        preset = types.ModuleType("_rllm_given")
        preset.__dict__.update(self._module.__dict__ | dict(entry))
        sys.modules["_rllm_given"] = preset
        options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", os.devnull]
        plugin = _pytest_plugin(self._report)
        here = os.getcwd()
        pytest.main([*options, f"--rootdir={here}", f"--confcutdir={here}", path], plugins=[plugin])
        if plugin.raised is not None:
            raise plugin.raised

    def _with_imports(self, entry: Mapping[str, Any]) -> str:
        """Return the test with explicit imports of the names it takes from the program or its setup."""
        own = [name for name in vars(self._module) if not (name.startswith("__") and name.endswith("__"))]
        names = sorted({*own, *entry})
        if not names:
            return self._text
        lines = self._text.splitlines(keepends=True)
        future = [node.end_lineno or 0 for node in self._tree.body if _is_future(node)]
        at = max(future, default=0)
        line = f"from _rllm_given import {', '.join(names)}\n"
        return "".join([*lines[:at], line, *lines[at:]])


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _pytest_plugin(report: TestReporter) -> Any:
    import pytest

    class Plugin:
        def __init__(self) -> None:
            self.raised: BaseException | None = None
            self._failed: dict[str, Any] = {}
            self._called: set[str] = set()

        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            # "from solution import *" may import functions of the program that look like tests. What the test itself
            # marks to be skipped is no test of any program.
            items[:] = [
                item for item in items if not _is_of_the_program(item.obj) and item.get_closest_marker("skip") is None
            ]

        def pytest_collection_finish(self, session: Any) -> None:
            self._report(lambda: report.tests(len(session.items)))

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                self._report(lambda: self._not_collected(str(report.longrepr)))

        def _not_collected(self, text: str) -> None:
            report.tests(1)
            report.outcome("collection", text[-MAX_TEXT:] if report.show else "the tests could not be collected")

        def _report(self, send: Callable[[], None]) -> None:
            try:
                send()
            except (StopTesting, ConversationError) as error:
                self.raised = self.raised or error
                pytest.exit("done", 1)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            name = item.nodeid
            error = call.excinfo.value if call.excinfo is not None else None
            if isinstance(error, ConversationError):
                self.raised = error
                pytest.exit("done", 1)
            if result.when == "call" and result.passed and not hasattr(result, "wasxfail"):
                self._called.add(name)
            elif not result.passed:
                self._failed.setdefault(name, error if error is not None and not result.skipped else "skipped")
            if result.when == "teardown":
                failed = self._failed.get(name)
                if failed is None and name not in self._called:
                    failed = "did not run"
                self._report(lambda: report.outcome(name.partition("::")[2], failed))
            return result

    return Plugin()


def _is_of_the_program(function: Any) -> bool:
    return isinstance(function, Remote) or str(getattr(function, "__module__", "")).startswith(f"{__package__}.")


RUNNERS: dict[str, type[Runner]] = {
    "check": CheckRunner,
    "assert": AssertRunner,
    "unittest": UnittestRunner,
    "pytest": PytestRunner,
}
