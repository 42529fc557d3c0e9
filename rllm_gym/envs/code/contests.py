"""Conversion of rows of programming contests: APPS, TACO, LiveCodeBench, CodeContests, DeepCoder.

Their tests are standard input and output, or function calls, in many encodings. Everything is decoded here by strict
readers with size limits; a pickle is never loaded.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.core import TaskError

MAX_DECODED_BYTES = 64_000_000
_MAX_DEPTH = 64

# All opcodes that may occur in a pickle of one text.
_PICKLED_TEXT = frozenset(
    {"PROTO", "FRAME", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
)

_COMPARISON = '''
import json
import math


def _same(got, expected, tolerance):
    if isinstance(got, tuple):
        got = list(got)
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(
            _same(a, b, tolerance) for a, b in zip(got, expected)
        )
    if isinstance(expected, float) and isinstance(got, (int, float)) and tolerance is not None:
        return math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    return got == expected


def _right(got, wanted):
    """Whether the result is one of those that will do."""
    return any(_same(got, expected, {tolerance!r}) for expected in json.loads(wanted))
'''


def contest_data(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the row in this package's format, ``None`` if it is not a contest row.

    Raises:
        TaskError: It is a contest row, and its tests cannot be read.
    """
    if row.get("public_test_cases") is not None or row.get("private_test_cases") is not None:
        return _live_code_bench(row)
    if row.get("input_output") is not None:
        return _apps(row, _decoded("input_output", row["input_output"]), "input_output")
    if isinstance(row.get("public_tests"), Mapping) or isinstance(row.get("private_tests"), Mapping):
        return _code_contests(row)
    if row.get("tests") is not None:
        return _listed(row)
    return None


def _apps(row: Mapping[str, Any], packed: Any, key: str) -> dict[str, Any]:
    """Convert APPS and TACO: ``{"inputs": [...], "outputs": [...], "fn_name"?}``."""
    if not isinstance(packed, Mapping):
        raise TaskError(f"its {key!r} is {packed!r:.80}; it must be an object with 'inputs' and 'outputs'")
    inputs, outputs = _pair(key, packed.get("inputs"), packed.get("outputs"))
    name = packed.get("fn_name")
    if name is None:
        return _stdio(row, [_case(key, one, other) for one, other in zip(inputs, outputs)], 0)
    arguments = [one if isinstance(one, Sequence) and not isinstance(one, str) else [one] for one in inputs]
    # Many of these rows wrap each result in a list. It is ambiguous whether a row does, so both forms are accepted.
    wrapped = all(isinstance(one, list) and len(one) == 1 for one in outputs)
    return _calls(row, name, arguments, [[one, one[0]] if wrapped else [one] for one in outputs], 0)


def _live_code_bench(row: Mapping[str, Any]) -> dict[str, Any]:
    public = _test_cases("public_test_cases", row.get("public_test_cases"))
    private = _test_cases("private_test_cases", row.get("private_test_cases"))
    metadata = _decoded("metadata", row["metadata"]) if row.get("metadata") else {}
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return _typed(row, public + private, len(public), name, "public_test_cases")


def _test_cases(key: str, packed: Any) -> list[Any]:
    if packed is None or packed == "":
        return []
    cases = _decoded(key, packed, compressed=True)
    if not isinstance(cases, list):
        raise TaskError(f"its {key!r} is {type(cases).__name__}; it must be a list of tests")
    return cases


def _typed(row: Mapping[str, Any], cases: list[Any], shown: int, name: Any, key: str) -> dict[str, Any]:
    """Convert cases of ``{"input", "output", "testtype"}``; inputs of a call are one JSON value per line."""
    if not cases:
        raise TaskError(f"its {key!r} has no tests")
    for number, case in enumerate(cases):
        if not isinstance(case, Mapping) or "input" not in case or "output" not in case:
            raise TaskError(f"its {key}[{number}] is {case!r:.80}; it must be a test {{'input', 'output'}}")
    kinds = {str(case.get("testtype") or case.get("type") or "stdin") for case in cases}
    if kinds <= {"stdin", "stdin_stdout", "stdio"}:
        return _stdio(row, [_case(key, case["input"], case["output"]) for case in cases], shown)
    if kinds <= {"functional", "function_call"}:
        arguments = [
            [_decoded(key, line) for line in case["input"].split("\n") if line.strip()]
            if isinstance(case["input"], str)
            else list(case["input"])
            for case in cases
        ]
        results = [_decoded(key, case["output"]) if isinstance(case["output"], str) else case["output"]
                   for case in cases]  # fmt: skip
        name = name or next((case["fn_name"] for case in cases if case.get("fn_name")), None)
        return _calls(row, name, arguments, [[result] for result in results], shown)
    raise TaskError(f"its {key!r} has tests of types {sorted(kinds)}; they must all be 'stdin' or all 'functional'")


def _code_contests(row: Mapping[str, Any]) -> dict[str, Any]:
    cases: list[dict[str, str]] = []
    shown = 0
    for key in ("public_tests", "private_tests", "generated_tests"):
        packed = row.get(key)
        if packed is None:
            continue
        if not isinstance(packed, Mapping):
            raise TaskError(f"its {key!r} is {packed!r:.80}; it must be an object with 'input' and 'output'")
        if not packed.get("input"):
            continue
        inputs, outputs = _pair(key, packed.get("input"), packed.get("output"))
        cases += [_case(key, one, other) for one, other in zip(inputs, outputs)]
        shown = len(cases) if key == "public_tests" else shown
    if not cases:
        raise TaskError("it has no tests in 'public_tests', 'private_tests' or 'generated_tests'")
    return _stdio(row, cases, shown)


def _listed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert DeepCoder and similar rows: ``tests`` is a list of cases or packed as in APPS, mostly as JSON text."""
    packed = _decoded("tests", row["tests"]) if isinstance(row["tests"], str) else row["tests"]
    if isinstance(packed, Mapping):
        return _apps(row, packed, "tests")
    if not isinstance(packed, Sequence) or not packed:
        raise TaskError(f"its 'tests' is {packed!r:.80}; it must be a non-empty list of tests")
    if all(isinstance(case, Mapping) and "stdin" in case for case in packed):
        return {"kind": "stdio", "tests": packed, "stub": _starter(row)}
    metadata = row.get("metadata")
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return _typed(row, list(packed), 0, name, "tests")


# Conversion to this package's format


def _stdio(row: Mapping[str, Any], cases: list[dict[str, str]], shown: int) -> dict[str, Any]:
    # The judges of these data sets compare words.
    checker = row.get("checker") or row.get("generated_checker") or "tokens"
    return {"kind": "stdio", "tests": cases, "public_tests": shown, "stub": _starter(row), "checker": checker}


def _calls(
    row: Mapping[str, Any], name: Any, arguments: list[Any], wanted: list[list[Any]], shown: int
) -> dict[str, Any]:
    """Return the data of a function task, with one assertion per call.

    Args:
        wanted: For each call, the accepted results.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TaskError(f"its tests call a function, but its name is {name!r:.80}; set 'fn_name' or 'func_name'")
    tolerance = row.get("float_tolerance")
    test = [
        f"assert _right({name}(*json.loads({json.dumps(call_arguments)!r})), {json.dumps(results)!r})"
        for call_arguments, results in zip(arguments, wanted)
    ]
    public = [
        f"assert {name}({', '.join(map(repr, call_arguments))}) == {results[-1]!r}"
        for call_arguments, results in zip(arguments[:shown], wanted)
    ]
    return {
        "kind": "function",
        "entry_point": name,
        "test": test,
        "test_style": "assert",
        "setup": _COMPARISON.replace("{tolerance!r}", repr(tolerance)),
        "stub": _starter(row),
        "public_tests": public,
    }


def _starter(row: Mapping[str, Any]) -> str:
    starter = row.get("starter_code")
    return starter if isinstance(starter, str) and starter.strip() else ""


def _pair(key: str, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
    for value in (inputs, outputs):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise TaskError(f"its {key!r} is {value!r:.80}; it must be a list of inputs or outputs")
    if len(inputs) != len(outputs) or not inputs:
        raise TaskError(f"its {key!r} has {len(inputs)} inputs and {len(outputs)} outputs; the numbers must be equal")
    return list(inputs), list(outputs)


def _case(key: str, stdin: Any, expected: Any) -> dict[str, str]:
    return {"stdin": _lines(key, stdin), "stdout": _lines(key, expected)}


def _lines(key: str, value: Any) -> str:
    """Return a text; a list of lines is joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Sequence) and all(isinstance(line, str | int | float) for line in value):
        return "\n".join(map(str, value))
    raise TaskError(f"its {key!r} contains {value!r:.80}; it must be a string or a list of lines")


# Decoding


def _decoded(key: str, packed: Any, *, compressed: bool = False) -> Any:
    """Decode JSON text; with ``compressed`` also base64 of zlib of a pickled JSON text."""
    if not isinstance(packed, str):
        return packed
    if len(packed) > MAX_DECODED_BYTES:
        raise TaskError(f"its {key!r} has {len(packed)} characters; the maximum is {MAX_DECODED_BYTES}")
    try:
        return _json(packed)
    except (ValueError, RecursionError) as error:
        if not compressed:
            raise TaskError(f"its {key!r} is not valid JSON ({error}): {packed!r:.80}") from error
    try:
        return _json(_unpacked(packed))
    except (ValueError, RecursionError, binascii.Error, zlib.error) as error:
        raise TaskError(
            f"its {key!r} is neither JSON nor base64 of a compressed, pickled JSON text ({error}): {packed!r:.80}"
        ) from error


def _json(text: str) -> Any:
    value = json.loads(text)
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
        level = [inner for item in level if isinstance(item, dict | list)
                 for inner in (item.values() if isinstance(item, dict) else item)]  # fmt: skip
    return value


def _unpacked(packed: str) -> str:
    decompressor = zlib.decompressobj()
    data = decompressor.decompress(base64.b64decode(packed, validate=True), MAX_DECODED_BYTES)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError(f"it is truncated, or larger than {MAX_DECODED_BYTES} bytes")
    return pickled_text(data) if data.startswith(b"\x80") else data.decode()


def pickled_text(data: bytes) -> str:
    """Return the text in a pickle that contains one text and nothing else, without loading the pickle.

    Raises:
        ValueError: It contains anything else.

    >>> import pickle
    >>> pickled_text(pickle.dumps("[1, 2]"))
    '[1, 2]'
    """
    texts: list[str] = []
    end = 0
    for operation, argument, place in pickletools.genops(data):
        if operation.name not in _PICKLED_TEXT:
            raise ValueError(f"the pickle contains more than a string ({operation.name}) and is not loaded")
        if operation.name.endswith(("UNICODE", "UNICODE8")):
            texts.append(str(argument))
        end = (place or 0) + 1
    if len(texts) != 1 or end != len(data):
        raise ValueError(
            f"the pickle contains {len(texts)} strings, or data after its end; it must contain exactly one string"
        )
    return texts[0]
