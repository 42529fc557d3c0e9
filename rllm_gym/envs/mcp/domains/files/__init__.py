"""Tasks with text files in a folder."""

from rllm_gym.envs.mcp.domains.files.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
