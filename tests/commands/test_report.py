"""`rllm-gym report`: the page shows the run, loads nothing, and any model output in it remains text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands.command_line import assert_brief_error, rllm_gym, rllm_gym_process
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rllm_gym.commands.report.charts import Series, format_value, line_chart, nice_ticks
from rllm_gym.commands.report.page import render_page
from rllm_gym.commands.report.run_files import EvaluationRow, RunData, Transcript, TranscriptTurn, read_run
from rllm_gym.core import Episode, Step, StopReason, Trajectory
from rllm_gym.engine import save_episodes

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\u202e"
VOID = {"meta", "img", "br", "line", "circle", "path", "link", "input"}


class Page(HTMLParser):
    """The tags, attributes and text of a page; checks that it is well formed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def episode(task: str, *, success: bool, observation: str = "a board", reply: str = "down") -> Episode:
    step = Step(
        observation=observation, model_response=reply, reward=float(success), info={"invalid_action": not success}
    )
    return Episode(
        f"{task}#{success}",
        task,
        env_id="rllm/FrozenLake-v0",
        trajectories=[Trajectory(steps=[step], reward=float(success))],
        reward=float(success),
        success=success,
        stop_reason=StopReason.SUCCESS if success else StopReason.FAILURE,
    )


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    folder.mkdir()
    rows = [{"step": 0, "validation/success": 0.2}]
    rows += [{"step": step, "success": step / 50, "policy/entropy": 1 / step, "tasks": ["a"]} for step in range(1, 41)]
    rows[-1]["validation/success"] = 0.9
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "succ')
    (folder / "manifest.json").write_text(
        json.dumps({"config": {"env": {"id": "rllm/FrozenLake-v0"}}, "seeds": {"run": 7}})
    )
    table = [
        {"name": "before", "kind": "model", "measures": {"success": {"value": 0.242, "low": 0.2, "high": 0.3}}},
        {"name": "after", "kind": "model", "measures": {"success": {"value": 0.934, "low": 0.9, "high": 0.96}}},
        {"name": "oracle", "kind": "reference", "measures": {"success": 1.0}},
    ]
    (folder / "evaluation.json").write_text(json.dumps({"title": "My title", "rows": table}))
    save_episodes(folder / "before.jsonl", [episode(f"t{index}", success=index == 3) for index in range(6)])
    save_episodes(folder / "after.jsonl", [episode(f"t{index}", success=index > 0) for index in range(6)])
    return folder


def test_the_page_shows_the_run(run_folder: Path) -> None:
    result = rllm_gym_process("report", str(run_folder), "--transcripts", "5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(run_folder / "report.html")
    page = Page((run_folder / "report.html").read_text())
    for words in ("My title", "24.2%", "93.4%", "oracle", "Entropy", "rllm/FrozenLake-v0", '"run": 7', "a board"):
        assert words in page.text
    assert "could not be read" in page.text  # the torn last line is reported
    tasks = [
        attributes
        for tag, attributes in page.tags
        if tag == "details" and "task" in (attributes["class"] or "").split()
    ]
    assert [attributes["data-change"] for attributes in tasks] == ["unsolved", "gained", "gained", "solved", "gained"]


def test_the_page_loads_nothing_and_only_its_own_script_may_run(run_folder: Path) -> None:
    html = render_page(read_run(run_folder, transcripts=5))
    page = Page(html)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert page.count("script") == 1
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert not {"src", "href", "srcset", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import|https?://", html)


def test_hostile_text_from_any_source_stays_text(tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, HOSTILE: 1.0}) + "\n" + json.dumps({"step": 2, HOSTILE: 2.0})
    )
    (folder / "manifest.json").write_text(
        json.dumps({"created": HOSTILE, "config": {"env": HOSTILE}, HOSTILE: HOSTILE})
    )
    row = {"name": HOSTILE, "kind": HOSTILE, "measures": {HOSTILE: {"value": 0.5, "low": 0.1, "high": 0.9}}}
    (folder / "evaluation.json").write_text(json.dumps({"title": HOSTILE, "rows": [row]}))
    reported = episode(HOSTILE, success=True, observation=HOSTILE, reply=HOSTILE)
    reported.env_id = HOSTILE
    save_episodes(folder / "before.jsonl", [reported])
    page = Page(render_page(read_run(folder, transcripts=5)))
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert page.text.count("<script>alert(1)</script>") >= 5
    assert "\x00" not in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


texts = st.text(st.characters(), max_size=60)


@settings(max_examples=60, deadline=None)
@given(observation=texts, reply=texts, name=texts, task=texts)
@example(observation="<pre>", reply="]]>", name="--><script>", task="{{")
def test_any_text_gives_the_same_tags(observation: str, reply: str, name: str, task: str) -> None:
    def page(observation: str, reply: str, name: str, task: str) -> list[str]:
        run = RunData("run", title="t", curves={f"x{name}": [(0.0, 0.0), (1.0, 1.0)]})
        turn = TranscriptTurn(f"o{observation}", f"r{reply}", 0.0, False)
        run.transcripts["before"] = [Transcript(f"t{task}", "", (turn,), 0.0, False, "failure")]
        run.evaluation = [EvaluationRow(f"n{name}", "model", {"success": (0.5, None, None)})]
        return [tag for tag, _ in Page(render_page(run)).tags]

    assert page(observation, reply, name, task) == page("", "", "", "")


def test_damaged_files_are_skipped_and_the_rest_is_shown(run_folder: Path) -> None:
    lines = [
        "[]", "null", "nonsense", "{}", '{"step": "x"}', '{"step": 1, "success": NaN}', '{"step": 1, "success": 1e999}',
        '{"step": 1, "success": ' + "9" * 400 + "}", "[" * 100_000, '{"step": {"a": 1}}', '{"step": 1, "a": {"b": {}}}',
    ]  # fmt: skip
    complete = {name: (run_folder / name).read_text() for name in ("metrics.jsonl", "before.jsonl")}
    for line in lines:
        for name, text in complete.items():
            (run_folder / name).write_text(f"{line}\n{text}")
        (run_folder / "manifest.json").write_text(line)
        run = read_run(run_folder, transcripts=5)
        assert run.curves["success"][-1] == (40.0, 0.8), line
        assert len(run.transcripts["before"]) == 5, line
        assert "93.4%" in Page(render_page(run)).text, line


def test_a_training_run_shows_its_first_and_last_validation(tmp_path: Path) -> None:
    for step in (0, 10, 110):
        save_episodes(tmp_path / "episodes" / f"validation-{step:06d}.jsonl", [episode("t", success=step > 0)])
    assert list(read_run(tmp_path, transcripts=3).transcripts) == ["after 0 steps", "after 110 steps"]


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "x": 1}\n{"step": 1, "x": 5}\n{"step": 2, "x": 3}\n')
    assert read_run(tmp_path, transcripts=0).curves["x"] == [(1.0, 5.0), (2.0, 3.0)]


def test_an_hour_long_run_stays_a_small_page() -> None:
    run = RunData(
        "long",
        curves={
            name: [(float(s), s % 7) for s in range(50_000)] for name in ("success", "reward/mean", "policy/entropy")
        },
    )
    assert len(render_page(run)) < 600_000


def test_invalid_arguments_are_one_line_errors(tmp_path: Path) -> None:
    assert_brief_error(rllm_gym("report", str(tmp_path / "nothing")), "nothing")
    assert_brief_error(rllm_gym("report", str(tmp_path)), "metrics.jsonl")


numbers = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=80))
def test_every_point_of_a_chart_is_inside_it(values: list[float]) -> None:
    svg = line_chart([Series("x", [(float(step), value) for step, value in enumerate(values)], True)])
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', svg):
        assert 0 <= float(x) <= 640
        assert 0 <= float(y) <= 250


@given(numbers, numbers, st.integers(2, 9))
@example(0.0, 5e-324, 3)
@example(1e9, 1e9 + 1e-6, 5)
def test_axis_ticks_cover_the_range_and_are_few(one: float, other: float, count: int) -> None:
    low, high = sorted((one, other))
    ticks = nice_ticks(low, high, count)
    span = ticks[-1] - ticks[0]
    assert ticks == sorted(ticks)
    assert ticks[0] <= low + 1e-6 * span
    assert ticks[-1] >= high - 1e-6 * span
    assert 2 <= len(ticks) <= 2 * count + 3


def test_numbers_are_formatted_for_readers() -> None:
    written: dict[Any, str] = {0: "0", 0.5: "0.5", 1234: "1234", 12345: "12.3k", 2.5e6: "2.5M", 0.0001: "1e-4"}
    assert {value: format_value(value) for value in written} == written
