"""The forum's tasks: questions, replies and new threads, messages, moderation, and questions for the wiki."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from rllm_gym.envs.web.sites.forum.generate import BOARDS, build
from rllm_gym.envs.web.sites.forum.pages import (
    MEMBERS_PER_PAGE,
    ORIGIN,
    POSTS_AT_ONCE,
    POSTS_PER_PAGE,
    THREADS_PER_PAGE,
    ForumApp,
)
from rllm_gym.envs.web.sites.forum.state import REASONS, Forum, Post, Thread
from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.envs.web.sites.moves import Click, Fill, Goto, Move, Moves, Select, page_of
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wiki.generate import build as build_wiki
from rllm_gym.envs.web.sites.wiki.pages import ORIGIN as WIKI
from rllm_gym.envs.web.sites.wiki.pages import WikiApp
from rllm_gym.envs.web.sites.wiki.tasks import clean_pages, open_page
from rllm_gym.envs.web.sites.wording import long_date

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)

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


# Moves and selections that the tasks share


def open_thread(thread: Thread) -> Moves:
    return Fill("Search threads", thread.title), Click("button", "Search"), Click("link", thread.title)


def turn_to(thread: Thread, post: Post) -> Moves:
    """Return the moves from the first page of the thread to the page of the post."""
    return page_of(thread.shown().index(post), POSTS_PER_PAGE)


def from_menu(post: Post, item: str, role: str = "link") -> Moves:
    here = f"Post {post.number}"
    return Click("button", "More ▾", within=here), Click(role, item, within=here)


def open_member(forum: Forum, name: str) -> Moves:
    turn = page_of(sorted(forum.users).index(name), MEMBERS_PER_PAGE)
    return Click("link", "Members"), *turn, Click("link", name)


def post_reply(text: str) -> Moves:
    return Fill("Your reply", text), Click("button", "Post reply")


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


# Questions


def posts_since(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a member's posts since a day; their list must be extended by a button."""
    counts = {user: len(forum.posts_of(user)) for user in forum.users[1:]}
    wanted = min(4 + 4 * difficulty, max(counts.values()))
    user = min(sorted(counts), key=lambda name: abs(counts[name] - wanted))
    posts = [post for _, post in forum.posts_of(user)]
    day = posts[rng.randrange(len(posts) // 2, len(posts))].when.date()
    right = sum(post.when.date() >= day for post in posts)
    goal = rng.choice(
        [
            f"How many posts has the member {user} written since {long_date(day)} (that day included)?",
            f"Count the posts that {user} made on {long_date(day)} or later, in all boards together.",
        ]
    )
    shown = range(POSTS_AT_ONCE, right, POSTS_AT_ONCE)
    more = [Click("button", f"Show more posts ({len(posts) - n} left)") for n in shown]
    moves = *open_member(forum, user), *more
    return question_task(goal, START_URL, moves, str(right), {"type": "number", "value": right})


def recommends(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about one member's advice in a thread in which others give different advice."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        for post in thread.posts[1:]:
            own = [p for p in thread.posts if p.author == post.author and p.advice]
            if own == [post] and any(p.advice and p.advice != post.advice for p in thread.posts):
                candidates.append((thread, post))
    if difficulty > 2:
        candidates = [c for c in candidates if len(c[0].posts) > POSTS_PER_PAGE] or candidates
    thread, post = rng.choice(candidates)
    goal = rng.choice(
        [
            f"What does {post.author} recommend in the thread “{thread.title}”?",
            f"In “{thread.title}” (board {thread.board}), which thing does the member {post.author} advise? Answer "
            "with the thing only.",
        ]
    )
    bare = post.advice.removeprefix("a ").removeprefix("an ")
    answer = {"type": "string", "value": post.advice, "aliases": [bare] if bare != post.advice else []}
    return question_task(goal, START_URL, (*open_thread(thread), *turn_to(thread, post)), post.advice, answer)


def top_post(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the author of the post with the highest score, which is unique in the thread."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        first, second = sorted(thread.posts, key=forum.score, reverse=True)[:2]
        if forum.score(first) > forum.score(second) and any(p.author != first.author for p in thread.posts):
            candidates.append((thread, first))
    long = sorted(candidates, key=lambda c: (len(c[0].posts), c[0].number))[len(candidates) // 2 :]
    thread, post = rng.choice(long if difficulty > 1 else candidates)
    goal = rng.choice(
        [
            f"Who wrote the post with the highest score in the thread “{thread.title}”? Answer with the member's name.",
            f"Name the author of the best rated post of “{thread.title}” in the board {thread.board}.",
        ]
    )
    moves = *open_thread(thread), *turn_to(thread, post)
    return question_task(goal, START_URL, moves, post.author, {"type": "string", "value": post.author})


# Writing


def reply(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reply in a thread. If the thread is locked, the task is infeasible."""
    impossible = rng.random() < 0.25
    thread = rng.choice(threads_of(forum, locked=impossible))
    rng.choice([t for t in threads_of(forum) if t is not thread])  # so that a seed keeps its text
    text = some_text(rng, difficulty)
    goal = rng.choice(
        [
            f"Reply to the thread “{thread.title}” with exactly this text: “{text}”",
            f"Post this answer in the thread “{thread.title}” of the board {thread.board}: “{text}”",
        ]
    )
    moves = open_thread(thread)
    if impossible:
        return infeasible_task(goal, START_URL, moves, "the thread is locked")
    moves = *moves, *post_reply(text)
    return change_task(goal, START_URL, moves, lambda site: site.reply(thread.number, text))


def reply_latest(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: reply in the open thread of a board with the latest post. Pinned threads are listed above it."""
    boards = [name for name in forum.boards if sum(not t.locked for t in forum.board(name)) > 1]
    board = rng.choice(boards)
    thread = max((t for t in forum.board(board) if not t.locked), key=lambda t: t.latest().when)
    text = some_text(rng, difficulty)
    goal = rng.choice(
        [
            f"In the board {board}, find the thread with the most recent post among those that are not locked, and "
            f"reply to it with the text “{text}”",
            f"Which open (not locked) thread in {board} had activity last? Reply there: “{text}”",
        ]
    )
    turn = page_of(forum.board(board).index(thread), THREADS_PER_PAGE)
    moves = Click("link", board), *turn, Click("link", thread.title), *post_reply(text)
    return change_task(goal, START_URL, moves, lambda site: site.reply(thread.number, text))


def new_thread(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: start a thread in a board. In one board only moderators can, which is infeasible."""
    impossible = rng.random() < 0.2
    open_boards = [name for name in forum.boards if name != forum.closed_board]
    board = forum.closed_board if impossible else rng.choice(open_boards)
    title = rng.choice(HEADINGS).format(rng.choice(BOARDS[board][0]))
    text = some_text(rng, difficulty)
    goal = rng.choice(
        [
            f"Start a new thread in the board {board} with the title “{title}” and the text “{text}”",
            f"Open a thread called “{title}” in {board}. Its text: “{text}”",
        ]
    )
    moves: Moves = (Click("link", board), Click("link", "New thread"))
    if impossible:
        return infeasible_task(goal, START_URL, moves, "only moderators start threads there")
    moves = *moves, Fill("Title", title), Fill("Text", text), Click("button", "Start thread")
    return change_task(goal, START_URL, moves, lambda site: site.start_thread(board, title, text))


def edit_own(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: replace one word of one's own post and keep the rest."""
    own = [(t, p) for t in threads_of(forum) for p in t.posts if p.author == forum.user and p.advice]
    # The advice identifies the post: only the visitor's own posts count, and no two of them in a thread have the same.
    advice_given = [(t.number, p.advice) for t, p in own]
    thread, post = rng.choice([(t, p) for t, p in own if advice_given.count((t.number, p.advice)) == 1] or own)
    old, user = post.advice, forum.user
    new = rng.choice([item for item in BOARDS[thread.board][1] if item != old])
    text = post.text.replace(old, new)
    goal = rng.choice(
        [
            f"In the thread “{thread.title}” I ({user}) recommended {old}. Edit that post so that it says {new} "
            "instead, and leave every other word as it is.",
            f"Correct my post ({user}) in “{thread.title}”: replace “{old}” by “{new}”, nothing else.",
        ]
    )
    edit = *from_menu(post, "Edit"), Fill("Text", text), Click("button", "Save changes")
    moves = *open_thread(thread), *turn_to(thread, post), *edit
    return change_task(goal, START_URL, moves, lambda site: site.edit(post.number, text))


def message(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: send a private message to the author of a thread, or to a name that may not exist."""
    impossible = rng.random() < 0.2
    thread = rng.choice([t for t in threads_of(forum, locked=None) if t.author != forum.user])
    missing = f"{rng.sample(forum.users, 1)[0]}99"
    subject, text = rng.choice(SUBJECTS), some_text(rng, difficulty)
    name = missing if impossible else thread.author
    whom = f"the member who started the thread “{thread.title}”" if not impossible and difficulty > 1 else name
    goal = rng.choice(
        [
            f"Send a private message to {whom}. Subject: “{subject}”. Text: “{text}”",
            f"Write to {whom} by private message, with the subject “{subject}” and the text “{text}”",
        ]
    )
    moves: Moves = (Click("link", "Messages"), Click("link", "New message"), Fill("To", name))
    if impossible:
        return infeasible_task(goal, START_URL, moves, "there is no such member")
    moves = *moves, Click("option", name), Fill("Subject", subject), Fill("Message", text)
    moves = *moves, Click("button", "Send message")
    return change_task(goal, START_URL, moves, lambda site: site.send(name, subject, text))


# Votes, reports, subscriptions and moderation


def upvote(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: upvote every post of one member in a thread, and no other. The controls are no buttons."""
    candidates = []
    for thread in threads_of(forum, locked=None):
        authors = {post.author for post in thread.posts} - {forum.user}
        for user in sorted(authors) if len(authors) > 1 else ():
            posts = [post for post in thread.posts if post.author == user]
            if len(posts) <= 1 + difficulty // 2:
                candidates.append((thread, posts))
    most = max(len(posts) for _, posts in candidates)
    thread, posts = rng.choice([c for c in candidates if len(c[1]) == most])
    goal = rng.choice(
        [
            f"Upvote every post that {posts[0].author} wrote in the thread “{thread.title}”, and no other post.",
            f"In “{thread.title}”, give all posts by {posts[0].author} an upvote.",
        ]
    )
    moves: list[Move] = []
    for post in posts:
        vote = Click("clickable", "▲ Upvote", within=f"Post {post.number}")
        moves += [*open_thread(thread), *turn_to(thread, post), vote]

    def outcome(expected: Forum) -> None:
        for post in posts:
            expected.vote(post.number, 1)

    return change_task(goal, START_URL, moves, outcome)


def report(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: report the advert in a thread or, from difficulty 4 on, all adverts of a member.

    The member also writes harmless posts.
    """
    adverts = adverts_in(forum)
    user = forum.users[-1]
    rng.choice(REASONS[1:])  # so that a seed keeps its thread
    if difficulty < 4:
        adverts = [rng.choice(adverts)]
        title = adverts[0][0].title
        goal = rng.choice(
            [
                f"One post in the thread “{title}” is an advertisement. Report it; the reason is “Spam”.",
                f"Somebody placed an advert in “{title}”. Report that post as “Spam”, and no other.",
            ]
        )
    else:
        goal = rng.choice(
            [
                f"The member {user} has posted advertisements in several threads. Report each of them with the reason "
                "“Spam”. Leave the member's other posts alone.",
                f"Report every advert that {user} posted anywhere in this forum as “Spam”; not all posts by {user} are "
                "adverts.",
            ]
        )
    moves: list[Move] = []
    for thread, post in adverts:
        moves += [*open_thread(thread), *turn_to(thread, post), *from_menu(post, "Report")]
        moves += [Click("radio", "Spam"), Click("button", "Send report")]

    def outcome(expected: Forum) -> None:
        for _, post in adverts:
            expected.report(post.number, "Spam")

    return change_task(goal, START_URL, moves, outcome)


def subscribe(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task: subscribe to every thread that one member started in a board."""
    started: dict[tuple[str, str], list[Thread]] = {}
    for thread in threads_of(forum, locked=None):
        if thread.number not in forum.subscriptions and thread.author != forum.user:
            started.setdefault((thread.author, thread.board), []).append(thread)
    # Threads already subscribed to count as done: they are not among the moves and must stay subscribed.
    user, board = max(rng.sample(sorted(started), min(8, len(started))), key=lambda key: len(started[key]))
    threads = started[user, board]
    goal = rng.choice(
        [
            f"Subscribe to every thread in {board} that {user} started.",
            f"I want to follow all threads by {user} (those {user} started) in the board {board}. Subscribe to them "
            "and change no other subscription.",
        ]
    )

    def outcome(expected: Forum) -> None:
        for thread in threads:
            expected.subscribe(thread.number, True)

    moves = [move for thread in threads for move in (*open_thread(thread), Click("button", "Subscribe"))]
    return change_task(goal, START_URL, moves, outcome)


def move_thread(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task for a moderator: move a thread and, from difficulty 2 on, also lock it."""
    thread = rng.choice(threads_of(forum))
    # Two are drawn so that the goal of a seed stays the same.
    board, _ = rng.sample([name for name in forum.boards if name != thread.board], 2)
    lock = difficulty > 1
    then = " and lock it" if lock else ""
    goal = rng.choice(
        [
            f"As a moderator, move the thread “{thread.title}” to the board {board}{then}.",
            f"The thread “{thread.title}” belongs in {board}. You are a moderator: move it there{then}.",
        ]
    )

    def outcome(expected: Forum) -> None:
        expected.move(thread.number, board)
        if lock:
            expected.lock(thread.number, True)

    shift = Click("button", "Move thread"), Select("Board", board), Click("button", "Move")
    locking = [Click("button", "Moderate ▾"), Click("button", "Lock thread")] if lock else []
    return change_task(goal, START_URL, (*open_thread(thread), *shift, *locking), outcome)


def delete_adverts(forum: Forum, rng: Random, difficulty: int) -> WebTask:
    """Return a task for a moderator: delete a member's adverts and keep the other posts of that member."""
    user = forum.users[-1]
    adverts = adverts_in(forum)
    goal = rng.choice(
        [
            f"You are a moderator. Delete every advertisement that {user} posted; what {user} wrote otherwise stays.",
            f"Member {user} has been advertising. As a moderator, delete those posts, and only those.",
        ]
    )

    def outcome(expected: Forum) -> None:
        for _, post in adverts:
            expected.delete(post.number)

    moves: list[Move] = []
    # Deleting a post changes the positions of those after it on the page: delete from the bottom up.
    for thread, post in sorted(adverts, key=lambda pair: (pair[0].number, -pair[0].posts.index(pair[1]))):
        moves += [*open_thread(thread), *turn_to(thread, post), *from_menu(post, "Delete", "button")]
    return change_task(goal, START_URL, moves, outcome)


# The forum and the wiki together


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
    value, thread = app.wiki.page(app.title).content.fact(app.fact), app.question
    goal = rng.choice(
        [
            f"In the forum thread “{thread.title}” somebody asks for a fact. Look it up in the wiki at {WIKI}/ and "
            "post a reply in that thread that holds the value exactly as the wiki writes it, and nothing else.",
            f"Answer the question in the forum thread “{thread.title}” with the help of the wiki ({WIKI}/). Your reply "
            "consists of the value alone, written as in the wiki.",
        ]
    )
    look = *open_thread(thread), Goto(f"{WIKI}/"), *open_page(app.title)
    moves = *look, Goto(START_URL), *open_thread(thread), *post_reply(value)
    return change_task(goal, START_URL, moves, lambda site: site.forum.reply(thread.number, value))


build_for_moderator = partial(build, moderator=True)

TEMPLATES = (
    WebTaskTemplate("forum/posts-since", build, posts_since, _LEVELS),
    WebTaskTemplate("forum/recommends", build, recommends, _LEVELS),
    WebTaskTemplate("forum/top-post", build, top_post, _LEVELS),
    WebTaskTemplate("forum/reply", build, reply, _LEVELS),
    WebTaskTemplate("forum/reply-latest", build, reply_latest, _LEVELS),
    WebTaskTemplate("forum/new-thread", build, new_thread, _LEVELS),
    WebTaskTemplate("forum/edit-own", build, edit_own, _LEVELS),
    WebTaskTemplate("forum/message", build, message, _LEVELS),
    WebTaskTemplate("forum/upvote", build, upvote, _LEVELS),
    WebTaskTemplate("forum/report", build, report, _LEVELS),
    WebTaskTemplate("forum/subscribe", build, subscribe, _LEVELS),
    WebTaskTemplate("forum/move-thread", build_for_moderator, move_thread, _LEVELS),
    WebTaskTemplate("forum/delete-adverts", build_for_moderator, delete_adverts, _LEVELS),
    WebTaskTemplate("forum/ask-wiki", build_with_question, ask_wiki, _LEVELS),
)
