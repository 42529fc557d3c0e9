"""What is asked of visitors to the forum."""

from __future__ import annotations

from functools import partial
from random import Random

from rllm_gym.sites.errand import Answer, Click, Errand, Fill, Move, ReportInfeasible, Select, Template
from rllm_gym.sites.forum.content import BOARDS, Post, Thread
from rllm_gym.sites.forum.state import ORIGIN, REASONS, Forum, build
from rllm_gym.sites.forum.views import MEMBERS_PER_PAGE, POSTS_AT_ONCE, POSTS_PER_PAGE, THREADS_PER_PAGE
from rllm_gym.sites.wording import long_date

START = f"{ORIGIN}/"
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


# The way of a person ------------------------------------------------------------------------------------------------


def _open(thread: Thread) -> Moves:
    return Fill("Search threads", thread.title), Click("button", "Search"), Click("link", thread.title)


def _turn_to(thread: Thread, post: Post) -> Moves:
    """From the first page of the thread."""
    page = thread.shown().index(post) // POSTS_PER_PAGE + 1
    return (Click("link", f"Page {page}"),) if page > 1 else ()


def _menu(post: Post, item: str, role: str = "link") -> Moves:
    here = f"Post {post.number}"
    return Click("button", "More ▾", within=here), Click(role, item, within=here)


def _open_member(forum: Forum, name: str) -> Moves:
    page = sorted(forum.users).index(name) // MEMBERS_PER_PAGE + 1
    turn = (Click("link", f"Page {page}"),) if page > 1 else ()
    return Click("link", "Members"), *turn, Click("link", name)


def _text(rng: Random, difficulty: int) -> str:
    return " ".join(rng.sample(SENTENCES, 1 + difficulty // 2))


def _threads(forum: Forum, *, locked: bool | None = False) -> list[Thread]:
    return [t for _, t in sorted(forum.threads.items()) if locked is None or t.locked == locked]


def _adverts(forum: Forum) -> list[tuple[Thread, Post]]:
    """Of the one member who writes them, from the oldest thread number on."""
    return [
        (thread, post)
        for thread in _threads(forum, locked=None)
        for post in thread.posts[1:]
        if not post.advice and post.author == forum.users[-1]
    ]


# Reading ------------------------------------------------------------------------------------------------------------


def posts_since(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """The posts of a member from a day on; their list grows only when it is asked to."""
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
    return Errand(
        goal=goal.format(user=user, day=long_date(day)),
        start=START,
        answer={"type": "number", "value": right},
        moves=(*_open_member(forum, user), *more, Answer(str(right))),
        wrong_moves=(*_open_member(forum, user), *more, Answer(str(after))),
    )


def recommends(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """What one member advises in a thread where others advise something else."""
    candidates = []
    for thread in _threads(forum, locked=None):
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
    return Errand(
        goal=goal.format(user=post.author, title=thread.title, board=thread.board),
        start=START,
        answer={"type": "string", "value": post.advice, "aliases": [bare] if bare != post.advice else []},
        moves=(*_open(thread), *_turn_to(thread, post), Answer(post.advice)),
        wrong_moves=(*_open(thread), *_turn_to(thread, other), Answer(other.advice)),
    )


def top_post(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """Who wrote the post with the highest score, which no other post of the thread has."""
    candidates = []
    for thread in _threads(forum, locked=None):
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
    return Errand(
        goal=goal.format(title=thread.title, board=thread.board),
        start=START,
        answer={"type": "string", "value": post.author},
        moves=(*_open(thread), *_turn_to(thread, post), Answer(post.author)),
        wrong_moves=(*_open(thread), Answer(other.author)),
    )


# Writing ------------------------------------------------------------------------------------------------------------


def reply(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """An answer in a thread; where that is locked, there is no way."""
    impossible = rng.random() < 0.25
    thread = rng.choice(_threads(forum, locked=impossible))
    other = rng.choice([t for t in _threads(forum) if t is not thread])
    text = _text(rng, difficulty)
    goal = rng.choice(
        [
            "Reply to the thread “{title}” with exactly this text: “{text}”",
            "Post this answer in the thread “{title}” of the board {board}: “{text}”",
        ]
    ).format(title=thread.title, board=thread.board, text=text)
    send = Fill("Your reply", text), Click("button", "Post reply")

    def outcome(twin: Forum) -> None:
        twin.reply(thread.number, text)

    if impossible:
        return Errand(
            goal=goal,
            start=START,
            infeasible=True,
            moves=(*_open(thread), ReportInfeasible("the thread is locked")),
            wrong_moves=(*_open(other), *send, DONE),
        )
    return Errand(
        goal=goal,
        start=START,
        outcome=outcome,
        moves=(*_open(thread), *send, DONE),
        wrong_moves=(*_open(other), *send, DONE),
    )


def reply_latest(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """An answer in the open thread of a board with the latest post, above which pinned threads stand."""
    boards = [name for name in forum.boards if sum(not t.locked for t in forum.board(name)) > 1]
    board = rng.choice(boards)
    threads = sorted((t for t in forum.board(board) if not t.locked), key=lambda t: t.latest().when, reverse=True)
    thread, text = threads[0], _text(rng, difficulty)
    goal = rng.choice(
        [
            "In the board {board}, find the thread with the most recent post among those that are not locked, and "
            "reply to it with the text “{text}”",
            "Which open (not locked) thread in {board} had activity last? Reply there: “{text}”",
        ]
    )
    send = Fill("Your reply", text), Click("button", "Post reply")

    def outcome(twin: Forum) -> None:
        twin.reply(thread.number, text)

    def answer(thread: Thread) -> Moves:
        return Click("link", board), *_page_of(forum, board, thread), Click("link", thread.title), *send, DONE

    return Errand(
        goal=goal.format(board=board, text=text),
        start=START,
        outcome=outcome,
        moves=answer(thread),
        wrong_moves=answer(threads[1]),
    )


def _page_of(forum: Forum, board: str, thread: Thread) -> Moves:
    page = forum.board(board).index(thread) // THREADS_PER_PAGE + 1
    return (Click("link", f"Page {page}"),) if page > 1 else ()


def new_thread(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """A thread in a board; one board is closed to all but moderators."""
    impossible = rng.random() < 0.2
    open_boards = [name for name in forum.boards if name != forum.closed_board]
    board = forum.closed_board if impossible else rng.choice(open_boards)
    other = next(name for name in open_boards if name != board)
    title = rng.choice(HEADINGS).format(rng.choice(BOARDS[board][0]))
    text = _text(rng, difficulty)
    goal = rng.choice(
        [
            "Start a new thread in the board {board} with the title “{title}” and the text “{text}”",
            "Open a thread called “{title}” in {board}. Its text: “{text}”",
        ]
    ).format(board=board, title=title, text=text)

    def outcome(twin: Forum) -> None:
        twin.start_thread(board, title, text)

    def start(board: str) -> Moves:
        return (
            Click("link", board),
            Click("link", "New thread"),
            Fill("Title", title),
            Fill("Text", text),
            Click("button", "Start thread"),
        )

    if impossible:
        return Errand(
            goal=goal,
            start=START,
            infeasible=True,
            moves=(*start(board)[:2], ReportInfeasible("only moderators start threads there")),
            wrong_moves=(*start(other), DONE),
        )
    return Errand(
        goal=goal,
        start=START,
        outcome=outcome,
        moves=(*start(board), DONE),
        wrong_moves=(*start(other), DONE),
    )


def edit_own(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """One word of an own post is replaced and the rest is left."""
    own = [(t, p) for t in _threads(forum) for p in t.posts if p.author == forum.user and p.advice]
    single = [(t, p) for t, p in own if sum(other.author == forum.user and t is u for u, other in own) == 1]
    thread, post = rng.choice(single or own)
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
        return *_open(thread), *_turn_to(thread, post), *_menu(post, "Edit"), *edit, DONE

    return Errand(
        goal=goal,
        start=START,
        outcome=lambda twin: twin.edit(post.number, text),
        moves=change(text),
        wrong_moves=change(f"I meant {instead}."),
    )


def message(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """A private message to whoever started a thread, or to a name that somebody has or nobody."""
    impossible = rng.random() < 0.2
    threads = [t for t in _threads(forum, locked=None) if t.author != forum.user]
    thread = rng.choice(threads)
    other = next(name for name in forum.users if name not in (thread.author, forum.user))
    missing = next(f"{name}99" for name in rng.sample(forum.users, 1))
    subject, text = rng.choice(SUBJECTS), _text(rng, difficulty)
    by_thread = not impossible and difficulty > 1
    whom = (
        f"the member who started the thread “{thread.title}”" if by_thread else missing if impossible else thread.author
    )
    goal = rng.choice(
        [
            "Send a private message to {whom}. Subject: “{subject}”. Text: “{text}”",
            "Write to {whom} by private message, with the subject “{subject}” and the text “{text}”",
        ]
    ).format(whom=whom, subject=subject, text=text)

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
        return Errand(
            goal=goal,
            start=START,
            infeasible=True,
            moves=(*write(missing)[:3], ReportInfeasible("there is no such member")),
            wrong_moves=(*write(other), DONE),
        )
    return Errand(
        goal=goal,
        start=START,
        outcome=lambda twin: twin.send(thread.author, subject, text),
        moves=(*write(thread.author), DONE),
        wrong_moves=(*write(other), DONE),
    )


# Judging others -----------------------------------------------------------------------------------------------------


def upvote(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """Every post of one member in a thread, and no other; what is clicked does not look like a button."""
    candidates = []
    for thread in _threads(forum, locked=None):
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
        return *_open(thread), *_turn_to(thread, post), Click("clickable", "▲ Upvote", within=f"Post {post.number}")

    votes = [move for post in posts for move in vote(post)]

    def outcome(twin: Forum) -> None:
        for post in posts:
            twin.vote(post.number, 1)

    return Errand(
        goal=goal.format(user=posts[0].author, title=thread.title),
        start=START,
        outcome=outcome,
        moves=(*votes, DONE),
        wrong_moves=(*votes, *vote(other), DONE),
    )


def report(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """The advert of a thread, or from difficulty 4 on all adverts of a member who also writes harmless things."""
    adverts = _adverts(forum)
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
        way = *_open(thread), *_turn_to(thread, post), *_menu(post, "Report")
        return *way, Click("radio", reason), Click("button", "Send report")

    def outcome(twin: Forum) -> None:
        for _, post in adverts:
            twin.report(post.number, reason)

    right = [move for thread, post in adverts for move in send(thread, post, reason)]
    wrong = [move for thread, post in adverts for move in send(thread, post, wrong_reason)]
    return Errand(goal=goal, start=START, outcome=outcome, moves=(*right, DONE), wrong_moves=(*wrong, DONE))


def subscribe(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """Every thread that one member started in a board is followed from now on."""
    started: dict[tuple[str, str], list[Thread]] = {}
    for thread in _threads(forum, locked=None):
        if thread.number not in forum.subscriptions and thread.author != forum.user:
            started.setdefault((thread.author, thread.board), []).append(thread)
    # Those already followed count as done: they are not among the steps, and must not be undone.
    author, board = max(rng.sample(sorted(started), min(8, len(started))), key=lambda key: len(started[key]))
    threads = started[author, board]
    other = next(t for t in _threads(forum, locked=None) if t.author != author and t.number not in forum.subscriptions)
    goal = rng.choice(
        [
            "Subscribe to every thread in {board} that {user} started.",
            "I want to follow all threads by {user} (those {user} started) in the board {board}. Subscribe to them and "
            "change no other subscription.",
        ]
    )
    follow = [move for thread in threads for move in (*_open(thread), Click("button", "Subscribe"))]

    def outcome(twin: Forum) -> None:
        for thread in threads:
            twin.subscribe(thread.number, True)

    return Errand(
        goal=goal.format(board=board, user=author),
        start=START,
        outcome=outcome,
        moves=(*follow, DONE),
        wrong_moves=(*follow, *_open(other), Click("button", "Subscribe"), DONE),
    )


def move_thread(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """A moderator moves a thread, and from difficulty 2 on locks it as well."""
    thread = rng.choice(_threads(forum))
    board, wrong_board = rng.sample([name for name in forum.boards if name != thread.board], 2)
    lock = difficulty > 1
    goal = rng.choice(
        [
            "As a moderator, move the thread “{title}” to the board {board}{lock}.",
            "The thread “{title}” belongs in {board}. You are a moderator: move it there{lock}.",
        ]
    ).format(title=thread.title, board=board, lock=" and lock it" if lock else "")

    def outcome(twin: Forum) -> None:
        twin.move(thread.number, board)
        if lock:
            twin.lock(thread.number, True)

    def move(board: str) -> Moves:
        locking = (Click("button", "Moderate ▾"), Click("button", "Lock thread")) if lock else ()
        shift = Click("button", "Move thread"), Select("Board", board), Click("button", "Move")
        return *_open(thread), *shift, *locking, DONE

    return Errand(goal=goal, start=START, outcome=outcome, moves=move(board), wrong_moves=move(wrong_board))


def delete_adverts(forum: Forum, rng: Random, difficulty: int) -> Errand:
    """A moderator deletes what is advertising and leaves what the same member wrote otherwise."""
    spammer = forum.users[-1]
    adverts = _adverts(forum)
    goal = rng.choice(
        [
            "You are a moderator. Delete every advertisement that {user} posted; what {user} wrote otherwise stays.",
            "Member {user} has been advertising. As a moderator, delete those posts, and only those.",
        ]
    )

    def delete(pairs: list[tuple[Thread, Post]]) -> Moves:
        # On one page the place of the next one changes when one is gone: those further down go first.
        ordered = sorted(pairs, key=lambda pair: (pair[0].number, -pair[0].posts.index(pair[1])))
        moves: list[Move] = []
        for thread, post in ordered:
            moves += [*_open(thread), *_turn_to(thread, post), *_menu(post, "Delete", "button")]
        return (*moves, DONE)

    def outcome(twin: Forum) -> None:
        for _, post in adverts:
            twin.delete(post.number)

    harmless = [(t, p) for t, p in forum.posts_of(spammer) if p.advice]
    return Errand(
        goal=goal.format(user=spammer),
        start=START,
        outcome=outcome,
        moves=delete(adverts),
        wrong_moves=delete([*adverts, harmless[0]] if harmless else adverts[:-1]),
    )


LEVELS = (1, 2, 3, 4, 5)
build_for_moderator = partial(build, moderator=True)

TEMPLATES = (
    Template("forum/posts-since", build, posts_since, LEVELS),
    Template("forum/recommends", build, recommends, LEVELS),
    Template("forum/top-post", build, top_post, LEVELS),
    Template("forum/reply", build, reply, LEVELS),
    Template("forum/reply-latest", build, reply_latest, LEVELS),
    Template("forum/new-thread", build, new_thread, LEVELS),
    Template("forum/edit-own", build, edit_own, LEVELS),
    Template("forum/message", build, message, LEVELS),
    Template("forum/upvote", build, upvote, LEVELS),
    Template("forum/report", build, report, LEVELS),
    Template("forum/subscribe", build, subscribe, LEVELS),
    Template("forum/move-thread", build_for_moderator, move_thread, LEVELS),
    Template("forum/delete-adverts", build_for_moderator, delete_adverts, LEVELS),
)
