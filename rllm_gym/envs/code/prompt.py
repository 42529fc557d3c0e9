"""The prompt of a task for the model, and the assembly of the source to run from the model's reply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.core import Task
from rllm_gym.envs.code.rows import defined_at, preamble_of

_SHOWN_CHARS = 2_000
_SHOWN_TESTS = 5
_SHOWN_TOTAL_CHARS = 8_000

_IMPORT = re.compile(r"^\s*from\s+solution\s+import\s+(?:\(([^()]*)\)|([^\n(]*))", re.MULTILINE)
_BACKTICKS = re.compile(r"`{3,}")
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)


def format_problem(task: Task, *, cpu_s: float, memory_mb: int) -> str:
    """Return the problem, what to write, the public tests, and the answer format."""
    data = task.data
    parts = _stdio(task) if data["kind"] == "stdio" else _function(task)
    limits = f"{cpu_s:g} s of processor time and {memory_mb} MB"
    scope = "For each test it has" if data["kind"] == "stdio" else "For all tests together it has"
    parts.append(
        "Reply with the whole program in one fenced block that begins with ```python and ends with ```; of several "
        f"the last counts. It is run on hidden tests. {scope} {limits}."
    )
    return "\n\n".join(parts)


def _stdio(task: Task) -> list[str]:
    data = task.data
    parts = [task.content.strip("\n")]
    if data["stub"]:
        parts.append(f"Begin with:\n{fenced(data['stub'], 'python')}")
    parts.append("Write a Python program that reads standard input and writes standard output.")
    shown = data["tests"][: data["public_tests"]]
    examples: list[str] = []
    max_chars = _SHOWN_TOTAL_CHARS
    for number, case in enumerate(shown[:_SHOWN_TESTS], start=1):
        example = f"Example {number}, input:\n{fenced(cut(case['stdin']))}\noutput:\n{fenced(cut(case['stdout']))}"
        max_chars -= len(example)
        if examples and max_chars < 0:
            break
        examples.append(example)
    if len(shown) > len(examples):
        examples.append(f"({len(shown) - len(examples)} more examples are left out.)")
    return parts + examples


def _function(task: Task) -> list[str]:
    data = task.data
    content, stub = task.content.strip("\n"), data["stub"]
    names = " and ".join(f"`{name}`" for name in _names(data))
    if stub and stub == task.content:
        parts = [f"Complete this Python program, which has to define {names}:\n{fenced(content, 'python')}"]
    elif stub:
        parts = [content, f"Write it in Python, as {names}. Begin with:\n{fenced(stub, 'python')}"]
    else:
        parts = [content, f"Write it in Python, as {names}."]
    shown: Sequence[str] = data["public_tests"]
    if shown:
        tests: list[str] = []
        max_chars = _SHOWN_TOTAL_CHARS
        for test in shown:
            max_chars -= len(test)
            if tests and (max_chars < 0 or len(tests) == _SHOWN_TESTS):
                break
            tests.append(cut(test.strip()))
        left = f"\n({len(shown) - len(tests)} more are left out.)" if len(shown) > len(tests) else ""
        joined = "\n".join(tests)
        parts.append(f"It has to pass, among others:\n{fenced(joined, 'python')}{left}")
    return parts


def _names(data: Mapping[str, Any]) -> list[str]:
    names = [data["entry_point"]]
    if data["test_style"] == "pytest":
        for found in _IMPORT.finditer(data["test"]):
            for part in (found[1] or found[2] or "").split("#")[0].split(","):
                name = part.split(" as ")[0].strip()
                if name.isidentifier() and name not in names:
                    names.append(name)
    return names


def fenced(text: str, label: str = "") -> str:
    """Return ``text`` as a block whose fence is longer than any fence in it."""
    longest = max((len(run[0]) for run in _BACKTICKS.finditer(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{label}\n{text.strip(chr(10))}\n{fence}"


def cut(text: str, limit: int = _SHOWN_CHARS) -> str:
    """Return the beginning of a text, with a note on what was cut."""
    return text if len(text) <= limit else f"{text[:limit]}\n... {len(text) - limit} characters cut ..."


def assemble_source(program: str, data: Mapping[str, Any]) -> str:
    """Return the source to run, assembled from the program in a reply.

    If the task has a stub, the part of the stub before the function (imports, helpers) comes first, so that a reply may
    omit it. A reply that does not define the function is treated as the continuation of the stub. If the tests call a
    function that the reply defines as a method of a class ``Solution``, a function that calls the method is added. All
    of this is decided by pattern matching on the text: nothing is compiled here.
    """
    if data["kind"] == "stdio":
        return program
    name, stub = data["entry_point"], data["stub"]
    if defined_at(program, name) is None:
        if not name.startswith("Solution") and defined_at(program, "Solution") is not None:
            return f"{program}\n\n\ndef {name}(*arguments):\n    return Solution().{name}(*arguments)\n"
        if stub and defined_at(stub, name) is not None:
            return f"{stub.rstrip()}\n{_indented(program)}"
        return program
    preamble = preamble_of(stub, name)
    if not preamble or preamble in program:
        return program
    # Imports from __future__ must come first.
    future = "".join(found if found.endswith("\n") else f"{found}\n" for found in _FUTURE.findall(program))
    return f"{future}{preamble}\n\n\n{_FUTURE.sub('', program)}"


def _indented(body: str) -> str:
    first = next((line for line in body.split("\n") if line.strip()), "")
    if first[:1] in " \t":
        return body
    return "".join(f"    {line}\n" if line.strip() else "\n" for line in body.split("\n"))
