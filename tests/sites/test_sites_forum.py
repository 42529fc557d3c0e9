"""The forum: members and moderators have their permissions."""

from __future__ import annotations

import pytest

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.forum import build
from rllm_gym.envs.web.sites.http import Request
from rllm_gym.envs.web.sites.moves import Click, Fill, Goto
from tests.sites.html_walker import SiteDriver


def test_only_own_posts_can_be_edited_and_locked_threads_are_read_only() -> None:
    forum = build(1, 2)
    thread = next(t for t in forum.threads.values() if not t.locked and t.author != forum.user)
    locked = next(t for t in forum.threads.values() if t.locked)
    before = forum.facts()
    for refused in (
        lambda: forum.edit(thread.posts[0].number, "mine now"),
        lambda: forum.delete(thread.posts[1].number) if thread.posts[1].author != forum.user else forum.lock(1, True),
        lambda: forum.reply(locked.number, "hello"),
        lambda: forum.lock(thread.number, True),
        lambda: forum.move(thread.number, forum.boards[0]),
        lambda: forum.start_thread(forum.closed_board, "Title", "text"),
        lambda: forum.send("nobody99", "s", "t"),
    ):
        with pytest.raises(FormError):
            refused()
    assert forum.facts() == before


def test_a_repeated_vote_is_withdrawn_and_the_opposite_vote_replaces_it() -> None:
    forum = build(1, 1)
    post = next(p for t in forum.threads.values() for p in t.posts if p.author != forum.user)
    untouched = forum.facts()
    forum.vote(post.number, 1)
    up = forum.facts()
    forum.vote(post.number, -1)
    down = forum.facts()
    forum.vote(post.number, -1)
    assert forum.facts() == untouched
    assert len({str(state) for state in (untouched, up, down)}) == 3


def test_a_reply_is_shown_last_and_as_text() -> None:
    forum = build(2, 1)
    thread = next(t for t in forum.threads.values() if not t.locked)
    text = "<b>bold</b> & </textarea><script>alert(1)</script>"
    driver = SiteDriver(forum, f"http://forum.test/thread/{thread.number}")
    driver.do(Fill("Your reply", text))
    driver.do(Click("button", "Post reply"))
    assert thread.posts[-1].text == text
    assert text in driver.page.text.replace("< ", "<")
    driver.do(Goto(f"http://forum.test/post/{thread.posts[-1].number}/edit"))
    driver.do(Click("button", "Save changes"))  # unchanged: the form contained exactly what was written
    assert thread.posts[-1].text == text


def test_the_list_of_a_members_posts_loads_more_until_its_end() -> None:
    forum = build(3, 3)
    user = max(forum.users, key=lambda name: len(forum.posts_of(name)))
    driver = SiteDriver(forum, f"http://forum.test/user/{user}")
    posts = len(forum.posts_of(user))
    for left in range(posts - 8, 0, -8):
        driver.do(Click("button", f"Show more posts ({left} left)"))
    assert sum(node.tag == "h3" for node in driver.page.walk()) == posts


def test_recipient_suggestions_start_with_the_typed_text() -> None:
    forum = build(3, 3)
    handler = forum.handlers()["http://forum.test"]
    name = forum.users[4]
    assert name in handler(Request("GET", f"http://forum.test/suggest?q={name[:2]}")).body.decode()
    assert handler(Request("GET", "http://forum.test/suggest?q=")).body == b"[]"
    assert handler(Request("GET", "http://forum.test/suggest?q=%00zz")).body == b"[]"
