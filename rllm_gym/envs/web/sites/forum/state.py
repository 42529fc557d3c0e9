"""The state of the forum: boards, threads, posts, and the visitor's votes, reports, subscriptions and messages.

Facts: every thread (title, board, locked, pinned) with the author and text of its posts, and the visitor's votes,
reports, subscriptions, ignored members and sent messages. Reading changes nothing, and the time of a new post is not
compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError, NotFound

REASONS = ("Spam", "Insulting", "Off topic", "Posted twice")


@dataclass(slots=True)
class Post:
    """A post. ``advice``: its recommendation, ``""`` in a first post. ``score`` excludes the visitor's vote."""

    number: int
    author: str
    when: datetime
    text: str
    advice: str = ""
    score: int = 0
    deleted: bool = False


@dataclass(slots=True)
class Thread:
    number: int
    board: str
    title: str
    posts: list[Post] = field(default_factory=list)
    locked: bool = False
    pinned: bool = False

    @property
    def author(self) -> str:
        return self.posts[0].author

    def shown(self) -> list[Post]:
        return [post for post in self.posts if not post.deleted]

    def latest(self) -> Post:
        return self.shown()[-1]


@dataclass(frozen=True, slots=True)
class PrivateMessage:
    """A private message. ``sender`` or ``recipient`` is the visitor."""

    sender: str
    recipient: str
    subject: str
    text: str


@dataclass
class Forum:
    """The forum as one visitor sees it. ``moderator``: whether the visitor may lock, move and delete."""

    now: datetime
    user: str
    users: list[str]
    boards: list[str]
    threads: dict[int, Thread]
    moderators: list[str]
    closed_board: str
    votes: dict[int, int] = field(default_factory=dict)
    reports: dict[int, str] = field(default_factory=dict)
    subscriptions: list[int] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    messages: list[PrivateMessage] = field(default_factory=list)

    def facts(self) -> Any:
        return {
            "threads": [
                [t.number, t.title, t.board, t.locked, t.pinned, [[p.author, p.text] for p in t.shown()]]
                for t in self.threads.values()
            ],
            "votes": {str(number): vote for number, vote in sorted(self.votes.items())},
            "reports": {str(number): reason for number, reason in sorted(self.reports.items())},
            "subscriptions": sorted(self.subscriptions),
            "ignored": sorted(self.ignored),
            "sent": [[m.recipient, m.subject, m.text] for m in self.messages if m.sender == self.user],
        }

    # Queries

    @property
    def moderator(self) -> bool:
        return self.user in self.moderators

    def thread(self, number: int) -> Thread:
        if number not in self.threads:
            raise NotFound(f"There is no thread {number}.")
        return self.threads[number]

    def post(self, number: int) -> tuple[Thread, Post]:
        """Return a post and the thread that contains it."""
        for thread in self.threads.values():
            for post in thread.shown():
                if post.number == number:
                    return thread, post
        raise NotFound(f"There is no post {number}.")

    def board(self, name: str) -> list[Thread]:
        """Return the threads of a board: pinned ones first, then by the latest post."""
        inside = [thread for thread in self.threads.values() if thread.board == name]
        return sorted(inside, key=lambda t: (t.pinned, t.latest().when), reverse=True)

    def posts_of(self, user: str) -> list[tuple[Thread, Post]]:
        """Return a member's posts, newest first."""
        found = [(t, p) for t in self.threads.values() for p in t.shown() if p.author == user]
        return sorted(found, key=lambda pair: pair[1].when, reverse=True)

    def score(self, post: Post) -> int:
        return post.score + self.votes.get(post.number, 0)

    def member(self, name: str) -> str:
        """Return the name in its exact spelling.

        Raises:
            NotFound: No member has this name.
        """
        for user in self.users:
            if user.lower() == name.lower():
                return user
        raise NotFound(f"There is no member called {name}.")

    # Changes

    def start_thread(self, board: str, title: str, text: str) -> Thread:
        if board not in self.boards:
            raise FormError("Choose a board.")
        if board == self.closed_board and not self.moderator:
            raise FormError(f"Only moderators can start threads in {board}.")
        if any(t.title.lower() == title.lower() and t.board == board for t in self.threads.values()):
            raise FormError("There is a thread with this title in the board already.")
        thread = Thread(max(self.threads) + 1, board, title)
        thread.posts.append(self._new_post(text))
        self.threads[thread.number] = thread
        return thread

    def reply(self, number: int, text: str) -> Post:
        thread = self.thread(number)
        if thread.locked:
            raise FormError("This thread is locked: nobody can reply to it.")
        post = self._new_post(text)
        thread.posts.append(post)
        return post

    def edit(self, number: int, text: str) -> None:
        """Edit one of the visitor's own posts."""
        thread, post = self.post(number)
        self._check_own(post)
        if thread.locked:
            raise FormError("This thread is locked: its posts cannot be changed.")
        post.text = text

    def delete(self, number: int) -> None:
        """Delete one of the visitor's posts or, as a moderator, any post, except the first of a thread."""
        thread, post = self.post(number)
        if not self.moderator:
            self._check_own(post)
        if post is thread.posts[0]:
            raise FormError("The first post of a thread cannot be deleted.")
        post.deleted = True

    def vote(self, number: int, value: int) -> None:
        """Vote 1 or -1 for a post. The same vote again withdraws it."""
        _, post = self.post(number)
        if post.author == self.user:
            raise FormError("You cannot vote for your own post.")
        if self.votes.get(number) == value:
            del self.votes[number]
        else:
            self.votes[number] = value

    def report(self, number: int, reason: str) -> None:
        _, post = self.post(number)
        if reason not in REASONS:
            raise FormError("Choose a reason.")
        if post.number in self.reports:
            raise FormError("You have reported this post already.")
        self.reports[post.number] = reason

    def subscribe(self, number: int, on: bool) -> None:
        thread = self.thread(number)
        if on and thread.number not in self.subscriptions:
            self.subscriptions.append(thread.number)
        elif not on and thread.number in self.subscriptions:
            self.subscriptions.remove(thread.number)

    def ignore(self, name: str, on: bool) -> None:
        member = self.member(name)
        if member == self.user:
            raise FormError("You cannot ignore yourself.")
        if on and member not in self.ignored:
            self.ignored.append(member)
        elif not on and member in self.ignored:
            self.ignored.remove(member)

    def send(self, recipient: str, subject: str, text: str) -> None:
        if not any(recipient.lower() == user.lower() for user in self.users):
            raise FormError(f"There is no member called {recipient}.")
        self.messages.append(PrivateMessage(self.user, self.member(recipient), subject, text))

    def lock(self, number: int, on: bool) -> None:
        self._check_moderator()
        self.thread(number).locked = on

    def pin(self, number: int, on: bool) -> None:
        self._check_moderator()
        self.thread(number).pinned = on

    def move(self, number: int, board: str) -> None:
        self._check_moderator()
        if board not in self.boards:
            raise FormError("Choose a board.")
        self.thread(number).board = board

    def _new_post(self, text: str) -> Post:
        number = max(post.number for thread in self.threads.values() for post in thread.posts) + 1
        self.now += timedelta(minutes=1)
        return Post(number, self.user, self.now, text)

    def _check_own(self, post: Post) -> None:
        if post.author != self.user:
            raise FormError("This is not your post.")

    def _check_moderator(self) -> None:
        if not self.moderator:
            raise FormError("Only moderators can do this.")
