"""A user's package or module called ``trainers``, in the current folder, on PYTHONPATH or in site-packages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys\nfrom rllm_gym.commands.main import main\nsys.exit(main())\n"  # as pip writes it


@pytest.fixture(params=["package", "module"])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a research project that has trainers of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    if request.param == "package":
        (folder / "trainers").mkdir()
        (folder / "trainers" / "__init__.py").write_text("raise SystemExit('the wrong trainers')\n")
    else:
        (folder / "trainers.py").write_text("raise SystemExit('the wrong trainers')\n")
    return folder


def run(folder: Path, *arguments: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": path}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("way", ["script", "module", "python_path"])
def test_the_command_line_works_in_the_folder(project: Path, tmp_path: Path, way: str) -> None:
    script = tmp_path / "bin" / "rllm-gym"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    start = ["-m", "rllm_gym"] if way == "module" else [str(script)]
    path = f".{os.pathsep}{ROOT}" if way == "python_path" else str(ROOT)
    result = run(project, *start, "merge", "--help", path=path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "adapter" in result.stdout


def found_in(project: Path) -> Path:
    return next(project.glob("trainers*/__init__.py"), project / "trainers.py")


def test_where_it_comes_first_the_error_names_both_paths(project: Path, tmp_path: Path) -> None:
    result = run(tmp_path, "-m", "rllm_gym", "train", path=f"{project}{os.pathsep}{ROOT}")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert f"{found_in(project)} instead of rllm-gym's {ROOT / 'trainers' / '__init__.py'}" in result.stderr


def test_agent_trainer_names_both_paths(project: Path) -> None:
    result = run(project, "-c", "from rllm_gym.compat import AgentTrainer")
    assert f"{found_in(project)} instead of rllm-gym's {ROOT / 'trainers' / '__init__.py'}" in result.stderr


def test_an_installed_package_that_overwrote_ours_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "trainers").mkdir(parents=True)
    (site / "rllm_gym").symlink_to(ROOT / "rllm_gym")
    for package in ("rllm_gym", "their_trainers"):
        metadata = site / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "RECORD").write_text("trainers/__init__.py,,\n")
    (site / "trainers" / "__init__.py").write_text("THEIRS = True\n")
    result = run(tmp_path, "-c", "from rllm_gym.compat import AgentTrainer", path=str(site))
    assert f"{site / 'trainers' / '__init__.py'} is not rllm-gym's" in result.stderr, result.stderr
    assert "their_trainers" in result.stderr


def test_other_trainers_without_a_file_are_named(tmp_path: Path) -> None:
    """A module in a zip archive, and one without a spec, as tests of other projects put it into ``sys.modules``."""
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("trainers/__init__.py", "")
    program = "from rllm_gym.compat import AgentTrainer"
    result = run(tmp_path, "-c", program, path=f"{tmp_path / 'theirs.zip'}{os.pathsep}{ROOT}")
    assert f"{tmp_path / 'theirs.zip' / 'trainers' / '__init__.py'} instead of rllm-gym's" in result.stderr
    with_module = "import sys, types; sys.modules['trainers'] = types.ModuleType('trainers'); "
    result = run(tmp_path, "-c", with_module + program)
    assert "finds a module that was created at run time instead of rllm-gym's" in result.stderr, result.stderr
