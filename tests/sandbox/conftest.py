"""For tests of the sandbox: the tiers there are here, and running code as an ordinary user or as in a container."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rllm_gym.sandbox.probe import examine
from rllm_gym.sandbox.tier import Tier

ROOT = Path(__file__).resolve().parent.parent.parent
ORDINARY_UID = 61234
"""No account has it, so nothing on the machine is its own."""

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def needs(tier: Tier) -> None:
    """Skip the calling test, with the reason, where a tier does not work on this machine."""
    finding = examine(tier)
    if not finding.works:
        pytest.skip(f"tier {tier.value} does not work here: {finding.reason} {finding.way_out}")


@pytest.fixture(params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def confined_tier(request: pytest.FixtureRequest) -> Tier:
    """Each tier that keeps hostile programs in, one test each."""
    needs(request.param)
    return request.param


@pytest.fixture(params=[Tier.NAMESPACES, Tier.LANDLOCK, Tier.UNSAFE], ids=["A", "B", "C"])
def any_tier(request: pytest.FixtureRequest) -> Tier:
    """Each tier without Docker, one test each."""
    needs(request.param)
    return request.param


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[RunPython]:
    """``run(source, *args, timeout=60)`` runs a Python program as a user who is not root and owns nothing.

    Python may lie below a directory that is closed to others, as root's home is; then what is needed of it is shown
    through a mount namespace of its own. Where the tests themselves run as an ordinary user, it is that user.
    """
    with tempfile.TemporaryDirectory(prefix="rllm-gym-user-") as home:
        yield _runner(Path(home))


@pytest.fixture(params=["this user", "an ordinary user"])
def each_user(request: pytest.FixtureRequest, ordinary_user: RunPython) -> RunPython:
    """As :func:`ordinary_user`, once as whoever runs the tests and once as an ordinary user."""
    if request.param == "an ordinary user":
        if os.geteuid() != 0:
            pytest.skip("this user is an ordinary one already")
        return ordinary_user
    return _run_as_is


def _run_as_is(source: str, *args: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-c", source, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd="/")


def _runner(home: Path) -> RunPython:
    if os.geteuid() != 0:
        return _run_as_is
    os.chown(home, ORDINARY_UID, ORDINARY_UID)
    become = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    shown = _needed_but_closed()
    if shown:
        become = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _show(shown), "sh", *become]
    for tool in become[0], "setpriv":
        if shutil.which(tool) is None:
            pytest.skip(f"running as an ordinary user needs {tool} (util-linux)")
    tried = subprocess.run([*become, sys.executable, "-c", "import rllm_gym"], capture_output=True, text=True, cwd="/",
                           env=_environment(home), timeout=60)  # fmt: skip
    if tried.returncode != 0:
        pytest.skip(f"an ordinary user cannot run this Python here: {tried.stderr.strip()[-400:]}")

    def run(source: str, *args: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [*become, sys.executable, "-c", source, *args]
        environment = _environment(home) | variables
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, cwd="/")

    return run


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def _needed_but_closed() -> dict[str, list[str]]:
    """Directories closed to others, and what must be seen below each: Python and this checkout."""
    closed: dict[str, list[str]] = {}
    for needed in (sys.base_prefix, sys.prefix, str(ROOT)):
        path = Path(os.path.realpath(needed))
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(str(parent), []).append(str(path))
                break
    return closed


def _show(closed: dict[str, list[str]]) -> str:
    """A shell script that puts an open, empty directory over each closed one, and into it what is needed."""
    lines = ["store=$(mktemp -d)", "mount -t tmpfs -o mode=755 none $store"]
    for number, needed in enumerate(path for paths in closed.values() for path in paths):
        lines += [f"mkdir $store/{number}", f"mount --bind '{needed}' $store/{number}"]
    number = 0
    for parent, paths in closed.items():
        lines.append(f"mount -t tmpfs -o mode=755 none '{parent}'")
        for path in paths:
            lines += [f"mkdir -p '{path}'", f"mount --bind $store/{number} '{path}'"]
            number += 1
    return "\n".join([*lines, "umount -l $store", "rmdir $store", 'exec "$@"'])
