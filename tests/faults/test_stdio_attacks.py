"""Programs that attack, cheat and bomb, handed in as solutions of a stdio task: none is rewarded, nothing is left of any."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import stdio_attacks

from rllm_gym.grading.code import StdioTest, StdioTests, grade_program_sync
from rllm_gym.sandbox import Ended, Limits, Program, SandboxPool, Tier
from tests.sandbox.users import needs

LIMITS = Limits(cpu_s=1, wall_s=3)
SUM = StdioTests((StdioTest("19 23\n", "42\n"),), limits=LIMITS)
# What waits is judged by the clock, and a busy machine must not fail what is honest.
HONEST_SUM = StdioTests((StdioTest("19 23\n", "42\n"), StdioTest("-1 1\n", "0\n")), limits=Limits(cpu_s=5, wall_s=60))


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Things of this machine that stand there to be reached: by name, as the programs are told them."""
    folder = tmp_path_factory.mktemp("host")
    word = secrets.token_hex(16)
    (folder / "secret").write_text(word)
    folder.chmod(0o777)
    os.environ["RLLM_TEST_SECRET"] = word
    tcp, udp, named, abstract = (
        socket.socket(),
        socket.socket(type=socket.SOCK_DGRAM),
        *(socket.socket(1) for _ in "12"),
    )
    reached: list[str] = []
    for listener, address in (
        (tcp, ("127.0.0.1", 0)),
        (udp, ("127.0.0.1", 0)),
        (named, str(folder / "socket")),
        (abstract, f"\0{word}"),
    ):
        listener.bind(address)
        listener.setblocking(False)
        if listener is not udp:
            listener.listen()
    old = signal.signal(signal.SIGUSR1, lambda *_: reached.append("a signal"))
    try:
        yield {
            "<SECRET_FILE>": str(folder / "secret"),
            "<SECRET_REVERSED>": word[::-1],
            "<SECRET>": word,
            "<CHECKOUT>": str(Path(__file__).resolve().parents[2]),
            "<HOME>": str(Path.home()),
            "<TRAINER>": str(os.getpid()),
            "<VICTIM>": str(os.getppid()),
            "<PORT>": str(tcp.getsockname()[1]),
            "<UDP_PORT>": str(udp.getsockname()[1]),
            "<ABSTRACT>": word,
            "<SOCKET_FILE>": str(folder / "socket"),
        }
        for listener in (tcp, named, abstract):
            with pytest.raises(BlockingIOError):  # nobody knocked
                listener.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(100)
        assert not reached
    finally:
        signal.signal(signal.SIGUSR1, old)
        del os.environ["RLLM_TEST_SECRET"]
        for listener in (tcp, udp, named, abstract):
            listener.close()


def _filled(source: str, host: dict[str, str]) -> str:
    for name, value in host.items():
        source = source.replace(name, value)
    return stdio_attacks.PRELUDE + source


@pytest.mark.parametrize("name", stdio_attacks.ESCAPES)
def test_no_program_gets_out(name, pool, host, nothing_left):
    verdict = grade_program_sync(pool, _filled(stdio_attacks.ESCAPES[name], host), SUM)
    assert verdict.fraction == 0, verdict


@pytest.mark.parametrize("name", stdio_attacks.RESOURCES)
def test_no_program_takes_more_than_its_limits(name, pool, host, nothing_left):
    verdict = grade_program_sync(pool, _filled(stdio_attacks.RESOURCES[name], host), SUM)
    assert verdict.fraction == 0, verdict
    # The next one is served as if nothing had been.
    assert grade_program_sync(pool, _filled("win()", host), HONEST_SUM).correct


@pytest.mark.parametrize("name", stdio_attacks.CHEATS)
def test_no_program_is_rewarded_for_what_it_cannot_know(name, pool, nothing_left):
    words = [f"word-{secrets.token_hex(16)}" for _ in range(2)]
    tests = StdioTests(tuple(StdioTest(f"{n}\n", f"{word}\n") for n, word in enumerate(words)), limits=LIMITS)
    verdict = grade_program_sync(pool, stdio_attacks.CHEATS[name], tests)
    assert verdict.fraction == 0, verdict


@pytest.mark.parametrize(
    "output", ["nan", "inf", "-inf", "1e999", "0x1p3", "1_0", "10 10", "", "10\n10", "٣", "1e400", "[10]"]
)
def test_a_tolerance_takes_finite_numbers_alone(output, pool):
    tests = StdioTests((StdioTest("", "10"),), float_tolerance=0.5, limits=LIMITS)
    assert not grade_program_sync(pool, f"print({output!r})", tests).correct


@pytest.mark.parametrize("name", stdio_attacks.LEFT_BEHIND)
def test_nothing_of_one_program_is_there_for_the_next(name, pool):
    leaver, finder = stdio_attacks.LEFT_BEHIND[name]
    program = Program(stdio_attacks.PRELUDE + leaver, stdin=b"19 23\n", limits=LIMITS)
    for _ in range(pool.max_workers):  # whichever worker comes next has run one
        pool.run_sync(program)
    found = pool.run_sync(Program(stdio_attacks.PRELUDE + finder, stdin=b"19 23\n", limits=LIMITS))
    assert (found.ended, found.stdout) == (Ended.EXITED, b""), found


@pytest.mark.parametrize("name", stdio_attacks.HONEST)
def test_honest_programs_are_rewarded(name, pool, host, nothing_left):
    if pool.tier is Tier.LANDLOCK and name == "with a unix socket":
        return  # docs/sandbox.md: sockets with a name are closed in tier B, since the host's could be reached
    verdict = grade_program_sync(pool, _filled(stdio_attacks.HONEST[name], host), HONEST_SUM)
    assert verdict.correct, verdict


def test_sixteen_hostile_programs_at_once_do_not_disturb_an_honest_one(pool, host, nothing_left):
    hostile = ["fork bomb of fork bombs", "memory", "a loop", "disk", "output", "daemon", "ignored signals", "inodes"]
    threads = [
        threading.Thread(target=grade_program_sync, args=(pool, _filled(stdio_attacks.RESOURCES[name], host), SUM))
        for name in hostile * 2
    ]
    for thread in threads:
        thread.start()
    verdicts = [grade_program_sync(pool, _filled("print(a + b)", host), HONEST_SUM) for _ in range(10)]
    for thread in threads:
        thread.join()
    assert all(verdict.correct for verdict in verdicts), verdicts
