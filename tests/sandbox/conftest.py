"""Fixtures of the sandbox tests: the available tiers, and running code as an ordinary user or as in a container."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_gym.sandbox.tier import Tier
from tests.sandbox.users import (
    USERS,
    RunPython,
    each_user,
    needed_but_closed,
    needs,
    ordinary_user,
    own_environment,
    with_open_python,
)

OPEN = "root with an open Python"


@pytest.fixture(params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def confined_tier(request: pytest.FixtureRequest) -> Tier:
    """Each tier that confines hostile programs, as one test each."""
    needs(request.param)
    return request.param


@pytest.fixture(
    params=[Tier.NAMESPACES, Tier.LANDLOCK, pytest.param(Tier.UNSAFE, marks=pytest.mark.long)], ids=["A", "B", "C"]
)
def any_tier(request: pytest.FixtureRequest) -> Tier:
    """Each tier without Docker, as one test each."""
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
    """A process with secrets to protect and a pool of one tier; it runs programs in the pool.

    Attributes:
        tier: Tier of its pool.
        process: The process.
        facts: Targets passed to programs that attack the process: ``pid``, ``folder`` (with ``file`` and ``socket``),
            ``port``, ``abstract``.
        left: Ids of its descendant processes after the last programs.
    """

    def __init__(self, user: RunPython, tier: Tier) -> None:
        self.tier, self.user = tier, user
        self.process = user.start(SERVER, tier.value)
        assert self.process.stdout is not None
        output = self.process.stdout.readline()
        assert output, self.process.communicate()[1]
        self.facts: dict[str, Any] = json.loads(output)
        self.left: list[int] = []

    def run(self, source: str, options: dict[str, Any] | None = None, **limits: float) -> SimpleNamespace:
        """Return the result of one program; its ``sys.argv[1]`` is :attr:`facts` as JSON."""
        return self.run_together({"source": source, "limits": limits, **(options or {})})[0]

    def run_together(self, *programs: dict[str, Any]) -> list[SimpleNamespace]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(programs) + "\n")
        self.process.stdin.flush()
        output = self.process.stdout.readline()
        assert output, self.process.communicate()[1]
        answer = json.loads(output)
        self.left = answer["left"]
        return [SimpleNamespace(**one) for one in answer["answers"]]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def _users_of(tier: Tier) -> list[Any]:
    """Return each user of a tier; in every run, root uses tier A and an ordinary user tier B."""
    always = USERS[0] if tier is Tier.NAMESPACES else USERS[-1]
    return [pytest.param((tier, user), marks=() if user == always else pytest.mark.long) for user in USERS]


@pytest.fixture(
    scope="session",
    params=[
        *_users_of(Tier.NAMESPACES),
        *_users_of(Tier.LANDLOCK),
        *(
            [pytest.param((Tier.LANDLOCK, OPEN), marks=pytest.mark.long)]
            if os.geteuid() == 0 and needed_but_closed()
            else []
        ),
    ],
    ids=lambda param: f"{param[0].value}-{param[1]}",
)
def trainer(request: pytest.FixtureRequest, ordinary_user: RunPython) -> Iterator[Trainer]:
    """A :class:`Trainer` for each tier that confines hostile programs, as the user of the tests and as nobody.

    For tier B also as a root whose Python is readable by all, which needs no rights to show it to a spare user.
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
    return RunPython(with_open_python([]) if user == OPEN else [], own_environment())
