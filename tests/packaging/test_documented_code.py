"""Code shown to newcomers runs as it is shown."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/writing-an-environment.md", "docs/workflows.md", "docs/training.md", "docs/fine-tuning.md"],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    if page == "README.md":
        assert code.count("\n") > 30
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    if page == "README.md":
        assert "Answer with one move" in result.stdout
        assert (tmp_path / "runs" / "vowels" / "model" / "config.json").is_file()


SHOWN = sorted(
    path
    for room in ("rllm_gym", "trainers")
    for path in ROOT.glob(f"{room}/**/*.py")
    # The repositories that rllm/SWE-v0 is played in are no modules of ours.
    if ">>> " in path.read_text() and not path.is_relative_to(ROOT / "rllm_gym/envs/swe/repositories")
)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_docstring_shows_is_what_comes_out(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/training.md", "docs/fine-tuning.md", "CONTRIBUTING.md", "docs/writing-an-environment.md"],
)
def test_every_option_in_a_shown_command_exists(page: str) -> None:
    shown = " ".join(blocks(page, "sh")).replace("\\\n", " ")
    used: dict[str, set[str]] = {}
    for line in shown.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["rllm-gym"]:
            used.setdefault(words[1], set()).update(word for word in words if re.fullmatch(r"--?[a-z][\w.-]*", word))
    for command, options in used.items():
        result = subprocess.run(
            [sys.executable, "-m", "rllm_gym.commands.main", command, "--help"],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": "300"},
        )
        assert result.returncode == 0
        for option in options:
            assert option in result.stdout, f"rllm-gym {command} has no {option}"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "docs/environments.md"):
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE):
            assert target in targets


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_test_that_is_named_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for file in re.findall(r"`(tests/[\w/]+\.py)", page.read_text()):
            assert (ROOT / file).is_file(), f"{page.name}: {file}"
