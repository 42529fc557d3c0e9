"""The mailbox: reading changes nothing, and a sent message cannot be withdrawn."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

import pytest

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.http import Request
from rllm_gym.envs.web.sites.mail import ORIGIN, build
from rllm_gym.envs.web.sites.mail.state import Rule
from rllm_gym.envs.web.sites.moves import Click, Fill
from tests.sites.html_walker import SiteDriver


def test_opening_a_message_changes_no_facts_but_marking_it_unread_does() -> None:
    site = build(1, 1)
    message = next(message for message in site.messages.values() if not message.read)
    before, unread = site.facts(), site.unread("Inbox")
    driver = SiteDriver(site, f"{ORIGIN}/message/{message.number}")
    assert (site.facts(), site.unread("Inbox")) == (before, unread - 1)
    driver.do(Click("button", "Mark as unread"))
    assert site.facts() != before
    driver.get(f"{ORIGIN}/message/{message.number}")
    assert site.facts() == before


def test_a_sent_message_cannot_be_undone() -> None:
    site = build(1, 1)
    before = site.facts()
    message = site.send(["anna@elsewhere.test"], "Hello", "Text")
    sent = site.facts()
    site.move(message.number, "Bin")
    assert before not in (sent, site.facts())
    assert site.facts() != sent


def test_fraudulent_bills_use_the_company_name_a_foreign_address_and_a_later_date() -> None:
    for seed in range(20):
        site = build(seed, 3)
        for company in site.firms:
            bills = [site.messages[bill.message] for bill in site.bills[company.email]]
            assert all(message.sender == company for message in bills)
            assert len({message.day for message in bills}) == len(bills)
            for number in site.frauds[company.email]:
                fraud = site.messages[number]
                assert fraud.sender.name == company.name
                assert fraud.sender.email not in {person.email for person in site.contacts}


def test_search_finds_every_word_and_searches_the_given_folder() -> None:
    site = build(1, 1)
    message = next(iter(site.messages.values()))
    anna = replace(message.sender, name="Anna Li", email="anna@x.test")
    bare = replace(message, text="", attachments=(), labels=(), folder="Inbox")
    site.messages = {
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
        assert {message.number for message in site.search(query)} == found, query


def test_a_message_to_nobody_is_not_sent() -> None:
    for to, output in (
        ("", "Nobody stands in the To line"),
        ("Nobody Known", "not in the address book"),
        ("a@b", "not in the address"),
    ):
        site = build(1, 1)
        before = site.facts()
        driver = SiteDriver(site, f"{ORIGIN}/write")
        for move in (Fill("To", to), Fill("Subject", "S"), Fill("Message", "T"), Click("button", "Send")):
            driver.do(move)
        assert output in driver.page.text, to
        assert site.facts() == before, to


def test_a_rule_needs_something_to_look_for_and_something_to_do() -> None:
    site = build(1, 1)
    label = site.labels[0]
    for rule in (Rule("", "", "Bin", ""), Rule("a", "", "", ""), Rule("a", "", "Inbox", ""), Rule("a", "", "", "No")):
        with pytest.raises(FormError):
            site.add_rule(rule)
    site.add_rule(Rule("a", "", "", label))
    with pytest.raises(FormError, match="exists already"):
        site.add_rule(Rule("a", "", "", label))


def test_a_form_never_redirects_to_another_site() -> None:
    for back in ("//evil.test/", "https://evil.test/", "/folder/\\evil", "/message/1/act", "/folder/a\nb"):
        handler = build(1, 1).handlers()[ORIGIN]
        body = urlencode({"back": back, "act": "read", "message": 1}).encode()
        assert handler(Request("POST", f"{ORIGIN}/bulk", {}, body)).headers["location"] == "/", back
