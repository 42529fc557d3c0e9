"""The styles of test code and their runners: ``check``, ``assert``, ``unittest``, ``pytest``."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .free_names import nodes
from .peer import ConversationError
from .program_values import ProgramValues
from .proxies import Remote, RemoteType

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
            tree = _ErrorReporting().visit(tree)
            self._module.__dict__["_rllm_equal"] = _assert_equal
        exec(compile(tree, "test.py", "exec", dont_inherit=True), self._module.__dict__)  # noqa: S102 - this is the sandbox

    def checked(self, tree: ast.Module) -> ast.Module:
        """Let a test fail where the program keeps it from making its assertions."""
        _ReachChecker(self.values).visit(tree)
        return ast.fix_missing_locations(tree)


def _left(reached: bool, *managers: Any) -> None:
    """Fail if a ``with`` block of the program was left before its last assertion held."""
    if not reached and any(isinstance(item, Remote) or type(item).__name__.endswith("ExitStack") for item in managers):
        raise AssertionError(
            "the program suppressed an exception in a with block before the assertions in it were made"
        )


class _StatementTransformer(ast.NodeTransformer):
    """Visits statements only: an expression contains none, and may be a literal of megabytes."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements: list[ast.AST] = []
            for item in getattr(node, name, ()):
                found = self.visit(item)
                statements += found if isinstance(found, list) else [found]
            if statements:
                setattr(node, name, statements)
        return node


class _ReachChecker(_StatementTransformer):
    """Checks after each ``with`` block that its last assertion was passed, and records which loops ran.

    A program could suppress exceptions in its context manager, and return nothing, or not everything, to a test that
    compares what it returns item by item.
    """

    _numbers = itertools.count()
    _reached: int | None = None
    """The number of the function of the test that is visited, if functions within it make assertions."""
    _CLOSE = frozenset(
        {"allclose", "array_equiv", "isclose", "assert_allclose", "assert_almost_equal", "assert_approx_equal"}
    )
    _CLOSE |= {"assert_array_almost_equal", "assert_array_equal", "assert_array_less", "assert_equal"}
    _AGGREGATES = frozenset({"all", "any", "fsum", "len", "max", "min", "next", "sum"})
    _SUPPRESSING = frozenset({"raises", "suppress", "warns", "deprecated_call", "subTest"})

    def __init__(self, values: ProgramValues | None) -> None:
        self._values = values

    def visit_With(self, node: ast.With | ast.AsyncWith) -> Any:
        self.generic_visit(node)
        if any(_names_stop(item.context_expr) for item in node.items):
            node.body = self._expecting_stop(node.body)
            return node
        last = max((at for at, item in enumerate(node.body) if _asserts(item)), default=None)
        called = [_called(item.context_expr) for item in node.items]
        if last is None or any(name in self._SUPPRESSING or name.startswith("assert") for name in called):
            return node
        reached = f"_rllm_reached_{node.lineno}_{node.col_offset}"
        managers = [f"{reached}_{at}" for at in range(len(node.items))]
        for name, item in zip(managers, node.items):
            item.context_expr = ast.NamedExpr(ast.Name(name, ast.Store()), item.context_expr)
        node.body.insert(last + 1, _assignment(reached, True))
        names: list[ast.expr] = [ast.Name(name, ast.Load()) for name in (reached, *managers)]
        check = ast.Expr(ast.Call(ast.Name("_rllm_left", ast.Load()), names, []))
        return [ast.copy_location(item, node) for item in (_assignment(reached, False), node, check)]

    visit_AsyncWith = visit_With

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        """Let a test fail that leaves its assertions to functions which the program never calls."""
        if self._reached is not None or not asserts_within(node):
            return self.generic_visit(node)
        self._reached = next(self._numbers)
        self.generic_visit(node)
        node.body.insert(0, ast.copy_location(_recorded("_rllm_ended", self._reached), node.body[0]))
        self._reached = None
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._reached is None:
            return node
        for name in ("body", "orelse", "finalbody"):
            statements: list[ast.stmt] = getattr(node, name, [])
            at = next((at for at, item in enumerate(statements) if _expects(item)), None)
            if at is not None:
                statements.insert(at, ast.copy_location(_recorded("_rllm_ran", self._reached), statements[at]))
        return node

    def visit_For(self, node: ast.For | ast.AsyncFor) -> Any:
        asserts = any(map(_asserts, node.body))
        if asserts:
            self._follow_length(node, node.body)
        self.generic_visit(node)
        if not asserts:
            return node
        number = next(self._numbers)
        ended, ran = (ast.copy_location(_recorded(name, number), node) for name in ("_rllm_ended", "_rllm_ran"))
        node.body.insert(0, ran)
        return [node, ended]

    visit_AsyncFor = visit_For

    def _follow_length(self, loop: ast.For | ast.AsyncFor | ast.comprehension, within: Sequence[ast.AST]) -> None:
        """Let a loop over a result of the program record whether it ends before what the test compares it with.

        Args:
            loop: The loop, or one of a generator.
            within: What is done with each item.
        """
        if self._values is None:
            return
        for item in (loop.iter, *(loop.iter.args[:1] if isinstance(loop.iter, ast.Call) else ())):
            if isinstance(item, ast.Call):
                self._pair(item)
        index, sized = _indexing(loop)
        if not isinstance(index, ast.Name) or not self._values.is_returned(sized) or self._values.is_measured(sized):
            return
        indexed = [
            item.value
            for part in within
            for item in nodes(part)
            if isinstance(item, ast.Subscript) and _variable(item.slice) == index.id
        ]
        others = [item for item in indexed if self._values.is_expected(item)]
        of_itself = not isinstance(loop.iter, ast.Name) or any(_variable(item) == loop.iter.id for item in indexed)
        if others and of_itself:
            made = ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.Tuple(others, ast.Load()))
            new = ast.Call(ast.Name("_rllm_indexed", ast.Load()), [made, loop.iter], [])
            loop.iter = ast.copy_location(new, loop.iter)

    def _pair(self, call: ast.Call) -> None:
        """Let zip() record whether a result of the program ends before what the test expects."""
        assert self._values is not None
        if _called(call) != "zip" or any(isinstance(item, ast.Starred) for item in call.args):
            return
        roles = "".join(
            "e" if self._values.is_expected(item)
            else "r" if self._values.is_returned(item) and not self._values.is_measured(item)
            else "?"
            for item in call.args
        )  # fmt: skip
        if "e" in roles and "r" in roles:
            call.func = ast.Call(ast.Name("_rllm_pairing", ast.Load()), [ast.Constant(roles), call.func], [])

    def _required(self, assertion: ast.expr) -> list[ast.comprehension]:
        """Return the loops over results of the program in which something is said of all items."""
        found = []
        for item in nodes(assertion):
            values = item.args[0] if isinstance(item, ast.Call) and item.args and _called(item) == "all" else None
            if self._values is None or not isinstance(values, ast.GeneratorExp | ast.ListComp):
                continue
            loop = values.generators[0]
            if not loop.ifs and not loop.is_async and self._values.is_result(loop.iter):
                found += [] if self._values.may_be_empty(loop.iter) else [loop]
        return found

    def _require(self, loops: list[ast.comprehension]) -> None:
        """Let a test fail if there never is an item to say something of."""
        for loop in loops:
            arguments = [ast.Constant(next(self._numbers)), loop.iter]
            loop.iter = ast.copy_location(ast.Call(ast.Name("_rllm_entered", ast.Load()), arguments, []), loop.iter)

    def visit_Assert(self, node: ast.Assert) -> Any:
        loops = self._required(node.test)
        self._recording(node)
        self._require(loops)
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if not _called(node.value).startswith("assert"):
            return node
        loops = self._required(node.value)
        self._recording(node)
        self._require(loops)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._recording(node)

    def _recording(self, statement: ast.stmt) -> ast.stmt:
        """Let a statement record whether there is anything in what it compares item by item."""
        self._follow_generators(statement)
        for item in nodes(statement):
            for name, value in ast.iter_fields(item):
                if isinstance(value, ast.BinOp | ast.Compare) and not isinstance(item, ast.Assert):
                    setattr(item, name, self._compared(value))
                elif type(value) is list and name in ("args", "elts"):
                    value[:] = [
                        self._compared(each) if isinstance(each, ast.BinOp | ast.Compare) else each for each in value
                    ]
            if isinstance(item, ast.Call):
                self._record_calls(item)
            elif isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.Not):
                self._record_comprehension(item.operand)
            elif isinstance(item, ast.Compare) and any(map(_is_empty_display, item.comparators)):
                self._record_comprehension(item.left)
        if isinstance(statement, ast.Assert):
            statement.test = self._identity(statement.test)
        return statement

    def _identity(self, test: ast.expr) -> ast.expr:
        """Let ``is`` record that it compared an object of the program with itself."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._identity(item) for item in test.values]
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is):
            sides = [test.left, *test.comparators]
            if not any(isinstance(item, ast.Constant) for item in sides):
                return ast.copy_location(ast.Call(ast.Name("_rllm_is", ast.Load()), sides, []), test)
        return test

    def _follow_generators(self, node: ast.AST) -> None:
        for item in nodes(node) if self._values is not None else ():
            if isinstance(item, ast.GeneratorExp | ast.ListComp | ast.SetComp):
                for at, loop in enumerate(item.generators):
                    self._follow_length(loop, [item.elt, *loop.ifs, *item.generators[at + 1 :]])

    def _recording_calls(self, node: ast.AST) -> None:
        self._follow_generators(node)
        for item in nodes(node):
            if isinstance(item, ast.Call):
                self._record_calls(item)

    def visit_Return(self, node: ast.Return) -> Any:
        self._recording_calls(node)
        return node

    def visit_If(self, node: ast.If) -> Any:
        self._recording_calls(node.test)
        return self.generic_visit(node)

    def _compared(self, node: ast.BinOp | ast.Compare) -> ast.expr:
        if isinstance(node, ast.BinOp):
            operation, sides = type(node.op).__name__, [node.left, node.right]
        else:
            operation, sides = type(node.ops[0]).__name__, [node.left, *node.comparators]
        name = {"Sub": "_rllm_sub", "Eq": "_rllm_eq", "NotEq": "_rllm_ne"}.get(operation)
        called = any(isinstance(item, ast.Call | ast.Name) for item in sides)
        if name is None or len(sides) != 2 or not called:
            return node
        return self._call(_comparing(sides), ast.Name(name, ast.Load()), sides)

    def _record_calls(self, call: ast.Call) -> None:
        name = _called(call)
        if name in self._CLOSE and len(call.args) >= 2:
            new = self._call(_comparing(call.args[:2]), call.func, call.args)
            call.func, call.args = new.func, new.args
        elif name in self._AGGREGATES and call.args:
            self._record_comprehension(call.args[0])
            if name != "len":
                self._record_items(call.args[0])

    def _record_comprehension(self, values: ast.expr) -> None:
        if isinstance(values, ast.GeneratorExp | ast.ListComp | ast.SetComp):
            self._record_items(values.generators[0].iter)

    def _record_items(self, values: ast.expr) -> None:
        if not isinstance(values, ast.Call):
            return
        paired = isinstance(values.func, ast.Call) and _called(values.func) == "_rllm_pairing"
        name = "zip" if paired else _called(values)
        if len(values.args) > {"zip": 1, "map": 2}.get(name, 99):
            new = self._call("_rllm_side_by_side", values.func, values.args)
            values.func, values.args = new.func, new.args

    def _call(self, name: str, function: ast.expr, args: list[ast.expr]) -> ast.Call:
        return ast.Call(ast.Name(name, ast.Load()), [ast.Constant(next(self._numbers)), function, *args], [])

    def visit_Try(self, node: ast.Try) -> Any:
        self.generic_visit(node)
        if any(handler.type is not None and _names_stop(handler.type) for handler in node.handlers):
            node.body = self._expecting_stop(node.body)
        return node

    def _expecting_stop(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Let the exception through in a block in which nothing but the program can raise it."""
        called = [_called(item) for statement in body for item in nodes(statement) if isinstance(item, ast.Call)]
        if any(map(_asserts, body)) or {"next", "__next__", "send"} & set(called):
            return body
        enter, leave = (ast.parse(f"_rllm_stops.{change}").body for change in ("append(1)", "pop()"))
        return [ast.copy_location(item, body[0]) for item in (*enter, ast.Try(body, [], [], leave))]


def _indexing(loop: ast.For | ast.AsyncFor | ast.comprehension) -> tuple[ast.expr | None, ast.expr]:
    """Return the target of a loop that takes each index or key of something, and what this is."""
    values, target = loop.iter, loop.target
    if isinstance(values, ast.Name):
        return target, values
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    if not isinstance(values, ast.Call):
        return None, values
    name = _called(values)
    if name == "items" and isinstance(values.func, ast.Attribute):
        return first, values.func.value
    within = values.args[0] if values.args else values
    if name == "enumerate":
        return first, within
    if name == "range" and len(values.args) == 1 and isinstance(within, ast.Call) and _called(within) == "len":
        return target, within.args[0]
    return None, values


def _variable(node: ast.expr) -> str:
    """Return the variable that this is, or the one from which a number is subtracted."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Constant):
        node = node.left
    return node.id if isinstance(node, ast.Name) else ""


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


def _is_empty_display(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Tuple) and not node.elts


def _comparing(sides: list[ast.expr]) -> str:
    """Return the function for a comparison: what a test selects, or makes from nothing, may be empty in each run."""
    for item in itertools.chain(*map(nodes, sides)):
        selects = isinstance(item, ast.Subscript) and not isinstance(item.slice, ast.Constant)
        of_nothing = isinstance(item, ast.Call) and any(
            isinstance(arg, ast.Constant) and type(arg.value) is int and not arg.value for arg in item.args
        )
        if selects or of_nothing or _is_empty_display(item):
            return "_rllm_compare_arrays"
    return "_rllm_compare"


def asserts_within(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether functions within a function make assertions."""
    within = (item for statement in function.body for item in nodes(statement))
    return any(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and _asserts(item) for item in within)


def _expects(statement: ast.stmt) -> bool:
    """Return whether a statement is an assertion, or expects an exception."""
    if isinstance(statement, ast.With | ast.AsyncWith):
        names = [_called(item.context_expr) for item in statement.items]
    else:
        names = [_called(statement.value)] if isinstance(statement, ast.Expr) else []
    named = any(name.startswith(("assert", "raises", "fail")) for name in names)
    return isinstance(statement, ast.Assert | ast.Raise | ast.Try) or named


def _recorded(name: str, number: int) -> ast.stmt:
    """Return a statement that adds a number to one of the sets of what a test reached."""
    add = ast.Attribute(ast.Name(name, ast.Load()), "add", ast.Load())
    return ast.Expr(ast.Call(add, [ast.Constant(number)], []))


def _assignment(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))


def _names_stop(node: ast.expr) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "StopIteration" for item in nodes(node))


def _asserts(statement: ast.stmt) -> bool:
    """Return whether a statement makes an assertion that may hold."""
    return any(
        (isinstance(item, ast.Assert) and not (isinstance(item.test, ast.Constant) and not item.test.value))
        or (
            isinstance(item, ast.Expr) and isinstance(item.value, ast.Call) and _called(item.value).startswith("assert")
        )
        for item in nodes(statement)
    )


class _ErrorReporting(_StatementTransformer):
    """Makes ``assert a == b`` report the actual value. Only for tests whose expected values may be shown."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = node.test
        if (
            node.msg is None
            and isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and isinstance(test.ops[0], ast.Eq)
        ):
            function = ast.copy_location(ast.Name("_rllm_equal", ast.Load()), test)
            node.test = ast.copy_location(ast.Call(function, [test.left, *test.comparators], []), test)
        return node


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
            self._execute(_AssertionMarker().visit(ast.Module(statements, [])))
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


class _AssertionMarker(_StatementTransformer):
    """Records that an assertion was reached: a statement, a function with such a name, or an expected exception."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        return self._marked(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        return self._marked(node) if _called(node.value).startswith("assert") else node

    def visit_Try(self, node: ast.Try) -> Any:
        # The test may expect that the assertion in it is not reached.
        holds = any(isinstance(item, ast.Assert) for item in nodes(node))
        self.generic_visit(node)
        return self._marked(node) if holds else node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        names = [_called(item.context_expr) for item in node.items]
        return self._marked(node) if any(name.startswith(("assert", "raises")) for name in names) else node

    def _marked(self, node: ast.stmt) -> list[ast.stmt]:
        mark = ast.Expr(ast.Call(ast.Name("_rllm_asserted", ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(mark, node)), node]


def _called(node: ast.expr) -> str:
    """Return the last name of what an expression calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


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

        names = {"all", "enumerate", "map", "range", "zip"} & set(map(_called, nodes(self._tree)))  # type: ignore[arg-type]
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
