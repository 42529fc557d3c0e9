"""From model text to an action: one grammar a file, never ``eval``. Rewards and chat templates live elsewhere."""

from rllm_gym.parsing.boxed import last_boxed, strip_thinking

__all__ = ["last_boxed", "strip_thinking"]
