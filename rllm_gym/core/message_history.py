"""A wrapper whose observation is the whole conversation so far instead of the text that is new in this turn."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium

from rllm_gym.core.text_space import Text

_SURROGATE = re.compile("[\ud800-\udfff]")


class MessageHistory(gymnasium.Wrapper[str, str, str, str], gymnasium.utils.RecordConstructorArgs):
    """A wrapper whose observation is the conversation: a JSON list of ``{"role", "content"}`` in OpenAI format.

    Observations of the environment have the role ``"user"``, actions the role ``"assistant"``.

    Args:
        env: A text environment.
        max_chars: Maximum length of the conversation in characters; the bound of the observation space.
    """

    def __init__(self, env: gymnasium.Env[str, str], max_chars: int = 10_000_000) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, max_chars=max_chars)
        super().__init__(env)
        self.observation_space = Text(max_chars)
        self._messages: list[dict[str, str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._messages = [{"role": "user", "content": observation}]
        return self._conversation(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
        return self._conversation(), float(reward), terminated, truncated, info

    def _conversation(self) -> str:
        text = json.dumps(self._messages, ensure_ascii=False)
        # A reply may contain lone surrogates, which files and tokenizers reject. JSON can escape them without loss.
        return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
