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
from broken_env import BreaksIn, BrokenEnv, check_episodes

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine import AgentExecutionEngine, Deadlines
from rllm_gym.samplers import ScriptedSampler
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("clock_without_stalls")

# The number of episodes, how many of them run concurrently, and the deadline of a step and of close. More run at once
# than hang in total, so that all of these time out at the same time, and a deadline is so long that none that works is
# late: the more at once, the longer each waits for its turn on the processor.
few_and_a_thousand = pytest.mark.parametrize(
    ("count", "parallel", "seconds"), [(300, 40, 5.0), pytest.param(1000, 100, 12.5, marks=pytest.mark.long)]
)


@pytest.fixture
def forever() -> Iterator[None]:
    broken_env.FOREVER.clear()
    yield
    broken_env.FOREVER.set()


def processes() -> set[psutil.Process]:
    """Return all processes that this process has started, including those kept by earlier tests for reuse (grading)."""
    return set(psutil.Process().children(recursive=True))


def run(
    workers: str, kinds: tuple[str, ...], retries: int, count: int, parallel: int, seconds: float
) -> tuple[AgentExecutionEngine, list[Episode]]:
    engine = AgentExecutionEngine(
        env=BrokenEnv,
        env_kwargs={"kinds": kinds},
        sampler=ScriptedSampler(lambda request: "go on"),
        n_parallel=parallel,
        workers=workers,
        retries=retries,
        deadlines=Deadlines(make=100, reset=100, step=seconds, close=seconds, episode=600),
    )
    return engine, engine.run_sync(range(count))


@few_and_a_thousand
def test_episodes_in_processes_with_every_kind_of_fault(count: int, parallel: int, seconds: float) -> None:
    threads, before = set(threading.enumerate()), processes()
    engine, episodes = run("process", broken_env.KINDS, 1, count, parallel, seconds)
    each = check_episodes(engine, episodes, broken_env.KINDS, retries=1, turns=3)
    assert engine.stats.killed_processes == 3 * each  # it hangs in step() or close(), or dies

    assert until(lambda: processes() <= before)
    assert until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.usefixtures("forever")
@few_and_a_thousand
def test_a_thread_that_hangs_is_abandoned_counted_and_reported(
    caplog: pytest.LogCaptureFixture, count: int, parallel: int, seconds: float
) -> None:
    kinds = ("raise", "hang_step", "hang_close", "garbage")
    engine, episodes = run("thread", kinds, 0, count, parallel, seconds)
    each = check_episodes(engine, episodes, kinds, retries=0, turns=3)
    assert engine.stats.abandoned_threads == 2 * each
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
def test_every_phase_has_its_deadline_and_its_kind() -> None:
    """Each in a separate engine, all concurrently: most of the time is spent waiting for deadlines."""
    before = processes()
    expected = {(workers, *case): kind for workers in ("thread", "process") for case, kind in PHASES.items()}

    def run(case: tuple[str, str, str]) -> object:
        workers, phase, how = case
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

    with ThreadPoolExecutor(len(expected)) as threads:
        found = dict(zip(expected, threads.map(run, expected), strict=True))
    assert found == {case: (True, StopReason.FAULT, False, {kind: 1}) for case, kind in expected.items()}
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
