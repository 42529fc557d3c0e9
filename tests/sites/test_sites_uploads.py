"""Uploaded files and pages in frames: the form is read strictly, and another file or card is not what was asked for."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from rllm_gym.envs.web.sites import TEMPLATES
from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.http import Request, UploadedFile
from rllm_gym.envs.web.sites.mail.generate import build_with_uploads
from rllm_gym.envs.web.sites.moves import Click, Upload
from rllm_gym.envs.web.sites.shop.generate import build_with_cards
from rllm_gym.envs.web.sites.site import MAX_BODY_BYTES
from tests.sites.html_walker import SiteDriver, multipart, rewarded
from tests.sites.task_checks import MANY_SEEDS

KIND = "multipart/form-data; boundary=b"


def post(body: bytes, kind: str = KIND) -> Request:
    return Request("POST", "http://mail.test/write", {"content-type": kind}, body)


def part(head: str, content: bytes = b"x") -> bytes:
    return b"--b\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def test_a_form_with_a_file_is_read() -> None:
    fields = [
        ("to", "a@b.test"),
        ("text", "one\r\ntwo --b"),
        ("file", "Plan 2 (“ö”).txt"),
        ("to", "c@d.test"),
        ("none", ""),
    ]
    content = bytes(range(256)) + b"\r\n--boundary\r\n"
    kind, body = multipart(fields, {"file", "none"}, {"Plan 2 (“ö”).txt": content})
    request = post(body, kind)
    assert request.form == {"to": "c@d.test", "text": "one\r\ntwo --b"}
    assert request.form_lists["to"] == ["a@b.test", "c@d.test"]
    assert request.files == {"file": UploadedFile("Plan 2 (“ö”).txt", content), "none": UploadedFile("", b"")}


NAMED = 'Content-Disposition: form-data; name="a"'
MALFORMED = {
    "no boundary": (b"", "multipart/form-data"),
    "another kind": (part(NAMED) + b"--b--", "multipart/mixed; boundary=b"),
    "a bad boundary": (part(NAMED) + b"--b--", 'multipart/form-data; boundary="b\r\nx"'),
    "empty": (b"", KIND),
    "only a boundary": (b"--b", KIND),
    "no end": (part(NAMED), KIND),
    "text before": (b"hello" + part(NAMED) + b"--b--", KIND),
    "text after": (part(NAMED) + b"--b--\r\nmore", KIND),
    "no header": (b"--b\r\nx\r\n--b--", KIND),
    "no name": (part("Content-Disposition: form-data") + b"--b--", KIND),
    "no disposition": (part("Content-Type: text/plain") + b"--b--", KIND),
    "an attachment": (part('Content-Disposition: attachment; name="a"') + b"--b--", KIND),
    "an encoded name": (part("Content-Disposition: form-data; name*=utf-8''a") + b"--b--", KIND),
    "a split name": (part("Content-Disposition: form-data; name*=a; name*0=b; name*1=c") + b"--b--", KIND),
    "a long header": (part(NAMED + "; x=" + ";" * 5_000) + b"--b--", KIND),
    "too many parts": (part(NAMED) * 101 + b"--b--", KIND),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_form_is_refused_with_a_message(case: str) -> None:
    body, kind = MALFORMED[case]
    for read in (lambda request: request.form, lambda request: request.files):
        with pytest.raises(FormError, match="could not be read"):
            read(post(body, kind))
    site = build_with_uploads(1, 1)
    before, handler = site.facts(), site.handlers()["http://mail.test"]
    assert handler(post(body, kind)).status == 303
    assert b"The form could not be read" in handler(Request("GET", "http://mail.test/write")).body
    assert site.facts() == before


def test_nested_and_random_bodies_do_no_harm() -> None:
    rng = Random(1)
    pieces = [
        b"--b",
        b"--b--",
        b"\r\n",
        b"\r\n\r\n",
        NAMED.encode(),
        b"Content-Type: multipart/mixed; boundary=b",
        b"\xff",
    ]
    for _ in range(2_000):
        request = post(b"".join(rng.choices(pieces, k=rng.randint(0, 12))))
        with contextlib.suppress(FormError):
            assert set(request.form) | set(request.files) <= {"a"}


def test_an_upload_that_is_too_large_is_refused() -> None:
    site = build_with_uploads(1, 1)
    before, handler = site.facts(), site.handlers()["http://mail.test"]
    kind, body = multipart([("attachment", "big")], {"attachment"}, {"big": b"x" * MAX_BODY_BYTES})
    response = handler(post(body, kind))
    assert response.status == 413
    assert b"at most 100,000 bytes" in response.body
    assert site.facts() == before


def test_only_the_requested_file_is_right_and_its_name_is_not_a_path() -> None:
    for seed in range(5):
        task = TEMPLATES["mail/attach"].make_task(build_with_uploads(seed, 5), Random(seed), 5)
        build = partial(build_with_uploads, seed, 5)
        right = next(move for move in task.moves if isinstance(move, Upload))
        assert rewarded(build, task, task.moves)
        assert not rewarded(build, task, tuple(move for move in task.moves if move is not right))
        for name in set(task.files) - {right.file}:
            others = tuple(replace(move, file=name) if move is right else move for move in task.moves)
            assert not rewarded(build, task, others)
        same_name = replace(task, files={**task.files, right.file: b"another text"})
        assert not rewarded(build, same_name, task.moves)
    site = build_with_uploads(1, 1)
    kind, body = multipart(
        [("to", "a@b.test"), ("subject", "s"), ("text", "t"), ("attachment", "../../x\tpasswd")],
        {"attachment"},
        {"../../x\tpasswd": b"1"},
    )
    site.handlers()["http://mail.test"](post(body, kind))
    assert [file.name for file in site.in_folder("Sent")[0].attachments] == ["../../x passwd"]


def test_a_mailbox_without_uploads_has_no_field_for_them_and_ignores_files() -> None:
    from rllm_gym.envs.web.sites.mail.generate import build

    site = build(1, 1)
    handler = site.handlers()["http://mail.test"]
    assert b'type="file"' not in handler(Request("GET", "http://mail.test/write")).body
    kind, body = multipart(
        [("to", "a@b.test"), ("subject", "s"), ("text", "t"), ("attachment", "x")], {"attachment"}, {"x": b"1"}
    )
    handler(post(body, kind))
    assert site.in_folder("Sent")[0].attachments == ()


def test_the_card_must_be_chosen_in_the_frame_and_no_other_is_right() -> None:
    for seed in MANY_SEEDS[:6]:
        build = partial(build_with_cards, seed, 3)
        task = TEMPLATES["shop/pay-by-card"].make_task(build(), Random(seed), 3)
        cards = build().cards
        at = next(i for i, move in enumerate(task.moves) if isinstance(move, Click) and move.name in cards)
        assert rewarded(build, task, task.moves)
        without = (*task.moves[:at], *task.moves[at + 2 :])
        assert not rewarded(build, task, without)
        driver = SiteDriver(build(), task.start)
        for move in without:
            driver.do(move)
        assert "Choose a card to pay with." in driver.page.text
        for card in set(cards) - {task.moves[at].name}:
            assert not rewarded(build, task, (*task.moves[:at], Click("radio", card), *task.moves[at + 1 :]))
