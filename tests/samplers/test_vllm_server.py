"""vLLM as a server of our own: the same numbers, and what becomes of a run when it is killed. Two starts in all."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import vllm_models as models
from vllm_models import adapted, full_update, gap, lora_update, moved, probe_of, requests

from rllm_gym.samplers import Request, SamplerError, SamplingParams
from rllm_gym.samplers.vllm import VLLMServerSampler, make_vllm

pytest.importorskip("vllm")

OPTIONS: dict[str, Any] = {
    "context_length": 512,
    "dtype": "float32",
    "cache_gib": 0.0625,
    "lora_rank": 8,
    "max_adapters": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny(tmp_path_factory.mktemp("vllm") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[VLLMServerSampler]:
    sampler = make_vllm(folder, server=True, max_batch=32, **OPTIONS)
    assert isinstance(sampler, VLLMServerSampler)
    yield sampler
    asyncio.run(sampler.close())


@pytest.fixture
def run() -> Callable[..., Any]:
    def go(coroutine: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(coroutine, 240)  # a server may have to start meanwhile

        return asyncio.run(bounded())

    return go


def test_log_probs_are_those_of_transformers_for_base_adapters_and_whole_weights(
    server: VLLMServerSampler, folder: Path, run: Callable[..., Any]
) -> None:
    base = models.load(folder)
    asked = [
        *requests(3),
        Request((60, 61), SamplingParams(0.6, 0.8, 30, 10), seed=3),
        Request((60, 62), SamplingParams(0.0, max_tokens=10)),
    ]
    first = run(server.sample(asked))
    assert gap(base, asked, first) < 1e-4
    assert [reply.ids for reply in run(server.sample(asked))] == [reply.ids for reply in first]

    adapter = adapted(folder)
    for push in range(5):
        models.shake(adapter, push)
        assert run(server.push(lora_update(adapter))) == push + 1
        replies = run(server.sample(asked))
        assert gap(adapter, asked, replies) < 1e-4
        assert gap(base, asked, replies) > 0.1
        assert {reply.weight_version for reply in replies} == {push + 1}

    whole = moved(folder, 1)
    run(server.push(full_update(whole)))
    assert gap(whole, asked, run(server.sample(asked))) < 1e-4
    run(server.push(full_update(base)))  # which the adapters of the tests below belong to


def test_adapters_are_served_by_name(server: VLLMServerSampler, folder: Path, run: Callable[..., Any]) -> None:
    run(models.check_named_weights(server, folder, server.weight_version + 1))
    with pytest.raises(ValueError, match=r"'old'.*kind='lora'"):
        run(server.push(replace(full_update(models.load(folder)), name="old")))


def test_a_push_whose_probe_disagrees_is_stale(
    server: VLLMServerSampler, folder: Path, run: Callable[..., Any]
) -> None:
    served, meant = adapted(folder, 1), adapted(folder, 2)
    with pytest.raises(SamplerError, match="stale adapter"):
        run(server.push(lora_update(served, probe_of(meant))))
    with pytest.raises(SamplerError, match="stale adapter"):
        run(server.sample(requests(1)))
    with pytest.raises(ValueError, match="DoRA"):
        run(server.push(lora_update(adapted(folder, use_dora=True), probe_of(meant))))
    run(server.push(lora_update(meant)))
    assert gap(meant, requests(2), run(server.sample(requests(2)))) < 1e-4


def test_a_cancelled_call_frees_its_requests(server: VLLMServerSampler, run: Callable[..., Any]) -> None:
    async def running() -> int:
        connector = aiohttp.UnixConnector(str(server._server.socket))  # type: ignore[union-attr]
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://vllm/metrics") as answer:
            metrics = await answer.text()
        return int(sum(map(float, re.findall(r"^vllm:num_requests_running\{.*\} (\S+)", metrics, re.M))))

    async def scene() -> None:
        long = [Request((50 + i,), SamplingParams(max_tokens=500, temperature=0.0)) for i in range(4)]
        call = asyncio.create_task(server.sample(long))
        while not await running():
            assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        deadline = time.monotonic() + 30
        while await running():
            assert time.monotonic() < deadline
        with pytest.raises(ValueError, match="request 0 is empty"):
            await server.sample([Request(())])

    run(scene())


def test_a_running_server_is_reached_by_its_address(
    server: VLLMServerSampler, folder: Path, run: Callable[..., Any]
) -> None:
    """Through a relay, since the server itself listens where only this user can reach it."""

    @asynccontextmanager
    async def relay() -> AsyncIterator[str]:
        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            sink.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs = await asyncio.open_unix_connection(server._server.socket)  # type: ignore[union-attr]
            await asyncio.gather(pump(reader, theirs[1]), pump(theirs[0], writer), return_exceptions=True)

        listener = await asyncio.start_server(serve, "127.0.0.1")
        async with listener:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"

    async def scene() -> None:
        async with relay() as url:
            options = OPTIONS | {"context_length": 4096}
            guest = await asyncio.to_thread(lambda: VLLMServerSampler(folder, url=url, **options))
            async with guest:
                assert guest.context_length == 512  # the server's
                assert guest.pid is None
                adapter = adapted(folder, 9)
                await guest.push(lora_update(adapter))
                assert gap(adapter, requests(2), await guest.sample(requests(2))) < 1e-4
        with pytest.raises(SamplerError, match="lost"):
            await asyncio.to_thread(lambda: VLLMServerSampler(folder, url=url, **options))

    run(scene())
    with pytest.raises(ValueError, match="url names another"):
        VLLMServerSampler(folder, url="http://127.0.0.1:1", engine_args={"swap_space": 1})


def test_a_server_killed_in_mid_step_comes_back_with_the_same_adapters(
    server: VLLMServerSampler, folder: Path, run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    adapter, judge = adapted(folder, 3), adapted(folder, 4)

    async def scene() -> list[int]:
        await server.push(replace(lora_update(judge), name="judge"))
        version = await server.push(lora_update(adapter))
        asked = [Request((40 + i, 50), SamplingParams(max_tokens=400, temperature=0.0)) for i in range(20)]
        calls = [asyncio.create_task(server.sample([request])) for request in asked]
        done, _ = await asyncio.wait(calls, timeout=0.1)
        assert len(done) < 20
        assert server.pid is not None
        processes = _session(server.pid)
        assert len(processes) > 1  # the engine is another
        os.kill(server.pid, signal.SIGKILL)
        began = time.monotonic()
        lost = [error for error in await asyncio.gather(*calls, return_exceptions=True) if isinstance(error, Exception)]
        assert time.monotonic() - began < 20
        assert lost
        assert all(isinstance(error, SamplerError) and "SIGKILL" in str(error) for error in lost)

        replies = await asyncio.gather(*(server.sample([request]) for request in requests(8)))
        assert gap(adapter, requests(8), [reply for (reply,) in replies]) < 1e-4
        assert {reply.weight_version for (reply,) in replies} == {version}
        named = [replace(each, weights="judge") for each in requests(4)]
        assert gap(judge, named, await server.sample(named)) < 1e-4
        await server.drop("judge")
        assert server.restarts == 1
        assert "starting it again with the weights" in caplog.text
        return processes

    _all_gone(run(scene()))


def test_closing_leaves_nothing_behind(server: VLLMServerSampler, run: Callable[..., Any]) -> None:
    """Last here: it is the end of the shared server."""
    assert server.pid is not None
    processes = _session(server.pid)

    async def scene() -> None:
        under_way = asyncio.create_task(
            server.sample([Request((50,), SamplingParams(max_tokens=500, temperature=0.0))])
        )
        await asyncio.wait([under_way], timeout=0.1)
        await server.close()
        with pytest.raises(SamplerError, match="closed"):
            await under_way
        with pytest.raises(SamplerError, match="closed"):
            await server.sample(requests(1))

    run(scene())
    _all_gone(processes)
    assert not server._folder.exists()
    assert not server._log_path.exists()


@pytest.mark.long
def test_a_server_that_does_not_start_shows_the_end_of_its_log(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with pytest.raises(SamplerError, match=r"no-such-option[^$]*|unrecognized arguments") as raised:
        VLLMServerSampler(folder, engine_args={"no_such_option": 1}, log=log, **OPTIONS)
    assert str(log) in str(raised.value)
    with pytest.raises(SamplerError, match="did not start within 1 s"):
        VLLMServerSampler(folder, start_timeout=1, log=log, **OPTIONS)


@pytest.mark.long
def test_a_killed_owner_takes_server_and_engine_along(folder: Path) -> None:
    code = (
        "import sys; from rllm_gym.samplers.vllm import make_vllm; "
        f"s = make_vllm({str(folder)!r}, server=True, **{OPTIONS!r}); print(s.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        processes = _session(int(owner.stdout.readline()))
        assert len(processes) > 1
    finally:
        owner.kill()
        owner.wait()
    _all_gone(processes)


def _all_gone(processes: list[int]) -> None:
    """Soon none of them runs; what is killed and not yet buried by the system does not."""
    deadline = time.monotonic() + 20
    while running := [pid for pid in processes if psutil.pid_exists(pid) and not _buried(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def _buried(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _session(leader: int) -> list[int]:
    """Every process of a session."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == leader:
            members.append(int(stat.parent.name))
    return members
