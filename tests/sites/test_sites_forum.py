"""The forum: every errand can be done, near misses are seen, and members and moderators may what is theirs."""

from __future__ import annotations

import pytest

from rllm_gym.sites.errors import FormError
from rllm_gym.sites.forum import TEMPLATES
from rllm_gym.sites.forum.state import build
from rllm_gym.sites.http import Request
from rllm_gym.sites.task import Click, Fill, Goto
from tests.sites.html_walker import Walker
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES, FEW_SEEDS, steps=60)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES, share_of_today(MANY_SEEDS, 25), steps=60)


def test_only_ones_own_posts_can_be_edited_and_locked_threads_stay_as_they_are() -> None:
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


def test_a_vote_given_twice_is_taken_back_and_the_other_way_is_another() -> None:
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


def test_a_reply_is_shown_as_text_and_stands_last() -> None:
    forum = build(2, 1)
    thread = next(t for t in forum.threads.values() if not t.locked)
    text = "<b>bold</b> & </textarea><script>alert(1)</script>"
    walker = Walker(forum, f"http://forum.test/thread/{thread.number}")
    walker.do(Fill("Your reply", text))
    walker.do(Click("button", "Post reply"))
    assert thread.posts[-1].text == text
    assert text in walker.page.text.replace("< ", "<")
    walker.do(Goto(f"http://forum.test/post/{thread.posts[-1].number}/edit"))
    walker.do(Click("button", "Save changes"))  # unchanged: the form held exactly what was written
    assert thread.posts[-1].text == text


def test_the_list_of_a_members_posts_grows_to_its_end() -> None:
    forum = build(3, 3)
    user = max(forum.users, key=lambda name: len(forum.posts_of(name)))
    walker = Walker(forum, f"http://forum.test/user/{user}")
    posts = len(forum.posts_of(user))
    for left in range(posts - 8, 0, -8):
        walker.do(Click("button", f"Show more posts ({left} left)"))
    assert sum(node.tag == "h3" for node in walker.page.walk()) == posts


def test_what_is_offered_for_a_recipient_begins_with_what_was_typed() -> None:
    forum = build(3, 3)
    handler = forum.handlers()["http://forum.test"]
    name = forum.users[4]
    assert name in handler(Request("GET", f"http://forum.test/suggest?q={name[:2]}")).body.decode()
    assert handler(Request("GET", "http://forum.test/suggest?q=")).body == b"[]"
    assert handler(Request("GET", "http://forum.test/suggest?q=%00zz")).body == b"[]"
