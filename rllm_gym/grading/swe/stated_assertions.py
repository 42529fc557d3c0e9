"""The condition that an assertion of unittest, of numpy or of a mock states."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Any

from rllm_gym.grading.swe.taint import name_of

_EQUALITIES = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual",
     "assertSequenceEqual", "assertMultiLineEqual"}
)  # fmt: skip
_METHODS: dict[str, type[ast.cmpop]] = {
    **dict.fromkeys(_EQUALITIES, ast.Eq), "assertNotEqual": ast.NotEq, "assertIs": ast.Is, "assertIsNot": ast.IsNot,
    "assertIn": ast.In, "assertNotIn": ast.NotIn, "assertLess": ast.Lt, "assertLessEqual": ast.LtE,
    "assertGreater": ast.Gt, "assertGreaterEqual": ast.GtE,
}  # fmt: skip


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _counted(operation: ast.cmpop, count: int) -> Callable[[ast.expr, ast.Call], ast.expr]:
    return lambda mock, _: ast.Compare(
        ast.Attribute(mock, "call_count", ast.Load()), [operation], [ast.Constant(count)]
    )


def _called_once_with(mock: ast.expr, call: ast.Call) -> ast.expr:
    return ast.BoolOp(ast.And(), [_counted(ast.Eq(), 1)(mock, call), _called_with(ast.Eq(), "call_args")(mock, call)])


def _called_with(operation: ast.cmpop, attribute: str) -> Callable[[ast.expr, ast.Call], ast.expr]:
    def condition(mock: ast.expr, call: ast.Call) -> ast.expr:
        named = ast.Dict([ast.Constant(item.arg) for item in call.keywords], [item.value for item in call.keywords])
        expected = ast.Tuple([ast.Tuple(call.args, ast.Load()), named], ast.Load())
        return ast.Compare(expected, [operation], [ast.Attribute(mock, attribute, ast.Load())])

    return condition


_MOCK_CALLS: dict[str, Callable[[ast.expr, ast.Call], ast.expr]] = {
    "assert_called": _counted(ast.Gt(), 0),
    "assert_called_once": _counted(ast.Eq(), 1),
    "assert_not_called": _counted(ast.Eq(), 0),
    "assert_called_with": _called_with(ast.Eq(), "call_args"),
    "assert_called_once_with": _called_once_with,
    "assert_any_call": _called_with(ast.In(), "call_args_list"),
}


_NUMPY: dict[str, tuple[str, dict[str, Any]]] = {
    "assert_allclose": ("_all_near_", {"rtol": 1e-7, "atol": 0, "equal_nan": True}),
    "assert_array_equal": ("_all_equal_", {"equal_nan": True}),
    "assert_almost_equal": ("_near_by_digits_", {"decimal": 7}),
    "assert_array_almost_equal": ("_near_by_digits_", {"decimal": 6}),
}


def imported_from_numpy(tree: ast.Module) -> frozenset[str]:
    """Return the names by which a file calls assertions of ``numpy.testing``, or that module."""
    found = {"testing"}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(alias.asname for alias in names if alias.name == "numpy.testing" and alias.asname)
            case ast.ImportFrom(module="numpy.testing", names=names):
                found.update(alias.name for alias in names if alias.asname is None)
            case ast.ImportFrom(module="numpy", names=names):
                found.update(alias.asname or alias.name for alias in names if alias.name == "testing")
    return frozenset(found)


def as_assertion(call: ast.Call, of_numpy: Collection[str] = ()) -> ast.expr | None:
    """Return the condition that an assertion of unittest or numpy states; ``None`` if it is another call.

    ``of_numpy``: see :func:`imported_from_numpy`.
    """
    name, arguments = name_of(call), call.args
    if any(isinstance(item, ast.Starred) for item in arguments) or any(item.arg is None for item in call.keywords):
        return None
    named = {item.arg: item.value for item in call.keywords}
    module = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if name in _NUMPY and len(arguments) >= 2 and name_of(module) in of_numpy:
        function, defaults = _NUMPY[name]
        options = {key: ast.Constant(value) for key, value in defaults.items()}
        given = dict(zip(list(defaults), arguments[2:])) | {str(key): value for key, value in named.items()}
        keywords = [ast.keyword(key, given.get(key, value)) for key, value in options.items()]
        return ast.Call(_load(function), arguments[:2], keywords)
    if not isinstance(call.func, ast.Attribute):
        return None
    match name, arguments:
        case "match", [pattern] if not named:  # of the exception that pytest.raises returned
            text = ast.Call(_load("str"), [ast.Attribute(call.func.value, "value", ast.Load())], [])
            return ast.Call(_load("_searches_"), [pattern, text], [])
        case _ if name in _MOCK_CALLS:
            return _MOCK_CALLS[name](call.func.value, call)
        case (("assertTrue" | "assert_"), [value, *_]):
            return value
        case "assertFalse", [value, *_]:
            return ast.UnaryOp(ast.Not(), value)
        case (("assertIsNone" | "assertIsNotNone"), [value, *_]):
            operation = ast.Is() if name == "assertIsNone" else ast.IsNot()
            return ast.Compare(value, [operation], [ast.Constant(None)])
        case (("assertIsInstance" | "assertNotIsInstance"), [value, kind, *_]):
            test = ast.Call(_load("isinstance"), [value, kind], [])
            return test if name == "assertIsInstance" else ast.UnaryOp(ast.Not(), test)
        case _, [one, other, *_] if name in _METHODS:
            return ast.Compare(one, [_METHODS[name]()], [other])
        case (("assertAlmostEqual" | "assertNotAlmostEqual"), [one, other, *rest]):
            keywords = [ast.keyword(key, named[key]) for key in ("places", "delta") if key in named]
            keywords += [ast.keyword("places", rest[0])] if rest else []
            nearly = ast.Call(_load("_nearly_"), [one, other], keywords)
            return nearly if name == "assertAlmostEqual" else ast.UnaryOp(ast.Not(), nearly)
        case "assertCountEqual", [one, other, *_]:
            return ast.Call(_load("_counts_"), [one, other], [])
        case (("assertRegex" | "assertNotRegex"), [text, pattern, *_]):
            found = ast.Call(_load("_searches_"), [pattern, text], [])
            return found if name == "assertRegex" else ast.UnaryOp(ast.Not(), found)
    return None
