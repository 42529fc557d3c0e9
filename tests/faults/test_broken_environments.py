"""Environment faults: each is counted under its kind, none is trained on, and no process or thread is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import broken_env
import psutil
import pytest
from broken_env import EPISODES, BreaksIn, BrokenEnv, check_episodes

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine import AgentExecutionEngine, Deadlines
from rllm_gym.samplers import ScriptedSampler
from tests.sandbox.waiting import until

pytestmark = pytest.mark.usefixtures("clock_without_stalls")

# Long enough that working episodes are never late. As many episodes run concurrently as hang in total, so that all of
# these time out at the same time.
DEADLINES = Deadlines(make=100, reset=100, step=12.5, close=12.5, episode=600)
AT_A_TIME = 100


@pytest.fixture
def forever() -> Iterator[None]:
    broken_env.FOREVER.clear()
    yield
    broken_env.FOREVER.set()


def processes() -> set[psutil.Process]:
    """Return all processes that this process has started, including those kept by earlier tests for reuse (grading)."""
    return set(psutil.Process().children(recursive=True))


def run(workers: str, kinds: tuple[str, ...], retries: int) -> tuple[AgentExecutionEngine, list[Episode]]:
    engine = AgentExecutionEngine(
        env=BrokenEnv,
        env_kwargs={"kinds": kinds},
        sampler=ScriptedSampler(lambda request: "go on"),
        n_parallel=AT_A_TIME,
        workers=workers,
        retries=retries,
        deadlines=DEADLINES,
    )
    return engine, engine.run_sync(range(EPISODES))


def test_a_thousand_episodes_in_processes_with_every_kind_of_fault() -> None:
    threads, before = set(threading.enumerate()), processes()
    engine, episodes = run("process", broken_env.KINDS, retries=1)
    each = check_episodes(engine, episodes, broken_env.KINDS, retries=1, turns=3)
    assert engine.stats.killed_processes == 3 * each  # it hangs in step() or close(), or dies

    assert until(lambda: processes() <= before)
    assert until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.usefixtures("forever")
def test_a_thread_that_hangs_is_abandoned_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    kinds = ("raise", "hang_step", "hang_close", "garbage")
    engine, episodes = run("thread", kinds, retries=0)
    check_episodes(engine, episodes, kinds, retries=0, turns=3)
    assert engine.stats.abandoned_threads == 100
    assert "were abandoned" in caplog.text
    assert "fault (step_deadline)" in caplog.text


PHASES = {
    ("make", "hang"): "make_deadline",
    ("make", "raise"): "make",
    ("reset", "hang"): "reset_deadline",
    ("reset", "raise"): "exception",
    ("reset", "garbage"): "invalid_result",
    ("close", "hang"): "close_deadline",
    ("close", "raise"): "exception",
}


@pytest.mark.usefixtures("forever")
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_every_phase_has_its_deadline_and_its_kind(workers: str) -> None:
    """Each in a separate engine, all concurrently: most of the time is spent waiting for deadlines."""
    before = processes()

    def run(case: tuple[str, str]) -> object:
        phase, how = case
        engine = AgentExecutionEngine(
            env=BreaksIn,
            env_kwargs={"phase": phase, "how": how},
            sampler=ScriptedSampler(lambda request: "go on"),
            workers=workers,
            retries=0,
            # Only hanging episodes are late, even on a machine that stalls.
            deadlines=Deadlines(**{"make": 100, "reset": 100, "step": 100, "close": 100, phase: 12.5}),
            n_parallel=1,
        )
        well, broken = engine.run_sync(["well", "broken"])
        return well.trainable, broken.stop_reason, broken.trainable, engine.stats.faults

    with ThreadPoolExecutor(len(PHASES)) as threads:
        found = dict(zip(PHASES, threads.map(run, PHASES), strict=True))
    assert found == {case: (True, StopReason.FAULT, False, {kind: 1}) for case, kind in PHASES.items()}
    assert until(lambda: processes() <= before)


@pytest.mark.usefixtures("forever")
def test_a_reused_environment_that_hangs_in_close_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = AgentExecutionEngine(
        env=BreaksIn,
        env_kwargs={"phase": "close", "how": "hang"},
        sampler=ScriptedSampler(lambda request: "go on"),
        reuse_envs=True,
        deadlines=Deadlines(close=0.3),
        n_parallel=1,
    )
    episodes = engine.run_sync(["well", "broken"])
    assert all(episode.trainable for episode in episodes)
    assert engine.stats.faults == {"close_deadline": 1}
    assert engine.stats.abandoned_threads == 1
    assert "close did not finish" in caplog.text


def test_an_environment_that_exceeds_its_memory_cap_is_stopped() -> None:
    engine = AgentExecutionEngine(
        env=BreaksIn,
        env_kwargs={"phase": "reset", "how": "memory"},
        sampler=ScriptedSampler(lambda request: "go on"),
        workers="process",
        memory_mb=300,
        retries=0,
        n_parallel=1,
    )
    well, broken = engine.run_sync(["well", "broken"])
    assert (well.trainable, broken.trainable) == (True, False)
    assert engine.stats.faults == {"memory": 1}


_INTERRUPTED = """
import sys, psutil
sys.path.insert(0, {folder!r})
from broken_env import BrokenEnv
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.samplers import ScriptedSampler

reported = False
def reply(request):
    global reported
    workers = [child.pid for child in psutil.Process().children(recursive=True)]
    if len(workers) >= 9 and not reported:
        # The template and eight environments, some of which hang in step(); the others are executing it.
        reported = True
        print(*workers, flush=True)
    return "go on"

engine = AgentExecutionEngine(
    env=BrokenEnv, env_kwargs={{"kinds": ("hang_step",)}}, sampler=ScriptedSampler(reply), n_parallel=8,
    workers="process",
)
engine.run_sync(range(100_000))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_survives_an_interrupted_run(sent: signal.Signals) -> None:
    script = _INTERRUPTED.format(folder=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        try:
            workers = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
            assert len(workers) == 9
            os.kill(program.pid, sent)
            _, output = program.communicate(timeout=240)
        finally:
            program.kill()
    assert program.returncode != 0
    if sent == signal.SIGINT:
        assert output.decode().rstrip().endswith("KeyboardInterrupt")
    _, alive = psutil.wait_procs(workers, timeout=240)
    assert alive == []
