"""What belongs to a release is consistent, and `make release` makes no tag of something that is not ready."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rllm_gym import __version__

ROOT = Path(__file__).resolve().parents[2]


def released(folder: Path, **environment: str) -> str:
    """Run the release script, which must fail, and return what it says."""
    script, variables = str(folder / "scripts" / "release.sh"), {**os.environ, **environment}
    result = subprocess.run([script], capture_output=True, text=True, timeout=240, env=variables)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stderr


def test_the_first_heading_of_the_changelog_is_the_version() -> None:
    (first, *_) = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(__version__)}, (unreleased|20\d\d-\d\d-\d\d)", first)


def test_the_page_of_tested_versions_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "tested_with.py")]
    page = subprocess.run(script, capture_output=True, text=True, timeout=240, check=True).stdout
    assert (ROOT / "docs" / "tested-with.md").read_text() == page, "run `make docs`"
    assert "| torch |" in page


def test_what_is_not_ready_gets_no_tag(tmp_path: Path) -> None:
    for name in ("scripts/release.sh", "rllm_gym/version.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, timeout=240)

    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("## 9.9.9, unreleased\n")
    assert f"has {__version__}" in released(tmp_path)
    changelog.write_text(f"## {__version__}, unreleased\n")
    assert "write the date of the release" in released(tmp_path, TAG="1")
    changelog.write_text(f"## {__version__}, 2026-01-31\n")
    git("init", "-q")
    assert "uncommitted changes" in released(tmp_path, TAG="1")
    git("add", "-A")
    git("commit", "-qm", "x")
    git("tag", f"v{__version__}")
    assert "exists: raise the version" in released(tmp_path, TAG="1")
    git("tag", "-d", f"v{__version__}")
    assert "the build failed" in released(tmp_path, TAG="1", BUILD_PYTHON="false")
    tags = subprocess.run(["git", "tag"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240).stdout
    assert tags == ""


def test_a_wheel_whose_commands_fail_is_no_release(tmp_path: Path) -> None:
    for name in ("scripts/release.sh", "rllm_gym/version.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def script(name: str, lines: str) -> str:
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    build = script("build", f"mkdir dist; touch dist/rllm_gym-{__version__}-py3-none-any.whl")
    # A Python whose environments have a `rllm-gym` that fails, and in which everything else succeeds.
    script("rllm-gym", "exit 1")
    script("pip", "exit 0")
    make_venv = f"mkdir -p $3/bin; cd {tmp_path}; cp rllm-gym $3/bin; cp pip $3/bin/python"
    python = script("python", f'[ "$2" = venv ] || exit 0; {make_venv}')
    assert "the wheel does not work with" in released(tmp_path, BUILD_PYTHON=build, PYTHONS=python)
