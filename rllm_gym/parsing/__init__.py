"""Parsers from the text of a model to an action: one grammar per module, without ``eval``."""

from rllm_gym.parsing.boxed import last_boxed, strip_thinking

__all__ = ["last_boxed", "strip_thinking"]
