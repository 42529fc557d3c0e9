"""The forum's tasks in which members write: replies, threads, edits and private messages."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.forum.content import BOARDS, Thread
from rllm_gym.envs.web.sites.forum.navigation import (
    DONE,
    HEADINGS,
    START_URL,
    SUBJECTS,
    Moves,
    from_menu,
    open_thread,
    some_text,
    threads_of,
    turn_to,
)
from rllm_gym.envs.web.sites.forum.state import Forum
from rllm_gym.envs.web.sites.forum.views import THREADS_PER_PAGE
from rllm_gym.envs.web.sites.task import Click, Fill, ReportInfeasible, WebTask


def reply(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reply in a thread. If the thread is locked, the task is infeasible."""
    impossible = rng.random() < 0.25
    thread = rng.choice(threads_of(forum, locked=impossible))
    other = rng.choice([t for t in threads_of(forum) if t is not thread])
    text = some_text(rng, difficulty)
    goal = rng.choice(
        [
            "Reply to the thread “{title}” with exactly this text: “{text}”",
            "Post this answer in the thread “{title}” of the board {board}: “{text}”",
        ]
    ).format(title=thread.title, board=thread.board, text=text)
    send = Fill("Your reply", text), Click("button", "Post reply")

    def outcome(expected: Forum) -> None:
        expected.reply(thread.number, text)

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*open_thread(thread), ReportInfeasible("the thread is locked")),
            wrong_moves=(*open_thread(other), *send, DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*open_thread(thread), *send, DONE),
        wrong_moves=(*open_thread(other), *send, DONE),
    )


def reply_latest(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reply in the open thread of a board with the latest post. Pinned threads are listed above it."""
    boards = [name for name in forum.boards if sum(not t.locked for t in forum.board(name)) > 1]
    board = rng.choice(boards)
    threads = sorted((t for t in forum.board(board) if not t.locked), key=lambda t: t.latest().when, reverse=True)
    thread, text = threads[0], some_text(rng, difficulty)
    goal = rng.choice(
        [
            "In the board {board}, find the thread with the most recent post among those that are not locked, and "
            "reply to it with the text “{text}”",
            "Which open (not locked) thread in {board} had activity last? Reply there: “{text}”",
        ]
    )
    send = Fill("Your reply", text), Click("button", "Post reply")

    def outcome(expected: Forum) -> None:
        expected.reply(thread.number, text)

    def answer(thread: Thread) -> Moves:
        return Click("link", board), *_page_of(forum, board, thread), Click("link", thread.title), *send, DONE

    return WebTask(
        goal=goal.format(board=board, text=text),
        start=START_URL,
        outcome=outcome,
        moves=answer(thread),
        wrong_moves=answer(threads[1]),
    )


def _page_of(forum: Forum, board: str, thread: Thread) -> Moves:
    page = forum.board(board).index(thread) // THREADS_PER_PAGE + 1
    return (Click("link", f"Page {page}"),) if page > 1 else ()


def new_thread(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: start a thread in a board. In one board only moderators can, which is infeasible."""
    impossible = rng.random() < 0.2
    open_boards = [name for name in forum.boards if name != forum.closed_board]
    board = forum.closed_board if impossible else rng.choice(open_boards)
    other = next(name for name in open_boards if name != board)
    title = rng.choice(HEADINGS).format(rng.choice(BOARDS[board][0]))
    text = some_text(rng, difficulty)
    goal = rng.choice(
        [
            "Start a new thread in the board {board} with the title “{title}” and the text “{text}”",
            "Open a thread called “{title}” in {board}. Its text: “{text}”",
        ]
    ).format(board=board, title=title, text=text)

    def outcome(expected: Forum) -> None:
        expected.start_thread(board, title, text)

    def start(board: str) -> Moves:
        return (
            Click("link", board),
            Click("link", "New thread"),
            Fill("Title", title),
            Fill("Text", text),
            Click("button", "Start thread"),
        )

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*start(board)[:2], ReportInfeasible("only moderators start threads there")),
            wrong_moves=(*start(other), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*start(board), DONE),
        wrong_moves=(*start(other), DONE),
    )


def edit_own(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: replace one word of one's own post and keep the rest."""
    own = [(t, p) for t in threads_of(forum) for p in t.posts if p.author == forum.user and p.advice]
    # The advice identifies the post: only the visitor's own posts count, and no two of them in a thread have the same.
    advice_given = [(t.number, p.advice) for t, p in own]
    thread, post = rng.choice([(t, p) for t, p in own if advice_given.count((t.number, p.advice)) == 1] or own)
    instead = rng.choice([item for item in BOARDS[thread.board][1] if item != post.advice])
    text = post.text.replace(post.advice, instead)
    goal = rng.choice(
        [
            "In the thread “{title}” I ({user}) recommended {old}. Edit that post so that it says {new} instead, "
            "and leave every other word as it is.",
            "Correct my post ({user}) in “{title}”: replace “{old}” by “{new}”, nothing else.",
        ]
    ).format(title=thread.title, user=forum.user, old=post.advice, new=instead)

    def change(text: str) -> Moves:
        edit = Fill("Text", text), Click("button", "Save changes")
        return *open_thread(thread), *turn_to(thread, post), *from_menu(post, "Edit"), *edit, DONE

    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.edit(post.number, text),
        moves=change(text),
        wrong_moves=change(f"I meant {instead}."),
    )


def message(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: send a private message to the author of a thread, or to a name that may not exist."""
    impossible = rng.random() < 0.2
    threads = [t for t in threads_of(forum, locked=None) if t.author != forum.user]
    thread = rng.choice(threads)
    other = next(name for name in forum.users if name not in (thread.author, forum.user))
    missing = next(f"{name}99" for name in rng.sample(forum.users, 1))
    subject, text = rng.choice(SUBJECTS), some_text(rng, difficulty)
    by_thread = not impossible and difficulty > 1
    addressee = (
        f"the member who started the thread “{thread.title}”" if by_thread else missing if impossible else thread.author
    )
    goal = rng.choice(
        [
            "Send a private message to {whom}. Subject: “{subject}”. Text: “{text}”",
            "Write to {whom} by private message, with the subject “{subject}” and the text “{text}”",
        ]
    ).format(whom=addressee, subject=subject, text=text)

    def write(name: str) -> Moves:
        return (
            Click("link", "Messages"),
            Click("link", "New message"),
            Fill("To", name),
            Click("option", name),
            Fill("Subject", subject),
            Fill("Message", text),
            Click("button", "Send message"),
        )

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*write(missing)[:3], ReportInfeasible("there is no such member")),
            wrong_moves=(*write(other), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.send(thread.author, subject, text),
        moves=(*write(thread.author), DONE),
        wrong_moves=(*write(other), DONE),
    )
