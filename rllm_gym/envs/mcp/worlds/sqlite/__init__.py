"""Questions to a database, and edits of it."""

from rllm_gym.envs.mcp.worlds.sqlite import clinic, library, shop

TEMPLATES = (*shop.TEMPLATES, *library.TEMPLATES, *clinic.TEMPLATES)
