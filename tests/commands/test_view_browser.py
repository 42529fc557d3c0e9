"""The page of `rllm-gym view` in a real Chromium: views, links, keys, a run that grows, and episodes that attack it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands.view_server import Viewer, episode, viewing

from rllm_gym.commands.view.report import write_report
from rllm_gym.core import Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine import save_episodes
from tests.browser.long_timeouts import require_chromium

pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")

from playwright.sync_api import Page, Request, expect, sync_playwright

CHROMIUM = require_chromium()
SCRIPT = "document.documentElement.dataset.hacked = 1"
HOSTILE = (
    f"<script>{SCRIPT}</script><img src=x onerror='{SCRIPT}'><svg onload='{SCRIPT}'></svg></pre>"
    f"<iframe src='javascript:parent.{SCRIPT}'></iframe><a href='javascript:{SCRIPT}' class='row-link'>x</a>"
    "\"'><style>*{display:none}</style>\x1b[31m"
)
UNSEEN = "\u202e\u200b\u00ad\u2060\u180e\u2028\u115f\u3164\ufe0f\U000e0041\U000e0100"
HOSTILE += UNSEEN


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Viewer, Path]]:
    folder = tmp_path_factory.mktemp("view")
    run = folder / "my-run"
    attack = episode(
        11, task=HOSTILE, reply=HOSTILE, observation=HOSTILE, env_id=HOSTILE, group_id=HOSTILE,
        fault=HOSTILE, stop_reason=StopReason.FAULT, info={HOSTILE: HOSTILE},
    )  # fmt: skip
    save_episodes(run / "episodes" / "validation-000000.jsonl", [episode(n) for n in range(10)])
    save_episodes(
        run / "episodes" / "validation-000010.jsonl",
        [*(episode(n, reply=f"better {n}", success=True, advantages=(0.5, -1.5)) for n in range(10)), attack],
    )
    rows = [{"step": n, "success": n / 9, "policy/entropy": 1 / (n + 1), HOSTILE: n} for n in range(10)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = {"difference": 1.0, "interval": [0.5, 1.5], "p_value": 0.5, "tasks": 3, "better": 2, "worse": 1}
    result = {
        "env": HOSTILE, "model": HOSTILE, "tasks": 3, "pass": {"1": {"value": 0.5, "low": 0.1, "high": 0.9}},
        "mean_reward": None, "truncated_fraction": 0.25, "dropped_fraction": None, "input_tokens": 1,
        "sampled_tokens": 2, "seconds": 1.0, "cost": None, "contamination": HOSTILE, "output": "out/episodes.jsonl",
    }  # fmt: skip
    comparison = {"env": HOSTILE, "model": "b", "baseline": "a", "success": test, "reward": test}
    (run / "results.json").write_text(json.dumps({"results": [result], "comparisons": [comparison], "complete": False}))
    (run / "manifest.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    with viewing(folder, [run]) as viewer:
        yield viewer, run


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context().new_page()
        page.set_default_timeout(60_000)
        expect.set_options(timeout=60_000)
        yield page
        browser.close()


@pytest.fixture
def page(browser_page: Page) -> Iterator[Page]:
    """The page; nothing may fail in it."""
    errors: list[str] = []

    def note(error: Exception) -> None:
        errors.append(str(error))

    browser_page.on("pageerror", note)
    yield browser_page
    browser_page.remove_listener("pageerror", note)
    assert not errors
    assert browser_page.evaluate("document.documentElement.dataset.hacked") is None


def test_from_the_list_to_a_token_and_back(viewer: tuple[Viewer, Path], page: Page) -> None:
    page.goto(viewer[0].url)
    expect(page.locator("svg.chart")).to_have_count(2)  # success and entropy are chosen by default
    page.keyboard.press("2")
    expect(page.locator("#count")).to_have_text("21 episodes")
    page.get_by_label("task contains").fill("task/3")
    page.get_by_label("any result").select_option("success")
    expect(page.locator("#count")).to_have_text("3 episodes")
    expect(page).to_have_url(re.compile("task=task%2F3.*success=1|success=1.*task=task%2F3"))
    page.get_by_label("reward from").fill("0.5")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("2 episodes")
    page.locator("#main").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".reply")).to_contain_text("a reply")
    page.keyboard.press("]")
    expect(page.locator(".reply")).to_contain_text("better 8")
    page.keyboard.press("t")
    sampled = page.locator(".tokens .sampled")
    expect(sampled).to_have_count(2)
    sampled.nth(1).hover()
    for text in ("probability 0.1353", "advantage -1.5", "mask 1", "weights version 3"):
        expect(page.locator("#tip")).to_contain_text(text)
    page.locator(".tokens .context").first.hover()
    expect(page.locator("#tip")).to_contain_text("mask 0")
    page.keyboard.press("u")
    expect(page.locator("#count")).to_have_text("2 episodes")


def test_an_address_leads_to_the_same_view(viewer: tuple[Viewer, Path], page: Page) -> None:
    place = "run=my-run&file=episodes/validation-000000.jsonl"
    page.goto("about:blank")
    page.goto(f"{viewer[0].url}/#/episode?{place}&line=4&mode=probability")
    expect(page.locator(".tokens")).to_contain_text("6")
    page.locator(".tokens .sampled").first.hover()
    expect(page.locator("#tip")).to_contain_text("advantage not recorded")
    page.goto(f"{viewer[0].url}/#/group?{place}&group=task/3@1")
    expect(page.locator(".columns article")).to_have_count(2)
    page.goto(f"{viewer[0].url}/#/compare?change=gained")
    expect(page.locator("#count")).to_have_text("5 common tasks")
    expect(page.locator("tbody")).to_contain_text("higher success")
    page.locator("a.row-link").first.click()
    expect(page.locator(".columns article")).to_have_count(2)
    expect(page.get_by_text("reply differs")).to_have_count(2)
    page.goto(f"{viewer[0].url}/#/episode?run=my-run&file=nothing&line=1")
    expect(page.locator("#main")).to_contain_text("no episode at line 1")


@pytest.mark.long
def test_what_a_run_writes_appears(tmp_path: Path, page: Page) -> None:
    run = tmp_path / "my-run"
    save_episodes(run / "episodes" / "train-000001.jsonl", [episode(n) for n in range(2)])
    rows = [{"step": n, "success": n / 30_000} for n in range(30_001)]  # more than the page keeps, the last of them 1
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"step": -1, "success": 0}, *rows]))
    with viewing(tmp_path, [run]) as viewer:
        page.goto("about:blank")
        page.goto(f"{viewer.url}/#/episodes?kind=train")
        expect(page.locator("#count")).to_have_text("2 episodes")
        page.route("**/api/metrics*", lambda route: route.abort())
        save_episodes(run / "episodes" / "train-000011.jsonl", [episode(n, success=False) for n in range(3)])
        viewer.indexed()
        for _ in range(3):
            with page.expect_response("**/api/state*"):
                pass
        expect(page.locator("#status")).to_have_text("the server does not answer")
        page.unroute("**/api/metrics*")
        expect(page.locator("#count")).to_have_text("5 episodes")
        page.keyboard.press("1")
        expect(page.locator(".legend").first).to_have_text("my-run 1")
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 30001, "success": 0.125}\nnonsense\n')
        expect(page.locator(".legend").first).to_contain_text("my-run 0.125")
        expect(page.locator("#status")).to_have_text("1 line skipped")
        page.locator("#status a").click()
        expect(page.locator("tbody")).to_contain_text("metrics.jsonl")


def test_a_filter_keeps_the_focus_and_what_is_typed(viewer: tuple[Viewer, Path], page: Page) -> None:
    page.goto("about:blank")
    page.goto(f"{viewer[0].url}/#/episodes?file=episodes/validation-000010.jsonl")
    expect(page.locator("#count")).to_have_text("11 episodes")
    page.get_by_label("task contains").fill("task/3")
    page.keyboard.press("Tab")
    page.keyboard.type("task/")
    expect(page.locator("#count")).to_have_text("2 episodes")
    group = page.get_by_label("group", exact=True)
    expect(group).to_be_focused()
    expect(group).to_have_value("task/")
    page.keyboard.type("9@1")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("0 episodes")
    page.go_back()
    expect(page.locator("#count")).to_have_text("2 episodes")
    expect(group).to_have_value("")
    page.get_by_title("remove this filter").click()
    expect(page.locator("#count")).to_have_text("4 episodes")


@pytest.mark.long
def test_long_episodes_are_shown_in_parts_and_each_turn_has_an_address(tmp_path: Path, page: Page) -> None:
    ids = tuple(range(1_600))
    step = Step("a question", [], "a reply", tokens=TurnTokens((1,), ids, (-0.5,) * 1_600))
    trajectory = Trajectory("agent", steps=[step] * 2, trainable=False)
    save_episodes(tmp_path / "run" / "long.jsonl", [episode(n, task="t", trajectories=[trajectory]) for n in range(8)])
    with viewing(tmp_path, [tmp_path / "run"]) as viewer:
        page.goto(f"{viewer.url}/#/group?run=run&file=long.jsonl&group=t@1&mode=probability")
        expect(page.locator(".columns article")).to_have_count(8)
        expect(page.get_by_text("more tokens").first).to_be_attached()
        assert 0 < page.locator(".tokens span").count() <= 24_000
        page.get_by_role("link", name="turn 2", exact=True).first.click()
        expect(page).to_have_url(re.compile(r"#/episode\?.*line=1&turn=2"))
        expect(page.locator(".turn > h4").nth(1)).to_be_in_viewport()
        page.locator(".tokens .sampled").nth(1_605).hover()
        expect(page.locator("#tip")).to_contain_text("mask 0")
        page.goto("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_episodes_are_text_in_every_view(viewer: tuple[Viewer, Path], page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    place = "run=my-run&file=episodes/validation-000010.jsonl"
    page.goto("about:blank")
    page.goto(f"{viewer[0].url}/#/episodes?fault=1")
    expect(page.locator("#count")).to_have_text("1 episode")
    expect(page.locator("tbody")).to_contain_text("<script>")
    for view in (
        f"episode?{place}&line=11",
        f"episode?{place}&line=11&mode=advantage",
        "groups?fault=1",
        "curves",
        "evaluations",
        "manifests",
    ):
        page.goto(f"{viewer[0].url}/#/{view}")
        expect(page.locator("#main")).to_contain_text("<script>")
        assert page.evaluate("document.querySelectorAll('main script, main img, iframe, main style').length") == 0
        assert page.evaluate("[...document.links].every(link => link.protocol !== 'javascript:')")
        text = page.locator("#main").inner_text()
        assert not set("\x1b" + UNSEEN) & set(text)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(251, 250, 248)", "dark": "rgb(21, 22, 24)"}[scheme]
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    page.evaluate("localStorage.clear()")


def test_a_report_shows_what_the_viewer_does(viewer: tuple[Viewer, Path], page: Page, tmp_path: Path) -> None:
    write_report([viewer[1]], tmp_path / "report.html")
    report = (tmp_path / "report.html").as_uri()
    requests: list[str] = []

    def note(request: Request) -> None:
        requests.append(request.url)

    place = "run=my-run&file=episodes/validation-000010.jsonl"

    def text(address: str) -> str:
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator("#main")).to_have_attribute("data-ready", "#" + address.partition("#")[2])
        return " ".join(re.sub("Export( as JSONL)?", "", page.locator("#main").inner_text()).split())

    viewer[0].indexed()
    for view in (
        "#/curves?m=success",
        "#/episodes",
        "#/episodes?order=-reward&success=1&reward_min=0.3&offset=2",
        "#/episodes?order=tokens&kind=validation&task=task/3&stop=failure&fault=0&turns_max=1",
        "#/episodes?fault=1",
        "#/groups",
        "#/groups?task=task/1&step_min=5",
        "#/episodes?text=better&kind=validation",
        "#/episodes?reply=%22better%201%22&reply=REPLY&order=-reward",
        "#/episodes?reply=bette%201",
        "#/episodes?reply=%22bette%201%22",
        "#/groups?text=script%20onload",
        "#/compare",
        "#/compare?change=gained",
        "#/evaluations",
        "#/manifests",
        f"#/episode?{place}&line=11",
        f"#/episode?{place}&line=3&mode=advantage",
        f"#/group?{place}&group=task/3@1",
        f"#/pair?a_{place.replace('&', '&a_')}&a_line=1&b_{place.replace('&', '&b_')}&b_line=6",
    ):
        expected = text(f"{viewer[0].url}/{view}")
        page.on("request", note)
        assert text(f"{report}{view}") == expected, view
        page.remove_listener("request", note)
    assert {address.partition("#")[0] for address in requests} == {report}


def test_words_that_were_searched_for_are_marked(viewer: tuple[Viewer, Path], page: Page) -> None:
    page.goto("about:blank")
    page.goto(f"{viewer[0].url}/#/episodes")
    page.get_by_label("reply contains words").fill("Better 7")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_have_text("1 episode")
    page.locator("a.row-link").click()
    expect(page.locator(".reply")).to_contain_text("better 7")
    found = "[...CSS.highlights.get('found')].map(range => range.toString())"
    assert page.evaluate(found) == ["better", "7"]
    page.goto(f"{viewer[0].url}/#/episodes?text=...")
    expect(page.locator("#main")).to_contain_text("has no word to search for")


def test_the_words_that_differ_are_marked_side_by_side(viewer: tuple[Viewer, Path], page: Page) -> None:
    page.goto("about:blank")
    page.goto(f"{viewer[0].url}/#/compare")
    page.locator("a.row-link").first.click()
    expect(page.locator(".reply del")).to_have_text(["a reply"])
    expect(page.locator(".reply ins")).to_have_text(["better 0"])
    expect(page.locator(".message del, .message ins")).to_have_count(0)  # the same prompt
    # The parts are the whole texts, what is common is the same on both sides, and as long as possible.
    longest = """async (pairs) => {
        const { differences } = await import("/diff.js");
        return pairs.map(([one, other]) => differences(one, other).map(parts => [
            parts.map(part => part.text).join(""), parts.filter(part => part.common).map(part => part.text).join("")]));
    }"""
    chance = random.Random(0)
    pairs = [
        ["".join(chance.choices(["a ", "b ", "c\n"], k=chance.randrange(14))) for _ in range(2)] for _ in range(300)
    ]
    pairs.append(["x ".join(map(str, range(5_000))), "y ".join(map(str, range(5_000)))])  # too many differences
    for pair, ((one, kept), (other, kept_too)) in zip(pairs, page.evaluate(longest, pairs), strict=True):
        assert [one, other] == pair
        assert kept == kept_too
        if len(one) < 100:
            assert len(kept) // 2 == common_length(one[::2], other[::2]), pair


def common_length(one: str, other: str) -> int:
    """Return the length of a longest common subsequence."""
    row = [0] * (len(other) + 1)
    for letter in one:
        before, row = row, [0]
        for index, its in enumerate(other):
            row.append(before[index] + 1 if its == letter else max(row[index], before[index + 1]))
    return row[-1]


def test_a_report_has_the_images_and_the_theme_without_storage(page: Page, tmp_path: Path) -> None:
    pixels = np.zeros((7, 5, 3), np.uint8)
    save_episodes(tmp_path / "run" / "test.jsonl", [episode(0, observation={"text": "a page", "image": pixels})])
    write_report([tmp_path / "run"], tmp_path / "report.html")
    # A frame without storage, as pages of artifacts are often shown.
    (tmp_path / "frame.html").write_text('<iframe sandbox="allow-scripts" width=900 height=900 src="report.html">')
    page.route("http://files.test/*", lambda route: route.fulfill(path=tmp_path / route.request.url.split("/")[-1]))
    page.goto("http://files.test/frame.html")
    report = page.frame_locator("iframe")
    report.locator("a.row-link").click()
    expect(report.locator("img.screenshot")).to_have_js_property("naturalWidth", 5)
    expect(report.locator("#left-out")).to_have_count(0)
    report.locator("#theme").click()
    expect(report.locator("html")).to_have_attribute("data-theme", re.compile("light|dark"))
