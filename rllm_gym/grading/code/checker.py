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
from rllm_gym.grading.code.timed_pool import TimedPool
from rllm_gym.grading.code.verdict import StdioTest
from rllm_gym.sandbox import Ended, Limits, Program

_LIMITS = Limits(cpu_s=20, wall_s=60, memory_mb=1024, output_bytes=100_000)
_MAX_ACCEPTED = 100_000
_FUNCTION = re.compile(r"^def check\s*\(", re.MULTILINE)

_MAIN = """
import inspect, json, sys
from io import StringIO

task = json.load(sys.stdin)
source = open("checker.py", encoding="utf-8").read()
out, sys.stdout = sys.stdout, StringIO()
sys.argv = ["checker.py", "input.txt", "expected.txt", "output.txt"]
sys.path.insert(0, "")

class Unusable(Exception):
    "It cannot be run, whatever the output."

def by_function(code):
    namespace = {"__name__": "checker"}
    try:
        exec(code, namespace)
        inspect.signature(namespace["check"]).bind("", "", "")
    except Exception as error:
        raise Unusable(f"{type(error).__name__}: {error}") from None
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

right, problem, usable = False, "it refuses the expected output", True
try:
    right = (by_function if task["function"] else by_script)(compile(source, "checker.py", "exec", dont_inherit=True))
except BaseException as error:
    problem = f"{type(error).__name__}: {error}"
    # Of a local name that has no value: an empty output may cause that.
    usable = not isinstance(error, (Unusable, SyntaxError, ImportError)) and type(error) is not NameError
print(file=out)
report = {"nonce": task["nonce"], "right": right, "problem": problem, "usable": usable}
print(json.dumps(report), file=out, flush=True)
"""
_accepted: set[bytes] = set()
"""Tests whose expected output their checker has accepted."""


async def check_output(pool: TimedPool, checker: str, test: StdioTest, output: bytes) -> bool:
    """Return whether a checker accepts an output. One that is not UTF-8, or on which it raises an error, exits, hangs
    or runs out of memory, is wrong.

    Raises:
        TaskError: It does not accept the expected output either; or, if that is empty, which is no answer, it fails on
            it in a way that has nothing to do with the output: an unknown name or module, invalid Python, a function
            with other parameters. That is checked in a process of its own, so an output cannot cause this.
    """
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return False
    if not (await _problem(pool, checker, test, text))[0]:
        return True
    key = hashlib.sha256("\0".join((checker, test.stdin, test.stdout)).encode("utf-8", "surrogatepass")).digest()
    if key not in _accepted:
        problem, usable = await _problem(pool, checker, test, test.stdout)
        if problem and (test.stdout.strip() or not usable):
            raise TaskError(f"the checker {checker[:60]!r}... cannot be run: {problem}; correct it")
        if len(_accepted) >= _MAX_ACCEPTED:
            _accepted.clear()
        _accepted.add(key)
    return False


async def _problem(pool: TimedPool, checker: str, test: StdioTest, text: str) -> tuple[str, bool]:
    """Return why a checker does not accept a text, empty if it does, and whether that may be due to the text."""
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
            return "" if report["right"] is True else str(report["problem"]), report["usable"] is True
    except (ValueError, IndexError, KeyError, TypeError):
        pass
    if result.ended is Ended.EXITED:
        return f"it ended with exit code {result.exit_code}", True
    return f"it was ended by the {result.ended.value}", True
