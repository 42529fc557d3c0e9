"""Customer service tasks with a written policy."""

from rllm_gym.envs.mcp.domains.retail.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
