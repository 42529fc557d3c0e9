"""The Python tool: its schema, the parsing of its calls, and the text of a run's result for the model."""

from __future__ import annotations

import json
from typing import Any

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.function_calls import FunctionCall
from rllm_gym.sandbox import Ended, Limits, Program, ProgramResult

NAME = "python"
MAX_CODE_CHARS = 100_000
EXAMPLE = '<tool_call>{"name": "python", "arguments": {"code": "print(sum(range(10)))"}}</tool_call>'

_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Run a Python program in a sandbox and see what it prints. Each call is a fresh process: "
        "nothing is kept between calls. The value of a last line that is an expression is printed too. No network.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}
TOOLS = json.dumps([_SCHEMA])
"""The tool as a JSON list of OpenAI schemas."""

# Runs in the sandbox: executes the program as a script, then prints the value of its last line, as a notebook does.
_RUNNER = """
import ast, linecache, sys, traceback, types
name = "<program>"
with open("program.py", encoding="utf-8") as file:
    text = file.read()
linecache.cache[name] = (len(text), None, text.splitlines(True), name)
main = sys.modules["__main__"] = types.ModuleType("__main__")
try:
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), main.__dict__)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), main.__dict__)
        if value is not None:
            print(repr(value))
except Exception as error:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    sys.exit(1)
"""

_ENDS = {
    Ended.CPU: "ended: more than {limits.cpu_s:g} s of processor time",
    Ended.WALL: "ended: more than {limits.wall_s:g} s",
    Ended.MEMORY: "ended: more than {limits.memory_mb} MB of memory",
    Ended.PROCESSES: "ended: too many processes",
    Ended.SCRATCH: "ended: too much on disk",
    Ended.OUTPUT: "ended: far too much output",
}


def code_of(call: FunctionCall, number: int) -> str:
    """Return the program of a call.

    Args:
        call: The call.
        number: Position of the call in its reply, from 1.

    Raises:
        InvalidAction: It is not a call of this tool; the message says why.
    """
    which = f"Tool call {number}"
    if call.name != NAME:
        name = call.name.encode("utf-8", "replace").decode()[:80]
        raise InvalidAction(f"{which} names the tool {name!r}; the only tool is {NAME!r}. Nothing was run.")
    code = call.arguments.get("code")
    if not isinstance(code, str) or set(call.arguments) != {"code"}:
        raise InvalidAction(
            f"{which} must have one argument, the text 'code'; it has "
            f"{', '.join(map(repr, call.arguments))[:200] or 'none'}. Nothing was run. Write: {EXAMPLE}"
        )
    if len(code) > MAX_CODE_CHARS:
        raise InvalidAction(
            f"The code of tool call {number} has {len(code)} characters; at most {MAX_CODE_CHARS} are run."
        )
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise InvalidAction(
            f"The code of tool call {number} has half a character (a lone surrogate) at position {error.start + 1}; "
            "leave it out."
        ) from error
    return code


def program_for(code: str, limits: Limits) -> Program:
    """Return the program that runs ``code``."""
    return Program(_RUNNER, files={"program.py": code.encode()}, limits=limits)


def run_text(result: ProgramResult, limits: Limits) -> str:
    """Describe a run: its standard output, then its standard error, then how it ended if it did not exit normally."""
    parts = [result.stdout.decode("utf-8", "replace"), result.stderr.decode("utf-8", "replace")]
    over = result.stdout_bytes + result.stderr_bytes - len(result.stdout) - len(result.stderr)
    if over > 0:
        parts.append(f"({over:,} more bytes of output were not kept)")
    if result.ended in _ENDS:
        parts.append(f"({_ENDS[result.ended].format(limits=limits)})")
    elif result.signal is not None:
        parts.append(f"(ended by signal {result.signal})")
    text = "\n".join(part.rstrip("\n") for part in parts if part.strip())
    return text or "(no output: print what you want to see)"
