"""Checkers: a task's own rule for outputs that are right, for tasks with several right answers.

A checker is Python source by the author of the task. It runs in a sandbox of its own, without the program, whose output
is a text to it. Two forms are accepted:

- a function ``check(stdin: str, stdout: str, expected: str) -> bool``;
- a script that is given the names of three files with the input, the expected output and the program's output
  (``sys.argv[1:]``), and prints a score and nothing else; 1 or more is right.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import replace

from rllm_gym.core import TaskError
from rllm_gym.grading.code.verdict import StdioTest
from rllm_gym.sandbox import Ended, Limits, Program, SandboxPool

_LIMITS = Limits(cpu_s=20, wall_s=60, memory_mb=1024, output_bytes=100_000)
_MAX_ACCEPTED = 100_000
_FUNCTION = re.compile(r"^def check\s*\(", re.MULTILINE)

_MAIN = """
import json, sys
from io import StringIO

task = json.load(sys.stdin)
source = open("checker.py", encoding="utf-8").read()
out, sys.stdout = sys.stdout, StringIO()
sys.argv = ["checker.py", "input.txt", "expected.txt", "output.txt"]
sys.path.insert(0, "")

def by_function(code):
    namespace = {"__name__": "checker"}
    exec(code, namespace)
    right = namespace["check"](task["stdin"], task["stdout"], task["expected"])
    if isinstance(right, (str, bytes, tuple, list, dict)):
        raise TypeError(f"check() returned {right!r:.80}, and must return True or False")
    return bool(right)

def by_script(code):
    for name, content in zip(sys.argv[1:], (task["stdin"], task["expected"], task["stdout"])):
        with open(name, "w", encoding="utf-8", newline="") as file:
            file.write(content)
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit:
        pass
    # Alone: what stands before or after a score may be quoted from the output.
    return float(sys.stdout.getvalue()) >= 1

right, problem = False, "it refuses the expected output"
try:
    right = (by_function if task["function"] else by_script)(compile(source, "checker.py", "exec", dont_inherit=True))
except BaseException as error:
    problem = f"{type(error).__name__}: {error}"
print(file=out)
print(json.dumps({"nonce": task["nonce"], "right": right, "problem": problem}), file=out, flush=True)
"""
_accepted: set[bytes] = set()
"""Tests whose expected output their checker has accepted."""


async def check_output(pool: SandboxPool, checker: str, test: StdioTest, output: bytes) -> bool:
    """Return whether a checker accepts an output. One that is not UTF-8, or on which it raises an error, exits, hangs
    or runs out of memory, is wrong.

    Raises:
        TaskError: It does not accept the expected output either. That is checked in a process of its own, so an output
            cannot cause this.
    """
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return False
    if not await _problem(pool, checker, test, text):
        return True
    key = hashlib.sha256("\0".join((checker, test.stdin, test.stdout)).encode("utf-8", "surrogatepass")).digest()
    if test.stdout.strip() and key not in _accepted:
        problem = await _problem(pool, checker, test, test.stdout)
        if problem:
            raise TaskError(f"the checker {checker[:60]!r}... cannot be run: {problem}; correct it")
        if len(_accepted) >= _MAX_ACCEPTED:
            _accepted.clear()
        _accepted.add(key)
    return False


async def _problem(pool: SandboxPool, checker: str, test: StdioTest, text: str) -> str:
    """Return why a checker does not accept a text; empty if it does."""
    nonce = secrets.token_hex(16)
    task = {"stdin": test.stdin, "stdout": text, "expected": test.stdout, "nonce": nonce}
    result = await pool.run(
        Program(
            _MAIN,
            stdin=json.dumps(task | {"function": _FUNCTION.search(checker) is not None}).encode(),
            files={"checker.py": checker.encode("utf-8", "replace")},
            limits=replace(_LIMITS, scratch_mb=256),
        )
    )
    try:
        report = json.loads(result.stdout.splitlines()[-1])
        if report["nonce"] == nonce:
            return "" if report["right"] is True else str(report["problem"])
    except (ValueError, IndexError, KeyError, TypeError):
        pass
    if result.ended is Ended.EXITED:
        return f"it ended with exit code {result.exit_code}"
    return f"it was ended by the {result.ended.value}"
