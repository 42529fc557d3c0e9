"""The agent for MCP tool servers, where the changes it makes are graded as well as its answer."""

from __future__ import annotations

import json
from typing import Any

from rllm_gym.agents.tool import ToolAgent


class MCPAgent(ToolAgent):
    """A :class:`ToolAgent` with a system prompt for ``rllm/MCP-v0``, which shows the pictures in ``info["images"]``."""

    system_prompt = (
        "You work for a user with tools. Look before you change anything, do exactly what is asked for and nothing "
        "else, and keep to the rules you are given. A tool that fails may be tried again, or another way found. When "
        "the task is done, or when you know the answer, end with the answer alone and no call; when it cannot be done, "
        "or must not be, call report_infeasible and change nothing."
    )

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        images = json.loads(info.get("images", "[]"))
        content = observation
        if images:
            content = [{"type": "text", "text": observation}]
            content += [{"type": "image_url", "image_url": {"url": url}} for url in images]
        super().update_from_env(content, reward, done, info, **kwargs)
