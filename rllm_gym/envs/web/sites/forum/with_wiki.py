"""Tasks on the forum and the wiki together: answer a forum question with a fact from the wiki."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from rllm_gym.envs.web.sites.forum.content import Post, Thread
from rllm_gym.envs.web.sites.forum.generate import build
from rllm_gym.envs.web.sites.forum.navigation import DONE, START_URL, Moves, open_thread
from rllm_gym.envs.web.sites.forum.views import ForumApp
from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.envs.web.sites.task import Click, Fill, Goto, WebTask
from rllm_gym.envs.web.sites.wiki.generate import build as build_wiki
from rllm_gym.envs.web.sites.wiki.navigation import clean_pages, look_alike, open_page
from rllm_gym.envs.web.sites.wiki.state import ORIGIN as WIKI
from rllm_gym.envs.web.sites.wiki.views import WikiApp


@dataclass
class ForumAndWiki:
    """Both sites and the question: its thread, and the title and the fact that it asks for."""

    forum: ForumApp
    wiki: WikiApp
    question: Thread
    title: str
    fact: str

    def handlers(self) -> Mapping[str, Handler]:
        return {**self.forum.handlers(), **self.wiki.handlers()}

    def facts(self) -> Any:
        return {"forum": self.forum.facts(), "wiki": self.wiki.facts()}


def build_with_question(seed: int, difficulty: int) -> ForumAndWiki:
    """Build a forum with an additional thread that asks for a fact of a wiki page."""
    forum, encyclopedia = build(seed, difficulty), build_wiki(seed, difficulty)
    rng = Random(f"question/{seed}/{difficulty}")
    page = rng.choice(clean_pages(encyclopedia))
    fact, _ = rng.choice(page.content.facts)
    text = rng.choice(
        (
            "For a quiz I need one fact about {title}: what is its “{fact}”? I cannot reach the wiki from work.",
            "Could somebody look up {title} in the wiki for me and tell me the “{fact}”?",
        )
    ).format(title=page.title, fact=fact)
    board = rng.choice([name for name in forum.boards if name != forum.closed_board])
    title = rng.choice(("Quick question about {}", "Who knows {}?", "{}: can anybody look this up?")).format(page.title)
    thread = Thread(max(forum.threads) + 1, board, title)
    newest = max(post.number for t in forum.threads.values() for post in t.posts)
    thread.posts.append(Post(newest + 1, rng.choice(forum.users[1:]), forum.now - timedelta(minutes=30), text))
    forum.threads[thread.number] = thread
    return ForumAndWiki(forum, encyclopedia, thread, page.title, fact)


def ask_wiki(app: ForumAndWiki, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reply in the forum thread with a fact from the wiki."""
    page = app.wiki.page(app.title)
    value, thread = page.content.fact(app.fact), app.question
    other = look_alike(app.wiki, page)
    goal = rng.choice(
        [
            "In the forum thread “{title}” somebody asks for a fact. Look it up in the wiki at {wiki}/ and "
            "post a reply in that thread that holds the value exactly as the wiki writes it, and nothing else.",
            "Answer the question in the forum thread “{title}” with the help of the wiki ({wiki}/). Your reply "
            "consists of the value alone, written as in the wiki.",
        ]
    ).format(title=thread.title, wiki=WIKI)

    def outcome(expected: ForumAndWiki) -> None:
        expected.forum.reply(thread.number, value)

    def answer(title: str, text: str) -> Moves:
        look = *open_thread(thread), Goto(f"{WIKI}/"), *open_page(title)
        return (
            *look,
            Goto(START_URL),
            *open_thread(thread),
            Fill("Your reply", text),
            Click("button", "Post reply"),
            DONE,
        )

    wrong = other.content.fact(app.fact)
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=answer(page.title, value),
        wrong_moves=answer(other.title, wrong if wrong != value else f"{value} {app.fact}"),
    )
