"""Run Python as different users: the user of the tests, an ordinary user, root with a Python readable by all."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm_gym.sandbox import SandboxPool, SandboxUnavailable
from rllm_gym.sandbox.probe import probe_tier
from rllm_gym.sandbox.tier import Tier

ROOT = Path(__file__).resolve().parent.parent.parent
ORDINARY_UID = 40_000 + os.getpid() % 10_000
"""No account has it, so it owns nothing on the machine, and no worker of a sandbox gets it.

Each test process has its own: the kernel counts all processes of a user together, and those of others could be too
many.
"""

USERS = ("this user", "an ordinary user") if os.geteuid() == 0 else ("this user",)
"""If this user is an ordinary one, there is no other to test."""

Completed = subprocess.CompletedProcess[str]


def needs(tier: Tier) -> None:
    """Skip the calling test, with the reason, if a tier does not work on this machine."""
    finding = probe_tier(tier)
    if not finding.works:
        pytest.skip(f"tier {tier.value} does not work on this machine: {finding.reason} {finding.fix}")


def pool_of_any_tier() -> SandboxPool:
    """Open a pool, or skip the calling test, with the reason, if no tier works on this machine."""
    try:
        return SandboxPool()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


class RunPython:
    """Runs Python programs as a user. ``before`` is the command that switches to that user."""

    def __init__(self, before: list[str], environment: dict[str, str]) -> None:
        self._before, self._environment = before, environment

    def start(self, source: str, *args: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._before, sys.executable, "-c", source, *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self._environment | variables, cwd="/",
        )  # fmt: skip

    def __call__(self, source: str, *args: str, timeout: float = 240, **variables: str) -> Completed:
        return subprocess.run(
            [*self._before, sys.executable, "-c", source, *args],
            capture_output=True, text=True, timeout=timeout, env=self._environment | variables, cwd="/",
        )  # fmt: skip


def own_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[RunPython]:
    """A user who is not root and owns nothing.

    Python may lie below a directory that is closed to other users, such as root's home; then the needed parts are shown
    through a separate mount namespace. If the tests themselves run as an ordinary user, it is that user.
    """
    if os.geteuid() != 0:
        yield RunPython([], own_environment())
        return
    with tempfile.TemporaryDirectory(prefix="rllm-gym-user-") as home:
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
        become = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
        become = with_open_python(become)
        for tool in become[0], "setpriv":
            if shutil.which(tool) is None:
                pytest.skip(f"running as an ordinary user needs {tool} (util-linux)")
        user = RunPython(become, _environment(Path(home)))
        tried = user("import rllm_gym")
        if tried.returncode != 0:
            pytest.skip(f"an ordinary user cannot run this Python: {tried.stderr.strip()[-400:]}")
        yield user


@pytest.fixture(params=USERS)
def each_user(request: pytest.FixtureRequest, ordinary_user: RunPython) -> RunPython:
    """The user of the tests, and an ordinary user."""
    if request.param == "an ordinary user":
        return ordinary_user
    return RunPython([], own_environment())


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def with_open_python(command: list[str]) -> list[str]:
    """Return the command wrapped so that Python and this checkout are readable by all users."""
    if closed := needed_but_closed():
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _show(closed), "sh", *command]
    return command


def _show(closed: dict[str, list[str]]) -> str:
    """Return a shell script that mounts a readable directory with the needed paths over each closed one."""
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


def needed_but_closed() -> dict[str, list[str]]:
    """Return directories closed to other users, and the paths needed below each: Python and this checkout."""
    closed: dict[str, list[str]] = {}
    for needed in (sys.base_prefix, sys.prefix, str(ROOT)):
        path = Path(os.path.realpath(needed))
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(str(parent), []).append(str(path))
                break
    return closed
