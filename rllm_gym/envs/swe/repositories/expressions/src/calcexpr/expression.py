"""An expression that is read once and evaluated often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calcexpr.errors import EvaluationError
from calcexpr.evaluate import evaluate
from calcexpr.parser import parse
from calcexpr.printer import to_text
from calcexpr.simplify import simplify
from calcexpr.tree import Node, variables


@dataclass(frozen=True)
class Expression:
    """Call it with values for its variables."""

    tree: Node

    @property
    def variables(self) -> set[str]:
        """The names that need a value."""
        return variables(self.tree)

    def __call__(self, **values: Any) -> Any:
        unknown = sorted(set(values) - self.variables)
        if unknown:
            raise EvaluationError(f"the expression has no variable {unknown[0]}")
        missing = sorted(self.variables - set(values))
        if missing:
            raise EvaluationError(f"values are needed for {', '.join(missing)}")
        return evaluate(simplify(self.tree), values)

    def __str__(self) -> str:
        return to_text(self.tree)


def compile_expression(source: str) -> Expression:
    """Read an expression; :class:`~calcexpr.errors.ParseError` if it is none."""
    return Expression(parse(source))
