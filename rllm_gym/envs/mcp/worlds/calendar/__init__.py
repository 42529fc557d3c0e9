"""Tasks with an office calendar."""

from rllm_gym.envs.mcp.worlds.calendar.errands import TEMPLATES

__all__ = ["TEMPLATES"]
