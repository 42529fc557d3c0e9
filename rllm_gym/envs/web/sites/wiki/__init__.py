"""A wiki: pages with facts and sections, versions, talk pages, categories, redirects and a watch list."""

from rllm_gym.envs.web.sites.wiki.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
