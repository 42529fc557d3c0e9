"""Tasks with an SQLite database: questions and edits."""

from rllm_gym.envs.mcp.domains.sqlite import clinic, library, shop

TEMPLATES = (*shop.TEMPLATES, *library.TEMPLATES, *clinic.TEMPLATES)
