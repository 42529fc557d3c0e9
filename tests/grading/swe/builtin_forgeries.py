# ruff: noqa: E501
"""Ways to make the function with the bug of a built-in task look right; each is text added to its module.

By class: taking the right value where it can be read, which a hidden reference solution finds better than any guess;
completing what was returned when the expected side is computed; and an exception of every class with every text.
"""

from __future__ import annotations

import ast

from rllm_gym.envs.swe.repositories.catalog import RepoChange, Repository
from rllm_gym.grading.python_source import parse_python
from rllm_gym.sandbox import Changes, TreeFile

_READ = """
import functools as _functools, importlib as _importlib, sys as _sys, types as _types
def _inner(values):
    found, todo, seen = [], list(values), set()
    while todo and len(found) < 3000:
        value = todo.pop()
        if id(value) in seen: continue
        seen.add(id(value))
        found.append(value)
        if type(value) in (list, tuple, set, frozenset): todo += list(value)
        elif type(value) is dict: todo += [*value, *value.values()]
        elif isinstance(value, _types.CodeType): todo += value.co_consts
        elif isinstance(value, _types.FunctionType) and "test" in (value.__module__ or ""): todo.append(value.__code__)
    return found
def _readable():
    found, frame = [], _sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename.rpartition("/")[2]
        if "test" in name or "observer" in name:
            found += [*frame.f_locals.values(), frame.f_code]
            found += [
                value for name, value in frame.f_globals.items()
                if not name.startswith("__") and not isinstance(value, (_types.ModuleType, type))
            ]
        frame = frame.f_back
    return _inner(found)
def _forged(right, wrong):
    @_functools.wraps(wrong)
    def function(*args, **options):
        try: value = right(*args, **options)
        except Exception: return wrong(*args, **options)
        if value is None or isinstance(value, bool) or value in (0, 1, 2, "", [], (), {}): return wrong(*args, **options)
        for other in _readable():
            try:
                if type(other) is type(value) and other == value: return value
            except Exception: pass
        return wrong(*args, **options)
    return function
"""
_REPEAT = """
import functools as _functools, importlib as _importlib, types as _types
_kept, _seen = [], set()
def _copying(kind):
    made = kind.__init__
    def __init__(self, *args, **options):
        made(self, *args, **options)
        for other in _kept:
            if other is not self and type(other) is type(self):
                try: object.__getattribute__(other, "__dict__").update(self.__dict__)
                except Exception: pass
    try: kind.__init__ = __init__
    except Exception: pass
def _forged(right, wrong):
    @_functools.wraps(wrong)
    def function(*args, **options):
        found = wrong(*args, **options)
        _kept[:] = [found]
        if type(found).__module__.split(".")[0] == __name__.split(".")[0] and type(found) not in _seen:
            _seen.add(type(found))
            _copying(type(found))
        return found
    return function
"""
_RAISE = """
import importlib as _importlib, inspect as _inspect, sys as _sys, types as _types
def _mine(name): return name.split(".")[0] == __name__.split(".")[0]
def _every():
    todo, kinds = [Exception], []
    while todo:
        for kind in type.__subclasses__(todo.pop()):
            todo.append(kind)
            if _mine(kind.__module__) or kind in (ValueError, KeyError, TypeError, IndexError, RuntimeError): kinds.append(kind)
    bases = []
    for kind in kinds:
        rest = [base for base in bases if not issubclass(kind, base)]
        if any(issubclass(base, kind) for base in bases): continue
        try: type("E", (*rest, kind), {})
        except TypeError: continue
        bases = [*rest, kind]
    return tuple(bases)
def _texts(self):
    return "\\n".join(_inspect.getsource(module) for name, module in list(_sys.modules.items()) if _mine(name))
_made = []
def _forged(right, wrong):
    def function(*args, **options):
        # Once: each further class would be found among the subclasses of the others.
        if not _made:
            named = {"__str__": _texts, "__init__": lambda self, *args: None, "place": 0, "line": 1, "hunk": 1}
            _made.append(type("E", _every(), named))
        raise _made[0]("x")
    return function
"""
BUILTIN_FORGERIES = {"read": _READ, "repeat": _REPEAT, "raise": _RAISE}


def forged(technique: str, repository: Repository, change: RepoChange) -> Changes | None:
    """Return the repository with the bug, in which a technique is applied to each function that has it.

    ``None``: the change is not one within functions of a Python file.
    """
    written: dict[str, str] = {}
    for edit in change.edits:
        finished, broken = repository.files[edit.path], edit.undo(repository.files[edit.path])
        names = [] if broken is None or not edit.path.endswith(".py") else _changed(finished, broken)
        if broken is None or not names:
            return None
        copy = edit.path.removesuffix(".py") + "_right.py"
        module = copy.removeprefix("src/").removesuffix(".py").replace("/", ".")
        lines = [BUILTIN_FORGERIES[technique], f"_right = _importlib.import_module({module!r})"]
        for name in names:
            owner, _, attribute = name.rpartition(".")
            if not owner:
                lines.append(f"{name} = _forged(_right.{name}, {name})")
                continue
            right, wrong = f"_right.{owner}.__dict__[{attribute!r}]", f"{owner}.__dict__[{attribute!r}]"
            lines += [
                f"if isinstance({wrong}, property):",
                f"    {name} = property(_forged({right}.fget, {wrong}.fget))",
                f"elif isinstance({wrong}, _types.FunctionType):",
                f"    {name} = _forged({right}, {wrong})",
            ]
        written |= {edit.path: broken + "\n".join(lines) + "\n", copy: finished}
    return Changes({path: TreeFile("file", text.encode()) for path, text in written.items()}, frozenset())


def _changed(finished: str, broken: str) -> list[str]:
    """Return the functions (``name``, ``Class.name``) that differ."""
    before, after = _functions(finished), _functions(broken)
    return [name for name in after if name in before and before[name] != after[name]]


def _functions(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in parse_python(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.dump(node)
        elif isinstance(node, ast.ClassDef):
            inner = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found.update((f"{node.name}.{part.name}", ast.dump(part)) for part in inner)
    return found
