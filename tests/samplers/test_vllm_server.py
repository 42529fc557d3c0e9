"""vLLM as a managed server: the same numbers, and what happens to a run when the server is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import vllm_models as models
from samplers.vllm_server import (
    OPTIONS,
    SharedServer,
    check_gone,
    session_of,
    socket_of,
    until_idle,
    until_running,
)
from vllm_models import adapted, full_update, largest_gap, lora_update, moved, probe_of, requests

from rllm_gym.samplers import SamplerError, SamplingParams, SamplingRequest, VLLMServerSampler

pytest.importorskip("vllm")
pytestmark = pytest.mark.long  # the server takes long to start; test_vllm_in_process.py is in every run

Run = Callable[..., Any]


def test_log_probs_are_those_of_transformers_for_base_adapters_and_full_weights(
    vllm_server: VLLMServerSampler, vllm_folder: Path, run_vllm: Run
) -> None:
    server, run = vllm_server, run_vllm
    base = models.load(vllm_folder)
    asked = [
        *requests(3),
        SamplingRequest((60, 61), SamplingParams(0.6, 0.8, 30, 10), seed=3),
        SamplingRequest((60, 62), SamplingParams(0.0, max_tokens=10)),
    ]
    first = run(server.sample(asked))
    assert largest_gap(base, asked, first) < 1e-4
    assert [reply.ids for reply in run(server.sample(asked))] == [reply.ids for reply in first]

    adapter = adapted(vllm_folder)
    before = server.weight_version
    for sync in range(5):
        models.randomize_adapter(adapter, sync)
        assert run(server.sync_weights(lora_update(adapter))) == before + sync + 1
        replies = run(server.sample(asked))
        assert largest_gap(adapter, asked, replies) < 1e-4
        assert largest_gap(base, asked, replies) > 0.1
        assert {reply.weight_version for reply in replies} == {before + sync + 1}

    complete = moved(vllm_folder, 1)
    run(server.sync_weights(full_update(complete)))
    assert largest_gap(complete, asked, run(server.sample(asked))) < 1e-4


def test_adapters_are_served_by_name(vllm_server: VLLMServerSampler, vllm_folder: Path, run_vllm: Run) -> None:
    run_vllm(models.check_named_weights(vllm_server, vllm_folder, vllm_server.weight_version + 1))
    with pytest.raises(ValueError, match=r"'old'.*kind='lora'"):
        run_vllm(vllm_server.sync_weights(replace(full_update(models.load(vllm_folder)), name="old")))


def test_a_weight_sync_whose_probe_disagrees_is_stale(
    vllm_server: VLLMServerSampler, vllm_folder: Path, run_vllm: Run
) -> None:
    server, run = vllm_server, run_vllm
    served, meant = adapted(vllm_folder, 1), adapted(vllm_folder, 2)
    with pytest.raises(SamplerError, match="stale adapter"):
        run(server.sync_weights(lora_update(served, probe_of(meant))))
    with pytest.raises(SamplerError, match="stale adapter"):
        run(server.sample(requests(1)))
    with pytest.raises(ValueError, match="DoRA"):
        run(server.sync_weights(lora_update(adapted(vllm_folder, use_dora=True), probe_of(meant))))
    run(server.sync_weights(lora_update(meant)))
    assert largest_gap(meant, requests(2), run(server.sample(requests(2)))) < 1e-4


def test_a_cancelled_call_frees_its_requests(vllm_server: VLLMServerSampler, run_vllm: Run) -> None:
    async def scenario() -> None:
        long = [SamplingRequest((50 + i,), SamplingParams(max_tokens=500, temperature=0.0)) for i in range(4)]
        call = asyncio.create_task(vllm_server.sample(long))
        await until_running(vllm_server, call)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_idle(vllm_server)
        with pytest.raises(ValueError, match="request 0 is empty"):
            await vllm_server.sample([SamplingRequest(())])

    run_vllm(scenario())


def test_a_forked_child_that_closes_the_sampler_leaves_the_server_and_its_folder(
    vllm_server: VLLMServerSampler, run_vllm: Run
) -> None:
    folder, pid = Path(socket_of(vllm_server)).parent, vllm_server.pid
    child = os.fork()
    if not child:
        try:
            asyncio.run(vllm_server.close())
            vllm_server._finalizer()  # what the end of the child's program calls
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    assert run_vllm(vllm_server.sample(requests(2)))
    assert vllm_server.pid == pid, "the server was restarted"


def test_a_server_killed_in_mid_step_restarts_with_the_same_adapters(
    vllm_server: VLLMServerSampler, vllm_folder: Path, run_vllm: Run, caplog: pytest.LogCaptureFixture
) -> None:
    server = vllm_server
    adapter, judge = adapted(vllm_folder, 3), adapted(vllm_folder, 4)
    restarts = server.restarts

    async def scenario() -> list[psutil.Process]:
        await server.sync_weights(replace(lora_update(judge), name="judge"))
        version = await server.sync_weights(lora_update(adapter))
        asked = [SamplingRequest((40 + i, 50), SamplingParams(max_tokens=400, temperature=0.0)) for i in range(20)]
        calls = [asyncio.create_task(server.sample([request])) for request in asked]
        assert server.pid is not None
        processes = session_of(server.pid)
        assert len(processes) > 1  # the engine is another
        await until_running(server, *calls)
        os.kill(server.pid, signal.SIGKILL)
        lost = [error for error in await asyncio.gather(*calls, return_exceptions=True) if isinstance(error, Exception)]
        assert lost
        assert all(isinstance(error, SamplerError) and "SIGKILL" in str(error) for error in lost)

        replies = await asyncio.gather(*(server.sample([request]) for request in requests(8)))
        assert largest_gap(adapter, requests(8), [reply for (reply,) in replies]) < 1e-4
        assert {reply.weight_version for (reply,) in replies} == {version}
        named = [replace(item, weights="judge") for item in requests(4)]
        assert largest_gap(judge, named, await server.sample(named)) < 1e-4
        await server.drop("judge")
        assert server.restarts == restarts + 1
        assert "starting it again with the weights" in caplog.text
        return processes

    check_gone(run_vllm(scenario()))


def test_closing_leaves_nothing_behind(vllm_shared: SharedServer, run_vllm: Run) -> None:
    """Last test of the shared server: another one would have to start for the next test."""
    vllm_server = vllm_shared.take()
    assert vllm_server.pid is not None
    processes = session_of(vllm_server.pid)
    folder, log = Path(socket_of(vllm_server)).parent, Path(f"/proc/{vllm_server.pid}/fd/1").readlink()
    assert folder.exists()
    assert log.exists()

    async def scenario() -> None:
        running_call = asyncio.create_task(
            vllm_server.sample([SamplingRequest((50,), SamplingParams(max_tokens=500, temperature=0.0))])
        )
        await until_running(vllm_server, running_call)
        await vllm_server.close()
        with pytest.raises(SamplerError, match="closed"):
            await running_call
        with pytest.raises(SamplerError, match="closed"):
            await vllm_server.sample(requests(1))

    run_vllm(scenario())
    check_gone(processes)
    assert not folder.exists()
    assert not log.exists()


def test_a_server_that_does_not_start_shows_the_end_of_its_log(vllm_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with pytest.raises(SamplerError, match=r"no-such-option[^$]*|unrecognized arguments") as raised:
        VLLMServerSampler(vllm_folder, engine_args={"no_such_option": 1}, log=log, **OPTIONS)
    assert str(log) in str(raised.value)
    with pytest.raises(SamplerError, match="did not start within 1 s"):
        VLLMServerSampler(vllm_folder, start_timeout=1, log=log, **OPTIONS)


def test_a_killed_owner_leaves_no_server_or_engine(vllm_folder: Path) -> None:
    code = (
        "import sys; from rllm_gym.samplers import VLLMServerSampler; "
        f"s = VLLMServerSampler({str(vllm_folder)!r}, **{OPTIONS!r}); print(s.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        processes = session_of(int(owner.stdout.readline()))
        assert len(processes) > 1
    finally:
        owner.kill()
        owner.wait()
    check_gone(processes)
