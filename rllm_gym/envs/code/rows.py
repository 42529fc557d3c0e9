"""Conversion of rows: this package's format, HumanEval, MBPP and KodCode. For contests see ``contests``.

The data of a task is always complete and in this package's format: see :func:`row_to_code_task`.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_gym.core import Task, TaskError
from rllm_gym.envs.code.contests import contest_data
from rllm_gym.envs.program_limits import CPU_LIMITS_S, MEMORY_LIMITS_MB
from rllm_gym.grading.python_source import parse_python

PROMPT_KEYS = (
    *("prompt", "question", "problem", "question_content", "description", "text", "statement"),
    *("instruction", "problem_statement"),
)
TEST_STYLES = ("check", "unittest", "pytest", "assert")

MAX_PROMPT_CHARS = 90_000
MAX_TESTS = 10_000
MAX_TEST_CHARS = 64_000_000
MAX_PARSED_CHARS = 200_000

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(?:(?:\(\))?\.[A-Za-z_]\w*)*")
_IMPORTED = re.compile(r"^\s*from\s+solution\s+import\s+\(?\s*([A-Za-z_]\w*)", re.MULTILINE)


def row_to_code_task(row: Mapping[str, Any], task_id: str) -> Task:
    """Return a task with the problem as content, whose data is a row in this package's format:

    - ``{"kind": "stdio", "tests": [{"stdin", "stdout", "also"?}], "public_tests": n, "float_tolerance", "checker",
      "stdin_file"}``: the first ``n`` tests are public;
    - ``{"kind": "function", "entry_point", "test", "test_style", "setup", "stub", "public_tests": [assertions]}``;
    - in both ``cpu_s`` and ``memory_mb``, numbers or ``None``.

    Accepts rows of that format, of HumanEval and HumanEval+, MBPP and MBPP+, APPS and TACO, LiveCodeBench,
    CodeContests, DeepCoder and KodCode, and tasks written by :meth:`rllm_gym.core.Task.to_json`.

    Raises:
        TaskError: The row is unusable; the message names the key, its value and a solution.
    """
    data = row.get("data")
    if isinstance(data, Mapping) and isinstance(row.get("content"), str):
        return code_task(Task(task_id, row["content"], data))
    return Task(task_id, _prompt(row), _data_of(row))


def code_task(task: Task) -> Task:
    """Return ``task`` with complete data.

    Raises:
        TaskError: Its data contains nothing to grade with; the message names the task.
    """
    try:
        if not task.content.strip():
            raise TaskError("its content is empty; it must be the problem text")
        data = _data_of({"prompt": task.content, **task.data})
    except TaskError as error:
        raise TaskError(f"task {task.task_id!r}: {error}") from error
    # Other keys of the task's data (family, recipe) are kept.
    return Task(task.task_id, task.content, {**task.data, **data})


def _prompt(row: Mapping[str, Any]) -> str:
    for key in PROMPT_KEYS:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"its {key!r} is {value!r:.80}; the problem must be a non-empty string")
        if len(value) > MAX_PROMPT_CHARS:
            raise TaskError(f"its {key!r} has {len(value)} characters; the maximum is {MAX_PROMPT_CHARS}")
        return value
    raise TaskError(
        f"it has no problem: none of the keys {', '.join(map(repr, PROMPT_KEYS))} is among "
        f"{sorted(map(str, row))!r:.300}; rename the field"
    )


def _data_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a row of any format."""
    if row.get("time_limit_s") is not None:
        raise TaskError("its 'time_limit_s' is not a field; the limit of CPU time is called 'cpu_s'")
    kind = row.get("kind")
    if kind is None:
        row = _recognised(row)
        kind = row["kind"]
    if kind == "stdio":
        data = _stdio(row)
    elif kind == "function":
        data = _function(row)
    else:
        raise TaskError(f"its 'kind' is {kind!r:.80}; it must be 'stdio' or 'function'")
    data["cpu_s"] = _limit(row, "cpu_s", "seconds", CPU_LIMITS_S)
    memory = _limit(row, "memory_mb", "megabytes", MEMORY_LIMITS_MB)
    data["memory_mb"] = None if memory is None else int(memory)
    return data


def _recognised(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of another data set's format."""
    keys = (
        "cpu_s",
        "memory_mb",
        "float_tolerance",
        "public_tests",
        "checker",
        "generated_checker",
        "stdin_file",
    )
    own = {key: row[key] for key in keys if row.get(key) is not None}
    contest = contest_data(row)
    if contest is not None:
        return own | contest
    test = row.get("test") if row.get("test") is not None else row.get("test_list")
    if isinstance(test, str) and isinstance(row.get("entry_point"), str):
        keep = {key: row[key] for key in ("prompt", "entry_point", "setup", "stub", "test_style") if key in row}
        return {"kind": "function", "test": test, **keep, **own}
    if isinstance(test, str) and (imported := _IMPORTED.search(test)):
        return {"kind": "function", "entry_point": imported[1], "test": test, "test_style": "pytest", **own}
    if test is not None:
        return _mbpp(row, test) | own
    raise TaskError(
        "it has no tests: a row must be in this package's format ('kind' with 'tests', or with 'entry_point' and "
        "'test'), or be a row of HumanEval ('entry_point', 'test'), MBPP ('test_list'), APPS or TACO ('input_output'), "
        "LiveCodeBench ('public_test_cases'), CodeContests ('public_tests') or KodCode ('test' that imports from "
        f"solution); its keys are {sorted(map(str, row))!r:.300}"
    )


# Programs that read standard input and write standard output


def _stdio(row: Mapping[str, Any]) -> dict[str, Any]:
    tests = _cases(row, "tests")
    public = row.get("public_tests")
    if public is None:
        shown = 0
    elif isinstance(public, int) and not isinstance(public, bool):
        if not 0 <= public <= len(tests):
            raise TaskError(
                f"its 'public_tests' is {public}; it must be a number from 0 to {len(tests)}, the number of tests"
            )
        shown = public
    else:
        first = _cases(row, "public_tests") if public else []
        tests = first + [case for case in tests if case not in first]
        shown = len(first)
    tolerance = row.get("float_tolerance")
    if tolerance is not None and not (_is_number(tolerance) and 0 <= tolerance < 1):
        raise TaskError(f"its 'float_tolerance' is {tolerance!r:.80}; it must be a number >= 0 and < 1")
    return {
        "kind": "stdio",
        "tests": tests,
        "public_tests": shown,
        "float_tolerance": None if tolerance is None else float(tolerance),
        "checker": _checker(row),
        "stdin_file": _flag(row, "stdin_file"),
        "stub": _text(row, "stub"),
    }


def _checker(row: Mapping[str, Any]) -> str:
    """Return how outputs are compared: a name, or the source of a checker. Nothing is executed."""
    checker = _text(row, "checker") or _text(row, "generated_checker") or "lines"
    if checker not in ("lines", "tokens"):
        if "\n" not in checker.strip():
            raise TaskError(f"its 'checker' is {checker!r:.80}; it must be 'lines', 'tokens' or Python source")
        _parsed(checker, "checker")
    return checker


def _flag(row: Mapping[str, Any], key: str) -> bool:
    value = row.get(key)
    if value is not None and not isinstance(value, bool):
        raise TaskError(f"its {key!r} is {value!r:.80}; it must be true or false")
    return bool(value)


def _cases(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    cases = row.get(key)
    if not isinstance(cases, Sequence) or isinstance(cases, str | bytes) or not cases:
        raise TaskError(f"its {key!r} is {cases!r:.80}; it must be a non-empty list of {{'stdin', 'stdout'}}")
    if len(cases) > MAX_TESTS:
        raise TaskError(f"its {key!r} has {len(cases)} tests; the maximum is {MAX_TESTS}: remove some")
    read = []
    for number, case in enumerate(cases):
        outputs: Any = case.get("stdout") if isinstance(case, Mapping) else None
        outputs = [outputs] if isinstance(outputs, str) else outputs
        also = case.get("also") or [] if isinstance(outputs, list) and outputs else None
        texts: list[Any] = [case.get("stdin"), *outputs, *also] if isinstance(also, list | tuple) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise TaskError(
                f"its {key}[{number}] is {case!r:.80}; it must be {{'stdin': text, 'stdout': text}}; 'stdout' may be "
                "a list of texts that are all right"
            )
        for text in texts:
            _check_text(key, text)
        read.append({"stdin": texts[0], "stdout": texts[1]} | ({"also": texts[2:]} if texts[2:] else {}))
    _check_size(
        key, sum(len(case["stdin"]) + len(case["stdout"]) + sum(map(len, case.get("also", ()))) for case in read)
    )
    return read


# Functions and classes


def _function(row: Mapping[str, Any]) -> dict[str, Any]:
    entry_point, test = row.get("entry_point"), row.get("test")
    if not isinstance(entry_point, str) or not _ENTRY_POINT.fullmatch(entry_point) or keyword.iskeyword(entry_point):
        raise TaskError(
            f"its 'entry_point' is {entry_point!r:.80}; it must be the name of a function or class, or "
            "'Solution().method'"
        )
    statements: list[str] | None = None
    if isinstance(test, Sequence) and not isinstance(test, str | bytes):
        statements = _texts("test", test)
        test = "\n".join(statements)
    if not isinstance(test, str) or not test.strip():
        raise TaskError(f"its 'test' is {test!r:.80}; it must be the source of the tests, or a list of assertions")
    _check_size("test", len(test))
    _check_text("test", test)
    style = row.get("test_style")
    if style is None:
        style = _style_of(test)
    if style not in TEST_STYLES:
        raise TaskError(f"its 'test_style' is {style!r:.80}; it must be one of {', '.join(map(repr, TEST_STYLES))}")
    if style == "check" and "check" not in test:
        raise TaskError("its 'test_style' is 'check', but its 'test' does not define check(candidate)")
    if style == "assert" and not re.search(r"^assert\b", test, re.MULTILINE):
        # Each top-level assertion is a test, and other code fails if it raises. So a loop needs an assertion after it.
        test += "\nassert True"
    prompt = row.get("prompt")
    stub = _text(row, "stub") or (prompt if isinstance(prompt, str) and _defines(prompt, entry_point) else "")
    setup = _text(row, "setup") or preamble_of(stub, entry_point)
    return {
        "kind": "function",
        "entry_point": entry_point,
        "test": test,
        "test_style": style,
        "setup": setup,
        "stub": stub,
        "public_tests": _shown_assertions(row.get("public_tests"), style, test, statements),
    }


def _shown_assertions(public: Any, style: str, test: str, statements: list[str] | None) -> list[str]:
    if public is None or public == [] or public == ():
        return []
    if isinstance(public, str):
        return [public] if public.strip() else []
    if isinstance(public, Sequence):
        return _texts("public_tests", public)
    if not isinstance(public, int) or isinstance(public, bool):
        raise TaskError(f"its 'public_tests' is {public!r:.80}; it must be a list of assertions, or a number")
    if public == 0:
        return []
    if style != "assert":
        raise TaskError(
            f"its 'public_tests' is {public}, and tests of style {style!r} cannot be split: give the assertions "
            "to show as a list of strings"
        )
    found = statements if statements is not None else _assertions(test)
    if not 0 < public <= len(found):
        raise TaskError(
            f"its 'public_tests' is {public}; it must be a number from 0 to {len(found)}, the number of assertions"
        )
    return found[:public]


def _style_of(test: str) -> str:
    if re.search(r"^def check\s*\(", test, re.MULTILINE):
        return "check"
    if re.search(r"^class \w+\(.*TestCase\)", test, re.MULTILINE):
        return "unittest"
    return "pytest" if re.search(r"^(async )?def test|^class Test", test, re.MULTILINE) else "assert"


def _mbpp(row: Mapping[str, Any], test: Any) -> dict[str, Any]:
    """Convert a row of MBPP: the first assertion is shown, because the problem does not even name the function."""
    listed = row.get("test_list") if isinstance(test, str) else test
    statements = _texts("test_list" if listed is row.get("test_list") else "test", listed or [test])
    challenge = row.get("challenge_test_list") or []
    hidden = [*statements, *_texts("challenge_test_list", challenge)] if challenge else statements
    imports = row.get("test_imports") or []
    setup = [*(_texts("test_imports", imports) if imports else []), _text(row, "test_setup_code")]
    if isinstance(test, str):
        # MBPP+: one script over many inputs; its short assertions are a separate field.
        hidden = [test]
    return {
        "kind": "function",
        "entry_point": _called_in(statements, _text(row, "code")),
        "test": hidden,
        "test_style": "assert",
        "setup": "\n".join(line for line in setup if line.strip()),
        "public_tests": statements[:1],
    }


def _called_in(statements: list[str], code: str) -> str:
    """Return the function that every assertion calls; prefer one that the solution defines or that is no builtin."""
    common: dict[str, None] | None = None
    for statement in statements:
        names = dict.fromkeys(
            node.func.id
            for node in ast.walk(_parsed(statement))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        )
        common = names if common is None else {name: None for name in common if name in names}
    called = list(common or {})
    # Some rows ask for a function with the name of a built-in.
    chosen = (
        [name for name in called if _defines(code, name)]
        or [name for name in called if not hasattr(builtins, name)]
        or called
    )
    if not chosen:
        raise TaskError(
            f"no function is called in all {len(statements)} assertions ({statements[0]!r:.80}, …); set 'entry_point'"
        )
    return chosen[0]


def _assertions(test: str) -> list[str]:
    return [ast.unparse(node) for node in _parsed(test).body if isinstance(node, ast.Assert)]


def _parsed(text: str, what: str = "tests") -> ast.Module:
    """Parse a row's own tests or checker. Nothing is executed; size and depth are bounded."""
    if len(text) > MAX_PARSED_CHARS:
        fix = "set 'entry_point' and 'kind'" if what == "tests" else "shorten it"
        raise TaskError(f"its {what} have {len(text)} characters, too many to analyze: {fix}")
    try:
        return parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"its {what} are not valid Python ({type(error).__name__}: {error}): {text!r:.80}") from error


# Assembly of a program


def _defines(source: str, name: str) -> bool:
    return defined_at(source, name) is not None


def defined_at(source: str, name: str) -> int | None:
    """Return the position of the top-level definition of ``name`` in ``source`` (``Stack`` for ``Stack().push``), found
    by pattern matching; nothing is compiled."""
    name = re.split(r"\W", name, maxsplit=1)[0]
    found = re.search(
        rf"^(?:(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]*)?=(?!=)"
        rf"|(?:from|import)[ \t][^\n#]*\b{name}[ \t]*(?:$|[,)#]))",
        source,
        re.MULTILINE,
    )
    return None if found is None else found.start()


def preamble_of(stub: str, entry_point: str) -> str:
    """Return the imports and helpers in a stub before the function to be written."""
    at = defined_at(stub, entry_point)
    if not at:
        return ""
    # Decorators belong to the definition they decorate.
    lines = stub[:at].rstrip("\n").split("\n")
    while lines and lines[-1].startswith("@"):
        lines.pop()
    return "\n".join(lines).strip("\n")


# Single values


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TaskError(f"its {key!r} is of type {type(value).__name__} ({value!r:.80}); it must be a string")
    _check_size(key, len(value))
    _check_text(key, value)
    return value


def _texts(key: str, values: Any) -> list[str]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise TaskError(f"its {key!r} is {values!r:.80}; it must be a list of strings")
    texts = list(values)
    if not texts or len(texts) > MAX_TESTS:
        raise TaskError(f"its {key!r} has {len(texts)} entries; it must be a list of 1 to {MAX_TESTS} strings")
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise TaskError(f"its {key}[{number}] is {text!r:.80}; it must be a non-empty string")
        _check_text(key, text)
    _check_size(key, sum(map(len, texts)))
    return texts


def _limit(row: Mapping[str, Any], key: str, unit: str, bounds: tuple[float, float]) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if not _is_number(value) or value <= 0:
        raise TaskError(f"its {key!r} is {value!r:.80}; it must be a number of {unit} > 0")
    return float(min(max(value, bounds[0]), bounds[1]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_size(key: str, chars: int) -> None:
    if chars > MAX_TEST_CHARS:
        raise TaskError(f"its {key!r} has {chars} characters; the maximum is {MAX_TEST_CHARS}: remove tests")


def _check_text(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TaskError(f"its {key!r} contains a lone surrogate (at {error.start}), which cannot be encoded") from error
