"""Checkers: a task's own rule for outputs that are right, for tasks with several right answers.

A checker is Python source by the author of the task. It runs in a sandbox of its own, without the program, whose output
is a text to it. Two forms are accepted:

- a function ``check(stdin: str, stdout: str, expected: str) -> bool``;
- a script that is given the names of three files with the input, the expected output and the program's output
  (``sys.argv[1:]``), and prints a score, of which 1 or more is right.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import replace

from rllm_gym.core import TaskError
from rllm_gym.grading.code.verdict import StdioTest
from rllm_gym.sandbox import Ended, Limits, Program, SandboxPool

_LIMITS = Limits(cpu_s=20, wall_s=60, memory_mb=1024, output_bytes=100_000)
_FUNCTION = re.compile(r"^def check\s*\(", re.MULTILINE)

_MAIN = """
import json, sys
from io import StringIO

task = json.load(sys.stdin)
source = open("checker.py", encoding="utf-8").read()
out, sys.stdout = sys.stdout, StringIO()
problem = ""
sys.argv = ["checker.py", "input.txt", "expected.txt", "output.txt"]
sys.path.insert(0, "")

def by_function(text):
    namespace = {"__name__": "checker"}
    exec(code, namespace)
    return bool(namespace["check"](task["stdin"], text, task["expected"]))

def by_script(text):
    for name, content in zip(sys.argv[1:], (task["stdin"], task["expected"], text)):
        with open(name, "w", encoding="utf-8", newline="") as file:
            file.write(content)
    sys.stdout = StringIO()
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit:
        pass
    return float(sys.stdout.getvalue().split()[-1]) >= 1

def accepts(text):
    global problem
    try:
        return (by_function if task["function"] else by_script)(text)
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
        return False

try:
    code = compile(source, "checker.py", "exec", dont_inherit=True)
except (SyntaxError, ValueError) as error:
    right, problem = False, f"{type(error).__name__}: {error}"
else:
    right = accepts(task["stdout"])
    if not right:
        # An error may be due to the output, such as int("x"), unless the expected output causes one too.
        problem = ""
        if task["expected"].strip() and not accepts(task["expected"]):
            problem = problem or "it refuses the expected output"
print(file=out)
print(json.dumps({"nonce": task["nonce"], "right": right, "problem": problem}), file=out, flush=True)
"""


async def check_output(pool: SandboxPool, checker: str, test: StdioTest, output: bytes) -> bool:
    """Return whether a checker accepts an output. One that is not UTF-8, or for which it raises an error, is wrong.

    Raises:
        TaskError: The checker cannot be run, or refuses the expected output.
    """
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return False
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
        known = report["nonce"] == nonce
    except (ValueError, IndexError, KeyError, TypeError):
        known = False
    if known and not report["problem"]:
        return report["right"] is True
    if not known and result.ended is not Ended.EXITED:
        return False  # an output for which it needs more than it has
    reason = report["problem"] if known else f"it ended with exit code {result.exit_code}"
    raise TaskError(f"the checker {checker[:60]!r}... cannot be run: {reason}; correct it")
