"""The agent for software repositories, with shell commands or with tool calls, as models are trained for."""

from __future__ import annotations

from typing import Any, Literal

from rllm_gym.agents.chat import ChatAgent

_WORK = """\
You are a software engineer. You are given a repository and a description of what is wrong or wanted, and you change \
the repository's source until that is so. Work step by step: find the code that matters and read it; reproduce the \
problem; make the smallest change that solves it for good, edge cases included; check it by running code and the \
tests that are there; then submit. Do not change tests to make them pass: hidden tests decide.
"""

_BASH = """
Every reply consists of a short thought and exactly one shell command, in one fenced block:

```bash
your command here
```

Several steps go into one command with && or on several lines. Each command runs in a new shell in the repository's \
directory: cd and variables last for one command. Edit files with sed, with a heredoc (cat > file << 'EOF') or with a \
short Python script; a command that itself holds ``` lines needs ````bash as its fence. When the work is done, reply \
with the command `submit` alone:

```bash
submit
```
"""

_TOOLS = """
Every reply consists of a short thought and exactly one call of a tool. Look around and run tests with bash, view and \
edit files with str_replace_editor, and when the work is done call submit.
"""


class SWEAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for ``rllm/SWE-v0``.

    Args:
        system_prompt: Replaces the default system prompt.
        form: ``"bash"``: one fenced command per turn, as mini-swe-agent; tool schemas are not in the prompt.
            ``"tools"``: function calls, with the schemas rendered by the model's own chat template.
        **arguments: See :class:`ChatAgent`.
    """

    def __init__(
        self, system_prompt: str | None = None, *, form: Literal["bash", "tools"] = "bash", **arguments: Any
    ) -> None:
        if form not in ("bash", "tools"):
            raise ValueError(f"form={form!r} is not one of 'bash', 'tools'")
        self.form = form
        self.uses_tools = form == "tools"  # type: ignore[misc]
        default = _WORK + (_TOOLS if form == "tools" else _BASH)
        super().__init__(default if system_prompt is None else system_prompt, **arguments)
