"""The commands end to end: options in, a model out, and one line of advice for errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pettingzoo
import pytest
from refused_options import not_raised
from transformers import AutoTokenizer

from rllm_gym.commands.errors import CommandError
from trainers import commands
from trainers.config import EnvConfig
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model
from trainers.train_env import open_train_env

SFT = """
env: {id: "echo_env:test/Echo-v0"}
model: {tuning: full}
tiny: {hidden_size: 32, num_heads: 1, num_layers: 1, vocab_size: 300}
demonstrations: {policy: "test_sft:say_the_letter", policy_kwargs: {noise: 0.5}}
stop: {metric: sampled_success, at_least: 0.2, every: 5, tasks: 10, sampling: {max_tokens: 3}}
optimizer: {lr: 0.01}
steps: 100
progress: false
"""

TRAIN = """
env: {id: "echo_env:test/Echo-v0"}
sampling: {max_tokens: 3}
algorithm: {group_size: 4, groups_per_step: 4}
validation: {every: 2, tasks: 4}
checkpoint: {every: 1}
progress: false
steps: 2
"""


def test_fine_tune_train_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "train.yaml").write_text(TRAIN)
    base, run = str(tmp_path / "base"), str(tmp_path / "run")
    assert commands.sft(["--config", str(tmp_path / "sft.yaml"), "--output", base]) == 0
    assert "target success rate reached after" in capsys.readouterr().out
    train = ["--config", str(tmp_path / "train.yaml"), "--model.path", f"{base}/model", "--output", run]
    assert commands.train(train) == 0
    shown = capsys.readouterr().out
    assert f"model    {run}/model" in shown
    assert "validation/success" in shown
    assert (tmp_path / "run" / "model" / "adapter_config.json").is_file()

    assert commands.train([*train, "--resume", "--steps", "3"]) == 0
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]
    # The saved configuration of a run can be run again.
    again = ["--config", f"{run}/config.yaml", "--output", str(tmp_path / "again"), "--no-resume", "--steps", "1"]
    assert commands.train(again) == 0

    with pytest.raises(CommandError, match="already contains a run"):
        commands.train(train)
    with pytest.raises(CommandError, match=r"model\.tuning 'lora' → 'full'"):
        commands.train([*train, "--resume", "--steps", "4", "--model.tuning", "full"])
    for state in (tmp_path / "run" / "checkpoints").glob("*/state.pt"):
        state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(CommandError, match="no checkpoint is usable"):
        commands.train([*train, "--resume"])


@pytest.mark.parametrize("env_id", ["rllm/MathMultiTurn-v0", "rllm/CodeMultiTurn-v0"])
def test_environments_that_pass_their_arguments_on_have_validation_tasks(env_id: str) -> None:
    train_env = open_train_env(EnvConfig(env_id, kwargs={"split": "test"}, validation_kwargs={"num_tasks": 5}))
    assert train_env.validation is not None
    assert len(train_env.validation) == 5
    own: Any = gymnasium.make(env_id, split="validation")
    assert train_env.validation[4].task_id == own.unwrapped.tasks[4].task_id
    own.close()
    assert (train_env.train_kwargs["split"], train_env.validation_kwargs["split"]) == ("train", "validation")
    assert train_env.train[0].task_id.split("/")[1:2] == ["train"]


def test_a_limit_of_turns_has_an_effect_if_one_split_allows_more() -> None:
    config = EnvConfig("rllm/FrozenLake-v0", max_turns=8, validation_kwargs={"max_turns": 6})
    assert open_train_env(config).validation_kwargs["max_turns"] == 6


def test_invalid_arguments_are_errors_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pettingzoo.aec_registry, "test/Pair-v0", None)  # a game that is no environment as well
    usual = ["--output", str(tmp_path / "run"), "--model.path", str(make_tiny_model(tmp_path / "tiny"))]
    cases = [
        (["--env.id", "rllm/FrozenLak-v0"], "FrozenLak"),
        (["--env.id", "rllm/FrozenLake-v0", "--env.kwargs", '{"sise": 4}'], "sise"),
        (
            ["--env.id", "rllm/FrozenLake-v0", "--env.max_turns", "99"],
            "env.max_turns=99 has no effect: .* after 10 turns",
        ),
        (["--env.id", "CartPole-v1"], "has the observation_space Box"),
        (["--env.id", "no_such_module:Game-v0"], "no_such_module"),
        (["--env.id", "test/Pair-v0"], "a PettingZoo .* env.agent must be a workflow, .*:SelfPlay; see docs/"),
        (["--env.id", "rllm/Math-v0", "--env.agent", "nowhere:Agent"], "nowhere"),
        (["--env.id", "rllm/Math-v0", "--model.path", "/no/such/model"], "no/such/model"),
        (["--env.id", "rllm/Math-v0", "--model.device", "cuda:99"], "cuda:99"),
    ]
    assert not not_raised(cases, lambda words: commands.train([*usual, *words]), CommandError)


def test_a_tokenizer_without_a_chat_template_is_an_error_that_names_it(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None
    (model / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(model)
    words = ["--env.id", "rllm/Math-v0", "--model.path", str(model), "--output", str(tmp_path / "run")]
    with pytest.raises(CommandError, match="no chat template"):
        commands.train(words)
