"""Creation of a virtual environment for the tests of a project, from its metadata at one commit.

Only packages from the configured package index are installed; nothing of the project is built or run. Instead, the
environment gets the metadata that an editable installation of the project would leave, so that programs find its
version, its plugins and its commands.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.build_outputs import entry_points, name_and_version, read_toml
from rllm_gym.envs.swe.requirements import ProjectRequirements, normalized, read_requirements
from rllm_gym.sandbox.session_process import WORKDIR

_TIMEOUT_S = 600.0
_OF_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Distributions that pytest needs: they stay installed, even if the project is one of them."""
_DONE = ".complete"
_OLDEST_MINOR, _NEWEST_MINOR = 10, 14
"""Versions of Python 3 with which the sandbox starts."""
_SCRIPT = re.compile(r"^([\w.-]+) *= *([\w.]+):(\w+)", re.MULTILINE)


def environment_for(
    root: Path, date: str, report: Callable[[str], None] = lambda line: None, *, fixed: Path | None = None
) -> Path:
    """Return a virtual environment with the requirements of a project's tests, created once and then reused.

    Packages are as of the commit's date, or of another commit of that quarter. If the package index does not state
    dates, today's are installed. ``uv`` is used if it is on the ``PATH``, otherwise ``pip``. Requirements that cannot
    be installed are reported and left out. Environments are kept in ``$XDG_CACHE_HOME/rllm-gym/environments`` and may
    be removed at any time.

    Args:
        root: The project's tree.
        date: The date of the commit, such as ``2024-05-31``.
        report: Called with one line per step.
        fixed: The tree of the commit, whose requirements may be others than those of ``root``: both are installed.

    Raises:
        TaskError: pytest cannot be installed; the message contains the installer's.
    """
    wanted = read_requirements(root)
    if fixed is not None:
        wanted = _both(wanted, read_requirements(fixed))
    minor, python = _choose_python(wanted, date)
    # A Python needs packages of some months after its release.
    day = max(date, f"{2012 + minor}-06-01")
    name, version = name_and_version(root, read_toml(root / "pyproject.toml"))
    points = entry_points(root)
    key = [wanted.needed, wanted.optional, name, version, points, _quarter(day), minor, shutil.which("uv") is not None]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rllm-gym" / "environments"
    place = caches / f"{wanted.name or 'project'}-{digest}"
    caches.mkdir(parents=True, exist_ok=True)
    with _locked(place.with_suffix(".lock")):
        if not (place / _DONE).exists():
            shutil.rmtree(place, ignore_errors=True)
            report(f"creating an environment of {len(wanted.needed)} requirements for Python 3.{minor}: {place}")
            _create(place, python, wanted, day, report)
            _link(place, name, version, points)
            (place / _DONE).touch()
    return place


def _both(old: ProjectRequirements, new: ProjectRequirements) -> ProjectRequirements:
    """Return the requirements of two trees; if both require a distribution, as the new one does."""

    def joined(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
        known = {_distribution(requirement) for requirement in new}
        return (*new, *(requirement for requirement in old if _distribution(requirement) not in known))

    return replace(old, needed=joined(old.needed, new.needed), optional=joined(old.optional, new.optional))


def _distribution(requirement: str) -> str:
    return normalized(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _interpreters() -> dict[int, str]:
    """Return the interpreters on the ``PATH``, of uv and of pyenv by the minor version of Python 3, or this one."""
    found: dict[int, str] = {}
    for minor in range(_OLDEST_MINOR, _NEWEST_MINOR + 1):
        name = f"python3.{minor}"
        kept = [f".local/share/uv/python/cpython-3.{minor}.*", f".pyenv/versions/3.{minor}.*"]
        managed = [str(path) for pattern in kept for path in sorted(Path.home().glob(f"{pattern}/bin/{name}"))]
        # One on the PATH may be a stand-in of pyenv, which does not start.
        for python in filter(None, [shutil.which(name), *managed]):
            if _run([python, "-c", "import venv, ensurepip"])[0] == 0:
                found[minor] = python
                break
    return found | {sys.version_info.minor: sys.executable}


def _choose_python(wanted: ProjectRequirements, date: str) -> tuple[int, str]:
    """Return the newest interpreter that the project supports and that was released half a year before the commit."""
    found = _interpreters()
    lowest = max([int(bound) for bound in re.findall(r"(?:>=|\^|~=?)\s*3\.(\d+)", wanted.python)], default=0)
    above = min([int(bound) for bound in re.findall(r"<\s*3\.(\d+)", wanted.python)], default=99)
    fitting = [minor for minor in found if lowest <= minor < above] or list(found)
    # Python 3.N is released in October of the year 2011 + N.
    known = [minor for minor in fitting if f"{2012 + minor}-04" <= date and minor in (wanted.minors or fitting)]
    minor = max(known) if known else min(fitting, key=lambda minor: (abs(minor - sys.version_info.minor), minor))
    return minor, found[minor]


def _create(place: Path, python: str, wanted: ProjectRequirements, day: str, report: Callable[[str], None]) -> None:
    uv = shutil.which("uv")
    create = (
        [uv, "venv", "-q", "--no-python-downloads", "-p", python] if uv else [python, "-m", "venv", "--without-pip"]
    )
    code, message = _run([*create, str(place)])
    if code:
        raise TaskError(f"{python} cannot create a virtual environment at {str(place)!r}: {message}")
    inside = str(place / "bin" / "python")
    pip = [uv, "pip"] if uv else [_python_with_pip(place.parent, python), "-m", "pip", "--python", inside]
    target = ["-p", inside] if uv else []
    date_option = "--exclude-newer" if uv else "--uploaded-prior-to"
    has_dates = uv or not _run([*pip, "install", date_option, day, "--help"])[0]  # of pip since version 26

    def install(requirements: Sequence[str], until: str) -> str:
        dated = [date_option, until] if until else []
        # Programs in the sandbox cannot write bytecode; each run would compile all packages again, which pip does here.
        compiled = ["--compile-bytecode"] if uv else []
        code, message = _run([*pip, "install", "-q", *compiled, *target, *dated, "--", *requirements])
        return message if code else ""

    # If the packages of that day do not fit together, later ones may.
    later = [_years_after(day, years) for years in (1, 2, 3)]
    days = [day, *(other for other in later if other < datetime.date.today().isoformat()), ""] if has_dates else [""]
    both = (*wanted.needed, *wanted.optional)
    tried = [(requirements, until) for until in days for requirements in dict.fromkeys([both, wanted.needed])]
    if all(install(requirements, until) for requirements, until in tried):
        kept = ["pytest>=7"]
        if message := install(kept, ""):
            raise TaskError(f"pytest cannot be installed in {str(place)!r}: {message}")
        for requirement in dict.fromkeys(both):
            if requirement in kept:
                continue
            if install([*kept, requirement], ""):
                report(f"{requirement} cannot be installed; tests that need it are not listed")
            else:
                kept.append(requirement)
    if wanted.name and wanted.name not in _OF_PYTEST:
        # A released version of the project, as a requirement of another package: it may contain the fix.
        _run([*pip, "uninstall", "-q", *target, *([] if uv else ["-y"]), "--", wanted.name])


def _python_with_pip(caches: Path, python: str) -> str:
    """Return a Python with the newest pip, which installs into other environments; each with its own takes longer."""
    place = caches / "pip"
    inside = str(place / "bin" / "python")
    with _locked(place.with_suffix(".lock")):
        if not (place / _DONE).exists():
            shutil.rmtree(place, ignore_errors=True)
            code, message = _run([python, "-m", "venv", str(place)])
            if code:
                raise TaskError(f"{python} cannot create a virtual environment with pip at {str(place)!r}: {message}")
            _run([inside, "-m", "pip", "install", "-q", "--upgrade", "pip"])
            (place / _DONE).touch()
    return inside


def _link(place: Path, name: str | None, version: str, points: str) -> None:
    """Write what an editable installation of the project would leave: its path, its metadata, its commands."""
    site = next(place.glob("lib/python3*/site-packages"))
    (site / "repository.pth").write_text(f"{WORKDIR}\n{WORKDIR}/src\n")
    if name is None or normalized(name) in _OF_PYTEST:
        return
    version = re.sub(r"[^0-9A-Za-z.+!]", "", version) or "0"
    folder = site / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(points)
    for command, module, function in _SCRIPT.findall(points.partition("[console_scripts]")[2].partition("\n[")[0]):
        script = place / "bin" / command
        if not script.exists():
            lines = [
                f"#!{place}/bin/python",
                "import sys",
                f"from {module} import {function}",
                f"sys.exit({function}())",
            ]
            script.write_text("\n".join(lines) + "\n")
            script.chmod(0o755)


def _quarter(day: str) -> str:
    return f"{day[:4]}-{(int(day[5:7]) + 2) // 3}"


def _years_after(day: str, years: int) -> str:
    return f"{int(day[:4]) + years}-{day[5:7]}-01"


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a command, and the end of its output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, " ".join((done.stdout + done.stderr).split())[-500:] or f"exit code {done.returncode}"
