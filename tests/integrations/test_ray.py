"""Workers that are Ray actors, on a cluster of two nodes: episodes equal local ones, and actor deaths are detected."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_environments import Counting, Located

from rllm_gym.core import Episode
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.runtime import Actor, DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerPool
from rllm_gym.samplers import SamplingRequest, ScriptedSampler
from rllm_gym.vector import TextVectorEnv

MOVES = ["```up```", "```down```", "```left```", "```right```", "nowhere"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two nodes with one CPU each, and this process connected to them."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("ray", max_workers=100) as pool:
        yield pool


@pytest.fixture
def actor(pool: WorkerPool) -> Iterator[Actor]:
    actor = pool.actor(Located, timeout=120)
    yield actor
    actor.kill()


def gone(pid: int | None) -> bool:
    """Return whether the process ends within two minutes."""
    assert pid is not None
    try:
        psutil.Process(pid).wait(timeout=120)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


# The pool


def test_actors_are_spread_over_both_nodes_in_processes_of_their_own(pool: WorkerPool) -> None:
    actors = [pool.actor(Located, timeout=120) for _ in range(4)]
    places = [actor.call("where", timeout=120) for actor in actors]
    assert {node for node, _ in places} == {node["NodeID"] for node in ray.nodes()}
    assert len({pid for _, pid in places} | {os.getpid()}) == 5
    assert [actor.pid for actor in actors] == [pid for _, pid in places]
    for actor in actors:
        actor.close()
    assert all(gone(actor.pid) for actor in actors)


def test_an_exception_of_a_remote_function_is_raised_in_the_caller(pool: WorkerPool, actor: Actor) -> None:
    assert pool.run(divmod, 17, 5, timeout=120) == (3, 2)
    assert asyncio.run(pool.arun(lambda: "not importable", timeout=120)) == "not importable"
    with pytest.raises(LookupError, match="nothing there") as raised:
        actor.call("raises", timeout=120)
    assert "raised in a worker process" in raised.value.__notes__[0]
    assert actor.alive


@pytest.mark.parametrize("method", ["sleep", "deaf"])
def test_a_call_past_its_deadline_is_killed_even_if_it_holds_the_gil(actor: Actor, method: str) -> None:
    with pytest.raises(DeadlineExceeded, match=r"did not finish within 0\.5 s"):
        actor.call(method, *([600] if method == "sleep" else []), timeout=0.5)
    assert not actor.alive
    assert gone(actor.pid)


def test_a_cancelled_wait_kills_the_worker(pool: WorkerPool) -> None:
    async def cancel() -> Actor:
        actor = await pool.aactor(Located, timeout=120)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await actor.acall("sleep", 600, timeout=600)
        return actor

    assert gone(asyncio.run(cancel()).pid)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_that_exits_is_reported_immediately_with_the_reason(pool: WorkerPool, asynchronous: bool) -> None:
    async def leave(actor: Actor) -> None:
        await actor.acall("leaves", timeout=120)

    actor = pool.actor(Located, timeout=120)
    killed = pool.killed
    with pytest.raises(WorkerDied, match=f"ended during 'leaves' .*{actor.pid}"):
        asyncio.run(leave(actor)) if asynchronous else actor.call("leaves", timeout=120)
    with pytest.raises(WorkerDied, match="create a new actor"):
        actor.call("where", timeout=120)
    assert pool.killed == killed + 1


def test_memory_is_capped() -> None:
    with WorkerPool("ray", max_workers=1, memory_mb=256) as pool:
        actor = pool.actor(Located, timeout=120)
        with pytest.raises(MemoryExceeded, match="256 MB"):
            actor.call("hoard", timeout=120)
        assert gone(actor.pid)


def test_closing_the_pool_ends_every_actor() -> None:
    with WorkerPool("ray", max_workers=3) as pool:
        actors = [pool.actor(Located, timeout=120) for _ in range(2)]
        pool.run(os.getpid, timeout=120)
    assert all(gone(actor.pid) for actor in actors)
    with pytest.raises(RuntimeError, match="is closed"):
        pool.run(os.getpid, timeout=120)


# Engines and vector environments


def a_move(request: SamplingRequest) -> str:
    output = "\n".join(str(message["content"]) for message in request.messages or ())
    return MOVES[hashlib.sha256(output.encode()).digest()[0] % len(MOVES)]


def play(env: Any, workers: Any, episodes: int, **arguments: Any) -> tuple[list[Episode], AgentExecutionEngine]:
    engine = AgentExecutionEngine(env=env, sampler=ScriptedSampler(a_move), workers=workers, n_parallel=4, **arguments)
    return engine.run_sync(range(episodes)), engine


def reported(episodes: list[Episode]) -> list[Any]:
    """Return the episodes without their durations."""
    return [
        (
            e.episode_id,
            e.task_id,
            e.seed,
            e.reward,
            e.success,
            e.stop_reason,
            [(t.task, t.steps) for t in e.trajectories],
        )
        for e in episodes
    ]


def test_an_engine_returns_the_same_episodes_on_the_cluster_as_in_this_process() -> None:
    here, _ = play("rllm/FrozenLake-v0", "thread", 12, max_turns=6, seed=5)
    there, engine = play("rllm/FrozenLake-v0", "ray", 12, max_turns=6, seed=5)
    assert reported(there) == reported(here)
    assert len({episode.task_id for episode in here}) == 12
    assert not engine.stats.faults


def test_an_engine_replaces_a_killed_worker_and_counts_a_fault(tmp_path: Path) -> None:
    expected, _ = play(Counting, "thread", 4)
    mark = tmp_path / "died"
    episodes, engine = play(Counting, "ray", 4, env_kwargs={"dies_once": str(mark)}, retries=4)
    assert mark.exists()
    assert reported(episodes) == reported(expected)
    assert all(len(episode.trajectories[0].steps) == 3 for episode in episodes)
    assert engine.stats.faults["worker_died"] == engine.stats.retries == engine.stats.killed_processes > 0


def test_a_vector_environment_returns_the_same_on_the_cluster_as_in_this_process() -> None:
    shown = []
    for workers in ("thread", "ray"):
        envs = gymnasium.make_vec("rllm/FrozenLake-v0", num_envs=4, workers=workers)
        trace = [envs.reset(seed=7)]
        trace += [envs.step([MOVES[(step + index) % len(MOVES)] for index in range(4)]) for step in range(8)]
        envs.close()
        shown.append(repr(trace))
    assert shown[0] == shown[1]


def test_a_vector_environment_replaces_a_worker_that_was_killed_from_outside() -> None:
    envs = TextVectorEnv(4, env_id=Counting, workers="ray")
    envs.reset(seed=1)
    places = envs.call("where")
    assert len({node for node, _ in places}) == 2
    psutil.Process(places[2][1]).kill()
    _, rewards, _, truncations, infos = envs.step(["a"] * 4)
    assert truncations.tolist() == [False, False, True, False]
    assert rewards.tolist() == [0.5, 0.5, 0.0, 0.5]
    assert infos["fault_kind"][2] == "worker_died"
    assert envs.stats.faults == {"worker_died": 1}
    observations, *_ = envs.step(["a"] * 4)  # the next step resets, on a new worker
    assert observations[2].startswith("step 0,")
    assert observations[0].startswith("step 2,")
    pids = [pid for _, pid in envs.call("where")]
    assert pids[2] not in dict(places).values()
    envs.close()
    assert all(gone(pid) for pid in pids)


# Missing clusters


def test_without_a_cluster_the_error_names_the_command_to_start_one() -> None:
    # Other clusters on this machine, such as the one of these tests, are not used.
    program = "from rllm_gym.runtime import WorkerPool; WorkerPool('ray', max_workers=1)"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment
    )
    assert result.returncode == 1
    assert "call ray.init()" in result.stderr


def test_the_cluster_at_ray_address_is_joined() -> None:
    program = """
import os
from rllm_gym.runtime import WorkerPool
print(WorkerPool("ray", max_workers=1).run(os.getppid, timeout=120))
"""
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert "raylet" in psutil.Process(int(result.stdout.split()[-1])).name()


def test_actors_end_when_their_owner_is_killed() -> None:
    program = f"""
import os, sys, ray
sys.path.insert(0, {os.path.dirname(__file__)!r})
ray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)
from ray_environments import Located
from rllm_gym.runtime import WorkerPool
pool = WorkerPool("ray", max_workers=1)
actor = pool.actor(Located, timeout=120)
print("pid", actor.pid, flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = next(int(line.split()[1]) for line in owner.stdout if line.startswith("pid "))
    owner.kill()
    owner.communicate(timeout=120)
    assert gone(pid)
