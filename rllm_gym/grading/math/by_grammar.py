"""math-verify, for the notations only its grammar reads (sums, integrals, limits). Runs in grading workers only.

The process is killed at its deadline, capped in memory and low in priority. Answer text reaches math-verify's LaTeX
grammar alone; its path for plain expressions, which evaluates Python, is never taken, and the evaluator itself is
replaced by a reader of numerals. Its own timeouts, which use ``signal.alarm``, are off.
"""

from __future__ import annotations

import logging
import os
import re

import math_verify
import sympy
import sympy.parsing.sympy_parser
import sympy.physics.units  # sympifies its own names when the grammar first needs it, which must be before the seal
from math_verify import LatexExtractionConfig

_PRIORITY = 10
logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_NUMERAL = re.compile(r"\s*[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?\s*")


def _numeral(text: str, *_: object, **__: object) -> object:
    """In place of ``sympy.parse_expr`` in this process: LaTeX numerals reach it through ``sympy.Number``."""
    if not _NUMERAL.fullmatch(text):
        raise SyntaxError("text is not evaluated here")
    return sympy.Integer(int(text)) if text.strip().lstrip("+-").isdecimal() else sympy.Float(text.strip())


def _refuse(*_: object, **__: object) -> object:
    raise SyntaxError("text is not evaluated here")


def seal() -> None:
    """Take the evaluator of Python text out of SymPy, for this process and for good."""
    sympy.parsing.sympy_parser.parse_expr = _numeral
    sympy.parsing.sympy_parser.eval_expr = _refuse
    math_verify.parser.parse_expr = _refuse


def decide(gold: str, answer: str) -> bool:
    """Whether math-verify finds equal two tidied answers that are both within its bounds (``grammar_bounds``).

    What it fails on in any way is not equal.
    """
    seal()
    if os.getpriority(os.PRIO_PROCESS, 0) < _PRIORITY:
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)  # a worker's own; it stays in this lane
    expected, found = _parse(gold), _parse(answer)
    if not expected or not found:
        return False
    try:
        return bool(math_verify.verify(expected, found, strict=True, timeout_seconds=None))
    except BaseException as error:
        # math-verify raises what it likes, a BaseException for its own timeouts included: not an equality.
        if isinstance(error, MemoryError | KeyboardInterrupt):
            raise
        return False


def _parse(text: str) -> list[object]:
    """The SymPy objects of a formula; strings math-verify falls back to are left out."""
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
