"""Rewrites a test file so that nothing in it decides: operands and exceptions are recorded, and evaluated elsewhere.

``assert total([1, 2]) == 3`` becomes ``with _g_(7): _a_(7, [total([1, 2])])``, and so do ``total([1, 2])`` on its own
and the body of ``pytest.raises``: the code under test sees the same call in every run, without expected values. See
:mod:`rllm_gym.grading.swe.inside.observer` for what the calls do, :mod:`rllm_gym.grading.swe.assertions` for how an
assertion is evaluated, and :mod:`rllm_gym.grading.swe.taint` for which expressions stay away from the code.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.erased_values import ValueEraser, literal_arguments, parametrizations
from rllm_gym.grading.swe.literal_tables import write_tables
from rllm_gym.grading.swe.operands import DIFFERING, OWN_CALLS, AssertionOperands, expected_side, load_name
from rllm_gym.grading.swe.recorded_sites import Level, RecordedSite, SiteKind, operands_in
from rllm_gym.grading.swe.stated_assertions import as_assertion, imported_from_numpy
from rllm_gym.grading.swe.taint import (
    Function,
    Scope,
    column_cells,
    is_built,
    name_of,
    parameters,
)

MODULE = "_observer"
"""The name under which rewritten tests import what records."""
MAX_BYTES = 4_000_000
_ASSERTS = re.compile(r"_*(assert|check|expect|verify|ensure)(_\w+|[A-Z]\w*)?")
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp"})
_WARNS = frozenset({"warns", "assertWarns", "assertWarnsRegex"})
_EQUALITIES = re.compile(r"(\w*_)?(same|equals?|equivalent|identical)(_\w+)?")


@dataclass(slots=True)
class InstrumentedFile:
    """A rewritten test file.

    Attributes:
        text: The file.
        sites: Its recorded places, in order.
    """

    text: str
    sites: list[RecordedSite]


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What the runs of the reference solution showed about a site: see :class:`RecordedSite`."""

    level: Level = Level.DEEP
    kept: bool = False


def instrument(text: str, plan: Mapping[int, SitePlan], *, first: int, recording: bool) -> InstrumentedFile:
    """Rewrite a test file.

    Args:
        text: Its source.
        plan: By number of the site in the file, what the default would not be.
        first: The number of the first site.
        recording: Keep known operands and expected exceptions, to record them with the reference solution.

    Raises:
        ValueError: It is not Python that this interpreter can parse, or too long.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"a test file has {len(text)} characters; the maximum is {MAX_BYTES}")
    try:
        tree = parse_python(text)
        write_tables(tree)
        rewriter = _Rewriter(tree, plan, first, recording)
        rewriter.rewrite()
        written = ast.unparse(ast.fix_missing_locations(tree))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"a test file is not valid Python: {type(error).__name__}") from None
    return InstrumentedFile(written + "\n", rewriter.sites)


def _identities(test: ast.expr) -> list[ast.expr]:
    """Return the parts of an assertion that say of two operands that they are the same object."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return [found for part in parts for found in _identities(part)]
        case ast.Compare(left=ast.Name(one), ops=[ast.Is()], comparators=[ast.Name(other)]) if one != other:
            return [test]
    return []


def _judged(operand: ast.expr, scope: Scope) -> list[str]:
    """Return the variables whose own methods decide what an operand is, since it compares inside."""
    nodes = list(ast.walk(operand))
    if not any(isinstance(node, ast.Compare | ast.BoolOp) or getattr(node, "ifs", None) for node in nodes):
        return []
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [name for name in dict.fromkeys(names) if name not in bound and scope.is_local(name) and scope.tainted(name)]


class _Rewriter:
    def __init__(self, tree: ast.Module, plan: Mapping[int, SitePlan], first: int, recording: bool) -> None:
        self._tree = tree
        self._plan = plan
        self._first = first
        self._recording = recording
        self._module = Scope(tree.body, None, {})
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        self._helpers = _expressions(tree)
        self._of_numpy = imported_from_numpy(tree)
        self._given = {name: tuple(values) for name, values in literal_arguments(tree, self._module).items()}
        self.sites: list[RecordedSite] = []

    def rewrite(self) -> None:
        functions = [node for node in ast.walk(self._tree) if isinstance(node, Function)]
        self._tree.body = self._top_level(self._tree.body, self._module)
        if self.sites:
            place = _after_header(self._tree.body)
            renamed = {"guard": "_g_", "operands": "_a_", "warned": "_w_", "listed": "_i_"}
            names = [ast.alias(name, short) for name, short in renamed.items()]
            self._tree.body.insert(place, ast.ImportFrom(MODULE, names, 0))
        if not self._recording:
            ValueEraser(self._tree, functions, self._module).erase()

    def _top_level(self, body: list[ast.stmt], scope: Scope) -> list[ast.stmt]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                statement.body = self._top_level(statement.body, scope)
            elif isinstance(statement, Function):
                self._function(statement, scope, test=statement.name.startswith("test"))
            elif isinstance(statement, ast.If | ast.Try):
                statement.body = self._top_level(statement.body, scope)
                statement.orelse = self._top_level(statement.orelse, scope)
        return body

    def _function(self, function: Function, scope: Scope, *, test: bool) -> None:
        arguments = dict.fromkeys(parameters(function), True)
        if test:
            for name, independent in _parametrized(function, scope).items():
                if name in arguments:
                    arguments[name] = not independent
        arguments |= dict.fromkeys(self._given.get(function.name, ()), False)
        inner = Scope(function.body, scope, arguments)
        function.body = self._body(function.body, inner, guarded=test)

    def _body(self, body: list[ast.stmt], scope: Scope, *, guarded: bool) -> list[ast.stmt]:
        return [self._statement(statement, scope, guarded) for statement in body]

    # Statements

    def _site(self, kind: SiteKind, statement: ast.stmt) -> tuple[int, RecordedSite]:
        number = len(self.sites)
        planned = self._plan.get(number, SitePlan())
        site = RecordedSite(kind, level=planned.level, kept=planned.kept, line=statement.lineno)
        self.sites.append(site)
        return self._first + number, site

    def _statement(self, statement: ast.stmt, scope: Scope, guarded: bool) -> ast.stmt:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(statement, scope, test=False)
                return statement
            case ast.ClassDef():
                statement.body = self._top_level(statement.body, scope)
                return statement
            case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass() | ast.Return():
                return statement
            case ast.Break() | ast.Continue() | ast.Raise():
                return statement
            case ast.With() | ast.AsyncWith():
                return self._with(statement, scope, guarded)
            case ast.Assert() | ast.Expr():
                return self._expression(statement, scope, guarded)
        if not guarded:
            self._inner(statement, scope, guarded=False)
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        self._inner(statement, scope, guarded=isinstance(statement, ast.For | ast.If | ast.AsyncFor))
        return self._guarded(number, statement)

    def _inner(self, statement: ast.stmt, scope: Scope, *, guarded: bool) -> None:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(statement, name, None), list):
                setattr(statement, name, self._body(inner, scope, guarded=guarded))
        for handler in getattr(statement, "handlers", ()):
            handler.body = self._body(handler.body, scope, guarded=False)
        for case in getattr(statement, "cases", ()):
            case.body = self._body(case.body, scope, guarded=False)

    def _guarded(self, number: int, statement: ast.stmt, expected: list[ast.expr] | None = None) -> ast.stmt:
        call = ast.Call(load_name("_g_"), [ast.Constant(number), *(expected or [])], [])
        return ast.copy_location(ast.With([ast.withitem(call, None)], [statement]), statement)

    def _recorded(self, number: int, operands: list[ast.expr], *more: ast.expr) -> ast.stmt:
        arguments = [ast.Constant(number), ast.List(operands, ast.Load()), *more]
        return ast.Expr(ast.Call(load_name("_a_"), arguments, []))

    def _with(self, statement: ast.With | ast.AsyncWith, scope: Scope, guarded: bool) -> ast.stmt:
        recorded: int | None = None
        for item in statement.items:
            call = item.context_expr
            kind = {**dict.fromkeys(_RAISES, SiteKind.RAISES), **dict.fromkeys(_WARNS, SiteKind.WARNS)}.get(
                name_of(call)
            )
            if kind is None or not isinstance(call, ast.Call) or not 1 <= len(call.args) <= 2:
                continue
            number, _ = self._site(kind, statement)
            expected = self._expected(call)
            function = "_g_" if kind is SiteKind.RAISES else "_w_"
            item.context_expr = ast.Call(load_name(function), [ast.Constant(number), *expected], [])
            recorded = number
        only = statement.body[0]
        if recorded is not None and len(statement.body) == 1 and isinstance(only, ast.Expr):
            if not isinstance(only.value, ast.Yield | ast.YieldFrom):
                statement.body = [self._recorded(recorded, [only.value])]
        else:
            # The code's own context manager has to see the exceptions of its block.
            own = any(scope.depends(item.context_expr) for item in statement.items)
            statement.body = self._body(statement.body, scope, guarded=guarded and recorded is None and not own)
        if not guarded or (recorded is not None and len(statement.items) == 1):
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        return self._guarded(number, statement)

    def _expected(self, call: ast.Call) -> list[ast.expr]:
        """Return the expected class and pattern as arguments for a recording; nothing for a graded run."""
        if not self._recording:
            return []
        pattern = call.args[1] if len(call.args) > 1 else None
        for keyword in call.keywords:
            pattern = keyword.value if keyword.arg == "match" else pattern
        return [call.args[0], *([pattern] if pattern is not None else [])]

    def _expression(self, statement: ast.Assert | ast.Expr, scope: Scope, guarded: bool) -> ast.stmt:
        value = statement.test if isinstance(statement, ast.Assert) else statement.value
        original: ast.expr | None = None
        if isinstance(statement, ast.Expr):
            if isinstance(value, ast.Constant | ast.Yield | ast.YieldFrom):
                return statement
            call = value.value if isinstance(value, ast.Await) else value
            place = 2 if "Regex" in name_of(call) else 1
            if isinstance(call, ast.Call) and name_of(call) in _RAISES and len(call.args) > place:
                number, _ = self._site(SiteKind.RAISES, statement)
                called = ast.Call(call.args[place], call.args[place + 1 :], call.keywords)
                expected = call.args[:place] if self._recording else []
                return self._guarded(number, self._recorded(number, [called]), expected)
            asserted = as_assertion(call, self._of_numpy) if isinstance(call, ast.Call) else None
            if asserted is None:
                return self._plain(statement, value, scope, guarded)
            if any(isinstance(node, ast.Name) and node.id in OWN_CALLS for node in ast.walk(asserted)):
                original = call
            value = asserted
        if isinstance(value, ast.Call) and len(value.args) > 1 and self._is_of_project(value, scope, _EQUALITIES):
            return self._check(statement, value, value, scope, guarded)
        number, site = self._site(SiteKind.ASSERTION, statement)
        site.test, operands, more = self._taken_apart(value, original, site, scope)
        recorded = self._recorded(number, operands, *more)
        return self._guarded(number, recorded) if guarded else ast.copy_location(recorded, statement)

    def _plain(self, statement: ast.Expr, value: ast.expr, scope: Scope, guarded: bool) -> ast.stmt:
        """Record an expression statement like an assertion; the arguments of a check of the repository's own, too."""
        if isinstance(value, ast.Call) and self._is_of_project(value, scope, _ASSERTS):
            return self._check(statement, value, ast.Constant(1), scope, guarded)
        if not guarded:
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        return self._guarded(number, self._recorded(number, [value]))

    def _is_of_project(self, call: ast.Call, scope: Scope, names: re.Pattern[str]) -> bool:
        """Return whether a call is one of a function of the repository with such a name."""
        plain = not call.keywords and not any(isinstance(item, ast.Starred) for item in call.args)
        own = name_of(call) in self._own or not scope.depends(call.func)
        return plain and not own and names.fullmatch(name_of(call)) is not None

    def _check(self, statement: ast.stmt, call: ast.Call, holds: ast.expr, scope: Scope, guarded: bool) -> ast.stmt:
        """Record the arguments of a check of the repository's own. ``holds``: what is true if it passes."""
        number, site = self._site(SiteKind.ASSERTION, statement)
        names = [load_name(f"_v{place}") for place in range(len(call.args))]
        site.test, site.level = ast.Call(call.func, list[ast.expr](names), []), Level.WHOLE
        known = [not scope.depends(item) for item in call.args]
        # What ``self`` computes from literals, such as ``self.dedent("…")``, is an input too.
        inputs = Scope([], scope, {"self": False})
        site.passed_only = frozenset(place for place, item in enumerate(call.args) if not inputs.depends(item))
        if any(known) and len(site.passed_only) < len(known):
            # What it compares with is not needed inside: the other arguments are held against the reference's.
            site.level, site.known = Level.STATE, known
            sent = [item for item, known in zip(call.args, site.known) if self._recording or not known]
            recorded = self._recorded(number, sent)
        else:
            site.known = [False] * len(names)
            result = site.test if holds is call else ast.Tuple([site.test, holds], ast.Load())
            recorded = self._recorded(number, call.args, self._whole(result, range(len(names))))
        return self._guarded(number, recorded) if guarded else ast.copy_location(recorded, statement)

    def _taken_apart(
        self, test: ast.expr, original: ast.expr | None, site: RecordedSite, scope: Scope
    ) -> tuple[ast.expr, list[ast.expr], list[ast.expr]]:
        if site.level == Level.STATE:
            expected = expected_side(test, scope, self._own)
            if expected is not None and isinstance(test, ast.Compare):
                sides = [test.left, *test.comparators]
                site.known = [side is expected for side in sides]
                kept = self._recording or site.kept
                return test, [side for side in sides if kept or side is not expected], []
            site.level = Level.WHOLE
        if site.level == Level.WHOLE and isinstance(original, ast.Call):
            operands, site.known = original.args[:2], [False, False]
            names = [load_name("_v0"), load_name("_v1")]
            call = ast.Call(original.func, [*names, *original.args[2:]], original.keywords)
            return test, operands, [self._whole(ast.Tuple([call, ast.Constant(1)], ast.Load()), range(2))]
        inside = site.level == Level.WHOLE
        taken = AssertionOperands(scope, () if inside else self._own, inside=inside, helpers=self._helpers)
        outside = taken.part(copy.deepcopy(test), shallow=site.level == Level.SHALLOW)
        calls = [node for operand in taken.operands for node in ast.walk(operand) if isinstance(node, ast.Call)]
        site.varies = any(name_of(call) in DIFFERING for call in calls)
        for operand in list(taken.operands):
            for name in _judged(operand, scope):
                site.evidence.append(len(taken.operands))
                taken.operand(load_name(name))
        site.known = taken.known
        if site.level == Level.WHOLE:
            site.known = [False] * len(taken.known)
            return outside, taken.operands, [self._whole(outside, range(len(taken.operands)))]
        sent = [place for place, known in enumerate(taken.known) if self._recording or site.kept or not known]
        # Of plain values, only the process that has them can tell whether they are the same object.
        same = [part for part in _identities(outside) if operands_in(part) <= set(sent)]
        site.identity = bool(same)
        whole = same[0] if len(same) == 1 else ast.BoolOp(ast.And(), same)
        more = [self._whole(whole, sent)] if same else []
        return outside, [taken.operands[place] for place in sent], more

    def _whole(self, outside: ast.expr, sent: Sequence[int]) -> ast.expr:
        """Return a function that evaluates an assertion inside, from the operands that are sent."""

        class Inside(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                if node.id in places:
                    return ast.Subscript(load_name("_v"), ast.Constant(places[node.id]), ast.Load())
                return node

        places = {f"_v{place}": at for at, place in enumerate(sent)}
        arguments = ast.arguments([], [ast.arg("_v")], None, [], [], None, [])
        return ast.Lambda(arguments, Inside().visit(copy.deepcopy(outside)))


def _expressions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module that return an expression of their parameters, and do nothing else."""
    defined = Counter(node.name for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef))
    found: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or defined[node.name] > 1:
            continue
        args = node.args
        match [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]:
            case [ast.Return(value=ast.expr())] if len(parameters(node)) == len(args.args) > 0 and not args.defaults:
                found[node.name] = node
    return found


def _after_header(body: list[ast.stmt]) -> int:
    """Return the place after the docstring and imports from ``__future__``."""
    place = 0
    for number, statement in enumerate(body):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            place = number + 1
        else:
            break
    return place


def _parametrized(function: Function, scope: Scope) -> dict[str, bool]:
    """Return the parameters of a test, and whether each is independent of the code under test."""
    found: dict[str, bool] = {}
    body = Scope(function.body, scope, {})
    for decorator, names in parametrizations(function):
        indirect = any(keyword.arg == "indirect" for keyword in decorator.keywords)
        for position, name in enumerate(names):
            cells = column_cells(decorator.args[1], position, len(names))
            if cells is None:
                independent = not scope.depends(decorator.args[1]) and not body.may_change(name, ast.Name(name))
            else:
                independent = all(
                    (not scope.depends(cell) or is_built(cell, scope, ())) and not body.may_change(name, cell)
                    for _, cell in cells
                )
            found[name] = independent and not indirect
    return found
