"""A wiki: pages with facts and sections, versions, talk pages, categories, redirects and a watch list."""

from rllm_gym.envs.web.sites.wiki.generate import build
from rllm_gym.envs.web.sites.wiki.pages import ORIGIN, WikiApp
from rllm_gym.envs.web.sites.wiki.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "WikiApp", "build"]
