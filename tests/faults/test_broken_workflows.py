"""Environment faults in workflows with several agents: each episode is counted once, none is trained on, nothing is
left.
"""

from __future__ import annotations

import threading

import broken_env
import psutil
import pytest
from broken_env import BrokenEnv, check_episodes

from rllm_gym.core import Episode
from rllm_gym.engine import AgentWorkflowEngine, Deadlines
from rllm_gym.engine.workflows import SolverJudge
from rllm_gym.samplers import ScriptedSampler
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("clock_without_stalls")

# Long enough that working episodes are never late.
DEADLINES = Deadlines(make=100, reset=100, step=12.5, close=12.5, episode=600)


def run(workers: str, kinds: tuple[str, ...], count: int) -> tuple[AgentWorkflowEngine, list[Episode]]:
    engine = AgentWorkflowEngine(
        SolverJudge(2),
        env=BrokenEnv,
        env_kwargs={"kinds": kinds},
        sampler=ScriptedSampler(lambda request: "1"),
        n_parallel=60 if workers == "process" else 20,  # those that hang time out at the same time
        workers=workers,  # type: ignore[arg-type]
        retries=1,
        deadlines=DEADLINES,
    )
    return engine, engine.run_sync(range(count))


def test_episodes_with_faults_in_every_fifth_environment_are_counted_exactly() -> None:
    threads = set(threading.enumerate())
    engine, episodes = run("thread", ("raise", "garbage"), 300)
    check_episodes(engine, episodes, ("raise", "garbage"), retries=1, turns=7)
    assert {item.reward for episode in episodes if episode.success for item in episode.trajectories} == {1.0}
    # The thread of a solver whose sibling's environment raised a fault ends when its step is done.
    assert until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.long
def test_a_thousand_episodes_in_processes_with_every_kind_of_fault() -> None:
    before = set(psutil.Process().children(recursive=True))
    engine, episodes = run("process", broken_env.KINDS, 1000)
    check_episodes(engine, episodes, broken_env.KINDS, retries=1, turns=7)
    assert until(lambda: set(psutil.Process().children(recursive=True)) <= before)
