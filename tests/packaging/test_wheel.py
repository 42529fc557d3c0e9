"""The wheel in an environment that contains only the base dependencies of rllm-gym, without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        importlib.metadata.version("hatchling")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("hatchling is not installed, so no wheel can be built offline (make setup installs it)")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(build, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment with the wheel and its declared base dependencies only."""
    return installed(wheel, tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def with_cli(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of one with the extra ``cli``."""
    return installed(wheel, tmp_path_factory.mktemp("cli"), extra="cli")


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """Return the Python of a new environment in ``folder`` with the wheel and the closure of its dependencies.

    The dependencies are links to the ones installed here: a real ``pip install`` would need the network.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    for name in closure([line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")], extra):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            link, target = site / top, Path(str(distribution.locate_file(top)))
            if not link.exists() and target.exists():
                link.symlink_to(target)
    return python


def closure(requirements: list[str], extra: str = "") -> set[str]:
    """Return the names of all distributions that these requirements lead to, including extras."""
    found: set[str] = set()
    done: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), wanted) for text in requirements for wanted in {"", extra}]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.add(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in done:
                done.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in importlib.metadata.requires(name) or []]
    return found


def run(python: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(python), *arguments], input=stdin, capture_output=True, text=True, timeout=240, cwd="/", env=environment
    )


def test_the_wheel_contains_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "rllm_gym/py.typed" in names
    assert {f"rllm_gym/commands/view/page/{name}" for name in ("index.html", "view.css", "app.js")} <= names
    assert any(name.startswith("rllm_gym/commands/templates/") for name in names)
    assert any(name.startswith("trainers/recipes/") and name.endswith(".yaml") for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/", "examples/", "docs/")) for name in names)


def test_the_package_is_imported_from_the_wheel(empty: Path) -> None:
    result = run(empty, "-c", "import rllm_gym, importlib.util as u; print(rllm_gym.__file__, u.find_spec('torch'))")
    assert result.returncode == 0, result.stderr
    file, torch = result.stdout.split()
    assert Path(file).is_relative_to(empty.parents[1])
    assert torch == "None"


PLAYED = """
import gymnasium as gym
ids = "FrozenLake-v0 FrozenLake-Slippery-v0 FrozenLake8x8-v0 Math-v0 MathMultiTurn-v0".split()
for name in ids:
    env = gym.make(prefix + "rllm/" + name)
    env.reset(seed=0)
    env.step("\\\\boxed{\\\\frac{1}{2}} ```down```")
    env.close()
print("played", len(ids))
"""
GRADED = r"""
from rllm_gym.grading import grade_math
assert grade_math(r"\boxed{\frac{2}{4}}", "0.5").correct
assert not grade_math(r"\boxed{x^2 + 2x + 2}", "(x+1)^2").correct
print("graded")
"""


def test_every_environment_is_made_and_played_without_torch(empty: Path) -> None:
    """With the module before the id."""
    result = run(empty, "-c", f"prefix = 'rllm_gym:'{PLAYED}")
    assert result.returncode == 0, result.stderr
    assert "played 5" in result.stdout


def test_after_an_import_the_ids_are_known_and_math_is_graded_without_torch(empty: Path) -> None:
    result = run(empty, "-c", f"import rllm_gym; prefix = ''{PLAYED}{GRADED}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["played", "5", "graded"]


# Runs the commands of a JSON list in one process; prints a JSON list of [status, stdout, stderr].
SEVERAL = """
import contextlib, io, json, sys
from rllm_gym.commands.main import main
ends = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = main(command)
        except SystemExit as end:
            status = end.code
    ends.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(ends))
"""


def test_the_commands_work_without_torch(with_cli: Path, tmp_path: Path) -> None:
    result = run(with_cli, "-m", "rllm_gym", "play", "rllm/FrozenLake-v0", "--seed", "0", stdin="up\n")
    assert "turn 1" in result.stdout
    (tmp_path / "replies.txt").write_text("up\n")
    commands = [
        ["list"],
        ["eval", "rllm/FrozenLake-v0", "--model.path", f"scripted:{tmp_path / 'replies.txt'}", "--limit", "4"],
        ["train"],
        ["eval", "rllm/FrozenLake-v0", "--model.path", "some/model"],
        ["new-env", "word_chain", "--dir", str(tmp_path)],
    ]
    result = run(with_cli, "-c", SEVERAL, json.dumps(commands))
    assert result.returncode == 0, result.stderr
    listed, evaluated, train, model, written = json.loads(result.stdout)
    assert "rllm/Math-v0" in listed[1], listed
    assert "pass@1" in evaluated[1], evaluated
    assert (train[0], "rllm-gym[train]" in train[2]) == (2, True), train
    assert (model[0], "rllm-gym[train]" in model[2]) == (2, True), model
    assert written[0] == 0, written
    assert (tmp_path / "word_chain").is_dir()


PROGRESS = """
import asyncio
import rllm_gym
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.samplers import ScriptedSampler
async def main():
    sampler = ScriptedSampler(["up"], cycle=True)
    async with AgentExecutionEngine("rllm/FrozenLake-v0", sampler=sampler, progress=True) as engine:
        async for episode in engine.stream([0]):
            print(episode.stop_reason)
try:
    asyncio.run(main())
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_rich_what_needs_it_names_the_extra(empty: Path) -> None:
    result = run(empty, "-c", SEVERAL, json.dumps([["list"], ["doctor"], ["eval", "rllm/Math-v0"]]))
    assert result.returncode == 0, result.stderr
    for status, _, error in json.loads(result.stdout):
        assert (status, "pip install 'rllm-gym[cli]'" in error) == (2, True), error
    result = run(empty, "-c", PROGRESS)
    assert "progress=True needs rich: pip install 'rllm-gym[cli]'" in result.stdout, result.stdout + result.stderr


UNTESTABLE = r"""
import gymnasium as gym
from rllm_gym.sandbox import SandboxPool
from rllm_gym.grading.code import FunctionTests, grade_program_sync
tests = FunctionTests("f", "def test_f(): assert f() == 1", "pytest")
with SandboxPool("unsafe") as pool:
    env = gym.make("rllm_gym:rllm/SWE-v0", sandbox=pool)
    for use in (lambda: env.reset(seed=0), lambda: grade_program_sync(pool, "def f(): return 1", tests)):
        try:
            use()
        except ModuleNotFoundError as error:
            print(error)
"""


def test_without_pytest_the_tasks_that_need_it_name_the_extra(empty: Path) -> None:
    result = run(empty, "-c", UNTESTABLE)
    assert result.stdout.count("pip install 'rllm-gym[swe]'") == 2, result.stdout + result.stderr
