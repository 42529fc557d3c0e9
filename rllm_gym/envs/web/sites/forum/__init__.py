"""A forum: boards, threads, posts, votes, reports, subscriptions, private messages and moderation."""

from rllm_gym.envs.web.sites.forum.generate import build
from rllm_gym.envs.web.sites.forum.pages import ORIGIN, ForumApp
from rllm_gym.envs.web.sites.forum.tasks import TEMPLATES

__all__ = ["ORIGIN", "TEMPLATES", "ForumApp", "build"]
