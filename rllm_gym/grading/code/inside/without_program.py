"""A run of a test without a program: it shows what the test does before it uses the program, whatever that is.

A test that fails before, for want of a data file or by an error of its own, or that never uses the program, cannot tell
right programs from wrong ones.
"""

from __future__ import annotations

import symtable
import sys
from typing import Any, NoReturn

from .proxies import NAMES
from .runners import StopTesting, TestReporter

_LOOKED_UP = frozenset({"__bool__", "__delattr__", "__instancecheck__", "__ne__", "__setattr__", "__subclasscheck__"})
_NEVER = "the tests never use the program, so that they say the same of each"


class ProgramUsed(BaseException):
    """The test uses the program. ``except Exception`` in test code does not catch it."""


class WithoutProgram(TestReporter):
    """Stands for the program, and receives the outcomes of the tests before the first use of it.

    Attributes:
        program: Stands for all that the test takes from the program.
        fault: Why the test cannot tell right programs from wrong ones; empty if it uses the program.
    """

    def __init__(self) -> None:
        super().__init__(lambda message: None, stop=True, show=True)
        self.fault = _NEVER
        names = dict.fromkeys(NAMES | _LOOKED_UP, self.use) | {"__getattribute__": self._read}
        self.program: Any = type("Absent", (), names)()
        self._collected = False

    def tests(self, count: int) -> None:
        self._collected = True

    def _read(self, name: str) -> NoReturn:
        # pytest looks at whatever is in the module of the tests.
        if not self._collected and _is_called_by_pytest():
            raise AttributeError(name)
        self.use()

    def use(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.fault = ""
        raise ProgramUsed

    def outcome(self, name: str, error: BaseException | str | None, *, where: str = "") -> None:
        """Receive an outcome; what fails after the program was used may be due to that."""
        if not self.fault:
            raise StopTesting
        if error is not None:
            self.failed(error, error if isinstance(error, str) else self._explained(error, where))
            raise StopTesting

    def failed(self, error: BaseException | str, reason: str) -> None:
        """Note why the test failed, unless the program was used before.

        An assertion may be about the program without a use that is noticed: ``assert type(f) is type``.
        """
        if isinstance(error, AssertionError):
            self.fault = ""
        if self.fault:
            self.fault = f"the test fails before it uses the program: {' '.join(reason.split())}"


def global_names(source: str) -> set[str]:
    """Return the names that code looks up in its module: no local variables."""
    names: set[str] = set()
    tables = [symtable.symtable(source, "test", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        names |= {item.get_name() for item in table.get_symbols() if item.is_referenced() and (top or item.is_global())}
    return names


def _is_called_by_pytest() -> bool:
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__") == "inspect":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("_pytest.")
