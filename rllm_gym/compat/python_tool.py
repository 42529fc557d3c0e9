"""rLLM's built-in tool ``python``, whose programs run in the sandbox."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rllm_gym.compat.tool import Tool, ToolOutput
from rllm_gym.envs.tool_math.python_tool import MAX_CODE_CHARS, NAME, TOOLS, program_for, run_text
from rllm_gym.mcp.results import ToolResult
from rllm_gym.sandbox import Limits, shared_pool

_LONGEST_OUTPUT = 10_000  # characters
_MAX_SECONDS = 60.0


@dataclass
class CodeToolOutput(ToolOutput):
    """The output of a program: ``output`` is the text for the model, of ``stdout``, ``stderr`` and how it ended."""

    stdout: str | None = None
    stderr: str | None = None


class PythonTool(Tool):
    """Runs each program in a fresh process without network, and returns what it prints and the value of its last line.

    Raises:
        SandboxUnavailable: No sandbox works on this machine; the message says why and names a solution.
    """

    def __init__(self, name: str = NAME) -> None:
        (schema,) = json.loads(TOOLS)
        super().__init__(name=name, description=schema["function"]["description"])
        self._schema = schema
        shared_pool()  # not only in the first call, where it would be an error of every episode

    @property
    def json(self) -> dict[str, Any]:
        return {**self._schema, "function": {**self._schema["function"], "name": self.name}}

    def forward(self, code: str, timeout: float = 12.0) -> CodeToolOutput:
        """Run a program.

        Args:
            code: The program, at most 100,000 characters.
            timeout: Processor time in seconds, at most 60.

        Raises:
            SandboxFault: The sandbox failed.
        """
        if not isinstance(code, str) or len(code) > MAX_CODE_CHARS:
            raise ValueError(f"code must be a text of at most {MAX_CODE_CHARS:,} characters")
        cpu_s = min(max(float(timeout), 0.1), _MAX_SECONDS)
        limits = Limits(cpu_s=cpu_s, wall_s=5 + 3 * cpu_s, memory_mb=512, output_bytes=4 * _LONGEST_OUTPUT)
        result = shared_pool().run_sync(program_for(code, limits))
        shown = ToolResult(run_text(result, limits)).shortened(_LONGEST_OUTPUT)
        stdout, stderr = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
        return CodeToolOutput(str(self.name), output=shown, stdout=stdout, stderr=stderr)
