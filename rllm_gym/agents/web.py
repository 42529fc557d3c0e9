"""The agent for web pages: describes the actions in its system prompt and keeps the newest pages, with screenshots."""

from __future__ import annotations

import base64
import importlib
import io
from typing import Any

from rllm_gym.agents.chat import ChatAgent
from rllm_gym.argument_checks import check_int
from rllm_gym.parsing.browser_actions import describe_actions

_WORK = """\
You work in a web browser to reach a goal that a user has. Every turn you see the page as an outline in which what \
can be acted on has a number such as [12], and you take one action. Do exactly what is asked for and change nothing \
else. When it is done, or when you know the answer, end with answer(…); when it cannot be done, with \
report_infeasible(…).

Every reply consists of a short thought and exactly one action, in one fenced block at its end:

```
click(12)
```

The actions:
"""
_LEFT_OUT = "[An earlier page was here.]"


class WebAgent(ChatAgent):
    """A :class:`ChatAgent` with a system prompt for ``rllm/Web-v0`` and MiniWoB++.

    Args:
        system_prompt: Replaces the default system prompt.
        pages: Number of newest pages that the model sees in full. Earlier pages are replaced by a note, and each turn
            that does so starts a new branch of the trajectory. ``None`` keeps all pages.
        **arguments: See :class:`ChatAgent`.

    Raises:
        ValueError: ``pages`` is below 1.
    """

    def __init__(self, system_prompt: str | None = None, *, pages: int | None = None, **arguments: Any) -> None:
        if pages is not None:
            check_int("pages", pages, otherwise="None for all")
        self.pages = pages
        default = _WORK + describe_actions()
        super().__init__(default if system_prompt is None else system_prompt, **arguments)

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        """Process an observation. One with a screenshot becomes a message of two parts, in OpenAI format."""
        content = _with_picture(observation) if isinstance(observation, dict) else observation
        super().update_from_env(content, reward, done, info, **kwargs)
        if self.pages is not None:
            self._leave_out_old_pages(self.pages)

    def _leave_out_old_pages(self, kept: int) -> None:
        users = [at for at, message in enumerate(self._messages) if message["role"] == "user"]
        for at in users[1:-kept]:  # keep the first: it contains the goal and the format of actions
            self._messages[at] = {"role": "user", "content": _LEFT_OUT}


def _with_picture(observation: dict[str, Any]) -> list[dict[str, Any]]:
    image = importlib.import_module("PIL.Image")
    png = io.BytesIO()
    image.fromarray(observation["image"]).save(png, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"
    return [{"type": "text", "text": observation["text"]}, {"type": "image_url", "image_url": {"url": url}}]
