"""Customer service tasks with a written policy."""

from rllm_gym.envs.mcp.worlds.retail.errands import TEMPLATES

__all__ = ["TEMPLATES"]
