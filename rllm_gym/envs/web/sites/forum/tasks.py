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
from rllm_gym.envs.web.sites.task import (
    Answer,
    Click,
    Fill,
    Goto,
    Move,
    ReportInfeasible,
    Select,
    WebTask,
    WebTaskTemplate,
)
from rllm_gym.envs.web.sites.wiki.generate import build as build_wiki
from rllm_gym.envs.web.sites.wiki.pages import ORIGIN as WIKI
from rllm_gym.envs.web.sites.wiki.pages import WikiApp
from rllm_gym.envs.web.sites.wiki.tasks import clean_pages, look_alike, open_page
from rllm_gym.envs.web.sites.wording import long_date

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
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


# Moves and selections that the tasks share


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


# Questions


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


# Writing


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


# Votes, reports, subscriptions and moderation


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
