"""Tasks with an office calendar."""

from rllm_gym.envs.mcp.worlds.calendar.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
