"""What the tests of a project need is found in its metadata, and installed as of the date of a commit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rllm_gym.core import TaskError
from rllm_gym.envs.swe import environment
from rllm_gym.envs.swe.build_outputs import entry_points
from rllm_gym.envs.swe.environment import _interpreters, environment_for
from rllm_gym.envs.swe.requirements import read_requirements


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


PYPROJECT = """
[project]
name = "Half.s"
requires-python = ">=3.9,<3.13"
dependencies = ["click>=8", "typing-extensions; python_version < '3.11'"]
classifiers = ["Programming Language :: Python :: 3.11"]
[project.optional-dependencies]
tests = ["half-s[fast]", "hypothesis==6.1.0"]
fast = ["orjson (>=3.6)"]
docs = ["sphinx"]
yaml = ["pyyaml"]
[dependency-groups]
dev = [{include-group = "base"}, "mypy", "pytest-timeout>=2", "pytest-mypy", "pytest-checkdocs>=2"]
base = ["freezegun", {include-group = "dev"}]
[tool.hatch.envs.test]
dependencies = ["pytest-mock"]
[tool.pytest.ini_options]
asyncio_mode = "auto"
"""


def test_all_places_of_a_pyproject_are_read(tmp_path: Path) -> None:
    found = read_requirements(write(tmp_path, pyproject_DOT_toml=PYPROJECT))
    assert (found.name, found.python, found.minors) == ("half-s", ">=3.9,<3.13", {11})
    assert set(found.needed) == {
        "pytest>=7", "click>=8", "typing-extensions; python_version < '3.11'", "orjson>=3.6", "hypothesis", "freezegun",
        "pytest-timeout>=2", "pytest-mock", "pytest-asyncio",
    }  # fmt: skip
    assert {"orjson>=3.6", "pyyaml"} <= set(found.optional)
    assert "sphinx" not in found.optional


def test_older_metadata_is_read(tmp_path: Path) -> None:
    setup = (
        "REQUIRES = ['six', 'attrs>=20']\nfrom setuptools import Extension, setup\nEXTENSION = Extension(name='_c')\n"
    )
    setup += (
        "setup(name='halves', install_requires=REQUIRES, extras_require={'test': ['mock']}, version=open('x').read())\n"
    )
    tox = (
        "[testenv]\ndeps =\n    -r{toxinidir}/requirements/tests.txt\n    py27: ipaddress\n    {env:X}\nextras = yaml\n"
    )
    root = write(
        tmp_path, setup_DOT_py=setup, tox_DOT_ini=tox, requirements__tests_DOT_txt="-r base.txt\ncoverage # for cov\n",
        requirements__base_DOT_txt="trio==0.1 --hash=sha256:00 \\\n  --hash=sha256:11\nlxml\n",
    )  # fmt: skip
    found = read_requirements(root)
    assert found.name == "halves"
    assert {"six", "attrs>=20", "mock", "coverage", "trio", "lxml"} <= set(found.needed)
    other = tmp_path / "other"
    cfg = "[metadata]\nname = other\n[options]\ninstall_requires =\n    idna\n"
    cfg += "[options.extras_require]\ntesting =\n    nose2\n"
    poetry = '[tool.poetry.dependencies]\npython = "^3.8"\nrich = "^13"\ntoml = {version = "*", optional = true}\n'
    poetry += '[tool.poetry.group.dev.dependencies]\npoetry-own = {path = "."}\nresponses = "~0.2"\n'
    found = read_requirements(write(other, setup_DOT_cfg=cfg, pyproject_DOT_toml=poetry))
    assert set(found.needed) == {"pytest>=7", "idna", "nose2", "rich>=13", "responses>=0.2"}
    assert (found.optional, found.python) == (("toml",), "^3.8")


HOSTILE = [
    "--index-url https://evil.example", "-e .", "../other", "/etc/passwd", "git+https://x/y", "a @ file:///etc",
    "a @ https://x/y.whl", "$(touch x)", "a; touch x && b", "a>=1\n--pre",
    "--extra-index-url=x a", "a>=1 --config-settings=x", "a --config-settings=x",
]  # fmt: skip


def test_only_plain_requirements_reach_the_installer(tmp_path: Path) -> None:
    lines = json.dumps(HOSTILE)
    (tmp_path / "outside.txt").write_text("secret-package\n")
    root = write(tmp_path / "tree", pyproject_DOT_toml=f'[project]\nname = "../x"\ndependencies = {lines}\n')
    included = ["-r ../outside.txt", "-r link.txt", "-r requirements.txt"]
    (root / "requirements.txt").write_text("\n".join([*(line for line in HOSTILE if "\n" not in line), *included]))
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    found = read_requirements(root)
    assert (found.name, found.needed, found.optional) == ("", ("pytest>=7",), ())


def test_malformed_metadata_is_ignored(tmp_path: Path) -> None:
    for text in ("[", "a = " + "[" * 100_000, "[project]\ndependencies = 7\nname = 3\n", "\0"):
        root = write(
            tmp_path, pyproject_DOT_toml=text, setup_DOT_cfg=text, setup_DOT_py=text + "(" * 50_000, tox_DOT_ini=text
        )
        assert read_requirements(root).needed == ("pytest>=7",)
        assert entry_points(root).strip() in ("", "[console_scripts]")


UV = """#!{python}
import json, os, subprocess, sys
with open({log!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "venv":
    sys.exit(subprocess.run([{python!r}, "-m", "venv", "--without-pip", sys.argv[-1]]).returncode)
sys.exit(sys.argv[2] == "install" and any(word.startswith("broken") for word in sys.argv))
"""


def test_an_environment_is_created_once_and_as_of_the_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    uv = write(tmp_path / "bin", uv=UV.format(python=sys.executable, log=str(log))) / "uv"
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = '[project]\nname = "half-s"\nversion = "3.1"\ndependencies = ["click"]\n'
    config += '[project.scripts]\nhalf = "json:dumps"\n'
    config += "[project.entry-points.pytest11]\nhalf = 'pkg.plugin'\n"
    root = write(tmp_path / "tree", pyproject_DOT_toml=config)
    place = environment_for(root, "2030-05-04")
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    install = next(call for call in calls if call[:2] == ["pip", "install"])
    assert install[install.index("--exclude-newer") + 1] == "2030-05-04"
    assert install[install.index("--") + 1 :] == ["pytest>=7", "click"]
    assert "--compile-bytecode" in install  # every run in the sandbox would do it again
    assert calls[-1][:2] == ["pip", "uninstall"]
    assert calls[-1][-1] == "half-s"
    ask = "import importlib.metadata as m\n"
    ask += "print(m.version('half-s'), *[point.name for point in m.entry_points(group='pytest11')])"
    done = subprocess.run([place / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "3.1 half\n"
    assert (place / "bin" / "half").read_text().startswith(f"#!{place}/bin/python\n")
    assert environment_for(root, "2030-06-20") == place  # of the same quarter
    assert len(log.read_text().splitlines()) == len(calls)
    fixed = write(tmp_path / "fixed", pyproject_DOT_toml=config.replace('"click"', '"Click>=8", "rich"'))
    environment_for(root, "2030-05-04", fixed=fixed)  # a dependency that came with the commit
    install = [call for call in map(json.loads, log.read_text().splitlines()) if call[:2] == ["pip", "install"]][-1]
    assert install[install.index("--") + 1 :] == ["pytest>=7", "Click>=8", "rich"]
    calls = log.read_text().splitlines()
    (place / ".complete").unlink()  # as if its creation had been interrupted
    assert environment_for(root, "2030-05-04") == place
    assert len(log.read_text().splitlines()) > len(calls)


def test_an_interpreter_with_which_the_sandbox_does_not_start_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(environment, "_run", lambda command: (0, ""))
    _interpreters.cache_clear()
    try:
        found = _interpreters()
    finally:
        _interpreters.cache_clear()
    assert sorted(found) == [10, 11, 12, 13, 14]


def test_an_interpreter_of_pyenv_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minor = next(minor for minor in (12, 13) if minor != sys.version_info.minor)
    bin_of = tmp_path / "home" / ".pyenv" / "versions" / f"3.{minor}.1" / "bin"
    bin_of.mkdir(parents=True)
    (bin_of / f"python3.{minor}").symlink_to(sys.executable)
    log = tmp_path / "log"
    uv = write(tmp_path / "bin", uv=UV.format(python=sys.executable, log=str(log))) / "uv"
    uv.chmod(0o755)
    # As pyenv does with a version that is not selected.
    stand_in = write(uv.parent, **{f"python3_DOT_{minor}": "#!/bin/sh\nexit 127\n"}) / f"python3.{minor}"
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = f"[project]\nname = 'a'\nrequires-python = '>=3.{minor},<3.{minor + 1}'\n"
    _interpreters.cache_clear()
    try:
        environment_for(write(tmp_path / "tree", pyproject_DOT_toml=config), "2026-01-01")
    finally:
        _interpreters.cache_clear()
    assert str(bin_of / f"python3.{minor}") in json.loads(log.read_text().splitlines()[0])


@pytest.mark.parametrize("known", [True, False])
def test_pip_installs_as_of_the_date_if_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    calls: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str]:
        calls.append(command)
        if command[1:4] == ["-m", "venv", "--without-pip"]:
            subprocess.run([sys.executable, *command[1:]], check=True)
        if command[1:3] == ["-m", "venv"]:
            Path(command[-1]).mkdir(exist_ok=True)
        unknown = not known and "--uploaded-prior-to" in command
        return (2, "no such option: --uploaded-prior-to") if unknown else (0, "")

    monkeypatch.setattr(environment, "_run", run)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = environment_for(write(tmp_path / "tree", requirements_DOT_txt="click\n"), "2030-05-04")
    environment_for(write(tmp_path / "other", requirements_DOT_txt="attrs\n"), "2030-05-04")
    installs = [call for call in calls if call[-1] == "click"]
    own = [str(place.parent / "pip" / "bin" / "python"), "-m", "pip"]
    assert [call for call in calls if call[-1] == "pip"] == [[*own, "install", "-q", "--upgrade", "pip"]]  # once
    assert installs == [
        [
            *own,
            "--python",
            str(place / "bin" / "python"),
            "install",
            "-q",
            *(["--uploaded-prior-to", "2030-05-04"] if known else []),
            "--",
            "pytest>=7",
            "click",
        ]
    ]


def test_what_cannot_be_installed_is_reported_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = write(tmp_path / "bin", uv=UV.format(python=sys.executable, log=str(tmp_path / "log"))) / "uv"
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = write(tmp_path / "tree", requirements_DOT_txt="click\nbroken-package\nlxml\n")
    reported: list[str] = []
    environment_for(root, "2020-01-01", reported.append)
    assert [line for line in reported if "broken-package" in line] == [
        "broken-package cannot be installed; tests that need it are not listed"
    ]
    last = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()][-1]
    assert last[last.index("--") + 1 :] == ["pytest>=7", "click", "lxml"]
    uv.write_text("#!/bin/sh\necho no space left on device; exit 1\n")
    write(root, requirements_DOT_txt="other\n")
    with pytest.raises(TaskError, match="no space left"):
        environment_for(root, "2020-01-01")
