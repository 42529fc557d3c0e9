"""Channels to programs: frames in both directions, pairs that never wait for each other, endings, hostile input."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.sandbox import Ended, Limits, Program, SandboxFault, SandboxPool, Tier
from rllm_gym.sandbox.probe import probe_tier
from rllm_gym.sandbox.running_program import MAX_FRAME
from tests.sandbox.waiting import mark, running
from tests.waiting import until

_CHANNEL = """
import os, struct, sys
def exactly(n):
    data = b""
    while len(data) < n:
        piece = os.read(3, n - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
def receive():
    return exactly(struct.unpack(">I", exactly(4))[0])
def send(frame):
    data = memoryview(struct.pack(">I", len(frame)) + frame)
    while data:
        data = data[os.write(3, data):]
"""
ECHO = _CHANNEL + "while True: send(receive())"
ADD = _CHANNEL + "send(b'%d' % (int(receive()) + 1))"
PATIENT = Limits(wall_s=240)
"""For programs that wait for this process, which may stall."""


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK, Tier.UNSAFE], ids=["A", "B", "C"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    finding = probe_tier(request.param)
    if not finding.works:
        pytest.skip(f"tier {request.param.value} does not work on this machine: {finding.reason} {finding.fix}")
    with SandboxPool(request.param, max_workers=4) as pool:
        yield pool


def test_the_kernel_ends_a_program_first_when_memory_runs_out(pool: SandboxPool) -> None:
    expected = _oom_score("self") if pool.tier is Tier.UNSAFE else "1000"
    argument = mark(4321)
    source = f"import subprocess\nsubprocess.run(['sleep', {argument!r}])"

    async def main() -> list[str]:
        async with pool.start(Program(source, limits=PATIENT)):
            assert until(lambda: running(argument))
            return [_oom_score(pid) for pid in running(argument)]

    assert asyncio.run(main()) == [expected]


def _oom_score(process: str | int) -> str:
    return Path(f"/proc/{process}/oom_score_adj").read_text().strip()


def test_two_programs_exchange_frames(pool: SandboxPool) -> None:
    async def main() -> tuple[bytes | None, list[Ended]]:
        async with pool.start(Program(ADD, limits=PATIENT), Program(ADD + "\nprint('done')", limits=PATIENT)) as (a, b):
            assert await a.send(b"1")
            answer = await a.receive()
            assert answer is not None
            assert await b.send(answer)
            answer = await b.receive()
            assert (await b.receive(), await a.receive()) == (None, None)
            results = [await a.result(), await b.result()]
        assert results[1].stdout == b"done\n"
        return answer, [result.ended for result in results]

    assert asyncio.run(main()) == (b"3", [Ended.EXITED] * 2)


def test_programs_exchange_frames_without_an_event_loop(pool: SandboxPool) -> None:
    with pool.start(Program(ADD, limits=PATIENT)) as (a,):
        assert a.send_sync(b"41")
        assert a.receive_sync() == b"42"
        assert a.result_sync().exit_code == 0
        assert a.send_sync(b"late") is False
        assert a.receive_sync() is None


@settings(max_examples=20, deadline=None)
@given(frames=st.lists(st.binary(max_size=3000), max_size=20))
def test_any_bytes_pass_both_ways(pool: SandboxPool, frames: list[bytes]) -> None:
    with pool.start(Program(ECHO, limits=PATIENT)) as (echo,):
        for frame in frames:
            assert echo.send_sync(frame)
        assert [echo.receive_sync() for _ in frames] == frames


def test_the_maximum_frame_passes_and_a_longer_one_is_refused(pool: SandboxPool) -> None:
    data = bytes(range(256)) * (MAX_FRAME // 256)
    with pool.start(Program(ECHO, limits=PATIENT)) as (echo,):
        assert echo.send_sync(data)
        assert echo.receive_sync() == data
        with pytest.raises(ValueError, match=str(MAX_FRAME + 1)):
            echo.send_sync(data + b"x")


def test_leaving_the_block_stops_programs_and_frees_their_workers(pool: SandboxPool) -> None:
    for _ in range(3):
        with pool.start(*[Program("import time\ntime.sleep(1000)", limits=PATIENT)] * 4) as running:
            pass
        assert [program.result_sync().ended for program in running] == [Ended.STOPPED] * 4


def test_one_of_several_programs_can_be_stopped(pool: SandboxPool) -> None:
    with pool.start(Program(ECHO, limits=PATIENT), Program(ECHO, limits=PATIENT)) as (a, b):
        a.stop()
        assert a.result_sync().ended is Ended.STOPPED
        assert a.receive_sync() is None
        assert b.send_sync(b"x")
        assert b.receive_sync() == b"x"


def test_pairs_never_wait_for_each_other(pool: SandboxPool) -> None:
    def pair(n: int) -> bytes | None:
        with pool.start(Program(ADD, limits=PATIENT), Program(ADD, limits=PATIENT)) as (a, b):
            a.send_sync(b"%d" % n)
            answer = a.receive_sync()
            assert answer is not None
            b.send_sync(answer)
            return b.receive_sync()

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(pair, range(12))) == [b"%d" % (n + 2) for n in range(12)]


def test_more_programs_than_workers_are_refused(pool: SandboxPool) -> None:
    with pytest.raises(ValueError, match="max_workers=4"):
        pool.start(*[Program(ECHO, limits=PATIENT)] * 5)


def test_limits_end_a_program_and_wake_the_receiver(pool: SandboxPool) -> None:
    async def main() -> None:
        limits = Limits(cpu_s=0.3, wall_s=100)
        async with pool.start(Program("while True: pass", limits=limits)) as (a,):
            assert await a.receive() is None
            assert (await a.result()).ended is Ended.CPU
        limits = Limits(wall_s=0.3)
        async with pool.start(Program(_CHANNEL + "receive()", limits=limits)) as (a,):
            assert await a.receive() is None
            assert (await a.result()).ended is Ended.WALL

    asyncio.run(main())


def test_a_program_that_does_not_read_blocks_the_sender_until_it_ends(pool: SandboxPool) -> None:
    program = Program("import time\ntime.sleep(1000)", limits=Limits(wall_s=0.5))
    with pool.start(program) as (a,):
        assert a.send_sync(bytes(8 << 20)) is False
        assert a.result_sync().ended is Ended.WALL


def test_a_flood_of_frames_is_throttled(pool: SandboxPool) -> None:
    # It reports how much it could write before it had to wait, and ends. The first two frames may take any time.
    source = """
import os, select, struct
os.set_blocking(3, False)
frame, written = struct.pack(">I", 1 << 20) + bytes(1 << 20), 0
while written < 200 * len(frame) and select.select([], [3], [], None if written < 2 * len(frame) else 0.7)[1]:
    written += os.write(3, frame[written % len(frame):])
print(written // len(frame))
"""
    with pool.start(Program(source)) as (a,):
        result = a.result_sync()
        assert result.ended is Ended.EXITED, result
        assert int(result.stdout) < 100
        assert a.receive_sync() == bytes(1 << 20)  # what was read ahead is still there


HOSTILE = {
    "a frame of 4 GB announced": "import os\nos.write(3, b'\\xff' * 1000)",
    "half a length": "import os\nos.write(3, b'\\0\\0')",
    "half a frame": "import os\nos.write(3, b'\\0\\0\\0\\x09abc')",
    "its end closed": "import os\nos.close(3)\nimport time\ntime.sleep(0.2)",
    "its end given to a child": "import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(1000)",
    "garbage": "import os\nwhile True: os.write(3, os.urandom(4096))",
    "descriptors": (
        "import socket, array, os\ns = socket.socket(fileno=3)\n"
        "socket.send_fds(s, [b'\\0\\0\\0\\1x'], [0] * 100)\nos._exit(0)"
    ),
    "reading ended": "import socket\ns = socket.socket(fileno=3)\ns.shutdown(socket.SHUT_RD)\ns.detach()",
}


def test_invalid_frames_end_only_their_channel(pool: SandboxPool) -> None:
    wrong = {}
    for name, source in HOSTILE.items():
        with pool.start(Program(source, limits=Limits(wall_s=5, cpu_s=2)), Program(ECHO, limits=PATIENT)) as (
            bad,
            good,
        ):
            for _ in range(10_000):  # its output may happen to be valid frames
                if bad.receive_sync() is None:
                    break
            else:
                wrong[name] = "it never ended"
            bad.stop()
            bad.result_sync()
            if not good.send_sync(b"still here") or good.receive_sync() != b"still here":
                wrong[name] = "the program beside it was disturbed"
    assert not wrong


def test_printed_output_is_not_on_the_channel(pool: SandboxPool) -> None:
    with pool.start(Program(_CHANNEL + "print('x' * 10)\nsend(b'frame')")) as (a,):
        assert a.receive_sync() == b"frame"
        assert a.result_sync().stdout == b"x" * 10 + b"\n"


def test_without_start_there_is_no_channel(pool: SandboxPool) -> None:
    result = pool.run_sync(Program("import os\ntry: os.write(3, b'x')\nexcept OSError as e: print(e.errno)"))
    assert result.stdout == b"9\n"


def test_a_cancelled_receive_loses_no_frame(pool: SandboxPool) -> None:
    async def main() -> bytes | None:
        async with pool.start(Program(ECHO, limits=PATIENT)) as (echo,):
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(echo.receive(), 0.01)
            await echo.send(b"kept")
            return await asyncio.wait_for(echo.receive(), 120)

    assert asyncio.run(main()) == b"kept"


def test_entering_can_be_cancelled_while_it_waits_for_workers(pool: SandboxPool) -> None:
    async def main() -> None:
        async with pool.start(*[Program(ECHO, limits=PATIENT)] * 4) as running:
            waiting = asyncio.create_task(pool.start(Program(ECHO, limits=PATIENT)).__aenter__())
            await asyncio.sleep(0)  # it waits for a worker
            assert await running[0].send(b"x")
            assert await running[0].receive() == b"x"
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with pool.start(*[Program(ECHO, limits=PATIENT)] * 4) as running:
            assert all([await one.send(b"x") for one in running])

    asyncio.run(main())


def test_closing_the_pool_ends_channels() -> None:
    async def main(other: SandboxPool) -> None:
        async with other.start(Program(ECHO, limits=PATIENT)) as (echo,):
            waiting = asyncio.create_task(echo.receive())
            await asyncio.sleep(0)  # it waits for a frame
            await asyncio.to_thread(other.close)
            assert await waiting is None
            with pytest.raises(SandboxFault, match="closed"):
                await echo.result()
            assert await echo.send(struct.pack(">I", 1)) is False

    with SandboxPool(Tier.UNSAFE) as other:
        asyncio.run(main(other))
