"""`rllm-gym eval` with several models, environments and seeds: one call, one file of options, one table."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from commands.command_line import assert_brief_error, only_result, rllm_gym
from gymnasium.envs.registration import EnvSpec
from samplers.hostile_endpoint import HostileEndpoint, answer

from rllm_gym.commands.eval_options import file_names, read_options
from rllm_gym.commands.eval_results import as_csv, as_markdown
from rllm_gym.engine import load_episodes
from rllm_gym.engine.metrics import paired_permutation_test
from rllm_gym.envs.frozen_lake.env import FrozenLakeEnv

LAKE, BIG = "rllm/FrozenLake-v0", "rllm/FrozenLake8x8-v0"
SUITE = """
envs:
  - {id: rllm/FrozenLake-v0, kwargs: {size: 3}, limit: 6}
  - {id: rllm/FrozenLake-v0, kwargs: {size: 3, slip_probability: 0.5}}
models: [scripted:down.txt, {path: scripted:right.txt, price: [1, 2]}]
samples: 2
limit: 4
seed: [0, 7]
shuffle: true
sampling: {temperature: 0.5}
max_turns: 6
output: out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "down.txt").write_text("down\nright\n")
    (tmp_path / "right.txt").write_text("right\ndown\nright\n")
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


def test_a_file_describes_models_environments_and_seeds(folder: Path) -> None:
    shown = rllm_gym("eval", "--config", "suite.yaml", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    report: dict[str, Any] = json.loads((folder / "out" / "results.json").read_text())
    results = report["results"]
    assert [(one["model"], one["tasks"], one["episodes"]) for one in results] == [
        ("scripted:down.txt", 6, 24), ("scripted:right.txt", 6, 24),
        ("scripted:down.txt", 4, 16), ("scripted:right.txt", 4, 16),
    ]  # fmt: skip
    assert results[0]["env"] != results[2]["env"]
    assert "slip_probability=0.5" in results[2]["env"]
    played = [list(load_episodes(folder / one["output"])) for one in results]
    for one, episodes in zip(results, played, strict=True):
        assert (one["samples"], one["seeds"], one["temperature"]) == (2, [0, 7], 0.5)
        assert one["pass"]["1"]["value"] == pytest.approx(sum(e.success for e in episodes) / len(episodes))
        assert one["mean_reward"]["value"] == pytest.approx(sum(e.reward for e in episodes) / len(episodes))
        assert set(one["pass"]) == {"1", "2", "4"}
        by_seed = one["pass_at_1_by_seed"]
        assert sum(by_seed.values()) / 2 == pytest.approx(one["pass"]["1"]["value"])
        assert one["contamination"].startswith("none known")
    # The tasks are the same for both models, and not the first ones.
    assert {e.task_id for e in played[0]} == {e.task_id for e in played[1]}
    assert sorted(int(e.task_id.rpartition("/")[2]) for e in played[2])[::4] != [0, 1, 2, 3]

    def rates(episodes: list[Any]) -> dict[str, float]:
        return {
            task: sum(e.success for e in episodes if e.task_id == task) / 4 for task in {e.task_id for e in episodes}
        }

    for found, (first, second) in zip(report["comparisons"], (played[:2], played[2:]), strict=True):
        expected = paired_permutation_test(rates(first), rates(second))
        assert (found["model"], found["baseline"]) == ("scripted:right.txt", "scripted:down.txt")
        assert found["success"]["difference"] == pytest.approx(expected.difference)
        assert found["success"]["p_value"] == pytest.approx(expected.p_value)
    rows = list(csv.DictReader((folder / "out" / "results.csv").open()))
    assert [float(row["pass@1"]) for row in rows] == [one["pass"]["1"]["value"] for one in results]
    assert (folder / "out" / "results.md").read_text() == as_markdown(report)
    for word in ("pass@1 [95% CI]", "pass@4", "compared with", "truncated", "contamination: ", "slip_probability=0.5"):
        assert word in shown.stdout


def test_a_suite_is_resumed_and_extended(folder: Path) -> None:
    command = ("eval", LAKE, "--limit", "3", "--output", "out", "--json")
    first = rllm_gym(*command, "--model.path", "scripted:down.txt", cwd=folder)
    assert first.returncode == 0, first.stderr
    (file,) = (folder / "out").glob("*.jsonl")
    before = file.read_bytes()
    models = ("--model.path", "scripted:down.txt", "--model.path", "scripted:right.txt")
    extended = rllm_gym(*command, *models, "--resume", cwd=folder)
    assert extended.returncode == 0, extended.stderr
    assert file.read_bytes() == before
    assert len(list((folder / "out").glob("*.jsonl"))) == 2
    again = rllm_gym(*command, *models, "--resume", "--seed", "0", "--seed", "1", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert {episode.seed for episode in load_episodes(file)} > {
        json.loads(line)["seed"] for line in before.splitlines()
    }
    assert [one["episodes"] for one in json.loads(again.stdout)["results"]] == [6, 6]
    kept = file.read_bytes()
    for words, problem in (
        (["--seed", "2"], "was written with seed=[0, 1], not [2]"),
        (["--seed", "0", "--seed", "1", "--limit", "2"], "2 episodes that --limit 2 and --samples 1 leave out"),
    ):
        assert_brief_error(rllm_gym(*command, *models, "--resume", *words, cwd=folder), problem)
        assert file.read_bytes() == kept


def test_a_higher_limit_adds_tasks_to_a_random_choice(folder: Path) -> None:
    command = ("eval", LAKE, "--model.path", "scripted:down.txt", "--max-turns", "1", "--shuffle", "--output", "out")
    tasks = []
    for words in (["--limit", "6"], ["--limit", "40", "--resume"]):
        grown = rllm_gym(*command, *words, cwd=folder)
        assert grown.returncode == 0, grown.stderr
        (file,) = (folder / "out").glob("*.jsonl")
        tasks.append([episode.task_id for episode in load_episodes(file)])
    assert (len(set(tasks[0])), len(set(tasks[1]))) == (6, 40)
    assert tasks[1][:6] == tasks[0]


def test_what_is_finished_when_the_user_presses_ctrl_c_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    class Interrupted(FrozenLakeEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if options == {"task": 2}:
                os.kill(os.getpid(), signal.SIGINT)
                released.wait(60)
            return super().reset(seed=seed, options=options)

    spec = EnvSpec("test/Interrupted-v0", entry_point=Interrupted)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    command = ("eval", spec.id, "--model.path", "scripted:down.txt", "--parallel", "1", "--output", "out")
    stopped = rllm_gym(*command, cwd=folder)
    released.set()
    assert stopped.returncode == 130
    assert "stopped after 2 of 64 episodes; continue with the same command and --resume" in stopped.stderr
    report = json.loads((folder / "out" / "results.json").read_text())
    assert (report["complete"], report["results"][0]["episodes"]) == (False, 2)


def test_names_are_data_in_every_form(folder: Path) -> None:
    shown = rllm_gym("eval", LAKE, "--model.path", "scripted:down.txt", "--limit", "2", "--json", cwd=folder)
    report = json.loads(shown.stdout)
    report["results"][0]["model"] = "=1+1|<img>![x](http://example.org)\x1b[2J"
    row = next(csv.DictReader(io.StringIO(as_csv(report["results"]))))
    assert row["model"].startswith("'=1+1")
    line = as_markdown(report).splitlines()[2]
    assert line.count(" | ") == 8
    assert all(word not in line for word in ("<img>", "](http", "\x1b"))


def test_a_terminal_that_is_too_narrow_for_the_table_gets_paragraphs(folder: Path) -> None:
    models = ("--model.path", "scripted:down.txt", "--model.path", "scripted:right.txt")
    shown = rllm_gym("eval", LAKE, *models, "--limit", "2", cwd=folder, env={"COLUMNS": "80"})
    assert f"{LAKE} · scripted:right.txt\ntasks 2; pass@1 [95% CI] " in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_all_models_are_checked_before_the_first_one_is_evaluated(folder: Path) -> None:
    models = ("--model.path", "scripted:down.txt", "--model.path", "./nowhere")
    assert_brief_error(rllm_gym("eval", LAKE, *models, "-o", "out", cwd=folder), "./nowhere", "no such folder")
    assert not list((folder / "out").iterdir())


def test_help_is_short_and_help_all_has_the_other_options() -> None:
    pages = [rllm_gym("eval", name, env={"COLUMNS": "100"}).stdout for name in ("--help", "--help-all")]
    assert len(pages[0].splitlines()) <= 50
    assert ["--requests-per-minute" in page for page in pages] == [False, True]
    assert "--help-all" in pages[0]


def test_tokens_and_cost_are_those_that_an_endpoint_reports() -> None:
    reply = {
        "choices": [{"message": {"content": "down"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
    }
    with HostileEndpoint([answer(reply)]) as server:
        command = ("eval", LAKE, "--url", server.url, "--model.path", "m", "--limit", "2", "--max-turns", "2", "--json")
        result = only_result(rllm_gym(*command, "--price", "3", "50").stdout)
    requests = len([received for received in server.received if received.body])
    assert requests >= 2
    assert (result["input_tokens"], result["sampled_tokens"]) == (1000 * requests, 10 * requests)
    assert result["truncated_fraction"] == 1
    assert result["cost"] == pytest.approx((1000 * 3 + 10 * 50) * requests / 1e6)


def test_the_documented_file_is_valid(folder: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (folder / "suite.yaml").write_text(example)
    cells = read_options(["--config", str(folder / "suite.yaml"), "--limit", "5"])
    assert [cell.env for cell in cells] == ["rllm/FrozenLake-v0", "rllm/Math-v0", "rllm/Code-v0"] * 2
    assert [(cell.limit, cell.samples, cell.temperature) for cell in cells[:3]] == [
        (5, 1, 1.0),
        (5, 1, 0.0),
        (5, 10, 1.0),
    ]
    assert [(cell.dtype, cell.url, cell.price) for cell in cells[::3]] == [
        ("bfloat16", None, None),
        (None, "http://localhost:8000/v1", [0.1, 0.4]),
    ]
    assert len(set(file_names(cells))) == 6
    (name,) = file_names(read_options([LAKE, "--model.path", "模" * 300]))
    assert len(name.encode()) < 255
    # Their files stay the same if more is evaluated.
    more = example.replace("limit: 1319", "limit: 20").replace(
        "envs:\n", "envs:\n  - {id: rllm/Math-v0, kwargs: {tasks: math500}}\n"
    )
    (folder / "suite.yaml").write_text(more)
    assert set(file_names(cells)) < set(file_names(read_options(["--config", str(folder / "suite.yaml")])))


def test_mistakes_in_the_file_are_one_line_errors(folder: Path) -> None:
    cases = [
        ("envs: [x", ["suite.yaml cannot be read"]),
        ("- rllm/Math-v0", ["is a list; expected options"]),
        ("env: rllm/Math-v0", ["the list is called `envs`"]),
        ("models: [m]", ["ENV is missing"]),
        ("envs: [rllm/Math-v0]", ["--model.path is missing"]),
        ("{envs: [rllm/Math-v0], models: [m], tasks: 3}", ["suite.yaml", "did you mean --limit?"]),
        ("{envs: [{kwargs: {}}], models: [m]}", ["has no `id`"]),
        ("{envs: [{id: rllm/Math-v0, seed: 1}], models: [m]}", ["'seed' of rllm/Math-v0", "top level"]),
        ("{envs: [{id: rllm/Math-v0, kwargs: 3}], models: [m]}", ["not a mapping of keyword arguments"]),
        ("{envs: [rllm/Math-v0, rllm/Math-v0], models: [m]}", ["rllm/Math-v0 is given twice"]),
        ("{envs: [{id: rllm/Math-v0, limit: 3}, rllm/Math-v0], models: [m]}", ["is given twice"]),
        ("{envs: [rllm/Math-v0, rllm/FrozenLake-v0], models: [m], output: x.jsonl}", ["is one file, but there are 2"]),
        ("{envs: [rllm/Nothing-v0], models: [m]}", ["unknown environment 'rllm/Nothing-v0'"]),
        ("{envs: [rllm/Math-v0], models: [m], seed: [1, 1]}", ["a seed is given twice"]),
        ("{envs: [rllm/Math-v0], models: [m], price: [-1, 2]}", ["'-1' is not a price"]),
    ]
    for text, words in cases:
        (folder / "suite.yaml").write_text(text)
        assert_brief_error(rllm_gym("eval", "--config", "suite.yaml", cwd=folder), *words)
    assert_brief_error(rllm_gym("eval", "--config", "none.yaml", cwd=folder), "none.yaml cannot be read")
