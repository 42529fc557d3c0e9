"""Move sequences and texts that the solutions of the forum's tasks share."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.forum.content import Post, Thread
from rllm_gym.envs.web.sites.forum.state import ORIGIN, Forum
from rllm_gym.envs.web.sites.forum.views import MEMBERS_PER_PAGE, POSTS_PER_PAGE
from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move

START_URL = f"{ORIGIN}/"
DONE = Answer("done")
Moves = tuple[Move, ...]

SENTENCES = (
    "Thank you for the detailed answers.",
    "I tried this last weekend and it worked.",
    "Could you post a photo of it?",
    "That is exactly what I was looking for.",
    "Does this also work in a small flat?",
    "I had the same problem two years ago.",
    "Where did you buy it?",
    "Please keep us up to date.",
)
SUBJECTS = ("Your thread", "A question", "Meeting on Saturday", "Thank you", "Could I borrow it?", "About your answer")
HEADINGS = ("Looking for advice on {}", "Beginner's questions about {}", "Where to buy things for {}?", "A plan for {}")


def open_thread(thread: Thread) -> Moves:
    return Fill("Search threads", thread.title), Click("button", "Search"), Click("link", thread.title)


def turn_to(thread: Thread, post: Post) -> Moves:
    """Return the moves from the first page of the thread to the page of the post."""
    page = thread.shown().index(post) // POSTS_PER_PAGE + 1
    return (Click("link", f"Page {page}"),) if page > 1 else ()


def from_menu(post: Post, item: str, role: str = "link") -> Moves:
    here = f"Post {post.number}"
    return Click("button", "More ▾", within=here), Click(role, item, within=here)


def open_member(forum: Forum, name: str) -> Moves:
    page = sorted(forum.users).index(name) // MEMBERS_PER_PAGE + 1
    turn = (Click("link", f"Page {page}"),) if page > 1 else ()
    return Click("link", "Members"), *turn, Click("link", name)


def some_text(rng: Random, difficulty: int) -> str:
    return " ".join(rng.sample(SENTENCES, 1 + difficulty // 2))


def threads_of(forum: Forum, *, locked: bool | None = False) -> list[Thread]:
    return [t for _, t in sorted(forum.threads.items()) if locked is None or t.locked == locked]


def adverts_in(forum: Forum) -> list[tuple[Thread, Post]]:
    """Return the posts of the one member who writes adverts, ordered by thread number."""
    return [
        (thread, post)
        for thread in threads_of(forum, locked=None)
        for post in thread.posts[1:]
        if not post.advice and post.author == forum.users[-1]
    ]
