"""The forum's tasks about the posts of other members: voting, reporting, subscribing and moderation."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.forum.content import Post, Thread
from rllm_gym.envs.web.sites.forum.navigation import (
    DONE,
    START_URL,
    Moves,
    adverts_in,
    from_menu,
    open_thread,
    threads_of,
    turn_to,
)
from rllm_gym.envs.web.sites.forum.state import REASONS, Forum
from rllm_gym.envs.web.sites.task import Click, Move, Select, WebTask


def upvote(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: upvote every post of one member in a thread, and no other. The controls are no buttons."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        for user in sorted({post.author for post in thread.posts} - {forum.user}):
            posts = [post for post in thread.posts if post.author == user]
            others = [p for p in thread.posts if p.author not in (user, forum.user)]
            if others and len(posts) <= 1 + difficulty // 2:
                candidates.append((len(posts), thread, posts, others[0]))
    most = max(number for number, *_ in candidates)
    _, thread, posts, other = rng.choice([c for c in candidates if c[0] == most])
    goal = rng.choice(
        [
            "Upvote every post that {user} wrote in the thread “{title}”, and no other post.",
            "In “{title}”, give all posts by {user} an upvote.",
        ]
    )

    def vote(post: Post) -> Moves:
        return (
            *open_thread(thread),
            *turn_to(thread, post),
            Click("clickable", "▲ Upvote", within=f"Post {post.number}"),
        )

    votes = [move for post in posts for move in vote(post)]

    def outcome(expected: Forum) -> None:
        for post in posts:
            expected.vote(post.number, 1)

    return WebTask(
        goal=goal.format(user=posts[0].author, title=thread.title),
        start=START_URL,
        outcome=outcome,
        moves=(*votes, DONE),
        wrong_moves=(*votes, *vote(other), DONE),
    )


def report(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: report the advert in a thread or, from difficulty 4 on, all adverts of a member.

    The member also writes harmless posts.
    """
    adverts = adverts_in(forum)
    spammer = forum.users[-1]
    reason, wrong_reason = "Spam", rng.choice([r for r in REASONS if r != "Spam"])
    if difficulty < 4:
        adverts = [rng.choice(adverts)]
        goal = rng.choice(
            [
                "One post in the thread “{title}” is an advertisement. Report it; the reason is “Spam”.",
                "Somebody placed an advert in “{title}”. Report that post as “Spam”, and no other.",
            ]
        ).format(title=adverts[0][0].title)
    else:
        goal = rng.choice(
            [
                "The member {user} has posted advertisements in several threads. Report each of them with the reason "
                "“Spam”. Leave the member's other posts alone.",
                "Report every advert that {user} posted anywhere in this forum as “Spam”; not all posts by {user} are "
                "adverts.",
            ]
        ).format(user=spammer)

    def send(thread: Thread, post: Post, reason: str) -> Moves:
        moves = *open_thread(thread), *turn_to(thread, post), *from_menu(post, "Report")
        return *moves, Click("radio", reason), Click("button", "Send report")

    def outcome(expected: Forum) -> None:
        for _, post in adverts:
            expected.report(post.number, reason)

    right = [move for thread, post in adverts for move in send(thread, post, reason)]
    wrong = [move for thread, post in adverts for move in send(thread, post, wrong_reason)]
    return WebTask(goal=goal, start=START_URL, outcome=outcome, moves=(*right, DONE), wrong_moves=(*wrong, DONE))


def subscribe(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: subscribe to every thread that one member started in a board."""
    started: dict[tuple[str, str], list[Thread]] = {}
    for thread in threads_of(forum, locked=None):
        if thread.number not in forum.subscriptions and thread.author != forum.user:
            started.setdefault((thread.author, thread.board), []).append(thread)
    # Threads already subscribed to count as done: they are not among the moves and must stay subscribed.
    author, board = max(rng.sample(sorted(started), min(8, len(started))), key=lambda key: len(started[key]))
    threads = started[author, board]
    other = next(
        t for t in threads_of(forum, locked=None) if t.author != author and t.number not in forum.subscriptions
    )
    goal = rng.choice(
        [
            "Subscribe to every thread in {board} that {user} started.",
            "I want to follow all threads by {user} (those {user} started) in the board {board}. Subscribe to them and "
            "change no other subscription.",
        ]
    )
    follow = [move for thread in threads for move in (*open_thread(thread), Click("button", "Subscribe"))]

    def outcome(expected: Forum) -> None:
        for thread in threads:
            expected.subscribe(thread.number, True)

    return WebTask(
        goal=goal.format(board=board, user=author),
        start=START_URL,
        outcome=outcome,
        moves=(*follow, DONE),
        wrong_moves=(*follow, *open_thread(other), Click("button", "Subscribe"), DONE),
    )


def move_thread(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task for a moderator: move a thread and, from difficulty 2 on, also lock it."""
    thread = rng.choice(threads_of(forum))
    board, wrong_board = rng.sample([name for name in forum.boards if name != thread.board], 2)
    lock = difficulty > 1
    goal = rng.choice(
        [
            "As a moderator, move the thread “{title}” to the board {board}{lock}.",
            "The thread “{title}” belongs in {board}. You are a moderator: move it there{lock}.",
        ]
    ).format(title=thread.title, board=board, lock=" and lock it" if lock else "")

    def outcome(expected: Forum) -> None:
        expected.move(thread.number, board)
        if lock:
            expected.lock(thread.number, True)

    def move(board: str) -> Moves:
        locking = (Click("button", "Moderate ▾"), Click("button", "Lock thread")) if lock else ()
        shift = Click("button", "Move thread"), Select("Board", board), Click("button", "Move")
        return *open_thread(thread), *shift, *locking, DONE

    return WebTask(goal=goal, start=START_URL, outcome=outcome, moves=move(board), wrong_moves=move(wrong_board))


def delete_adverts(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task for a moderator: delete a member's adverts and keep the other posts of that member."""
    spammer = forum.users[-1]
    adverts = adverts_in(forum)
    goal = rng.choice(
        [
            "You are a moderator. Delete every advertisement that {user} posted; what {user} wrote otherwise stays.",
            "Member {user} has been advertising. As a moderator, delete those posts, and only those.",
        ]
    )

    def delete(pairs: list[tuple[Thread, Post]]) -> Moves:
        # Deleting a post changes the positions of those after it on the page: delete from the bottom up.
        ordered = sorted(pairs, key=lambda pair: (pair[0].number, -pair[0].posts.index(pair[1])))
        moves: list[Move] = []
        for thread, post in ordered:
            moves += [*open_thread(thread), *turn_to(thread, post), *from_menu(post, "Delete", "button")]
        return (*moves, DONE)

    def outcome(expected: Forum) -> None:
        for _, post in adverts:
            expected.delete(post.number)

    harmless = [(t, p) for t, p in forum.posts_of(spammer) if p.advice]
    return WebTask(
        goal=goal.format(user=spammer),
        start=START_URL,
        outcome=outcome,
        moves=delete(adverts),
        wrong_moves=delete([*adverts, harmless[0]] if harmless else adverts[:-1]),
    )
