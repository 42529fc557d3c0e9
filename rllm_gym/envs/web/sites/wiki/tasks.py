"""The task templates of the wiki."""

from __future__ import annotations

from functools import partial

from rllm_gym.envs.web.sites.task import WebTaskTemplate
from rllm_gym.envs.web.sites.wiki.editing_tasks import (
    categories,
    comment,
    create,
    edit_fact,
    edit_section,
    move,
    redirect,
    revert,
)
from rllm_gym.envs.web.sites.wiki.generate import build
from rllm_gym.envs.web.sites.wiki.reading_tasks import count, extreme, fact, first_editor, linking, old_value

LEVELS = (1, 2, 3, 4, 5)
build_with_summaries = partial(build, summaries_count=True)

TEMPLATES = (
    WebTaskTemplate("wiki/fact", build, fact, LEVELS),
    WebTaskTemplate("wiki/extreme", build, extreme, LEVELS),
    WebTaskTemplate("wiki/count", build, count, LEVELS),
    WebTaskTemplate("wiki/first-editor", build, first_editor, LEVELS),
    WebTaskTemplate("wiki/old-value", build, old_value, LEVELS),
    WebTaskTemplate("wiki/links", build, linking, LEVELS),
    WebTaskTemplate("wiki/edit-fact", build_with_summaries, edit_fact, LEVELS),
    WebTaskTemplate("wiki/edit-section", build, edit_section, LEVELS),
    WebTaskTemplate("wiki/revert", build, revert, LEVELS),
    WebTaskTemplate("wiki/create", build_with_summaries, create, LEVELS),
    WebTaskTemplate("wiki/redirect", build, redirect, LEVELS),
    WebTaskTemplate("wiki/comment", build, comment, LEVELS),
    WebTaskTemplate("wiki/categories", build, categories, LEVELS),
    WebTaskTemplate("wiki/move", build, move, LEVELS),
)
