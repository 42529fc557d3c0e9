"""`rllm-gym eval --run` evaluates as the run was validated; SIGTERM leaves what is finished, and --resume continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands.command_line import assert_brief_error, only_result, rllm_gym

from rllm_gym.engine import load_episodes
from tests.waiting import until
from trainers import commands
from trainers.tiny_model import make_tiny_model

ROWS = [{"prompt": f"say a letter {n}", "answer": str(n)} for n in range(60)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval-run")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    make_tiny_model(folder / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    words = ["--dataset", str(folder / "rows.jsonl"), "--reward", "envs.own_rewards:letters", "--steps", "1"]
    words += ["--env.kwargs.success_at", "0.1", "--env.validation-kwargs.success_at", "0.5"]
    words += ["--env.agent-kwargs.system_prompt", "Be brief."]
    words += ["--model.path", str(folder / "tiny"), "--sampling.max-tokens", "3", "--sampling.temperature", "0.7"]
    words += ["--algorithm.group-size", "2", "--validation", "none", "--no-progress", "--output", str(folder / "run")]
    assert commands.train(words) == 0
    return folder / "run"


def test_a_run_is_evaluated_with_its_own_settings(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "episodes.jsonl"
    shown = rllm_gym("eval", "--run", str(run), "--json", "--output", str(output))
    assert shown.returncode == 0, shown.stderr
    result = only_result(shown.stdout)
    assert (result["env"], result["split"], result["model"]) == ("rllm/Dataset-v0", "test", str(run / "model"))
    assert result["faults"] == {}
    steps = [episode.trajectories[0].steps[0] for episode in load_episodes(output)]
    assert {len(step.tokens.ids) for step in steps if step.tokens is not None} == {3}
    assert {step.chat_completions[0]["content"] for step in steps} == {"Be brief."}
    config = json.loads(output.with_suffix(".manifest.json").read_text())["config"]
    assert (config["temperature"], config["env_kwargs"]["success_at"]) == (0.7, 0.5)

    changed = ("--sampling.max-tokens", "2", "-k", "success_at=2", "--split", "train", "--limit", "2")
    assert rllm_gym("eval", "--run", str(run), *changed, "--output", str(output)).returncode == 0
    episodes = list(load_episodes(output))
    assert {len(episode.trajectories[0].steps[0].tokens.ids) for episode in episodes} == {2}  # type: ignore[union-attr]
    assert not any(episode.success for episode in episodes)


def test_what_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    assert_brief_error(rllm_gym("eval"), "ENV is missing")
    assert_brief_error(rllm_gym("eval", "rllm/Math-v0"), "--model.path is missing")
    assert_brief_error(rllm_gym("eval", "--run", str(tmp_path)), "no manifest.json", "output folder of a training run")
    config = json.loads((run / "manifest.json").read_text())["config"]
    (tmp_path / "manifest.json").write_text(json.dumps({"config": config}))
    assert_brief_error(rllm_gym("eval", "--run", str(tmp_path)), "has no final model", "best_model")
    config["env"]["id"] = "given"
    (tmp_path / "manifest.json").write_text(json.dumps({"config": config}))
    assert_brief_error(rllm_gym("eval", "--run", str(tmp_path)), "ENV is missing", "as an object")
    assert_brief_error(rllm_gym("eval", "rllm/Math-v0", "--model.path", "x", "--resume"), "--resume needs --output")


ENV = """
import os, threading
import gymnasium
from rllm_gym.core import Outcome, TextEnv
from rllm_gym.data import Taskset

class Stuck(TextEnv):
    '''Steps of the last three tasks never end, if STUCK is set.'''

    def __init__(self):
        rows = [{"question": f"task {index}", "index": index} for index in range(8)]
        super().__init__(tasks=Taskset.from_rows(rows), max_turns=1)

    def _begin(self, task):
        return task.content

    def _act(self, reply):
        if os.environ.get("STUCK") and self.task.data["index"] >= 5:
            threading.Event().wait()
        return Outcome("", {"done": 1.0}, terminated=True, success=self.task.data["index"] % 2 == 0)

gymnasium.register("test/Stuck-v0", entry_point=Stuck)
"""


def test_sigterm_leaves_what_is_finished_and_resume_does_the_rest(tmp_path: Path) -> None:
    (tmp_path / "stuck_env.py").write_text(ENV)
    (tmp_path / "replies.txt").write_text("x\n")
    output = tmp_path / "out" / "episodes.jsonl"
    command = ["eval", "stuck_env:test/Stuck-v0", "--model.path", f"scripted:{tmp_path}/replies.txt", "--json"]
    command += ["--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STUCK": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "rllm_gym", *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: process.poll() is not None or (output.exists() and output.read_bytes().count(b"\n") == 5))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "stopped after 5 of 8 episodes; continue with the same command and --resume" in err
    report: dict[str, Any] = json.loads(out)
    first = report["results"][0]
    assert (first["episodes"], report["complete"], first["pass"]["1"]["value"]) == (5, False, pytest.approx(0.6))

    kept = output.read_text()
    with open(output, "a") as file:
        file.write('{"schema')  # a process that is killed may leave this
    changed = rllm_gym(*command, "--resume", "--seed", "1", cwd=tmp_path)
    assert_brief_error(changed, "was written with seed=[0], not [1]")
    resumed = rllm_gym(*command, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    result = only_result(resumed.stdout)
    assert (result["episodes"], json.loads(resumed.stdout)["complete"], result["pass"]["1"]["value"]) == (8, True, 0.5)
    assert output.read_text().startswith(kept)
    assert [episode.group_id for episode in load_episodes(output)] == [str(index) for index in range(8)]
