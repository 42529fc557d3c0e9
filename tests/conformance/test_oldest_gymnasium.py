"""Both ends of the supported range of Gymnasium work: the newest runs everywhere else, the oldest here."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium
import pytest

ROOT = Path(__file__).resolve().parents[2]
OLDEST = "1.2.0"


@pytest.fixture(scope="module")
def oldest_python() -> Path:
    """One with the base dependencies, the extra `mcp` and the oldest Gymnasium; made once, kept beside the checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [f"gymnasium=={OLDEST}", *(name for name in project["dependencies"] if not name.startswith("gymnasium"))]
    wanted += project["optional-dependencies"]["mcp"]
    folder = ROOT / ".venvs" / f"gymnasium-{OLDEST}"
    python = folder / "bin" / "python"
    # Made anew when the dependencies change, and when an earlier attempt did not finish.
    fingerprint = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()
    ready = folder / "ready"
    if not (ready.is_file() and ready.read_text() == fingerprint):
        shutil.rmtree(folder, ignore_errors=True)
        steps = [[sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", "-q", *wanted]]
        for step in steps:
            result = subprocess.run(step, capture_output=True, text=True, timeout=280, check=False)
            if result.returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"gymnasium {OLDEST} cannot be installed: {' '.join(step[2:6])}: {result.stderr[-500:]}")
        ready.write_text(fingerprint)
    return python


def test_the_newest_is_what_the_other_tests_use():
    assert tuple(map(int, gymnasium.__version__.split(".")[:2])) > (1, 2)


def test_every_environment_works_with_the_oldest(oldest_python):
    result = subprocess.run(
        [oldest_python, Path(__file__).with_name("oldest_gymnasium.py"), OLDEST],
        # The code under test is this checkout, whatever is installed.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 failed" in result.stdout
