"""The task templates of the wiki."""

from __future__ import annotations

from functools import partial

from rllm_gym.sites.errand import Template
from rllm_gym.sites.wiki.editing import categories, comment, create, edit_fact, edit_section, move, redirect, revert
from rllm_gym.sites.wiki.reading import count, extreme, fact, first_editor, linking, old_value
from rllm_gym.sites.wiki.state import build

LEVELS = (1, 2, 3, 4, 5)
build_with_summaries = partial(build, summaries_count=True)

TEMPLATES = (
    Template("wiki/fact", build, fact, LEVELS),
    Template("wiki/extreme", build, extreme, LEVELS),
    Template("wiki/count", build, count, LEVELS),
    Template("wiki/first-editor", build, first_editor, LEVELS),
    Template("wiki/old-value", build, old_value, LEVELS),
    Template("wiki/links", build, linking, LEVELS),
    Template("wiki/edit-fact", build_with_summaries, edit_fact, LEVELS),
    Template("wiki/edit-section", build, edit_section, LEVELS),
    Template("wiki/revert", build, revert, LEVELS),
    Template("wiki/create", build_with_summaries, create, LEVELS),
    Template("wiki/redirect", build, redirect, LEVELS),
    Template("wiki/comment", build, comment, LEVELS),
    Template("wiki/categories", build, categories, LEVELS),
    Template("wiki/move", build, move, LEVELS),
)
