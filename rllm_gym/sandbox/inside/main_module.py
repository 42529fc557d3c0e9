"""Runs a program as ``__main__``: from a fork of the warm worker to its exit, as in a separate Python.

As much as possible is prepared before the fork: after it, every object that is touched costs a copied page. Sent in as
source text: standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import itertools
import os
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from rllm_gym.sandbox.inside import syscalls

_PRELOADED = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "functools", "heapq", "itertools", "math", "operator",
    "re", "string", "typing",
)  # fmt: skip
"""Modules imported before the fork, besides those of the worker: nearly every program uses some of them."""

_streams: list[Any] = []
_own_modules: list[str] = []
_kept: list[Any] = []
_count = 0


def warm() -> None:
    """Prepare what every program needs. Called in the worker as the last step before it serves."""
    global _count
    for name in _PRELOADED:
        importlib.import_module(name)
    saved_stderr = os.dup(2)
    reading, writing = os.pipe()
    # Streams remember whether their file is seekable, and programs get pipes.
    for fd, other, mode in ((0, reading, "r"), (1, writing, "w"), (2, writing, "w")):
        os.dup2(other, fd)
        # As usual, standard error is line-buffered and never fails on a character.
        errors = "backslashreplace" if fd == 2 else "surrogateescape"
        _streams.append(open(fd, mode, 1 if fd == 2 else -1, encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115
    os.dup2(saved_stderr, 2)
    for fd in (saved_stderr, reading, writing):
        os.close(fd)
    _own_modules.extend(name for name in sys.modules if name.partition(".")[0] == "rllm_gym")
    _count = len(sys.modules)


def keep(thing: object) -> None:
    """Keep an object alive, so that this process does not destroy it."""
    _kept.append(thing)


class LibraryModule:
    """A compiled module of ``Program.library``. A module that does not compile fails when it is imported."""

    def __init__(self, name: str, source: str) -> None:
        self.source = source
        self.path = f"<library>/{name.replace('.', '/')}.py"
        try:
            self.code: types.CodeType | None = compile(source, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            self.code = None


class LibraryFinder:
    """The finder and loader of the library's modules, according to PEP 451."""

    def __init__(self, modules: Mapping[str, LibraryModule]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        spec = ModuleSpec(name, self, origin=self._modules[name].path, is_package=self.is_package(name))  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        found = self._modules[module.__name__]
        code = found.code or compile(found.source, found.path, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - inside the sandbox, where programs run

    def get_source(self, name: str) -> str:
        return self._modules[name].source

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self._modules)


def run(source: str, args: list[str], modules: Mapping[str, LibraryModule], home: str) -> NoReturn:
    """Run the program. No frame of the worker is below this one, except for the line that called it."""
    path = f"{home}/main.py"
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = builtins
    # Hide the worker's modules without destroying them: that would touch, and so copy, every page they are on.
    _kept.extend([sys.modules.pop(name) for name in _own_modules])
    sys.modules["__main__"] = main
    sys.argv = [path, *args]
    sys.orig_argv = [sys.executable, path, *args]
    sys.path.insert(0, f"{home}/work")
    sys.stdin, sys.stdout, sys.stderr = _streams
    for name, stream in zip(("__stdin__", "__stdout__", "__stderr__"), _streams, strict=True):
        setattr(sys, name, stream)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # otherwise every program would draw the same numbers
    if modules:
        sys.meta_path.insert(0, LibraryFinder(modules))
    code = 0
    try:
        exec(compile(source.removeprefix("\ufeff"), path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException as error:
        code = _show(error)
    del main
    _finish(code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    """Print an exception as the interpreter does, without the frame of this file."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    error = error.with_traceback(trace)
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as wanted:
        return _exit_code(wanted.code)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    return 1


def _finish(code: int) -> NoReturn:
    """End as an interpreter does: threads, exit handlers, the program's own modules, standard streams.

    Finalizing the whole interpreter costs as much as everything before it, and objects from before the program started
    need no finalization.
    """
    # Only the end of the whole interpreter (sys.exit, also after runpy) calls these two; no public function does.
    # Joining the threads of threading.enumerate() instead would wait forever for idle workers of an executor: they end
    # because threading._shutdown() first calls what concurrent.futures has registered. Forked processes of
    # multiprocessing end with threading._shutdown() too, and atexit has no other way to run its handlers early.
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    code = _flush(code)
    if threading is None or threading.active_count() == 1:
        imported = itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - _count + len(_own_modules)))
        own = [sys.modules["__main__"], *(sys.modules[name] for name in imported)]
        sys.stdin, sys.stdout, sys.stderr = _streams
        while own:
            module = own.pop()
            if isinstance(module, types.ModuleType) and (module.__name__ == "__main__" or _is_its_own(module)):
                _empty(module.__dict__)
        gc.collect()
        code = _flush(code)
    syscalls.flush_libc()
    os._exit(code)


def _is_its_own(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not file.startswith((sys.prefix, sys.base_prefix, "/usr"))


def _empty(names: dict[str, Any]) -> None:
    """Clear a namespace as the interpreter does: names become ``None``, private ones first, for finalizers."""
    for private in (True, False):
        for name in list(names):
            if isinstance(name, str) and name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") is private:
                names[name] = None


def _flush(code: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = code or 120  # the interpreter's exit code when its output cannot be written
    return code
