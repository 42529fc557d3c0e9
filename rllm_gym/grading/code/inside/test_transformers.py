"""Transformers of test code: they record what it reached, and report what it compared."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import Any

from .free_names import nodes
from .program_values import ProgramValues


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


class ReachChecker(_StatementTransformer):
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
        called = [name_called(item.context_expr) for item in node.items]
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
        if name_called(call) != "zip" or any(isinstance(item, ast.Starred) for item in call.args):
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
            values = item.args[0] if isinstance(item, ast.Call) and item.args and name_called(item) == "all" else None
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
        if not name_called(node.value).startswith("assert"):
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
        name = name_called(call)
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
        paired = isinstance(values.func, ast.Call) and name_called(values.func) == "_rllm_pairing"
        name = "zip" if paired else name_called(values)
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
        called = [name_called(item) for statement in body for item in nodes(statement) if isinstance(item, ast.Call)]
        if any(map(_asserts, body)) or {"next", "__next__", "send"} & set(called):
            return body
        enter, leave = (ast.parse(f"_rllm_stops.{change}").body for change in ("append(1)", "pop()"))
        return [ast.copy_location(item, body[0]) for item in (*enter, ast.Try(body, [], [], leave))]


class ErrorReporting(_StatementTransformer):
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


class AssertionMarker(_StatementTransformer):
    """Records that an assertion was reached: a statement, a function with such a name, or an expected exception."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        return self._marked(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        return self._marked(node) if name_called(node.value).startswith("assert") else node

    def visit_Try(self, node: ast.Try) -> Any:
        # The test may expect that the assertion in it is not reached.
        holds = any(isinstance(item, ast.Assert) for item in nodes(node))
        self.generic_visit(node)
        return self._marked(node) if holds else node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        names = [name_called(item.context_expr) for item in node.items]
        return self._marked(node) if any(name.startswith(("assert", "raises")) for name in names) else node

    def _marked(self, node: ast.stmt) -> list[ast.stmt]:
        mark = ast.Expr(ast.Call(ast.Name("_rllm_asserted", ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(mark, node)), node]


def name_called(node: ast.expr) -> str:
    """Return the last name of what an expression calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _indexing(loop: ast.For | ast.AsyncFor | ast.comprehension) -> tuple[ast.expr | None, ast.expr]:
    """Return the target of a loop that takes each index or key of something, and what this is."""
    values, target = loop.iter, loop.target
    if isinstance(values, ast.Name):
        return target, values
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    if not isinstance(values, ast.Call):
        return None, values
    name = name_called(values)
    if name == "items" and isinstance(values.func, ast.Attribute):
        return first, values.func.value
    within = values.args[0] if values.args else values
    if name == "enumerate":
        return first, within
    if name == "range" and len(values.args) == 1 and isinstance(within, ast.Call) and name_called(within) == "len":
        return target, within.args[0]
    return None, values


def _variable(node: ast.expr) -> str:
    """Return the variable that this is, or the one from which a number is subtracted."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Constant):
        node = node.left
    return node.id if isinstance(node, ast.Name) else ""


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
        names = [name_called(item.context_expr) for item in statement.items]
    else:
        names = [name_called(statement.value)] if isinstance(statement, ast.Expr) else []
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
            isinstance(item, ast.Expr)
            and isinstance(item.value, ast.Call)
            and name_called(item.value).startswith("assert")
        )
        for item in nodes(statement)
    )
