"""Both ends of the supported range of Gymnasium work: all other tests use the newest, these the oldest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST = "1.2.0"
SOME = ["rllm/FrozenLake-v0", "rllm/ToolMath-v0"]


def test_the_other_tests_use_the_newest_gymnasium():
    assert tuple(map(int, gymnasium.__version__.split(".")[:2])) > (1, 2)


def test_some_environments_work_with_the_oldest():
    """With Gymnasium alone in a folder before all others on the path, and everything else as installed here."""
    name, folder = f"gymnasium=={OLDEST}", ROOT / ".venvs" / f"gymnasium-{OLDEST}-alone"
    build_once(folder, [[sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, name]], name)
    play(sys.executable, SOME, [folder, ROOT])


@pytest.mark.long
def test_every_environment_works_with_the_oldest():
    """In an environment with the base dependencies, the extras `mcp`, `search` and `swe`, and the oldest Gymnasium."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [f"gymnasium=={OLDEST}", *(name for name in project["dependencies"] if not name.startswith("gymnasium"))]
    wanted += [name for extra in ("mcp", "search", "swe") for name in project["optional-dependencies"][extra]]
    folder = ROOT / ".venvs" / f"gymnasium-{OLDEST}"
    python = folder / "bin" / "python"
    steps = [[sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", *wanted]]
    # Recreated when the dependencies change.
    build_once(folder, steps, hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest())
    play(python, [], [ROOT])


def build_once(folder: Path, steps: list[list[Any]], fingerprint: str) -> None:
    """Fill the folder, which is kept, unless an earlier run did so for the same fingerprint and finished."""
    ready = folder / "ready"
    if ready.is_file() and ready.read_text() == fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    for step in steps:
        result = subprocess.run(step, capture_output=True, text=True, timeout=1100, check=False)
        if result.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"gymnasium {OLDEST} cannot be installed: {step}: {result.stderr[-500:]}")
    ready.write_text(fingerprint)


def play(python: Any, env_ids: list[str], path: list[Path]) -> None:
    result = subprocess.run(
        [python, Path(__file__).with_name("oldest_gymnasium.py"), OLDEST, *env_ids],
        # The code under test is this checkout, whatever is installed.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 failed" in result.stdout
