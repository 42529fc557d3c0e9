"""The task templates of the forum."""

from __future__ import annotations

from functools import partial

from rllm_gym.sites.errand import Template
from rllm_gym.sites.forum.judging import delete_adverts, move_thread, report, subscribe, upvote
from rllm_gym.sites.forum.reading import posts_since, recommends, top_post
from rllm_gym.sites.forum.state import build
from rllm_gym.sites.forum.with_wiki import ask_wiki, build_with_question
from rllm_gym.sites.forum.writing import edit_own, message, new_thread, reply, reply_latest

LEVELS = (1, 2, 3, 4, 5)
build_for_moderator = partial(build, moderator=True)

TEMPLATES = (
    Template("forum/posts-since", build, posts_since, LEVELS),
    Template("forum/recommends", build, recommends, LEVELS),
    Template("forum/top-post", build, top_post, LEVELS),
    Template("forum/reply", build, reply, LEVELS),
    Template("forum/reply-latest", build, reply_latest, LEVELS),
    Template("forum/new-thread", build, new_thread, LEVELS),
    Template("forum/edit-own", build, edit_own, LEVELS),
    Template("forum/message", build, message, LEVELS),
    Template("forum/upvote", build, upvote, LEVELS),
    Template("forum/report", build, report, LEVELS),
    Template("forum/subscribe", build, subscribe, LEVELS),
    Template("forum/move-thread", build_for_moderator, move_thread, LEVELS),
    Template("forum/delete-adverts", build_for_moderator, delete_adverts, LEVELS),
    Template("forum/ask-wiki", build_with_question, ask_wiki, LEVELS),
)
