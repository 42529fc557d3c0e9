"""The calendar of an office."""

from rllm_gym.envs.mcp.worlds.calendar.errands import TEMPLATES

__all__ = ["TEMPLATES"]
