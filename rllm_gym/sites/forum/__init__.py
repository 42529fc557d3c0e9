"""A forum: boards, threads, posts, votes, reports, subscriptions, private messages and moderation."""

from rllm_gym.sites.forum.tasks import TEMPLATES

__all__ = ["TEMPLATES"]
