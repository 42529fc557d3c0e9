"""The manifest of a run records the sandbox tier of environments that execute programs of the model."""

from __future__ import annotations

import json
from pathlib import Path

from commands.command_line import rllm_gym

from rllm_gym.sandbox.probe import choose
from trainers.train_env import TrainEnv, sandbox_tier_of


def test_the_environment_reports_its_confinement_tier() -> None:
    def no_agent() -> None: ...

    assert sandbox_tier_of(TrainEnv("rllm/Code-v0", no_agent, [])) == choose("auto").value  # type: ignore[arg-type]
    assert sandbox_tier_of(TrainEnv("rllm/FrozenLake-v0", no_agent, [])) == "none"  # type: ignore[arg-type]


def test_an_evaluation_records_the_sandbox_tier(tmp_path: Path) -> None:
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps("```python\nprint(1)\n```") + "\n")
    output = tmp_path / "episodes.jsonl"
    done = rllm_gym(
        "eval", "rllm/Code-v0", "--model.path", f"scripted:{replies}", "--limit", "1", "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads(output.with_suffix(".manifest.json").read_text())
    assert manifest["sandbox_tier"] == choose("auto").value
