"""The mailbox: every errand can be done, looking costs nothing, and what was sent cannot be taken back."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from rllm_gym.sites.errors import FormError
from rllm_gym.sites.http import Request
from rllm_gym.sites.mail import ORIGIN, TEMPLATES, build
from rllm_gym.sites.mail.state import Rule
from rllm_gym.sites.task import Click, Fill
from tests.sites.html_walker import Walker
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES, FEW_SEEDS)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES, share_of_today(MANY_SEEDS, 25))


def test_opening_a_message_reads_it_and_costs_nothing_but_a_mark_by_hand_counts() -> None:
    world = build(1, 1)
    message = next(message for message in world.messages.values() if not message.read)
    before, unread = world.facts(), world.unread("Inbox")
    walker = Walker(world, f"{ORIGIN}/message/{message.number}")
    assert (world.facts(), world.unread("Inbox")) == (before, unread - 1)
    walker.do(Click("button", "Mark as unread"))
    assert world.facts() != before
    walker.get(f"{ORIGIN}/message/{message.number}")
    assert world.facts() == before


def test_a_message_that_was_sent_stays_sent() -> None:
    world = build(1, 1)
    before = world.facts()
    message = world.send(["anna@elsewhere.test"], "Hello", "Text")
    sent = world.facts()
    world.move(message.number, "Bin")
    assert before not in (sent, world.facts())
    assert world.facts() != sent


def test_swindlers_write_under_the_firms_name_from_another_address_later_than_all_true_bills() -> None:
    for seed in range(20):
        world = build(seed, 3)
        for firm in world.firms:
            bills = [world.messages[bill.message] for bill in world.bills[firm.email]]
            assert all(message.sender == firm for message in bills)
            assert len({message.day for message in bills}) == len(bills)
            for number in world.frauds[firm.email]:
                fraud = world.messages[number]
                assert fraud.sender.name == firm.name
                assert fraud.sender.email not in {person.email for person in world.contacts}


def test_search_finds_every_word_and_searches_the_given_folder() -> None:
    world = build(1, 1)
    message = next(iter(world.messages.values()))
    anna = replace(message.sender, name="Anna Li", email="anna@x.test")
    bare = replace(message, text="", attachments=(), labels=(), folder="Inbox")
    world.messages = {
        1: replace(bare, number=1, sender=anna, subject="Hello", text="the plan"),
        2: replace(
            bare, number=2, sender=replace(anna, name="Ben", email="b@x.test"), subject="Plan", labels=("Travel",)
        ),
        3: replace(bare, number=3, sender=anna, subject="Plan", folder="Spam"),
    }
    for query, found in (
        ("from:ANNA", {1}),
        ("subject:plan", {2}),
        ("plan", {1, 2}),
        ("label:travel plan", {2}),
        ("to:nobody", set()),
    ):
        assert {message.number for message in world.search(query)} == found, query


def test_a_message_to_nobody_is_not_sent() -> None:
    for to, output in (
        ("", "Nobody stands in the To line"),
        ("Nobody Known", "not in the address book"),
        ("a@b", "not in the address"),
    ):
        world = build(1, 1)
        before = world.facts()
        walker = Walker(world, f"{ORIGIN}/write")
        for move in (Fill("To", to), Fill("Subject", "S"), Fill("Message", "T"), Click("button", "Send")):
            walker.do(move)
        assert output in walker.page.text, to
        assert world.facts() == before, to


def test_a_rule_needs_something_to_look_for_and_something_to_do() -> None:
    world = build(1, 1)
    label = world.labels[0]
    for rule in (Rule("", "", "Bin", ""), Rule("a", "", "", ""), Rule("a", "", "Inbox", ""), Rule("a", "", "", "No")):
        with pytest.raises(FormError):
            world.add_rule(rule)
    world.add_rule(Rule("a", "", "", label))
    with pytest.raises(FormError, match="exists already"):
        world.add_rule(Rule("a", "", "", label))


def test_a_form_never_leads_to_another_site() -> None:
    for back in ("//evil.test/", "https://evil.test/", "/folder/\\evil", "/message/1/act", "/folder/a\nb"):
        handler = build(1, 1).handlers()[ORIGIN]
        body = urlencode({"back": back, "act": "read", "message": 1}).encode()
        assert handler(Request("POST", f"{ORIGIN}/bulk", {}, body)).headers["location"] == "/", back
