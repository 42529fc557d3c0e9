"""Customer service tasks with a written policy."""

from rllm_gym.envs.mcp.worlds.retail.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
