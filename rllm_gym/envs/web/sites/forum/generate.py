"""Generates a forum with a history from a seed: threads, adverts, locked and pinned threads, and messages."""

from __future__ import annotations

from datetime import datetime, time
from random import Random

from rllm_gym.envs.web.sites.forum.content import ADVERTS, Post, Thread, make_threads, make_users
from rllm_gym.envs.web.sites.forum.state import Message
from rllm_gym.envs.web.sites.forum.views import ForumApp
from rllm_gym.envs.web.sites.wording import any_day


def build(seed: int, difficulty: int, *, moderator: bool = False) -> ForumApp:
    """Build a forum with a history that includes adverts and locked threads."""
    rng = Random(f"forum/{seed}/{difficulty}")
    now = datetime.combine(any_day(rng), time(12, 0))
    users = make_users(rng, 8 + 4 * difficulty)
    boards, threads = make_threads(rng, users, now, difficulty)
    user = users[0]
    forum = ForumApp(
        now=now,
        user=user,
        users=users,
        boards=boards,
        threads={thread.number: thread for thread in threads},
        moderators=[user, users[1]] if moderator else [users[1], users[2]],
        closed_board=rng.choice(boards),
    )
    shuffled = rng.sample(threads, len(threads))
    for thread in shuffled[: 2 + difficulty]:
        thread.locked = True
    for thread in shuffled[1:3]:
        thread.pinned = True
    # The last member writes adverts, and also harmless posts that must be kept.
    for post in _claim(rng, threads, users[-1], 1 + difficulty):
        post.text, post.advice = rng.choice(ADVERTS), ""
    _claim(rng, [t for t in threads if all(p.advice for p in t.posts[1:])], user, 3)
    for thread in rng.sample(threads, 2 + difficulty):
        forum.subscribe(thread.number, True)
    for subject in ("Welcome to the forum", "About your last post"):
        text = "Please read the rules. They are short." if "Welcome" in subject else "Thank you, that helped me a lot."
        forum.messages.append(Message(rng.choice(users[1:]), user, subject, text))
    return forum


def _claim(rng: Random, threads: list[Thread], author: str, count: int) -> list[Post]:
    """Assign answers in ``count`` open threads to this author, so that every member has some."""
    replies = []
    for thread in rng.sample([t for t in threads if not t.locked], count):
        post = rng.choice(thread.posts[1:])
        post.author = author
        replies.append(post)
    return replies
