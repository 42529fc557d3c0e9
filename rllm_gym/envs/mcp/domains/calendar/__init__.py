"""Tasks with an office calendar."""

from rllm_gym.envs.mcp.domains.calendar.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
