"""`rllm-gym report`: one file of limited size that loads nothing, and in which no text of an episode is HTML."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands.command_line import assert_brief_error, rllm_gym, rllm_gym_process
from commands.view_server import episode

from rllm_gym.commands.view.report import write_report
from rllm_gym.engine import save_episodes

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\u202e\ud800"


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data_of(page: str) -> dict[str, Any]:
    content = re.findall(r'<script id="data" type="application/octet-stream">([A-Za-z0-9+/=]+)</script>', page)
    assert len(content) == 1
    data = json.loads(gzip.decompress(base64.b64decode(content[0])))
    assert isinstance(data, dict)
    return data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    hostile = episode(1, task=HOSTILE, reply=HOSTILE, observation=HOSTILE, env_id=HOSTILE, fault=HOSTILE)
    save_episodes(folder / "episodes" / "validation-000000.jsonl", [episode(n) for n in range(10)] + [hostile])
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, HOSTILE: 1.0}) + '\n{"step": 2, "succ')
    (folder / "manifest.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    row = {"name": HOSTILE, "kind": HOSTILE, "measures": {HOSTILE: {"value": 0.5, "low": 0.1, "high": 0.9}}}
    (folder / "evaluation.json").write_text(json.dumps({"title": HOSTILE, "rows": [row]}))
    return folder


def test_the_file_loads_nothing_and_has_no_text_of_an_episode_as_html(run: Path) -> None:
    result = rllm_gym_process("report", str(run))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(run / "report.html")
    page = (run / "report.html").read_text()
    tags = Tags(page).found
    policy = next(a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert [tag for tag, _ in tags if tag in ("script", "style")] == ["style", "script", "script"]
    for tag, attributes in tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert not {"src", "href", "srcset", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(\"|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "alert" not in page
    data = data_of(page)
    assert len(data["rows"]) == len(data["transcripts"]) == 11
    assert data["transcripts"][10]["trajectories"][0]["steps"][0]["reply"] == HOSTILE
    assert data["leftOut"] == []
    assert str(run.parent) not in json.dumps(data)


@pytest.mark.parametrize("max_bytes", [100_000, 400_000])
def test_the_size_is_limited_and_the_page_says_what_is_left_out(tmp_path: Path, max_bytes: int) -> None:
    folder = tmp_path / "run"
    rows = [{"step": step, **{f"metric/{n}": step / 7 for n in range(40)}} for step in range(3_000)]
    (folder / "episodes").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in range(3):
        group = [episode(n, task=f"task/{n // 4}", reply=f"{n} " * 300) for n in range(400)]
        save_episodes(folder / "episodes" / f"validation-{step:06d}.jsonl", group)
    save_episodes(folder / "episodes" / "train-000001.jsonl", [episode(n) for n in range(400)])
    write_report([folder], tmp_path / "report.html", max_bytes=max_bytes)
    data = data_of((tmp_path / "report.html").read_text())
    assert len(json.dumps(data, separators=(",", ":"))) < 1.1 * max_bytes
    last = {name: value for row in data["metrics"]["run"]["rows"] for name, value in row.items()}
    assert last["metric/39"] == pytest.approx(2_999 / 7, rel=1e-5)
    shown = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    # The first groups of each file, so that tasks can be compared, and as many of both kinds.
    files = {row["file"]: [one["task"] for one in shown if one["file"] == row["file"]] for row in shown}
    assert len(files) == 4
    assert all(tasks[:12] == [f"task/{n // 4}" for n in range(12)] for name, tasks in files.items() if "val" in name)
    kinds = [row["kind"] for row in shown]
    assert abs(kinds.count("train") - kinds.count("validation")) <= 1 or kinds.count("train") == 400
    assert 0 < sum(one is not None for one in data["transcripts"]) < len(shown) < 1_600
    assert [part.split(" of ")[0] for part in data["leftOut"]] == [
        "points", f"{1_600 - len(shown):,}", "the transcripts",
    ]  # fmt: skip


def test_an_episode_that_is_too_long_is_listed_without_its_transcript(tmp_path: Path) -> None:
    long = episode(0, reply="x" * 60_000)
    save_episodes(tmp_path / "run" / "test.jsonl", [long, episode(1)])
    write_report([tmp_path / "run"], tmp_path / "report.html", max_bytes=200_000)
    data = data_of((tmp_path / "report.html").read_text())
    assert [one is not None for one in data["transcripts"]] == [False, True]
    assert data["leftOut"] == ["the transcripts of 1 of the 2 episodes listed"]


def test_damaged_files_are_skipped_and_the_rest_is_written(run: Path, tmp_path: Path) -> None:
    lines = [
        "[]", "null", "nonsense", "{}", '{"step": "x"}', '{"step": 1, "success": NaN}', '{"step": 1, "success": 1e999}',
        '{"step": 1, "success": ' + "9" * 400 + "}", "[" * 100_000, '{"step": {"a": 1}}', '{"step": 1, "a": {"b": {}}}',
    ]  # fmt: skip
    for name in ("metrics.jsonl", "episodes/validation-000000.jsonl"):
        (run / name).write_text("".join(f"{line}\n" for line in lines) + (run / name).read_text())
    for line in lines:
        for name in ("manifest.json", "evaluation.json", "results.json"):
            (run / name).write_text(line)
        write_report([run], tmp_path / "report.html")
        data = data_of((tmp_path / "report.html").read_text())
        assert len(data["rows"]) == 11
        assert data["state"]["runs"]["my-run"]["bad"] == len(lines)
        assert {"step": 1.0, HOSTILE: 1.0} in data["metrics"]["my-run"]["rows"]


def test_invalid_arguments_are_one_line_errors(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_brief_error(rllm_gym("report", str(tmp_path / "nothing")), "nothing does not exist")
    assert_brief_error(rllm_gym("report", str(tmp_path / "empty")), "no output of a run")
    assert_brief_error(rllm_gym("report", str(run), "--max-mb", "0"), "--max-mb 0")
