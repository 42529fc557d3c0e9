"""The manifest records what is needed to identify a run later."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from rllm_gym.engine import write_manifest


@dataclass(frozen=True)
class Config:
    steps: int = 3
    path: Path = Path("model")


def test_the_manifest_names_versions_configuration_seeds_hardware_and_commit(tmp_path: Path) -> None:
    path = tmp_path / "run" / "manifest.json"
    written = write_manifest(path, config=Config(), seeds={"run": 7}, extra={"note": "x"})
    manifest = json.loads(path.read_text())
    assert manifest == json.loads(json.dumps(written))
    assert manifest["packages"]["gymnasium"] == gymnasium.__version__
    assert manifest["packages"]["rllm-gym"]
    assert manifest["config"]["steps"] == 3
    assert manifest["seeds"] == {"run": 7}
    assert manifest["sandbox_tier"] == "none"
    assert manifest["extra"] == {"note": "x"}
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["hardware"]["memory_gb"] > 0
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        assert manifest["git"]["commit"] == commit.stdout.strip()
    assert [entry.name for entry in path.parent.iterdir()] == ["manifest.json"]
