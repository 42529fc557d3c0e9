"""The pages of the forum: boards, threads, posts and their actions, members and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.forum import state
from rllm_gym.envs.web.sites.forum.state import Forum, Post, Thread
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.pictures import avatar, portrait
from rllm_gym.envs.web.sites.site import Redirect, Site, SiteApp, Visit, json_response, whole_number
from rllm_gym.envs.web.sites.wording import plural, short_date

ORIGIN = "http://forum.test"
_LOOK = pages.read_style(__file__)
THREADS_PER_PAGE = 10
POSTS_PER_PAGE = 6
POSTS_AT_ONCE = 8
MEMBERS_PER_PAGE = 15
SORTS = {"": "Latest activity", "created": "Newest threads", "replies": "Most replies"}


def _frame(forum: Forum) -> Frame:
    navigation = [("Boards", "/"), ("Members", "/members"), ("Subscriptions", "/subscriptions")]
    mine = [("Messages", "/messages"), ("My posts", _member_path(forum.user))]
    role = f"{forum.user} (moderator)" if forum.moderator else forum.user
    return Frame(
        "Commons Forum",
        "#2f4a6b",
        navigation + mine,
        forum.now.date(),
        role,
        ("Search threads", "/search"),
        style=_LOOK,
    )


site: Site[Forum] = Site(ORIGIN, _frame)


@dataclass
class ForumApp(SiteApp, Forum):
    """The forum with its pages."""

    routes = site


# Boards


@site.get("/")
def boards(forum: Forum, visit: Visit) -> HtmlPage:
    rows: list[list[Content]] = []
    for name in forum.boards:
        threads = forum.board(name)
        latest = max((thread.latest() for thread in threads), key=lambda post: post.when, default=None)
        last: Content = [_when(latest.when), " by ", _member(latest.author)] if latest else None
        closed = name == forum.closed_board and [" ", pages.badge("Moderators start threads here", "warn")]
        posts = sum(len(thread.shown()) for thread in threads)
        rows.append([[h("a", name, href=_board_path(name)), closed], len(threads), posts, last])
    return HtmlPage("Boards", pages.table(["Board", "Threads", "Posts", "Latest post"], rows, numeric=[1, 2]))


@site.get("/board/<name>")
def board(forum: Forum, visit: Visit, name: str) -> HtmlPage:
    title = next((known for known in forum.boards if known.lower() == name.lower()), None)
    if title is None:
        raise NotFound(f"There is no board called {name}.")
    threads = forum.board(title)
    sort = visit.asked("sort")
    if sort == "created":
        threads.sort(key=lambda t: t.posts[0].when, reverse=True)
    elif sort == "replies":
        threads.sort(key=lambda t: len(t.shown()), reverse=True)
    sorter = form(
        _board_path(title),
        pages.choice("Sort by", "sort", SORTS.items(), sort, data_submit=True),
        method="get",
        class_="row",
    )
    body = [h("div.heading", h("p.muted", plural(len(threads), "thread")), sorter)]
    new = pages.link_button("New thread", url("/new", board=title), tone="")
    listing = _thread_list(threads, visit.page(), f"/board/{title.lower()}", sort=sort)
    return HtmlPage(title, [body, listing], trail=[("Boards", "/")], actions=new)


@site.get("/search")
def search(forum: Forum, visit: Visit) -> HtmlPage:
    asked = visit.asked("q", 80)
    words = asked.lower().split()
    found = [t for name in forum.boards for t in forum.board(name) if all(word in t.title.lower() for word in words)]
    body = [h("p.muted", plural(len(found), "thread")), _thread_list(found, visit.page(), "/search", q=asked)]
    return HtmlPage(f"Threads with “{asked}”" if asked else "All threads", body, query=asked)


@site.get("/subscriptions")
def subscriptions(forum: Forum, visit: Visit) -> HtmlPage:
    threads = sorted(map(forum.thread, forum.subscriptions), key=lambda t: t.latest().when, reverse=True)
    empty = h("p", "You follow no threads.")
    return HtmlPage("Subscriptions", _thread_list(threads, visit.page(), "/subscriptions") if threads else empty)


def _thread_list(threads: Sequence[Thread], page: int, path: str, **query: object) -> Markup:
    part = pages.paginate(threads, page, THREADS_PER_PAGE)
    rows: list[list[Content]] = [
        [
            [h("a", t.title, href=f"/thread/{t.number}"), [[" ", pages.badge(mark)] for mark in _marks(t)]],
            t.board,
            _member(t.author),
            len(t.shown()) - 1,
            [_when(t.latest().when), " by ", _member(t.latest().author)],
        ]
        for t in part.items
    ]
    heads = ["Thread", "Board", "Started by", "Replies", "Latest post"]
    return join(pages.table(heads, rows, numeric=[3]), pages.page_links(part, path, **query))


def _marks(thread: Thread) -> list[str]:
    return [name for name, on in (("Pinned", thread.pinned), ("Locked", thread.locked)) if on]


# Threads


@site.get("/thread/<int:number>")
def thread(forum: Forum, visit: Visit, number: int) -> HtmlPage:
    found = forum.thread(number)
    part = pages.paginate(found.shown(), visit.page(), POSTS_PER_PAGE)
    followed = number in forum.subscriptions
    actions: list[Content] = [
        pages.post_button(
            "Unsubscribe" if followed else "Subscribe",
            f"/thread/{number}/subscribe",
            fields={"on": "" if followed else 1},
        )
    ]
    if forum.moderator:
        actions.append(_moderation(forum, found))
    if found.locked:
        answer = pages.card(h("p", "This thread is locked: nobody can reply to it."))
    else:
        reply_form = form(
            f"/thread/{number}/reply",
            pages.text_area("Your reply", "text", rows=4),
            pages.button("Post reply"),
        )
        answer = pages.card(h("h2", "Reply to this thread"), reply_form)
    body = [
        h("p", [[pages.badge(mark), " "] for mark in _marks(found)]) if _marks(found) else None,
        [_post_card(forum, post, found) for post in part.items],
        pages.page_links(part, f"/thread/{number}"),
        answer,
    ]
    return HtmlPage(
        found.title, body, trail=[("Boards", "/"), (found.board, _board_path(found.board))], actions=actions
    )


def _post_card(forum: Forum, post: Post, thread: Thread) -> Markup:
    if post.author in forum.ignored:
        return h("article.card", h("p.muted", f"Post {post.number} by {post.author}, whom you ignore."))
    own = post.author == forum.user
    mine = forum.votes.get(post.number, 0)
    votes = None if own else h("div.buttons", _vote(post, 1, mine), _vote(post, -1, mine))
    items: list[Content] = [h("a", "Report", href=f"/post/{post.number}/report")] if not own else []
    if own and not thread.locked:
        items.append(h("a", "Edit", href=f"/post/{post.number}/edit"))
    if (own or forum.moderator) and post is not thread.posts[0]:
        question = f"Delete post {post.number}?"
        delete = form(f"/post/{post.number}/delete", h("button", "Delete", type="submit"), confirm=question)
        items.append(delete)
    if own and not items:
        items = [h("span.muted", "Nothing to do here")]
    return h(
        "article.card",
        h(
            "div.split",
            h("p", avatar(post.author), h("strong", _member(post.author)), h("span.muted", f" · {_when(post.when)}")),
            h("span.muted.small", f"Post {post.number}"),
        ),
        pages.paragraphs(post.text),
        h(
            "div.split",
            h("div.buttons", h("span", f"Score {forum.score(post)}"), votes),
            pages.menu("More", *items),
        ),
    )


def _vote(post: Post, value: int, mine: int) -> Markup:
    """Return a vote control: an element with a listener, not a button. Clickable elements are not always marked."""
    name, sign = ("Upvote", "▲") if value > 0 else ("Downvote", "▼")
    pressed = mine == value
    return form(
        f"/post/{post.number}/vote",
        pages.hidden("value", value),
        h("span.vote", f"{sign} {name}", " ✓" if pressed else None, data_send=True),
        class_="inline",
    )


def _moderation(forum: Forum, thread: Thread) -> Markup:
    path = f"/thread/{thread.number}"
    switches = [
        form(
            f"{path}/lock",
            pages.hidden("on", "" if thread.locked else 1),
            h("button", "Unlock thread" if thread.locked else "Lock thread", type="submit"),
        ),
        form(
            f"{path}/pin",
            pages.hidden("on", "" if thread.pinned else 1),
            h("button", "Unpin thread" if thread.pinned else "Pin thread", type="submit"),
        ),
    ]
    move = form(
        f"{path}/move",
        pages.choice("Board", "board", forum.boards, thread.board),
        pages.button("Move"),
    )
    return join(pages.menu("Moderate", *switches), pages.dialog("move", "Move thread", "Move this thread", move))


@site.post("/thread/<int:number>/reply")
def reply(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.reply(number, visit.text("text", "The reply"))
    last = -(-len(forum.thread(number).shown()) // POSTS_PER_PAGE)
    return Redirect(url(f"/thread/{number}", page=last if last > 1 else None), "Your reply is posted.")


@site.post("/thread/<int:number>/subscribe")
def subscribe(forum: Forum, visit: Visit, number: int) -> Redirect:
    on = bool(visit.form.get("on"))
    forum.subscribe(number, on)
    return Redirect(f"/thread/{number}", "You follow this thread." if on else "You no longer follow this thread.")


@site.post("/thread/<int:number>/lock")
def lock(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.lock(number, bool(visit.form.get("on")))
    return Redirect(f"/thread/{number}", "Thread locked." if forum.thread(number).locked else "Thread unlocked.")


@site.post("/thread/<int:number>/pin")
def pin(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.pin(number, bool(visit.form.get("on")))
    return Redirect(f"/thread/{number}", "Thread pinned." if forum.thread(number).pinned else "Thread unpinned.")


@site.post("/thread/<int:number>/move")
def move(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.move(number, visit.line("board", "The board"))
    return Redirect(f"/thread/{number}", f"Thread moved to {forum.thread(number).board}.")


@site.get("/new")
def new_thread(forum: Forum, visit: Visit) -> HtmlPage:
    fields = form(
        "/new",
        pages.choice("Board", "board", forum.boards, visit.asked("board")),
        pages.field("Title", "title"),
        pages.text_area("Text", "text"),
        pages.button("Start thread"),
    )
    return HtmlPage("New thread", pages.card(fields), trail=[("Boards", "/")])


@site.post("/new")
def start_thread(forum: Forum, visit: Visit) -> Redirect:
    title = visit.line("title", "The title", limit=120)
    started = forum.start_thread(visit.line("board", "The board"), title, visit.text("text", "The text"))
    return Redirect(f"/thread/{started.number}", "Your thread is started.")


# Posts


@site.post("/post/<int:number>/vote")
def vote(forum: Forum, visit: Visit, number: int) -> Redirect:
    value = visit.number("value", "The vote", low=-1, high=1)
    if not value:
        raise FormError("A vote is for or against.")
    forum.vote(number, value)
    return Redirect(_place(forum, number), "Your vote is counted." if number in forum.votes else "Vote taken back.")


@site.get("/post/<int:number>/edit")
def edit_post(forum: Forum, visit: Visit, number: int) -> HtmlPage:
    thread, post = forum.post(number)
    if post.author != forum.user:
        raise FormError("This is not your post.")
    fields = form(f"/post/{number}/edit", pages.text_area("Text", "text", post.text), pages.button("Save changes"))
    return HtmlPage(f"Edit post {number}", pages.card(fields), trail=[(thread.title, f"/thread/{thread.number}")])


@site.post("/post/<int:number>/edit")
def save_post(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.edit(number, visit.text("text", "The text"))
    return Redirect(_place(forum, number), f"Post {number} is changed.")


@site.post("/post/<int:number>/delete")
def delete_post(forum: Forum, visit: Visit, number: int) -> Redirect:
    back = _place(forum, number)
    forum.delete(number)
    return Redirect(back, f"Post {number} is deleted.")


@site.get("/post/<int:number>/report")
def report_post(forum: Forum, visit: Visit, number: int) -> HtmlPage:
    thread, post = forum.post(number)
    fields = form(
        f"/post/{number}/report",
        pages.radios("Reason", "reason", [(reason, reason) for reason in state.REASONS]),
        pages.button("Send report"),
    )
    quoted = h("blockquote.card", pages.paragraphs(post.text), h("p.muted", f"by {post.author}"))
    return HtmlPage(
        f"Report post {number}", [quoted, pages.card(fields)], trail=[(thread.title, f"/thread/{thread.number}")]
    )


@site.post("/post/<int:number>/report")
def send_report(forum: Forum, visit: Visit, number: int) -> Redirect:
    forum.report(number, visit.line("reason", "The reason"))
    return Redirect(_place(forum, number), f"Thank you: post {number} is reported.")


def _place(forum: Forum, number: int) -> str:
    """Return the URL of the thread page that contains a post."""
    thread, post = forum.post(number)
    page = thread.shown().index(post) // POSTS_PER_PAGE + 1
    return url(f"/thread/{thread.number}", page=page if page > 1 else None)


# Members and messages


@site.get("/members")
def members(forum: Forum, visit: Visit) -> HtmlPage:
    part = pages.paginate(sorted(forum.users), visit.page(), MEMBERS_PER_PAGE)
    rows = [
        ([avatar(name, 20), _member(name)], "Moderator" if name in forum.moderators else "Member")
        for name in part.items
    ]
    return HtmlPage("Members", [pages.table(["Name", "Role"], rows), pages.page_links(part, "/members")])


@site.get("/user/<name>")
def member(forum: Forum, visit: Visit, name: str) -> HtmlPage:
    user = forum.member(name)
    posts = forum.posts_of(user)
    first = min((post.when for _, post in posts), default=None)
    role = "Moderator" if user in forum.moderators else "Member"
    facts: list[tuple[str, Content]] = [("Role", role), ("Posts", len(posts))]
    if first:
        facts.append(("First post", short_date(first.date())))
    actions: list[Content] = []
    if user != forum.user:
        ignored = user in forum.ignored
        actions = [
            pages.link_button("Send message", url("/messages/new", to=user)),
            pages.post_button(
                "Stop ignoring" if ignored else "Ignore member",
                "/ignore",
                fields={"name": user, "on": "" if ignored else 1},
            ),
        ]
    body = [pages.card(avatar(user, 64), pages.described(facts)), h("h2", "Posts"), _posts_from(forum, user, 0)]
    return HtmlPage(user, body, actions=actions)


@site.get("/user/<name>/posts")
def more_posts(forum: Forum, visit: Visit, name: str) -> Response:
    """Return the part of the list that a script requests."""
    start = max(0, whole_number(visit.asked("from")) or 0)
    return Response(_posts_from(forum, forum.member(name), start).encode())


def _posts_from(forum: Forum, user: str, start: int) -> Markup:
    posts = forum.posts_of(user)
    cards = [
        pages.card(
            h(
                "div.split",
                h("h3", h("a", thread.title, href=f"/thread/{thread.number}")),
                h("span.muted.small", f"{thread.board} · {_when(post.when)}"),
            ),
            pages.paragraphs(post.text),
        )
        for thread, post in posts[start : start + POSTS_AT_ONCE]
    ]
    following = start + POSTS_AT_ONCE
    more = following < len(posts) and pages.load_more(
        f"Show more posts ({len(posts) - following} left)", url(f"/user/{user}/posts", **{"from": following})
    )
    return join(cards, more)


@site.get("/pictures/people/<path:name>.svg")
def person_picture(app: Forum, visit: Visit, name: str) -> Response:
    return portrait(name)


@site.post("/ignore")
def ignore(forum: Forum, visit: Visit) -> Redirect:
    name, on = visit.line("name", "The name"), bool(visit.form.get("on"))
    forum.ignore(name, on)
    return Redirect(_member_path(forum.member(name)), f"You ignore {name}." if on else f"You no longer ignore {name}.")


@site.get("/messages")
def messages(forum: Forum, visit: Visit) -> HtmlPage:
    inbox = [m for m in forum.messages if m.recipient == forum.user]
    sent = [m for m in forum.messages if m.sender == forum.user]
    new = pages.link_button("New message", "/messages/new", tone="")
    body = pages.tabs(
        (f"Received ({len(inbox)})", [_message(m, "from", m.sender) for m in inbox[::-1]]),
        (f"Sent ({len(sent)})", [_message(m, "to", m.recipient) for m in sent[::-1]] or h("p", "Nothing sent yet.")),
    )
    return HtmlPage("Messages", body, actions=new)


def _message(message: state.PrivateMessage, way: str, other: str) -> Markup:
    heading = h("div.split", h("h3", message.subject), h("span.muted.small", f"{way} ", _member(other)))
    return pages.card(heading, pages.paragraphs(message.text))


@site.get("/messages/new")
def new_message(forum: Forum, visit: Visit) -> HtmlPage:
    fields = form(
        "/messages/new",
        pages.suggest_field("To", "to", "/suggest", visit.asked("to", 60), hint="Begin to type a member's name."),
        pages.field("Subject", "subject"),
        pages.text_area("Message", "text"),
        pages.button("Send message"),
    )
    return HtmlPage("New message", pages.card(fields), trail=[("Messages", "/messages")])


@site.get("/suggest")
def suggest(forum: Forum, visit: Visit) -> Response:
    """Return the suggestions for the recipient field."""
    prefix = visit.asked("q", 60).lower()
    return json_response([name for name in sorted(forum.users) if prefix and name.lower().startswith(prefix)][:8])


@site.post("/messages/new")
def send_message(forum: Forum, visit: Visit) -> Redirect:
    recipient, subject = visit.line("to", "The recipient"), visit.line("subject", "The subject", limit=120)
    forum.send(recipient, subject, visit.text("text", "The message"))
    return Redirect("/messages", f"Your message to {recipient} is sent.")


def _member(name: str) -> Markup:
    return h("a", name, href=_member_path(name))


def _member_path(name: str) -> str:
    return url(f"/user/{name}")


def _board_path(name: str) -> str:
    return url(f"/board/{name.lower()}")


def _when(moment: datetime) -> str:
    return f"{short_date(moment.date())}, {moment:%H:%M}"
