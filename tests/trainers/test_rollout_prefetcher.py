"""Rollouts some steps ahead: they overlap with training, no task is lost or repeated, and the run still learns."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echo_config import echo_config
from echo_env import EchoEnv
from refused_options import not_raised

from rllm_gym.core import Episode
from rllm_gym.engine import EngineStats, EpisodeSpec, load_episodes
from rllm_gym.samplers import Completion, SamplingRequest
from trainers import loop
from trainers.callbacks import Callback
from trainers.config import AsynchronyConfig, ConfigError, TrainConfig
from trainers.config_loading import write_yaml
from trainers.learner import Learner
from trainers.loop import train
from trainers.rollouts.collector import RolloutBatch
from trainers.rollouts.episode_queue import EpisodeQueue
from trainers.rollouts.sampler_factory import make_sampler
from trainers.run.metrics import read_metrics
from trainers.run.rollout_prefetcher import RolloutPrefetcher
from trainers.run.update_metrics import rollout_metrics
from trainers.train_env import open_train_env

HERE = Path(__file__).resolve().parent
AHEAD = {"steps_ahead": 1}


class WatchedEnv(EchoEnv):
    """Records that its step was called."""

    acted = threading.Event()

    def _act(self, action: str) -> Any:
        WatchedEnv.acted.set()
        return super()._act(action)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_the_next_step_is_rolled_out_while_this_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_ahead: int
) -> None:
    """Each update waits until an environment of the next step is called: forever, if rollouts waited for the update."""
    learn = Learner.update
    played_meanwhile = []

    def waiting(*args: Any, **kwargs: Any) -> Any:
        last = len(played_meanwhile) == 3
        played_meanwhile.append(WatchedEnv.acted.wait(200.0 if steps_ahead and not last else 0.3))
        result = learn(*args, **kwargs)
        WatchedEnv.acted.clear()
        return result

    collect = RolloutPrefetcher._collect

    def taken(prefetcher: RolloutPrefetcher, ours: Any) -> Any:
        batch = collect(prefetcher, ours)
        WatchedEnv.acted.clear()  # calls from here on belong to the next step
        return batch

    monkeypatch.setattr(Learner, "update", waiting)
    monkeypatch.setattr(RolloutPrefetcher, "_collect", taken)
    config = echo_config(tmp_path, steps=4, validation=None, asynchrony={"steps_ahead": steps_ahead})
    train(config, env=open_train_env(config.env, env=WatchedEnv))
    # No rollout remains during the last update.
    assert played_meanwhile == ([True, True, True, False] if steps_ahead else [False] * 4)


@pytest.mark.long
@pytest.mark.parametrize("steps_ahead", [1, 4])
def test_the_run_learns_from_tokens_of_older_weights(tmp_path: Path, steps_ahead: int) -> None:
    config = echo_config(
        tmp_path,
        steps=25 * steps_ahead,
        algorithm={"group_size": 8, "groups_per_step": 8},
        optimizer={"lr": 0.03 / steps_ahead},
        validation={"every": 25, "samples": 4},
        asynchrony={"steps_ahead": steps_ahead},
    )
    train(config)
    rows = read_metrics(tmp_path / "run")
    assert rows[0]["validation/reward/mean"] < 0.4
    assert rows[-1]["validation/reward/mean"] > 0.9
    assert all(row["sampling/stale_episodes"] == 0 for row in rows[1:])
    assert rows[1]["sampling/logprob_difference/max"] < 1e-3, (
        "the first step's episodes are drawn by the weights that learn from them"
    )
    assert max(row["sampling/logprob_difference/max"] for row in rows[2:12]) > 1e-3, "later ones by older weights"
    assert max(row["sampling/staleness/max"] for row in rows[1:]) == steps_ahead


class Watched:
    """A real sampler that records the weight version of every request."""

    returns_tokens = True

    def __init__(self, inside: Any) -> None:
        self.inside = inside
        self.context_length = inside.context_length
        self.seen: list[set[int]] = [set()]
        self.under_way = 0

    @property
    def weight_version(self) -> int:
        return int(self.inside.weight_version)

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        self.under_way += 1
        try:
            completions: list[Completion] = await self.inside.sample(requests)
        finally:
            self.under_way -= 1
        self.seen[-1] |= {completion.weight_version for completion in completions}
        return completions

    async def sync_weights(self, update: Any) -> int:
        assert not self.under_way, "weights changed between the turns of an episode"
        self.seen.append(set())
        return int(await self.inside.sync_weights(update))

    async def release(self, conversation: str) -> None:
        await self.inside.release(conversation)

    async def close(self) -> None:
        await self.inside.close()


@pytest.mark.parametrize("name", ["remax", "grpo"])
def test_all_episodes_of_a_step_are_sampled_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A greedy baseline with other weights than the episodes it is compared with would be a hidden bias."""
    samplers: list[Watched] = []

    def watched(policy: Any, config: TrainConfig) -> Watched:
        samplers.append(Watched(make_sampler(policy, config)))
        return samplers[-1]

    monkeypatch.setattr("trainers.run.setup.make_sampler", watched)
    batches = []
    learn = loop._sample

    def noted(run: Any, step: int) -> Any:
        batch, samples = learn(run, step)
        batches.append(batch)
        return batch, samples

    monkeypatch.setattr(loop, "_sample", noted)
    train(echo_config(tmp_path, steps=5, algorithm={"name": name}, validation=None, asynchrony=AHEAD))
    assert [len(versions) for versions in samplers[0].seen if versions] == [1] * 4
    synced_versions = [set(batch.weight_syncs) for batch in batches]
    assert synced_versions == [{1}, {1}, {2}, {3}, {4}], "one push old from the second step on"


class SlowEnv(EchoEnv):
    """One episode of the third step, whose episodes are the 33rd to the 48th, waits between its turns until two weight
    syncs."""

    lock = threading.Lock()
    begun = 0
    waiting = threading.Event()
    synced = threading.Event()

    def _begin(self, task: Any) -> str:
        with self.lock:
            SlowEnv.begun += 1
            self.is_slow = SlowEnv.begun == 40
        return super()._begin(task)

    def _act(self, action: str) -> Any:
        if self.is_slow and self._turn == 0:
            self.waiting.set()
            assert self.synced.wait(200), "the run waits for this episode"
        return super()._act(action)


class TwoSyncsLater(Callback):
    def on_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        assert SlowEnv.waiting.wait(200), "no episodes of later steps during the first step"

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step == 2:
            SlowEnv.synced.set()


def test_with_several_steps_ahead_nothing_waits_for_a_slow_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowEnv, "begun", 0)
    monkeypatch.setattr(SlowEnv, "waiting", threading.Event())
    monkeypatch.setattr(SlowEnv, "synced", threading.Event())
    config = echo_config(
        tmp_path,
        steps=8,
        validation=None,
        asynchrony={"steps_ahead": 3},
        env={"id": "echo_env:test/Echo-v0", "parallel": 4},
        save_episodes_every=1,
    )
    train(config, env=open_train_env(config.env, env=SlowEnv), callbacks=[TwoSyncsLater()])
    rows = read_metrics(tmp_path / "run")
    assert [row["episodes/count"] for row in rows] == [16] * 8
    assert len({task for row in rows for task in row["tasks"]}) == 30, "30 tasks, 4 a step"
    assert all(row["sampling/stale_episodes"] == 0 for row in rows)
    assert rows[0]["sampling/staleness/max"] == 0
    assert {row["sampling/staleness/max"] for row in rows[3:]} <= {1, 2, 3}
    versions = [
        [step.tokens.weight_version for step in episode.trajectories[0].steps if step.tokens is not None]
        for episode in load_episodes(tmp_path / "run" / "episodes" / "train-000003.jsonl")
    ]
    assert max(second - first for first, second in versions) >= 2, "the slow episode continued with the new weights"
    assert all(first <= second for first, second in versions)


class GatedEngine:
    """Starts an episode as soon as it gets its spec, and ends it when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: asyncio.Queue[Episode] = asyncio.Queue()

    async def stream(self, specs: Any) -> Any:
        async def take() -> None:
            async for spec in specs:
                self.started.append(spec.episode_id)

        taking = asyncio.create_task(take())
        try:
            while True:
                yield await self.ended.get()
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


def test_episodes_of_several_steps_share_their_capacity_in_order() -> None:
    """At most ``parallel`` of all steps, those of earlier steps first, additional ones of a step before later steps;
    a step that fails gives its capacity back."""

    def specs(name: str) -> list[EpisodeSpec]:
        return [EpisodeSpec(0, 0, episode_id=f"{name}{number}") for number in range(3)]

    async def idle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def go() -> None:
        queue, first, second, more = EpisodeQueue(2), GatedEngine(), GatedEngine(), GatedEngine()
        runs = []
        for engine, name, urgent in ((first, "a", False), (second, "b", False), (more, "c", True)):
            runs.append(asyncio.create_task(queue.run(engine, specs(name), urgent=urgent)))  # type: ignore[arg-type]
            await idle()
        assert (first.started, second.started, more.started) == (["a0", "a1"], [], [])
        first.ended.put_nowait(Episode("a1", "0"))
        await idle()
        assert (first.started, second.started, more.started) == (["a0", "a1", "a2"], [], [])
        first.ended.put_nowait(Episode("a0", "0"))
        await idle()
        assert (second.started, more.started) == ([], ["c0"])
        runs[2].cancel()
        await idle()
        assert second.started == ["b0"]
        runs[0].cancel()
        await idle()
        assert second.started == ["b0", "b1"]
        runs[1].cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    asyncio.run(go())


def test_samples_older_than_the_limit_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that lost its adapters and restarts its weight versions must not be trained on silently."""

    class Forgetful(Watched):
        async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
            lost = self.weight_version >= 3
            completions = await super().sample(requests)
            return [replace(item, weight_version=0) if lost else item for item in completions]

    monkeypatch.setattr(
        "trainers.run.setup.make_sampler", lambda policy, config: Forgetful(make_sampler(policy, config))
    )
    config = echo_config(tmp_path, steps=5, validation=None, asynchrony=AHEAD)
    train(config)
    stale = [row["sampling/stale_episodes"] for row in read_metrics(tmp_path / "run")]
    assert stale[:3] == [0, 0, 0]
    assert stale[-1] == 16
    assert read_metrics(tmp_path / "run")[-1]["optim/trained_tokens"] == 0


def test_stale_episodes_of_all_rounds_of_a_step_are_dropped_and_counted() -> None:
    episodes = [Episode(str(number), "task", group_id=f"task@0.{number // 2}") for number in range(4)]
    rounds = [
        RolloutBatch({f"task@0.{first // 2}": 0}, episodes[first : first + 2], EngineStats(), [1, 3], min_weight_sync=2)
        for first in (0, 2)
    ]
    batch = rounds[0] + rounds[1]
    assert batch.fresh == [episodes[1], episodes[3]]
    assert batch.oldest_sync == 3, "a stale episode does not say what the others were sampled with"
    assert rollout_metrics(batch, AsynchronyConfig(steps_ahead=1))["sampling/stale_episodes"] == 2


def interrupt(config: TrainConfig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a run, and interrupt it in the update of a step."""
    update = Learner.update

    def interrupted(learner: Learner, now: int, *args: Any, **kwargs: Any) -> Any:
        if now == step:
            raise KeyboardInterrupt
        return update(learner, now, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config)


def test_a_run_resumed_with_fewer_steps_ahead_starts_later_steps_when_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that were started at once would be too old when their step comes, and all be dropped."""
    ahead = {"steps_ahead": 3}
    config = echo_config(tmp_path, steps=7, validation=None, asynchrony=ahead, checkpoint={"every": 1})
    interrupt(config, 2, monkeypatch)
    train(replace(config, resume=True, asynchrony=AsynchronyConfig(steps_ahead=1)))
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert [row["sampling/stale_episodes"] for row in rows] == [0] * 7


@pytest.mark.parametrize("steps_ahead", [1, 3])
def test_tasks_being_prefetched_at_an_interruption_are_run_after_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_ahead: int
) -> None:
    ahead = {"steps_ahead": steps_ahead}
    config = echo_config(tmp_path, steps=7, validation=None, asynchrony=ahead, checkpoint={"every": 2})
    interrupt(config, 5, monkeypatch)
    train(replace(config, resume=True))
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert len({task for row in rows for task in row["tasks"]}) == 28, "30 tasks, 4 a step: none comes twice"


@pytest.mark.long
def test_without_replay_every_task_occurs_once_per_pass_across_kills(tmp_path: Path) -> None:
    """30 tasks, 4 per step: 15 steps are two passes, also where a kill discarded prefetched rollouts."""
    config = echo_config(tmp_path, steps=15, validation=None, asynchrony=AHEAD)
    write_yaml(tmp_path / "killed.yaml", config)
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_run.py"), str(tmp_path / "killed.yaml"), "2"],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 0, "the run was never killed: nothing was tested"
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(1, 16))
    tasks = [task for row in rows for task in row["tasks"]]
    assert len(set(tasks[:30])) == len(set(tasks[30:])) == 30


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"asynchrony": AHEAD, "deterministic": True}, "steps_ahead=1 with deterministic=True"),
    ({"asynchrony": {"steps_ahead": 2}, "deterministic": True}, "steps_ahead=2 with deterministic=True"),
    ({"asynchrony": {"steps_ahead": -1}}, "steps_ahead=-1 must be 0 or more"),
    ({"sampler": {"url": "http://localhost"}}, "is not an option here; it is one only with sampler.backend=openai"),
    ({"sampler": {"backend": "vllm", "url": "x"}}, "is not an option here; it is one only with sampler.backend=openai"),
    ({"sampler": {"engine_args": {"seed": 1}}}, "is not an option here; it is one only with sampler.backend=vllm"),
    ({"sampler": {"backend": "trl"}}, "not one of torch, vllm"),
    ({"sampler": {"backend": "vllm"}, "deterministic": True}, "batches depend on timing"),
    ({"sampler": {"backend": "openai"}}, "sampler.url is missing"),
    ({"sampler": {"backend": "openai"}}, "model.tuning=full with sampler.backend=openai"),
    ({"validation": {"best": "reward"}}, "not a validation metric"),
]


def test_invalid_options_of_prefetching_are_errors(tmp_path: Path) -> None:
    cases = [(sections, re.escape(named)) for sections, named in IMPOSSIBLE]
    assert not not_raised(cases, lambda sections: train(echo_config(tmp_path, **sections)), ConfigError)
