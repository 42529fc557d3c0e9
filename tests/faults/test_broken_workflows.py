"""Environment faults in workflows with several agents: each episode is counted once, none is trained on, nothing is
left.
"""

from __future__ import annotations

import threading

import broken_env
import psutil
import pytest
from broken_env import BrokenEnv, kind_of

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine import AgentWorkflowEngine, Deadlines
from rllm_gym.engine.workflows import SolverJudge
from rllm_gym.samplers import ScriptedSampler
from tests.sandbox.waiting import until

EPISODES = 1000
# Long enough that working episodes are never late, even on a machine that stalls for ten seconds.
DEADLINES = Deadlines(make=100, reset=100, step=12.5, close=12.5, episode=600)


def run(workers: str, kinds: tuple[str, ...], retries: int) -> tuple[AgentWorkflowEngine, list[Episode]]:
    engine = AgentWorkflowEngine(
        SolverJudge(2),
        env=BrokenEnv,
        env_kwargs={"kinds": kinds},
        sampler=ScriptedSampler(lambda request: "1"),
        n_parallel=60 if workers == "process" else 20,  # those that hang time out at the same time
        workers=workers,  # type: ignore[arg-type]
        retries=retries,
        deadlines=DEADLINES,
    )
    return engine, engine.run_sync(range(EPISODES))


def check(engine: AgentWorkflowEngine, episodes: list[Episode], kinds: tuple[str, ...], retries: int) -> None:
    assert len({episode.episode_id for episode in episodes}) == EPISODES
    for task, episode in enumerate(episodes):
        assert episode.task_id == str(task)
        if kind_of(task, kinds) is None:
            assert episode.stop_reason is StopReason.SUCCESS
            assert (episode.reward, episode.num_turns, episode.attempts) == (1.0, 7, 1)
            assert [trajectory.reward for trajectory in episode.trajectories] == [1.0, 1.0, 1.0]
        else:
            assert episode.stop_reason is StopReason.FAULT
            assert episode.fault
            assert episode.attempts == 1 + retries
            assert (episode.reward, episode.success, episode.trainable) == (0.0, False, False)
    assert sum(engine.stats.faults.values()) == 200 * (1 + retries)
    assert engine.stats.stop_reasons == {"success": 800, "fault": 200}
    assert engine.stats.dropped == 200
    assert engine.stats.retries == 200 * retries
    assert engine.stats.rewards == 800.0


def test_a_thousand_episodes_with_faults_in_every_fifth_environment_are_counted_exactly() -> None:
    threads = set(threading.enumerate())
    engine, episodes = run("thread", ("raise", "garbage"), retries=1)
    check(engine, episodes, ("raise", "garbage"), retries=1)
    faults = engine.stats.faults
    assert faults["raise"] + faults["exception"] == faults["invalid_result"] == 200
    # The thread of a solver whose sibling's environment raised a fault ends when its step is done.
    assert until(lambda: set(threading.enumerate()) <= threads)


@pytest.mark.long
def test_a_thousand_episodes_in_processes_with_every_kind_of_fault() -> None:
    before = set(psutil.Process().children(recursive=True))
    engine, episodes = run("process", broken_env.KINDS, retries=1)
    check(engine, episodes, broken_env.KINDS, retries=1)
    faults = engine.stats.faults
    assert faults["raise"] + faults["exception"] == 80
    assert {faults[kind] for kind in ("step_deadline", "close_deadline", "invalid_result", "worker_died")} == {80}
    assert set(psutil.Process().children(recursive=True)) <= before
