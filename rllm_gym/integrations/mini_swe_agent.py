"""mini-swe-agent in ``rllm/SWE-v0``: an environment class whose commands run in the sandbox of the episode.

Written for mini-swe-agent 2.4, which :class:`~rllm_gym.engine.workflows.AgentProgram` runs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import urllib.request
from typing import Any

from minisweagent.exceptions import LimitsExceeded, Submitted
from pydantic import BaseModel

_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class SandboxConfig(BaseModel, extra="forbid"):
    """Options of :class:`SandboxEnvironment`: ``env``, variables of every command."""

    env: dict[str, str] = {}


class SandboxEnvironment:
    """Executes each command as a step of the episode. Submitting has the work graded by the environment."""

    def __init__(self, **config: Any) -> None:
        self.config = SandboxConfig(**config)

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Return the output and the return code of a command; -1 and the reason where there is none.

        Raises:
            Submitted: The work was submitted.
            LimitsExceeded: No turns are left.
        """
        command = str(action.get("command", ""))
        if _MARKER not in command:  # otherwise the environment would not take it for what submits
            exports = [f"export {name}={shlex.quote(value)}" for name, value in self.config.env.items()]
            command = "\n".join([*exports, *([f"cd {shlex.quote(cwd)}"] if cwd else []), command])
        result = self._step("bash", _MARKER in command, command=command)
        if result["returncode"] == 0 and result["output"].lstrip().partition("\n")[0].strip() == _MARKER:
            self._step("submit", True)
        return result

    def _step(self, tool: str, submits: bool, **arguments: str) -> dict[str, Any]:
        call = {"function": {"name": tool, "arguments": json.dumps(arguments)}}
        body = json.dumps({"action": json.dumps({"tool_calls": [call]})}).encode()
        headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
        request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/step", body, headers)
        with urllib.request.urlopen(request) as response:
            step = json.load(response)
        if step["done"]:
            kind = Submitted if submits else LimitsExceeded
            raise kind({"role": "exit", "content": "", "extra": {"exit_status": kind.__name__, "submission": ""}})
        output, _, note = step["observation"].removeprefix("<output>\n").rpartition("\n</output>\n")
        code = re.match(r"Exit code ([0-9]+)\.\s*", note)
        if code is None:
            return {"output": output, "returncode": -1, "exception_info": note}
        more = note[code.end() :].removesuffix("There was no output.")
        shown = "\n".join(filter(None, (output, more.rstrip())))
        return {"output": shown, "returncode": int(code[1]), "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what mini-swe-agent's prompts name: the system of the sandbox, which is that of this machine."""
        return self.config.model_dump() | platform.uname()._asdict() | kwargs

    def serialize(self) -> dict[str, Any]:
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}
