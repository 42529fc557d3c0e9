"""For tests of the sandbox: the tiers there are here, and running code as an ordinary user or as in a container."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_gym.sandbox.probe import examine
from rllm_gym.sandbox.tier import Tier

ROOT = Path(__file__).resolve().parent.parent.parent
ORDINARY_UID = 61234
"""No account has it, so nothing on the machine is its own."""

OPEN = "root with an open Python"
USERS = ("this user", "an ordinary user") if os.geteuid() == 0 else ("this user",)
"""Where this user is an ordinary one, there is no other to try."""

Completed = subprocess.CompletedProcess[str]


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


SERVER = """
import json, os, socket, sys, tempfile, threading
import psutil
from rllm_gym.sandbox import Limits, Program, SandboxPool
from rllm_gym.sandbox.tier import Tier

os.environ["SECRET_TOKEN"] = "the trainer's"
folder = tempfile.TemporaryDirectory()
with open(f"{folder.name}/file", "w") as file:
    file.write("of the trainer")
held = open(f"{folder.name}/file")
os.set_inheritable(held.fileno(), True)
unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
tcp = socket.create_server(("127.0.0.1", 0))
unix.bind(f"{folder.name}/socket")
abstract.bind(f"\\0rllm-gym-test-{os.getpid()}")
for listening in unix, abstract:
    listening.listen()
me = {"pid": os.getpid(), "folder": folder.name, "port": tcp.getsockname()[1],
      "abstract": f"rllm-gym-test-{os.getpid()}"}

with SandboxPool(Tier(sys.argv[1]), max_workers=4) as pool:
    def run(source, limits, **options):
        program = Program(source, args=(json.dumps(me),), limits=Limits(**limits), **options)
        result = pool.run_sync(program)
        return {name: getattr(result, name) if not isinstance(getattr(result, name), bytes)
                else getattr(result, name).decode(errors="replace") for name in result.__slots__}

    run("", {})
    print(json.dumps(me), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        answers = {}
        threads = [threading.Thread(target=lambda at=at, one=one: answers.update({at: run(**one)}))
                   for at, one in enumerate(wanted)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        left = [p.pid for p in psutil.Process().children(recursive=True)]
        print(json.dumps({"answers": [answers[at] for at in range(len(wanted))], "left": left}), flush=True)
"""


class Trainer:
    """A process with things worth protecting and a pool of one tier; runs programs in it.

    Attributes:
        tier: Of its pool.
        process: The process.
        facts: What it tells programs of itself, for them to try: ``pid``, ``folder`` (with ``file`` and ``socket``),
            ``port``, ``abstract``.
        left: Process ids below it after the last programs.
    """

    def __init__(self, user: RunPython, tier: Tier) -> None:
        self.tier, self.user = tier, user
        self.process = user.start(SERVER, tier.value)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, self.process.communicate()[1]
        self.facts: dict[str, Any] = json.loads(said)
        self.left: list[int] = []

    def run(self, source: str, options: dict[str, Any] | None = None, **limits: float) -> SimpleNamespace:
        """The result of one program; ``sys.argv[1]`` in it is :attr:`facts` as JSON."""
        return self.run_together({"source": source, "limits": limits, **(options or {})})[0]

    def run_together(self, *programs: dict[str, Any]) -> list[SimpleNamespace]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(programs) + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said, self.process.communicate()[1]
        answer = json.loads(said)
        self.left = answer["left"]
        return [SimpleNamespace(**one) for one in answer["answers"]]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(
    scope="session",
    params=[
        *((tier, user) for tier in (Tier.NAMESPACES, Tier.LANDLOCK) for user in USERS),
        *([(Tier.LANDLOCK, OPEN)] if os.geteuid() == 0 and _needed_but_closed() else []),
    ],
    ids=lambda param: f"{param[0].value}-{param[1]}",
)
def trainer(request: pytest.FixtureRequest, ordinary_user: RunPython) -> Iterator[Trainer]:
    """A :class:`Trainer` for each tier that keeps hostile programs in, as whoever runs the tests and as nobody.

    And for tier B as a root whose Python is open to all, who needs no rights to show it to a spare user.
    """
    yield from _trainer(*request.param, ordinary_user)


@pytest.fixture(scope="session")
def unsafe_trainer(ordinary_user: RunPython) -> Iterator[Trainer]:
    """A :class:`Trainer` whose pool confines nothing."""
    yield from _trainer(Tier.UNSAFE, "this user", ordinary_user)


def _trainer(tier: Tier, user: str, ordinary_user: RunPython) -> Iterator[Trainer]:
    needs(tier)
    trainer = Trainer(_who(user, ordinary_user), tier)
    yield trainer
    trainer.close()


def _who(user: str, ordinary_user: RunPython) -> RunPython:
    if user == "an ordinary user":
        return ordinary_user
    return RunPython(_with_open_python([]) if user == OPEN else [], _own_environment())


class RunPython:
    """Runs Python programs as somebody. ``before`` is the command that becomes him."""

    def __init__(self, before: list[str], environment: dict[str, str]) -> None:
        self._before, self._environment = before, environment

    def start(self, source: str, *args: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._before, sys.executable, "-c", source, *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self._environment | variables, cwd="/",
        )  # fmt: skip

    def __call__(self, source: str, *args: str, timeout: float = 60, **variables: str) -> Completed:
        return subprocess.run(
            [*self._before, sys.executable, "-c", source, *args],
            capture_output=True, text=True, timeout=timeout, env=self._environment | variables, cwd="/",
        )  # fmt: skip


def _own_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[RunPython]:
    """A user who is not root and owns nothing.

    Python may lie below a directory that is closed to others, as root's home is; then what is needed of it is shown
    through a mount namespace of its own. Where the tests themselves run as an ordinary user, it is that user.
    """
    if os.geteuid() != 0:
        yield RunPython([], _own_environment())
        return
    with tempfile.TemporaryDirectory(prefix="rllm-gym-user-") as home:
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
        become = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
        become = _with_open_python(become)
        for tool in become[0], "setpriv":
            if shutil.which(tool) is None:
                pytest.skip(f"running as an ordinary user needs {tool} (util-linux)")
        user = RunPython(become, _environment(Path(home)))
        tried = user("import rllm_gym")
        if tried.returncode != 0:
            pytest.skip(f"an ordinary user cannot run this Python here: {tried.stderr.strip()[-400:]}")
        yield user


@pytest.fixture(params=USERS)
def each_user(request: pytest.FixtureRequest, ordinary_user: RunPython) -> RunPython:
    """Whoever runs the tests, and an ordinary user."""
    if request.param == "an ordinary user":
        return ordinary_user
    return RunPython([], _own_environment())


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def _with_open_python(command: list[str]) -> list[str]:
    """The command, run where Python and this checkout are open to all users."""
    if closed := _needed_but_closed():
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _show(closed), "sh", *command]
    return command


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
