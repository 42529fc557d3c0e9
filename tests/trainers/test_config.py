"""Options: unknown names get suggestions, the command line overrides the file, options without effect are errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_options import not_raised

from rllm_gym.commands.errors import CommandError
from trainers import commands
from trainers.algorithms import algorithm_options
from trainers.algorithms.registry import ALGORITHMS, options_of
from trainers.config import (
    ConfigError,
    DpoConfig,
    EnvConfig,
    FullPolicyConfig,
    LoraConfig,
    LoraModelConfig,
    SftConfig,
    TrainConfig,
    validate,
    validate_sft,
)
from trainers.config.mapping import from_mapping, has_option, known_keys, to_mapping
from trainers.config.other_names import OTHER_NAMES
from trainers.config_loading import RECIPES, load_yaml, read_command_line, write_yaml
from trainers.sampler_backends import VllmOptions
from trainers.train_env import make_agent

GOOD: dict[str, Any] = {"env": {"id": "rllm/Math-v0"}, "model": {"path": "somewhere"}}


def config(**sections: Any) -> TrainConfig:
    return from_mapping(TrainConfig, {**GOOD, **sections})


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"optimiser": {"lr": 1}}, "did you mean optimizer?"),
    ({"optimizer": {"lrr": 1}}, r"optimizer\.lrr; did you mean optimizer\.lr\?"),
    ({"group_size": 8}, r"did you mean algorithm\.group_size\?"),
    ({"model": {"lora": {"rnak": 8}}}, r"model\.lora\.rnak; did you mean model\.lora\.rank\?"),
    ({"optimizer": {"lr": "fast"}}, "'fast' must be a number"),
    ({"steps": 1.5}, "of type int"),
    ({"steps": True}, "of type int"),
    ({"resume": 1}, "of type bool"),
    ({"algorithm": {"name": "gropo"}}, "not one of grpo, .*, ppo; name an Algorithm of your own as my_module:MY_ALGO"),
    ({"algorithm": {"loss": "clap"}}, "algorithm.loss='clap' is not one of clip, .*my_module:MY_LOSS"),
    ({"algorithm": {"name": "math:pi"}}, "is a float, not a trainers.algorithms.Algorithm"),
    ({"algorithm": {"name": "no_such_module:X"}}, "cannot be imported"),
    (
        {"algorithm": {"loss": "reinforce", "clip_high": 0.3}},
        "clip_high; it is .* algorithm.loss=clip",
    ),
    ({"algorithm": {"name": "rloo", "normalize_std": True}}, "normalize_std; it is .* with algorithm.name=grpo"),
    ({"algorithm": {"gamma": 0.9}}, "gamma; it is .* algorithm.name=reinforce.. or algorithm.name=rebn or .*=ppo"),
    ({"algorithm": {"group_sise": 8}}, r"did you mean algorithm\.group_size"),
    ({"model": "gpt2"}, "model is a section"),
    ({"model": {"tuning": "full", "lora": {}}}, "model.lora; it is .* with model.tuning=lora or model.tuning=qlora"),
    ({"model": {"reference": "cpu"}}, "model.reference; it is .* with model.tuning=full"),
    ({"model": {"tuning": "half"}}, "model.tuning='half' is not one of full, lora, qlora"),
    ({"env": {"kwargs": "size=4"}}, "of type Mapping"),
]


def test_unknown_options_and_wrong_types_are_errors_that_name_them() -> None:
    assert not not_raised(UNKNOWN, lambda content: from_mapping(TrainConfig, content), ConfigError)


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"group_size": 1}}, "at least 2 episodes"),
    ({"algorithm": {"minibatches": 17}}, "at most algorithm.groups_per_step=16"),
    ({"algorithm": {"clip_low": 1.0}}, "never clips"),
    ({"entropy": {"target": 0.1}}, "entropy.bonus=0.0 must be in"),
    ({"validation": {"every": 0, "tasks": 3}}, "validation.tasks=3 has no effect"),
    ({"checkpoint": {"every": 0}, "resume": True}, "could not be resumed again"),
    ({"checkpoint": {"every": 0, "keep": 5}}, "checkpoint.keep=5 has no effect"),
    ({"deterministic": True, "threads": 2}, "threads=2 with deterministic"),
    ({"deterministic": True, "model": {"path": "x", "device": "cuda"}}, "only the CPU"),
    ({"sampling": {"temperature": 0.0}}, "is greedy"),
    ({"model": {"path": "x", "tuning": "full", "reference": "cpu"}}, "has no effect without a KL term"),
    ({"model": {"path": "x", "lora": {"targets": " "}}}, "model.lora.targets is empty"),
    ({"model": {"path": "x", "lora": {"plus_ratio": 0.0}}}, "model.lora.plus_ratio=0.0 must be above 0"),
    ({"model": {}}, "model.path is missing"),
    ({"env": {}}, "env.id is missing"),
    ({"steps": 0}, "steps=0 must be above 0"),
    ({"optimizer": {"lr": float("nan")}}, "lr=nan must be above 0"),
    ({"optimizer": {"weight_decay": -0.1}}, "weight_decay=-0.1 must be 0 or more"),
    ({"algorithm": {"loss": "reinforce", "importance_cap": 1.0}}, "importance_cap=1.0 must be above 1"),
    ({"algorithm": {"name": "ppo", "gamma": 1.1}}, r"gamma=1.1 must be in \[0, 1\]"),
    ({"algorithm": {"dynamic_sampling": 2, "drop_zero_variance": False}}, "set only one of the two"),
    ({"algorithm": {"name": "ppo", "value_lr": 0.0}}, "value_lr=0.0 must be above 0"),
    ({"entropy": {"bonus": -0.01}}, "bonus=-0.01 must be 0 or more"),
]


def test_names_of_other_trainers_get_a_hint() -> None:
    types = (TrainConfig, SftConfig, DpoConfig)
    for option in {option for options in OTHER_NAMES.values() for option in options}:
        assert any(has_option(config_type, option) for config_type in types), option
    assert not OTHER_NAMES.keys() & {key for key in known_keys(TrainConfig) if "." not in key}
    for command, option, answer in (
        (commands.train, "--learning-rate", "did you mean --optimizer.lr?"),
        (commands.train, "--num_generations=4", "did you mean --algorithm.group-size?"),
        (commands.train, "--actor_rollout_ref.rollout.n", "did you mean --algorithm.group-size?"),
        (commands.sft, "--num-train-epochs", "did you mean --epochs or --steps?"),
        (commands.train, "--lam", "did you mean --algorithm.gae-lambda?"),
        (commands.train, "--algorithm.gae-lambda", "it is an option only with algorithm.name=ppo"),
        (commands.dpo, "--lora_r", "did you mean --model.lora.rank?"),
        (commands.sft, "--lora_r", "did you mean --model.lora.rank?"),
        (commands.sft, "--model.lora.rank", "it is an option only with model.tuning=lora or model.tuning=qlora"),
    ):
        with pytest.raises(CommandError, match=re.escape(answer)):
            command([option, "4"])
    with pytest.raises(ConfigError, match=r"unknown option epsilon; did you mean algorithm.clip_low or algorithm.clip"):
        from_mapping(TrainConfig, {"epsilon": 0.2})


def test_options_without_effect_or_with_invalid_values_are_errors() -> None:
    assert not not_raised(IDLE, lambda sections: validate(config(**sections)), ConfigError)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        validate(config(model={}, env={}, steps=0))
    assert len(str(error.value).splitlines()) == 4


def test_a_learning_rate_too_low_for_lora_gives_a_warning() -> None:
    (warning,) = validate(config(optimizer={"lr": 5e-7}))
    assert "5e-07 with LoRA" in warning
    assert validate(config(optimizer={"lr": 5e-7}, model={"path": "x", "tuning": "full"})) == []


FINE_TUNING: list[tuple[dict[str, Any], str]] = [
    ({}, "either demonstrations.file or demonstrations.policy"),
    ({"demonstrations": {"file": "a", "policy": "b:c"}}, "either demonstrations.file or demonstrations.policy"),
    ({"demonstrations": {"file": "a"}, "env": {"id": "x"}}, "env has no effect"),
    ({"demonstrations": {"file": "a", "policy_kwargs": {"x": 1}}}, "policy_kwargs has no effect"),
    ({"demonstrations": {"file": "a"}, "stop": {"every": 3}}, "stop.every has no effect"),
    ({"demonstrations": {"file": "a"}, "tiny": {"enabled": True}, "model": {"path": "x"}}, "set only one"),
    ({"demonstrations": {"file": "a"}, "tiny": {"seed": 3}, "model": {"path": "x"}}, "without tiny.enabled"),
    ({"demonstrations": {"policy": "a:b"}, "model": {"path": "x"}}, "env.id is missing"),
]


def test_fine_tuning_options_are_checked_too() -> None:
    assert not not_raised(FINE_TUNING, lambda content: validate_sft(from_mapping(SftConfig, content)), ConfigError)


numbers = st.integers(1, 100)
configs = st.builds(
    lambda steps, lr, kwargs, turns, deterministic: config(
        steps=steps,
        optimizer={"lr": lr},
        env={"id": "x", "kwargs": kwargs, "max_turns": turns},
        deterministic=deterministic,
    ),
    numbers,
    st.floats(1e-9, 1),
    st.dictionaries(st.text(max_size=5), st.one_of(numbers, st.text(max_size=5), st.lists(numbers, max_size=3))),
    st.none() | numbers,
    st.booleans(),
)


@settings(max_examples=50, deadline=None)
@given(original=configs)
def test_a_configuration_survives_yaml(original: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("config") / "c.yaml"
    write_yaml(file, original)
    assert load_yaml(TrainConfig, file) == original
    assert from_mapping(TrainConfig, to_mapping(original)) == original


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("steps: 7\noptimizer: {lr: 1e-4}\nenv: {id: rllm/Math-v0, kwargs: {size: 3}}\n")

    def read(*words: str) -> TrainConfig:
        return read_command_line(TrainConfig, words, program="train", description="")

    plain = read("--config", str(file))
    assert (plain.steps, plain.optimizer.lr, plain.env.kwargs) == (7, 1e-4, {"size": 3})
    over = read(f"--config={file}", "--steps", "9", "--env.kwargs", '{"p": [1, 2]}', "--resume", "--deterministic")
    assert (over.steps, over.optimizer.lr, over.env.kwargs) == (9, 1e-4, {"p": [1, 2]})
    assert over.resume
    assert over.deterministic
    with pytest.raises(ConfigError, match="no configuration file"):
        read("--config", "no_such_recipe")
    with pytest.raises(ConfigError, match="needs a file"):
        read("--config")
    with pytest.raises(SystemExit):
        read("--no-such-option", "1")


def test_the_loss_of_a_file_stays_when_another_algorithm_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("algorithm: {name: grpo, loss: gspo, clip_low: 0.001}\n")
    words = ["--config", str(file), "--algorithm.name", "rloo"]
    chosen = read_command_line(TrainConfig, words, program="train", description="").algorithm
    assert chosen == algorithm_options("rloo", loss="gspo", clip_low=0.001)
    assert options_of(ALGORITHMS["rloo"], algorithm_options("grpo", loss="gspo", clip_low=0.001)) == chosen


def test_the_algorithm_on_the_command_line_decides_which_options_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    def read(*words: str) -> TrainConfig:
        return read_command_line(TrainConfig, words, program="train", description="")

    ppo = read("--algorithm.gae-lambda=0.95", "--algorithm.name", "ppo", "--algorithm.loss=gspo")
    assert ppo.algorithm == algorithm_options("ppo", loss="gspo", gae_lambda=0.95)
    lake = read("--config", "frozen_lake_full", "--algorithm.name=dr-grpo")
    assert lake.algorithm == algorithm_options("dr-grpo", format_penalty=0.3)
    assert lake.algorithm.aggregation == "constant"
    other_loss = read("--config", "frozen_lake_ppo_full", "--algorithm.loss", "gspo").algorithm
    assert (other_loss.name, other_loss.loss, other_loss.aggregation) == ("ppo", "gspo", "sequence-mean")
    vllm = read("--sampler.backend", "vllm-server", "--sampler.gpu-memory", "0.3").sampler
    assert vllm == VllmOptions(backend="vllm-server", gpu_memory=0.3)
    model = read("--config", "frozen_lake_lora", "--model.tuning=qlora", "--model.lora.rank", "8").model
    assert model == LoraModelConfig(tuning="qlora", lora=LoraConfig(rank=8))
    model = read("--config", "frozen_lake_lora", "--model.tuning=full", "--model.reference", "cpu").model
    assert model == FullPolicyConfig(reference="cpu")
    with pytest.raises(ConfigError, match=r"unknown option --algorithm.normalize-std; .* with algorithm.name=grpo"):
        read("--algorithm.name", "ppo", "--algorithm.normalize-std")
    with pytest.raises(ConfigError, match=r"frozen_lake_ppo_full.yaml: unknown option algorithm.gamma"):
        read("--config", "frozen_lake_ppo_full", "--algorithm.name", "grpo")
    with pytest.raises(SystemExit):
        read("--algorithm.name", "ppo", "--help")
    shown = capsys.readouterr().out
    assert "--algorithm.gae-lambda" in shown
    assert "Lambda of GAE" in shown
    assert "--algorithm.normalize-std" not in shown


def test_recipes_are_valid() -> None:
    problems = {}
    for recipe in sorted(RECIPES.glob("*.yaml")):
        kind: Any = SftConfig if "demonstrations" in yaml.safe_load(recipe.read_text()) else TrainConfig
        try:
            loaded = load_yaml(kind, recipe.stem)
            if kind is SftConfig:
                validate_sft(loaded)
            else:
                assert validate(replace(loaded, model=replace(loaded.model, path="x"))) == []
        except (ConfigError, AssertionError) as error:
            problems[recipe.stem] = error
    assert not problems


@pytest.mark.parametrize("command", [commands.train, commands.sft, commands.dpo])
def test_help_explains_every_option_and_an_error_has_one_message(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        command(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    kind: Any = {commands.train: TrainConfig, commands.sft: SftConfig, commands.dpo: DpoConfig}[command]
    for key in known_keys(kind):
        assert f"--{key.replace('_', '-')}" in shown or f"{key} options" in shown, key
    assert f"  rllm-gym {command.__name__} --" in shown, "an example"
    with pytest.raises(CommandError, match="is missing"):
        command([])


def test_the_agents_arguments_are_also_those_of_the_default_agent() -> None:
    agent = make_agent(EnvConfig(id="rllm/FrozenLake-v0", agent_kwargs={"system_prompt": "Walk."}))()
    assert type(agent).__name__ == "FrozenLakeAgent"
    agent.update_from_env("S", 0.0, False, {})
    assert agent.chat_completions[0] == {"role": "system", "content": "Walk."}
    with pytest.raises(ConfigError, match=r"env.agent=FrozenLakeAgent \(the default of .*'hsitory'"):
        make_agent(EnvConfig(id="rllm/FrozenLake-v0", agent_kwargs={"hsitory": "latest"}))
