"""A complete run: what it logs, writes and skips; and that it learns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echo_config import echo_config
from echo_env import EchoEnv
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.compat import AgentTrainer, BaseEnv
from rllm_gym.core import EnvironmentFault, Episode, Outcome, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine import load_episodes
from rllm_gym.samplers import ScriptedSampler
from tests.waiting import until
from trainers import Callback
from trainers.algorithms import Algorithm, per_episode
from trainers.config import ConfigError
from trainers.loop import NoTrainableEpisodes, train
from trainers.run.metrics import (
    MetricsLog,
    completion_row,
    episode_metrics,
    group_metrics,
    read_metrics,
    validation_metrics,
)
from trainers.samples import TokensMissing, record_advantages, samples_of
from trainers.train_env import TrainEnv, open_train_env


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loop")
    result = train(
        echo_config(
            folder,
            steps=25,
            algorithm={"group_size": 8, "groups_per_step": 8},
            optimizer={"lr": 0.03},
            validation={"every": 25, "samples": 4, "greedy": True},
            save_episodes_every=25,
        )
    )
    assert result.model is not None
    return folder / "run"


def test_the_reward_increases(run: Path) -> None:
    rows = read_metrics(run)
    assert rows[0]["validation/reward/mean"] < 0.4
    assert rows[-1]["validation/reward/mean"] > 0.9


def test_a_second_run_in_another_thread_is_refused_and_leaves_the_first_unharmed(tmp_path: Path) -> None:
    """Loading two models at once loses weights in transformers, and the runs would share random generators."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    other = echo_config(tmp_path / "second", steps=1, validation=None)
    refused: list[str] = []

    def start_another() -> None:
        try:
            train(other)
        except RuntimeError as error:
            refused.append(str(error))

    class StartAnother(Callback):
        def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
            thread = threading.Thread(target=start_another)
            thread.start()
            thread.join()

    config = echo_config(tmp_path / "first", steps=2, validation=None)
    assert train(config, callbacks=[StartAnother()]).steps == 2
    assert len(refused) == 2
    assert refused[0].startswith("another thread of this process is in a run (train, sft or dpo)")
    assert not Path(other.output).exists()
    assert train(other).steps == 1, "once the first run has ended"


def test_every_step_logs_all_metrics(run: Path) -> None:
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == list(range(26))
    for row in rows[1:]:
        for key in (
            "reward/mean",
            "success",
            "env/faults",
            "optim/lr",
            "episodes/count",
            "episodes/dropped",
            "throughput/rollout_tokens_per_second",
            "tasks",
        ):
            assert key in row, key
        assert row["groups/all_success_fraction"] + row["groups/all_failure_fraction"] == pytest.approx(
            row["groups/zero_std_fraction"]
        )
        assert (
            sum(value for key, value in row.items() if key.startswith("env/stop_reason/"))
            == row["episodes/count"]
            == 64
        )
        assert row["time/step"] >= row["time/rollout"] + row["time/update"]
    for row in rows[1:10]:
        assert row["sampling/logprob_difference/max"] < 1e-3
        assert abs(row["sampling/logprob_difference/mean"]) <= row["sampling/logprob_difference/max"]
        assert 0 < row["policy/entropy"] < 6
        assert row["optim/grad_norm"] > 0
        assert row["throughput/train_tokens_per_second"] > 0
        assert 0 <= row["policy/clip_fraction/low"] + row["policy/clip_fraction/high"] <= 1
    for row in (rows[0], rows[-1]):
        assert row["validation/pass@1"] <= row["validation/pass@2"] <= row["validation/pass@4"]
        assert "validation/greedy_success" in row


def test_a_run_writes_a_model_a_manifest_curves_and_transcripts(run: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert model.config.vocab_size == len(tokenizer)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["config"]["algorithm"]["group_size"] == 8
    assert manifest["sandbox_tier"] == "none"
    assert list((run / "tensorboard").iterdir())
    before, after = (list(load_episodes(run / "episodes" / f"validation-{step:06d}.jsonl")) for step in (0, 25))
    assert len(before) == len(after) == 6 * 5
    assert sum(episode.greedy for episode in after) == 6
    assert len(list(load_episodes(run / "episodes" / "train-000025.jsonl"))) == 64


def test_the_output_folder_of_another_run_is_an_error(run: Path) -> None:
    with pytest.raises(ConfigError, match="already contains a run"):
        train(echo_config(run.parent))


def test_deterministic_runs_are_bit_identical(tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        config = echo_config(tmp_path, steps=3, deterministic=True, output=str(tmp_path / name))
        train(config)
        weights.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"name": "remax", "group_size": 2}},
        {"algorithm": {"name": "rloo", "minibatches": 2, "epochs": 2}},
        {"algorithm": {"name": "reinforce", "loss": "reinforce"}, "model": {"tuning": "lora", "lora": {"rank": 4}}},
        {"algorithm": {"normalize_std": True, "kl": 0.1, "aggregation": "sequence-mean"}},
        {"model": {"tuning": "lora", "gradient_checkpointing": True}, "algorithm": {"kl": 0.1, "kl_reward": 0.1}},
        {"model": {"dtype": "bfloat16", "tuning": "lora"}},
        {"env": {"workers": "process", "parallel": 4}, "validation": {"tasks": 1, "samples": 1}},
    ],
    ids=lambda sections: "-".join(f"{k}" for section in sections.values() for k in section.values()),
)
def test_other_settings_run_too(tmp_path: Path, sections: dict[str, Any]) -> None:
    result = train(echo_config(tmp_path, steps=2, **sections))
    assert result.steps == 2
    rows = read_metrics(tmp_path / "run")
    kl = [row["policy/kl"] for row in rows if "policy/kl" in row]
    assert bool(kl) == bool(sections.get("algorithm", {}).get("kl"))


class FaultyEnv(EchoEnv):
    """Half of its episodes raise a fault on every attempt."""

    def _act(self, action: str) -> Any:
        if self.task.data["letter"] in "ab":
            raise EnvironmentFault("the environment failed", kind="test")
        return super()._act(action)


def test_environment_faults_are_dropped_counted_and_never_trained_on(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=2, save_episodes_every=1)
    train_env = replace(open_train_env(config.env, env=FaultyEnv))
    train(config, env=train_env)
    for row in read_metrics(tmp_path / "run")[1:]:
        episodes = list(load_episodes(tmp_path / "run" / "episodes" / f"train-{row['step']:06d}.jsonl"))
        broken = [episode for episode in episodes if episode.stop_reason == StopReason.FAULT]
        assert row["episodes/dropped"] == len(broken) > 0
        assert row["env/faults"] == row["env/faults/test"] == 3 * len(broken)
        assert row["env/stop_reason/fault"] == len(broken)
        assert not samples_of(broken)
        assert row["optim/trained_tokens"] <= row["completions/total_tokens"]


class HopelessEnv(EchoEnv):
    """Every reply is wrong."""

    def _act(self, action: str) -> Outcome:
        return Outcome("No.", {"echo": 0.0}, terminated=True)


def test_a_step_without_a_gradient_is_logged(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=1)
    train(config, env=replace(open_train_env(config.env, env=HopelessEnv)))
    row = read_metrics(tmp_path / "run")[-1]
    assert (row["groups/all_failure_fraction"], row["optim/trained_tokens"]) == (1.0, 0)
    assert row["policy/entropy"] > 0
    assert 0 < row["sampling/logprob_difference/max"] < 1e-3
    assert abs(row["sampling/logprob_difference/mean"]) <= row["sampling/logprob_difference/max"]
    assert row["policy/clip_fraction/low"] == row["policy/clip_fraction/high"] == 0


class HeadlessAgent(ChatAgent):
    """Raises in every episode."""

    def act(self, response: str) -> str:
        raise IndexError("no such word")


def test_a_run_in_which_every_episode_fails_stops_with_the_reason(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=50)
    train_env = replace(open_train_env(config.env, env=EchoEnv), agent=HeadlessAgent)
    with pytest.raises(NoTrainableEpisodes, match=r"last 5 steps .* agent_error: .*no such word"):
        train(config, env=train_env)
    assert not (tmp_path / "run" / "model").exists()


class SometimesBroken(EchoEnv):
    """Breaks in the first step of every second task, on every attempt."""

    def _act(self, action: str) -> Any:
        if int(self.task.task_id.rpartition("/")[2]) % 2:
            raise EnvironmentFault("the server is gone", kind="server_gone")
        return super()._act(action)


def test_the_reason_why_episodes_were_dropped_is_in_the_log_and_in_the_run_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = echo_config(tmp_path, steps=1, validation=None, algorithm={"groups_per_step": 16})
    train(config, env=replace(open_train_env(config.env, env=SometimesBroken)))
    dropped = list(load_episodes(tmp_path / "run" / "dropped" / "train-000001.jsonl"))
    assert 0 < len(dropped) < 16 * 4
    assert len(dropped) == read_metrics(tmp_path / "run")[-1]["episodes/dropped"]
    assert {episode.attempts for episode in dropped} == {3}
    assert all("the server is gone" in str(episode.fault) for episode in dropped)
    logged = [record.getMessage() for record in caplog.records if ": dropped after" in record.getMessage()]
    assert any(re.search(r"dropped after 3 attempts: fault: .*the server is gone", line) for line in logged)
    assert len(logged) == min(len(dropped), 20), "a long run with many faults must not fill the log"


def episode(group: str, reward: float, *, success: bool = False, invalid: tuple[bool, ...] = (False,)) -> Episode:
    steps = [
        Step(info={"invalid_action": bad}, reward=reward / len(invalid), tokens=TurnTokens((1, 2), (3,), (-0.5,)))
        for bad in invalid
    ]
    reason = StopReason.SUCCESS if success else StopReason.FAILURE
    return Episode(
        f"{group}{reward}{success}",
        group,
        group_id=group,
        reward=reward,
        success=success,
        stop_reason=reason,
        trajectories=[Trajectory(steps=steps)],
    )


def test_groups_with_and_without_signal_are_distinguished() -> None:
    episodes = [
        *(episode("easy", 1.0, success=True) for _ in range(3)),
        *(episode("hard", 0.0) for _ in range(3)),
        episode("useful", 1.0, success=True),
        episode("useful", 0.0),
    ]
    shares = group_metrics(episodes, samples_of(episodes))
    assert shares == {
        "groups/zero_std_fraction": pytest.approx(2 / 3),
        "groups/all_success_fraction": pytest.approx(1 / 3),
        "groups/all_failure_fraction": pytest.approx(1 / 3),
    }


def test_the_format_penalty_is_the_fraction_of_invalid_turns() -> None:
    samples = samples_of([episode("a", 1.0, invalid=(True, False, False, True))], 0.3)
    assert samples[0].reward == pytest.approx(1.0 - 0.3 * 0.5)


def test_advantages_are_recorded_at_the_tokens_that_they_belong_to() -> None:
    """Sequences are ordered by branch, steps by time: the second step here is the last of the samples' tokens."""

    def step(branch: int, *ids: int) -> Step:
        return Step(tokens=TurnTokens((1,), ids, (-0.5,) * len(ids), branch=branch))

    agents = [
        Trajectory("a", steps=[step(0, 1, 2), step(1, 3), step(0, 4)], role="x"),
        Trajectory("b", steps=[step(0, 5)], role="y"),
    ]
    for adapter_of in (None, str):
        found = Episode("e", "t", group_id="t", trajectories=deepcopy(agents), stop_reason=StopReason.SUCCESS)
        samples = samples_of([found], adapter_of=adapter_of)
        sampled = [
            [token for one in sample.sequences for token, own in zip(one.ids, one.mask, strict=True) if own]
            for sample in samples
        ]
        record_advantages([found], samples, sampled)  # the id of a token as its advantage
        turns = [one.tokens for agent in found.trajectories for one in agent.steps]
        assert [turn.advantages for turn in turns] == [turn.ids for turn in turns] == [(1, 2), (3,), (4,), (5,)]


def test_dropped_episodes_do_not_increase_validation_success() -> None:
    lost = replace(episode("b", 0.0), stop_reason=StopReason.FAULT, trajectories=[], fault="x")
    row = validation_metrics([episode("a", 1.0, success=True), lost], 1)
    assert row["validation/success"] == row["validation/pass@1"] == 0.5
    assert row["validation/episodes/dropped"] == 1


def test_a_sampler_without_tokens_is_an_error_with_the_reason(tmp_path: Path) -> None:
    sampler = ScriptedSampler(["a"])
    assert not sampler.returns_tokens
    with pytest.raises(TokensMissing, match="evaluated but not trained on"):
        train(echo_config(tmp_path), sampler=sampler)
    textual = episode("a", 1.0)
    textual.trajectories[0].steps[0].tokens = None
    with pytest.raises(TokensMissing, match="no token ids"):
        samples_of([textual])


class CountingSampler(ScriptedSampler):
    """Counts how often it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1
        await super().close()


def test_the_sampler_is_closed_if_the_run_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = echo_config(tmp_path)
    broken = TrainEnv("test/Echo-v0", ChatAgent, train=range(4))
    for options, error in (
        ({"config": replace(config, steps=0)}, ConfigError),
        ({"config": replace(config, model=replace(config.model, path=str(tmp_path / "missing")))}, Exception),
        ({"config": config, "algorithm": Algorithm("mine", int, per_episode)}, ConfigError),  # type: ignore[arg-type]
        ({"config": config}, TokensMissing),
        ({"config": replace(config, env=replace(config.env, agent="x:Y")), "env": broken}, ConfigError),
        ({"config": config, "env": broken, "dataset": [{"prompt": "a"}]}, ConfigError),
    ):
        sampler, threads = CountingSampler(["a"]), set(threading.enumerate())
        with pytest.raises(error):
            train(**options, sampler=sampler)
        assert sampler.closed == 1, options
        # transformers does not wait for its threads that load weights.
        assert until(lambda threads=threads: set(threading.enumerate()) <= threads)

    sampler = CountingSampler(["a"])
    monkeypatch.setattr("trainers.run.setup.make_sampler", lambda *_: sampler)
    with pytest.raises(TokensMissing):
        train(config)
    assert sampler.closed == 1, "one that the run created"


def test_reward_components_that_are_not_numbers_are_ignored() -> None:
    components = {"hit": 0.5, "numpy": np.float32(0.5), "flag": np.True_, "integer": np.int64(2), 3: True}
    junk = {
        "text": "0.5",
        "none": None,
        "nan": np.nan,
        "inf": -np.inf,
        "huge": 10**400,
        "money": Decimal(1),
        "list": [1],
    }
    found = episode("a", 1.0)
    found.trajectories[0].steps[0].info["reward_components"] = components | junk
    row = episode_metrics([found])
    assert {key: value for key, value in row.items() if key.startswith("reward/") and key.count("/") == 2} == {
        "reward/hit/mean": 0.5,
        "reward/numpy/mean": 0.5,
        "reward/flag/mean": 1.0,
        "reward/integer/mean": 2.0,
        "reward/3/mean": 1.0,
    }
    (sample,) = samples_of([found])
    assert sample.components == {"hit": 0.5, "numpy": 0.5, "flag": 1.0, "integer": 2.0, "3": 1.0}
    assert json.loads(completion_row(1, found)["rewards"]) == sample.components
    found.trajectories[0].steps[0].info["reward_components"] = ["not a mapping"]
    assert samples_of([found])[0].components == {}


def test_metrics_survive_a_torn_line_and_drop_repeated_steps(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        for step in range(5):
            log.write(step, {"reward/mean": float("nan") if step == 1 else 0.5, "tasks": ["a"]})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "rew')
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    assert read_metrics(tmp_path)[1]["reward/mean"] is None
    with MetricsLog(tmp_path, keep_until=2) as log:
        log.write(3, {"reward/mean": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3]


class OldEnv(BaseEnv):
    """Written for rLLM: a 4-tuple step and from_dict."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return {"question": f"say {self.letter}"}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        word = str(action).strip().lower()
        return {}, float(word[:1] < "m"), True, {}

    @staticmethod
    def from_dict(info: dict[str, Any]) -> OldEnv:
        return OldEnv(info["letter"])


class OldAgent(BaseAgent):
    """Written for rLLM: reads ``observation["question"]`` and keeps its own messages."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, Any]] = []

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self.messages

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        if not done:
            self.messages.append({"role": "user", "content": self.prefix + observation["question"]})

    def update_from_model(self, response: str, **kwargs: Any) -> str:
        self.messages.append({"role": "assistant", "content": response})
        return response


@pytest.mark.parametrize("old_environment", [True, False])
def test_agent_trainer_accepts_the_arguments_of_rllm(tmp_path: Path, old_environment: bool) -> None:
    config = echo_config(tmp_path, steps=2, env={"id": ""}, save_episodes_every=2)
    rows = [{"letter": letter, "id": index} for index, letter in enumerate("abcdefgh")]
    trainer = AgentTrainer(
        agent_class=OldAgent,
        env_class=OldEnv if old_environment else EchoEnv,
        config=config,
        train_dataset=rows if old_environment else None,
        val_dataset=rows[:3] if old_environment else None,
        agent_args={"prefix": "Please "},
    )
    assert trainer.train().steps == 2
    (first, *_) = load_episodes(tmp_path / "run" / "episodes" / "train-000002.jsonl")
    assert first.trajectories[0].steps[0].chat_completions[0]["content"].startswith("Please say ")
    assert "validation/success" in read_metrics(tmp_path / "run")[-1]


def test_agent_trainer_accepts_a_mapping_and_names_unsupported_options(tmp_path: Path) -> None:
    trainer = AgentTrainer(agent_class=ChatAgent, env_class=EchoEnv, config={"model": {"path": "x"}, "steps": 3})
    assert trainer.config.steps == 3
    assert isinstance(trainer.train_env, TrainEnv)
    with pytest.raises(ConfigError, match=r"no_such.* is not an option"):
        AgentTrainer(
            agent_class=ChatAgent, env_class=EchoEnv, config={"model": {"path": "x"}, "no_such": {"epochs": 3}}
        )
    with pytest.raises(ConfigError, match="train_dataset has none"):
        AgentTrainer(agent_class=OldAgent, env_class=OldEnv, config={"model": {"path": "x"}})


def test_the_configuration_can_be_imported_without_torch() -> None:
    code = (
        "import sys, trainers.commands as c\n"
        "try: c.train(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1100, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
