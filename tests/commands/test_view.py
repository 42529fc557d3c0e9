"""`rllm-gym view`: filters select what they say, files are followed, and nothing but the runs can be read."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import signal
import sqlite3
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands.command_line import assert_brief_error, rllm_gym
from commands.view_server import episode, viewing
from hypothesis import example, given
from hypothesis import strategies as st

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.extras import advice_for_missing
from rllm_gym.commands.view import run_files
from rllm_gym.commands.view.episode_index import EpisodeIndex
from rllm_gym.commands.view.run_files import Cursor, FilterError, new_lines, open_runs
from rllm_gym.commands.view.server import ViewServer
from rllm_gym.commands.view.token_text import TokenTexts
from rllm_gym.commands.view.transcript import png, read_transcript
from rllm_gym.core import StopReason
from rllm_gym.engine import load_episodes, save_episodes

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\u202e"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two validations, training episodes with a fault, and metrics."""
    folder = tmp_path / "my-run"
    save_episodes(folder / "episodes" / "validation-000000.jsonl", [episode(n) for n in range(10)])
    save_episodes(folder / "episodes" / "validation-000010.jsonl", [episode(n + 5) for n in range(10)])
    lost = episode(3, stop_reason=StopReason.FAULT, fault="the server is gone")
    save_episodes(folder / "dropped" / "train-000007.jsonl", [lost])
    (folder / "metrics.jsonl").write_text('{"step": 1, "success": 0.5, "tasks": ["a"]}\n')
    return folder


def opened(folder: Path, *paths: Path) -> EpisodeIndex:
    index = EpisodeIndex(folder / "index.sqlite", open_runs(paths)).__enter__()
    index.refresh()
    return index


def test_filters_select_what_a_loop_over_the_episodes_does(tmp_path: Path) -> None:
    chance = random.Random(0)
    found = []
    for number in range(300):
        reason = chance.choice([StopReason.SUCCESS, StopReason.TIMEOUT, StopReason.FAULT])
        fault = "lost" if reason is StopReason.FAULT else None
        found.append(episode(number, task=f"sums/{chance.randrange(40)}%", stop_reason=reason, fault=fault))
    save_episodes(tmp_path / "run" / "episodes" / "validation-000004.jsonl", found[:150])
    save_episodes(tmp_path / "run" / "other.jsonl", found[150:])
    index = opened(tmp_path, tmp_path / "run")
    place = {
        one.episode_id: ("validation" if n < 150 else "other", 4 if n < 150 else None) for n, one in enumerate(found)
    }
    cases: dict[str, tuple[dict[str, list[str]], Any]] = {
        "all": ({}, lambda one: True),
        "task": ({"task": ["/1"]}, lambda one: "/1" in one.task_id),
        "a percent sign is no wildcard": ({"task": ["3%"]}, lambda one: "3%" in one.task_id),
        "two tasks": ({"task": ["/7%", "/9%"]}, lambda one: one.task_id in ("sums/7%", "sums/9%")),
        "reward": ({"reward_min": ["3"], "reward_max": ["12.5"]}, lambda one: 3 <= one.reward <= 12.5),
        "stop": ({"stop": ["timeout", "success"]}, lambda one: one.stop_reason != "fault"),
        "fault": ({"fault": ["1"]}, lambda one: one.fault),
        "no fault, success": ({"fault": ["0"], "success": ["1"]}, lambda one: not one.fault and one.success),
        "group": ({"group": ["sums/5%@1"]}, lambda one: one.group_id == "sums/5%@1"),
        "kind": ({"kind": ["validation"]}, lambda one: place[one.episode_id][0] == "validation"),
        "file": ({"file": ["other.jsonl"], "turns_min": ["1"]}, lambda one: place[one.episode_id][0] == "other"),
        "step": ({"step_max": ["4"], "task": ["1"]}, lambda one: place[one.episode_id][1] == 4 and "1" in one.task_id),
        "tokens": ({"tokens_min": ["3"]}, lambda one: False),
    }
    for name, (filters, wanted) in cases.items():
        expected = {one.episode_id: one for one in found if wanted(one)}
        page = index.episodes(filters, order="-reward", limit=500)
        assert [row["episode"] for row in page["episodes"]] == sorted(
            expected, key=lambda key: -expected[key].reward
        ), name
        assert page["count"] == len(expected), name
        if expected:
            assert page["means"]["reward"] == pytest.approx(statistics.mean(one.reward for one in expected.values()))
    pages = [index.episodes({}, offset=start, limit=70)["episodes"] for start in range(0, 300, 70)]
    assert len({row["episode"] for page in pages for row in page}) == 300
    for wrong in (
        {"reward_min": ["x"]},
        {"success": ["yes"]},
        {"colour": ["1"]},
        {"reward_max": ["nan"]},
        {"run": ["x"]},
    ):
        with pytest.raises(FilterError, match=next(iter(wrong))):
            index.episodes(wrong)


def test_a_search_finds_the_episodes_with_all_words(run: Path, tmp_path: Path) -> None:
    replies = ["The answer is 12.", "the ANSWERS are 12, 13", "x = range(len(words))", "Zoë's café", 'a "b" c', "is 12"]
    found = [episode(n, reply=reply, observation=f"question {n} of café") for n, reply in enumerate(replies)]
    save_episodes(run / "search.jsonl", found)
    row = {"step": 1, "prompt": "a lake", "completion": "down, twelve"}
    (run / "completions.jsonl").write_text(json.dumps(row) + "\n")
    index = opened(tmp_path, run)

    def lines(**filters: str | list[str]) -> list[int]:
        chosen = {name: [value] if isinstance(value, str) else value for name, value in filters.items()}
        return [row["line"] for row in index.episodes({"file": ["search.jsonl"], **chosen})["episodes"]]

    assert lines(reply="answer 12") == [1, 2]
    assert lines(reply="12 answer") == [1, 2]
    assert lines(reply='"answer" 12') == [1]
    assert lines(reply='"answer is"') == lines(reply="answer-is") == [1]
    assert lines(reply='"is answer"') == []
    assert lines(reply="len(wor") == [3]
    assert lines(reply="zoe CAFE") == [4]
    assert lines(text="cafe") == [1, 2, 3, 4, 5, 6]
    assert lines(text="question 3 café") == [4]
    assert lines(reply="question") == []
    assert lines(reply=["zoe", "range"], text="of") == [3, 4]
    assert index.episodes({"reply": ["twel"], "text": ["lake"]})["count"] == 1
    assert index.groups({"reply": ["a reply"]})["count"] == 11
    for wrong in ("", "...", '"', "x " * 21):
        with pytest.raises(FilterError, match="reply"):
            lines(reply=wrong)


@given(st.text(max_size=30) | st.text('ab":*()^{}-+\\0 NEAROND', max_size=30))
@example('" OR reply : a')
@example("a\ud800")
def test_any_query_is_words_and_no_syntax(searched_index: EpisodeIndex, query: str) -> None:
    with contextlib.suppress(FilterError):
        searched_index.episodes({"text": [query], "reply": [query]})


@pytest.fixture(scope="module")
def searched_index(tmp_path_factory: pytest.TempPathFactory) -> EpisodeIndex:
    folder = tmp_path_factory.mktemp("searched")
    save_episodes(folder / "run" / "test.jsonl", [episode(1)])
    return opened(folder, folder / "run")


def test_texts_of_replaced_files_are_not_found_and_are_dropped_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run" / "test.jsonl"
    for number in range(5):
        save_episodes(file, [episode(n, reply=f"version {number}") for n in range(number + 3)])
        index = opened(tmp_path, tmp_path / "run")
        assert index.episodes({"reply": ["version"]})["count"] == number + 3
        assert index.episodes({"reply": [f"version {number - 1}"]})["count"] == 0
    monkeypatch.setattr("rllm_gym.commands.view.episode_index._MAX_DEAD_TEXTS", 4)
    index = opened(tmp_path, tmp_path / "run")
    assert index.episodes({"reply": ["version 4"]})["count"] == 7
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM texts_docsize").fetchone() == (7,)


def test_groups_and_comparisons_are_those_of_the_episodes(run: Path, tmp_path: Path) -> None:
    index = opened(tmp_path, run)
    groups = index.groups({"kind": ["validation"]})
    assert groups["count"] == 10
    first = groups["groups"][0]
    assert (first["group"], first["episodes"], first["step"]) == ("task/0@1", 2, 0)
    assert first["reward"] == pytest.approx(0.25)
    assert first["std"] == pytest.approx(statistics.pstdev([0.0, 0.5]))
    tasks = index.compare(
        ("my-run", "episodes/validation-000000.jsonl"), ("my-run", "episodes/validation-000010.jsonl")
    )
    assert [task["task"] for task in tasks] == [f"task/{n}" for n in range(5)]
    assert [round(task["b"]["reward"] - task["a"]["reward"], 9) for task in tasks] == [0.5] * 5
    with pytest.raises(FilterError, match="nothing"):
        index.compare(("my-run", "nothing"), ("my-run", "nothing"))


def test_a_file_is_followed_while_it_grows_is_replaced_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MAX_LINE_BYTES", 4_000)
    file = tmp_path / "run" / "test.jsonl"
    save_episodes(file, [episode(n) for n in range(3)])
    whole = file.read_bytes()
    index = opened(tmp_path, tmp_path / "run")

    def seen() -> tuple[int, int]:
        index.refresh()
        state = index.state()["runs"]["run"]
        return index.episodes({})["count"], state["bad"]

    assert seen() == (3, 0)
    version = index.state()["version"]
    assert seen() == (3, 0)
    assert index.state()["version"] == version
    file.write_bytes(whole + whole[:100])  # a line in progress
    assert seen() == (3, 0)
    file.write_bytes(
        whole + whole + b'{"a": 1}\n[1, 2]\nnonsense\n' + b"x" * 9_000 + b"\n" + b"[" * 2_000 + b"\n" + whole
    )
    assert seen() == (9, 5)
    assert [line["line"] for line in index.bad_lines()] == [7, 8, 9, 10, 11]
    assert "9,001 bytes" in index.bad_lines()[3]["reason"]
    assert index.state()["version"] != version
    with opened(tmp_path, tmp_path / "run") as again:  # another process: from the index, not from the files
        assert again.episodes({})["count"] == 9
    save_episodes(
        file, [episode(n) for n in range(4)]
    )  # replaced by a longer one, then in place by one of equal length
    assert seen() == (4, 0)
    file.write_bytes(file.read_bytes().replace(b'"reward":0.', b'"reward":9.'))
    os.utime(file, (0, 1))  # the clock of the file system can be too coarse
    assert seen() == (4, 0)
    assert index.episodes({})["means"]["reward"] > 6
    # Only the first line, so that the last bytes are the same; read by another process.
    file.write_bytes(file.read_bytes().replace(b'"reward":9.', b'"reward":8.', 1))
    os.utime(file, (0, 2))
    with opened(tmp_path, tmp_path / "run") as again:
        assert again.episodes({"reward_max": ["8.9"]})["count"] == 1
    file.unlink()
    assert seen() == (0, 0)


def test_metrics_are_sent_once_and_again_only_after_a_resume(run: Path, tmp_path: Path) -> None:
    file = run / "metrics.jsonl"
    with viewing(tmp_path, [run]) as viewer:
        first = viewer.ask("metrics", ("run", "my-run"))
        assert first["rows"] == [{"step": 1.0, "success": 0.5}]
        with file.open("a") as metrics:
            metrics.write('{"step": 2, "success": NaN, "loss": 1}\nnonsense\n[]\n{"success": 1}\n{"step": 3, "lo')
        second = viewer.ask("metrics", ("run", "my-run"), ("cursor", first["cursor"]))
        assert second["rows"] == [{"step": 2.0, "loss": 1.0}]
        assert second["bad"] == [3, 4, 5]
        assert not second["restarted"]
        file.write_text('{"step": 1, "success": 0.25}\n')
        third = viewer.ask("metrics", ("run", "my-run"), ("cursor", second["cursor"]))
        assert third["restarted"]
        assert third["rows"] == [{"step": 1.0, "success": 0.25}]


def test_only_this_machine_and_this_page_are_answered(run: Path, tmp_path: Path) -> None:
    with viewing(tmp_path, [run]) as viewer:
        viewer.indexed()
        for host in ("evil.test", "127.0.0.1.evil.test", "evil.test:7860", "[::2]", "["):
            assert viewer.request("/", Host=host)[0] in (400, 403), host
            assert viewer.request("/api/state", Host=host)[0] in (400, 403), host
        assert viewer.request("/api/state", Host="localhost:1234")[0] == 200  # through a tunnel
        assert viewer.request("/api/state", Sec_Fetch_Site="cross-site")[0] == 403
        assert viewer.request("/", Sec_Fetch_Site="cross-site")[0] == 200  # a link
        assert viewer.request("/api/state", method="POST")[0] == 405
        for path in ("/", "/app.js", "/api/state", "/api/nothing", "/api/episodes?colour=1", "/api/export"):
            headers = viewer.request(path)[1]
            assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'"), path
            assert headers["X-Content-Type-Options"] == "nosniff", path


def test_nothing_outside_of_the_runs_can_be_read(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    save_episodes(secret, [episode(1, reply="the secret")])
    (run / "episodes" / "link.jsonl").symlink_to(secret)
    (run / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "secret": 2}\n')
    (run / "metrics.jsonl").symlink_to(tmp_path / "metrics.jsonl")
    with viewing(tmp_path, [run]) as viewer:
        state = viewer.indexed()
        assert viewer.ask("metrics", ("run", "my-run"))["rows"] == []
        assert all("link" not in file["name"] for file in state["runs"]["my-run"]["files"])
        for file in (
            "../secret.jsonl",
            str(secret),
            "episodes/link.jsonl",
            "episodes/../../secret.jsonl",
            "metrics.jsonl",
        ):
            path = f"/api/transcript?run=my-run&line=1&file={file}"
            assert viewer.request(path)[0] == 404, file
        for path in ("/../../../etc/passwd", "/%2e%2e/__init__.py", "/server.py", "/page/app.js", "/static/app.js"):
            assert viewer.request(path)[0] == 404, path
        assert b"secret" not in viewer.request("/api/export")[2]
        for path in (
            *("episodes?limit=501", "episodes?offset=-1", "episodes?order=reward;drop", "metrics?run=other"),
            *(
                "groups?task=x" + "&task=x" * 1_001,
                "state?version=x",
                "metrics?run=my-run&cursor=1",
                "transcript?run=my-run",
                "transcript?run=my-run&file=a&line=1e9",
            ),
        ):
            status, _, body = viewer.request(f"/api/{path}")
            assert status == 400, path
            assert b"Traceback" not in body


def test_the_export_of_a_selection_is_its_lines(run: Path, tmp_path: Path) -> None:
    with viewing(tmp_path, [run]) as viewer:
        viewer.indexed()
        status, headers, body = viewer.request("/api/export?success=1&kind=validation")
        assert status == 200
        assert "attachment" in headers["Content-Disposition"]
        (tmp_path / "export.jsonl").write_bytes(body)
        exported = list(load_episodes(tmp_path / "export.jsonl"))
        saved = [
            one for name in ("000000", "000010") for one in load_episodes(run / "episodes" / f"validation-{name}.jsonl")
        ]
        assert exported == [one for one in saved if one.success]
        # A file that has changed since it was indexed: no torn lines.
        (run / "episodes" / "validation-000000.jsonl").write_text("x" * 9_000)
        body = viewer.request("/api/export?success=1&kind=validation")[2]
        assert [json.loads(line)["episode_id"] for line in body.splitlines()] == [
            one.episode_id for one in saved[10:] if one.success
        ]


def test_a_transcript_has_what_is_recorded_and_says_what_is_not(run: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    shown = episode(1, observation={"text": "the page", "image": pixels}, advantages=(0.5, -1.0))
    save_episodes(run / "shown.jsonl", [shown, episode(2, reply=HOSTILE)])
    with viewing(tmp_path, [run], _tokenizer(tmp_path)) as viewer:
        viewer.indexed()
        place = [("run", "my-run"), ("file", "shown.jsonl")]
        first, second = (viewer.ask("transcript", *place, ("line", n)) for n in (1, 2))
        step = first["trajectories"][0]["steps"][0]
        assert step["tokens"]["texts"] == ["<s>", "what", " is", "</s>"]
        assert step["tokens"]["control"] == [0, 3]
        assert (step["tokens"]["context"], step["tokens"]["logprobs"]) == (2, [-0.5, -2.0])
        assert (step["tokens"]["advantages"], step["tokens"]["version"]) == ([0.5, -1.0], 3)
        assert (step["messages"], step["images"]) == ([{"role": "user", "text": "the page"}], [0])
        assert step["observation"] is None  # the same text
        assert second["trajectories"][0]["steps"][0]["tokens"]["advantages"] is None
        assert second["trajectories"][0]["steps"][0]["reply"] == HOSTILE
        status, headers, body = viewer.request("/api/image?run=my-run&file=shown.jsonl&line=1&n=0")
        assert (status, headers["Content-Type"]) == (200, "image/png")
        assert viewer.request("/api/image?run=my-run&file=shown.jsonl&line=1&n=1")[0] == 404
    image = pytest.importorskip("PIL.Image")
    assert (np.asarray(image.open(io.BytesIO(body))) == pixels).all()
    assert png(pixels) == body


def _tokenizer(folder: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "Ġis": 6, "what": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_completions_of_training_are_episodes_of_one_turn(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    row = {
        "step": 3,
        "task": "t/1",
        "group": "t/1@2",
        "prompt": "1 + 1",
        "completion": "2",
        "reward": 1.0,
        "success": True,
    }
    (folder / "completions.jsonl").write_text(json.dumps(row) + "\n")
    with viewing(tmp_path, [folder]) as viewer:
        viewer.indexed()
        (found,) = viewer.ask("episodes", ("step_min", 3), ("kind", "completions"))["episodes"]
        assert (found["task"], found["group"], found["reward"]) == ("t/1", "t/1@2", 1.0)
        shown = viewer.ask("transcript", ("run", "run"), ("file", "completions.jsonl"), ("line", 1))
        step = shown["trajectories"][0]["steps"][0]
        assert (step["messages"][0]["text"], step["reply"], step["tokens"]) == ("1 + 1", "2", None)


def test_results_of_an_evaluation_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "replies.txt").write_text("down\nright\n")
    (tmp_path / "others.txt").write_text("right\n")
    models = [word for name in ("replies", "others") for word in ("--model.path", f"scripted:{tmp_path}/{name}.txt")]
    shown = rllm_gym("eval", "rllm/FrozenLake-v0", *models, "--limit", "3", "--output", str(tmp_path / "out"))
    assert shown.returncode == 0, shown.stderr
    with viewing(tmp_path, [tmp_path / "out"]) as viewer:
        (found,) = viewer.ask("results")["runs"]
        results, comparisons = found["tables"]
        assert results["columns"][:4] == ["environment", "model", "tasks", "pass@1 [95% CI]"]
        assert [row[0] for row in results["rows"]] == ["rllm/FrozenLake-v0"] * 2
        files = [file["name"] for file in viewer.indexed()["runs"]["out"]["files"]]
        assert sorted(results["files"]) == sorted(files)  # to which the rows lead
        assert "p" in comparisons["columns"]
        assert found["notices"][0].startswith("rllm/FrozenLake-v0: none known")
        for damaged in (
            "{",
            "[]",
            '{"results": [1], "comparisons": []}',
            '{"results": [], "comparisons": [{"env": 1}]}',
        ):
            (tmp_path / "out" / "results.json").write_text(damaged)
            assert "cannot be read" in viewer.ask("results")["runs"][0]["error"]
        (tmp_path / "out" / "results.json").unlink()
        (tmp_path / "out" / "results.json").symlink_to(tmp_path / "replies.txt")
        assert viewer.ask("results") == {"runs": []}


NAMES = [
    *("__rllm__", "value", "role", "content", "new", "as_before", "ids", "context_ids"),
    *("logprobs", "type", "text", "dtype", "shape"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({"__rllm__": "array"}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)


@given(
    json_values,
    st.sampled_from(["observation", "messages", "response", "action", "info", "tokens", "reward", "steps", ""]),
)
@example({"__rllm__": "array", "dtype": "O", "shape": [1], "value": "AAAA"}, "observation")
@example({"__rllm__": "set", "value": [[1]]}, "info")
@example({"__rllm__": "float", "value": 10**400}, "observation")
@example({"__rllm__": "array", "dtype": "(1,f8", "shape": [1], "value": ""}, "action")
@example({"ids": [1], "context_ids": [10**400, "x"], "logprobs": [10**400]}, "tokens")
def test_any_json_in_a_line_is_shown_in_some_way(value: Any, field: str) -> None:
    step = {"response": "r", field: value}
    steps = value if field == "steps" else [step, value, step]
    row = {"task_id": "t", "reward": value, "info": value, "trajectories": [value, {"steps": steps}]}
    shown = read_transcript(json.dumps(row).encode(), lambda turns: [[""] * len(ids) for _, ids in turns], {1})
    json.dumps(shown.page, allow_nan=False)


def test_the_arguments_are_checked(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("x")
    cases = {
        ("nothing",): "nothing does not exist",
        ("empty",): "no output of a run in empty",
        ("note.txt",): "not a .jsonl file",
        ("my-run", "./my-run"): "given twice",
        ("my-run", "--port", "70000"): "--port 70000",
        ("my-run", "--tokenizer", "empty"): "tokenizer.json",
    }
    for words, message in cases.items():
        assert_brief_error(rllm_gym("view", *words, cwd=tmp_path), message)
    with viewing(tmp_path, [run]) as viewer:
        port = viewer.url.rpartition(":")[2]
        used = rllm_gym("view", "my-run", "--port", port, "--index", str(tmp_path / "i.sqlite"), cwd=tmp_path)
        assert_brief_error(used, f"--port {port} is in use")


def test_the_process_serves_until_ctrl_c(run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rllm_gym", "view", str(run), "--port", "0", "--index", str(tmp_path / "i.sqlite")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split(" at ")[1].split()[0]
            with urllib.request.urlopen(f"{url}api/state", timeout=60) as response:
                assert set(json.load(response)["runs"]) == {"my-run"}
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=120)[1] == ""
        finally:
            process.kill()
    assert process.returncode == 0


def test_indexing_stops_when_the_viewer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_gym.commands.view.episode_index._BATCH_BYTES", 1)
    save_episodes(tmp_path / "run" / "test.jsonl", [episode(n) for n in range(40)])
    index = EpisodeIndex(tmp_path / "index.sqlite", open_runs([tmp_path / "run"]))
    with index:
        read = index._read

        def read_and_end(*words: Any) -> bool:
            ending.start()
            while not index._closed:
                pass
            return read(*words)

        ending = threading.Thread(target=index.__exit__)
        monkeypatch.setattr(index, "_read", read_and_end)
        index.refresh()
        ending.join()
        assert index.episodes({})["count"] == 1


def test_a_missing_extra_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'aiohttp>=3.10; extra == "{extra}"' for extra in ("openai", "view")]
    monkeypatch.setattr("rllm_gym.commands.extras.requires", lambda name: lines)
    assert advice_for_missing("aiohttp", command="view") == "pip install 'rllm-gym[view]'"
    assert advice_for_missing("aiohttp", command="eval") == "pip install 'rllm-gym[openai]'"


def test_runs_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("a/run", "b/run"):
        save_episodes(tmp_path / name / "test.jsonl", [episode(1)])
    runs = open_runs([tmp_path / "a/run", tmp_path / "b/run", tmp_path / "b/run/test.jsonl"])
    assert [one.name for one in runs] == ["run", "b/run", "test.jsonl"]
    assert opened(tmp_path, tmp_path / "b/run/test.jsonl").episodes({})["count"] == 1


def test_a_damaged_index_is_made_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "rllm-gym").mkdir()
    index = EpisodeIndex(None, open_runs([run]))
    path = index._path
    path.write_bytes(b"no database " * 400)
    with index:
        index.refresh()
        assert index.episodes({})["count"] == 21
        size = path.stat().st_size
        with path.open("r+b") as file:  # all pages but the first
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        with pytest.raises(sqlite3.DatabaseError):
            index.episodes({})
        index.refresh()
        assert index.episodes({})["count"] == 21
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_no_index_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes " * 99)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.sqlite")) as db:
        db.execute("CREATE TABLE files(id INTEGER)")
    contents = {name: (tmp_path / name).read_bytes() for name in ("notes.txt", "other.sqlite")}
    for name in (*contents, "my-run"):
        with pytest.raises(CommandError, match=f"{name} cannot be used as the index.*--index FILE"):
            EpisodeIndex(tmp_path / name, open_runs([run])).__enter__()
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


def test_files_are_listed_once_per_refresh_and_not_followed_out_of_a_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_episodes(tmp_path / "secret.jsonl", [episode(1)])
    index = opened(tmp_path, run)
    monkeypatch.setattr("rllm_gym.commands.view.episode_index.episode_files", None)
    state = index.state()
    assert [file["episodes"] for file in state["runs"]["my-run"]["files"]] == [1, 10, 10]
    assert "files" not in index.state(state["version"])["runs"]["my-run"]
    name = "episodes/validation-000000.jsonl"
    assert index.location("my-run", name, 1) is not None
    assert len(index.locations({"file": [name]})) == 10
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "secret.jsonl")
    assert index.location("my-run", name, 1) is None
    assert index.locations({"file": [name]}) == []


def test_a_failed_refresh_fails_one_request() -> None:
    class Index:
        def __init__(self) -> None:
            self.asked, self.failed = threading.Event(), threading.Event()

        def refresh(self) -> bool:
            raise sqlite3.OperationalError("database or disk is full")

        def state(self, known: int | None = None) -> dict[str, Any]:
            self.asked.set()
            self.failed.wait(60)
            return {}

    index = Index()
    server = ViewServer([], index, TokenTexts())  # type: ignore[arg-type]

    async def ask_twice() -> Any:
        first = asyncio.create_task(server._state({}))
        await asyncio.to_thread(index.asked.wait, 60)
        try:
            with pytest.raises(sqlite3.OperationalError):
                await server._state({})
        finally:
            index.failed.set()
        return await first

    assert asyncio.run(ask_twice()) == {"indexing": False}


@given(st.lists(st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"")), max_size=9), st.integers(1, 30))
def test_lines_are_read_once_whatever_the_pieces(lines: list[bytes], piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, content = Path(folder) / "x", b"".join(line + b"\n" for line in lines)
        found, cursor = [], Cursor()
        for end in [*range(0, len(content), piece), len(content)]:
            with path.open("ab") as file:
                file.write(content[file.tell() : end])
            new, cursor, restarted = new_lines(path, Cursor.parse(str(cursor)), 5)
            found += new
            assert not restarted
        while new_lines(path, cursor, 5)[0]:
            new, cursor, _ = new_lines(path, cursor, 5)
            found += new
    assert [line.content for line in found] == [line + b"\n" for line in lines]
    assert [line.number for line in found] == list(range(1, len(lines) + 1))
