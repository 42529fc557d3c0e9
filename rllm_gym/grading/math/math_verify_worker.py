"""math-verify, for notations that only its grammar can parse (sums, integrals, limits). For grading workers only.

The process is killed at its deadline, limited in memory and low in priority. Answer text is passed to math-verify's
LaTeX grammar only. Its path for plain expressions, which evaluates Python, is never used, and the evaluator itself is
replaced by a parser of numerals. Its own timeouts, which use ``signal.alarm``, are disabled.
"""

from __future__ import annotations

import logging
import os
import re

import math_verify
import sympy
import sympy.parsing.sympy_parser
import sympy.physics.units  # sympifies its own names when first imported, which must precede disable_sympy_eval()
from math_verify import LatexExtractionConfig

_PRIORITY = 10
logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_NUMERAL = re.compile(r"\s*[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?\s*")


def _numeral(text: str, *_: object, **__: object) -> object:
    """Replace ``sympy.parse_expr`` in this process. LaTeX numerals reach it through ``sympy.Number``."""
    if not _NUMERAL.fullmatch(text):
        raise SyntaxError("text is not evaluated here")
    return sympy.Integer(int(text)) if text.strip().lstrip("+-").isdecimal() else sympy.Float(text.strip())


def _refuse(*_: object, **__: object) -> object:
    raise SyntaxError("text is not evaluated here")


def disable_sympy_eval() -> None:
    """Remove the evaluator of Python text from SymPy, permanently for this process."""
    sympy.parsing.sympy_parser.parse_expr = _numeral
    sympy.parsing.sympy_parser.eval_expr = _refuse
    math_verify.parser.parse_expr = _refuse


def decide(gold: str, answer: str) -> bool:
    """Return whether math-verify considers two normalized answers equal.

    Both must be within its bounds (``within_bounds``). Answers for which it fails in any way are not equal.
    """
    disable_sympy_eval()
    if os.getpriority(os.PRIO_PROCESS, 0) < _PRIORITY:
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)  # a worker's own priority; workers of this pool run nothing else
    expected, found = _parse(gold), _parse(answer)
    if not expected or not found:
        return False
    try:
        return bool(math_verify.verify(expected, found, strict=True, timeout_seconds=None))
    except BaseException as error:
        # math-verify may raise anything, including a BaseException for its own timeouts: not equal.
        if isinstance(error, MemoryError | KeyboardInterrupt):
            raise
        return False


def _parse(text: str) -> list[object]:
    """Return the SymPy objects of a formula, without the strings that math-verify falls back to."""
    try:
        parsed = math_verify.parse(
            f"${text}$",
            extraction_config=(LatexExtractionConfig(),),
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    except BaseException as error:
        if isinstance(error, MemoryError | KeyboardInterrupt):
            raise
        return []
    return [item for item in parsed if not isinstance(item, str)]
