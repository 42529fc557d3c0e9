"""Tasks across several servers: files and a database; a calendar and an address book."""

from rllm_gym.envs.mcp.domains.multi_server.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
