"""The forum's question generators."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.forum.navigation import (
    START_URL,
    open_member,
    open_thread,
    threads_of,
    turn_to,
)
from rllm_gym.envs.web.sites.forum.state import Forum
from rllm_gym.envs.web.sites.forum.views import POSTS_AT_ONCE, POSTS_PER_PAGE
from rllm_gym.envs.web.sites.task import Answer, Click, WebTask
from rllm_gym.envs.web.sites.wording import long_date


def posts_since(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a member's posts since a day; their list must be extended by a button."""
    counts = {user: len(forum.posts_of(user)) for user in forum.users[1:]}
    wanted = min(4 + 4 * difficulty, max(counts.values()))
    user = min(sorted(counts), key=lambda name: abs(counts[name] - wanted))
    posts = [post for _, post in forum.posts_of(user)]
    day = posts[rng.randrange(len(posts) // 2, len(posts))].when.date()
    right = sum(post.when.date() >= day for post in posts)
    after = sum(post.when.date() > day for post in posts)
    goal = rng.choice(
        [
            "How many posts has the member {user} written since {day} (that day included)?",
            "Count the posts that {user} made on {day} or later, in all boards together.",
        ]
    )
    shown = range(POSTS_AT_ONCE, right, POSTS_AT_ONCE)
    more = tuple(Click("button", f"Show more posts ({len(posts) - n} left)") for n in shown)
    return WebTask(
        goal=goal.format(user=user, day=long_date(day)),
        start=START_URL,
        answer={"type": "number", "value": right},
        moves=(*open_member(forum, user), *more, Answer(str(right))),
        wrong_moves=(*open_member(forum, user), *more, Answer(str(after))),
    )


def recommends(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about one member's advice in a thread in which others give different advice."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        for post in thread.posts[1:]:
            own = [p for p in thread.posts if p.author == post.author and p.advice]
            others = [p for p in thread.posts if p.advice and p.advice != post.advice]
            if own == [post] and others:
                candidates.append((thread, post, others[0]))
    candidates = (
        [c for c in candidates if len(c[0].posts) > POSTS_PER_PAGE] or candidates if difficulty > 2 else candidates
    )
    thread, post, other = rng.choice(candidates)
    goal = rng.choice(
        [
            "What does {user} recommend in the thread “{title}”?",
            "In “{title}” (board {board}), which thing does the member {user} advise? Answer with the thing only.",
        ]
    )
    bare = post.advice.removeprefix("a ").removeprefix("an ")
    return WebTask(
        goal=goal.format(user=post.author, title=thread.title, board=thread.board),
        start=START_URL,
        answer={"type": "string", "value": post.advice, "aliases": [bare] if bare != post.advice else []},
        moves=(*open_thread(thread), *turn_to(thread, post), Answer(post.advice)),
        wrong_moves=(*open_thread(thread), *turn_to(thread, other), Answer(other.advice)),
    )


def top_post(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the author of the post with the highest score, which is unique in the thread."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        ranked = sorted(thread.posts, key=forum.score, reverse=True)
        if forum.score(ranked[0]) > forum.score(ranked[1]):
            other = next((p for p in ranked if p.author != ranked[0].author), None)
            if other:
                candidates.append((thread, ranked[0], other))
    long = sorted(candidates, key=lambda c: (len(c[0].posts), c[0].number))[len(candidates) // 2 :]
    thread, post, other = rng.choice(long if difficulty > 1 else candidates)
    goal = rng.choice(
        [
            "Who wrote the post with the highest score in the thread “{title}”? Answer with the member's name.",
            "Name the author of the best rated post of “{title}” in the board {board}.",
        ]
    )
    return WebTask(
        goal=goal.format(title=thread.title, board=thread.board),
        start=START_URL,
        answer={"type": "string", "value": post.author},
        moves=(*open_thread(thread), *turn_to(thread, post), Answer(post.author)),
        wrong_moves=(*open_thread(thread), Answer(other.author)),
    )
