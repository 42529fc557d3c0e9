"""The agent of ``rllm/Dataset-v0``: the messages of a row are the conversation that the model continues."""

from __future__ import annotations

from typing import Any

from rllm_gym.agents.chat import ChatAgent


class DatasetAgent(ChatAgent):
    """A :class:`ChatAgent` that starts with the messages of its task's ``prompt``.

    A text is one message of the user, as with other agents. The system message of a prompt replaces ``system_prompt``.
    """

    def reset(self) -> None:
        super().reset()
        self._prompt: list[dict[str, Any]] = []

    def receive_task(self, task: Any) -> None:
        prompt = task["data"].get("prompt") if isinstance(task, dict) and isinstance(task.get("data"), dict) else None
        self._prompt = list(prompt) if isinstance(prompt, list) else []

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        if not self._prompt:
            return super().chat_completions
        return self._prompt if self._prompt[0]["role"] == "system" else self._head + self._prompt
