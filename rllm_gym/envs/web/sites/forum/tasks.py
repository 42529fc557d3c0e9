"""The task templates of the forum."""

from __future__ import annotations

from functools import partial

from rllm_gym.envs.web.sites.forum.generate import build
from rllm_gym.envs.web.sites.forum.moderation_tasks import delete_adverts, move_thread, report, subscribe, upvote
from rllm_gym.envs.web.sites.forum.reading_tasks import posts_since, recommends, top_post
from rllm_gym.envs.web.sites.forum.with_wiki import ask_wiki, build_with_question
from rllm_gym.envs.web.sites.forum.writing_tasks import edit_own, message, new_thread, reply, reply_latest
from rllm_gym.envs.web.sites.task import WebTaskTemplate

LEVELS = (1, 2, 3, 4, 5)
build_for_moderator = partial(build, moderator=True)

TEMPLATES = (
    WebTaskTemplate("forum/posts-since", build, posts_since, LEVELS),
    WebTaskTemplate("forum/recommends", build, recommends, LEVELS),
    WebTaskTemplate("forum/top-post", build, top_post, LEVELS),
    WebTaskTemplate("forum/reply", build, reply, LEVELS),
    WebTaskTemplate("forum/reply-latest", build, reply_latest, LEVELS),
    WebTaskTemplate("forum/new-thread", build, new_thread, LEVELS),
    WebTaskTemplate("forum/edit-own", build, edit_own, LEVELS),
    WebTaskTemplate("forum/message", build, message, LEVELS),
    WebTaskTemplate("forum/upvote", build, upvote, LEVELS),
    WebTaskTemplate("forum/report", build, report, LEVELS),
    WebTaskTemplate("forum/subscribe", build, subscribe, LEVELS),
    WebTaskTemplate("forum/move-thread", build_for_moderator, move_thread, LEVELS),
    WebTaskTemplate("forum/delete-adverts", build_for_moderator, delete_adverts, LEVELS),
    WebTaskTemplate("forum/ask-wiki", build_with_question, ask_wiki, LEVELS),
)
