"""Options: unknown names get suggestions, the command line overrides the file, options without effect are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_options import not_raised

import trainers
from rllm_gym.commands.errors import CommandError
from trainers import commands
from trainers.algorithms import algorithm_options
from trainers.algorithms.registry import ALGORITHMS, options_of, options_type
from trainers.config import (
    ConfigError,
    DpoConfig,
    EnvConfig,
    LoraConfig,
    LoraModelConfig,
    ModelConfig,
    RoleConfig,
    SftConfig,
    StopConfig,
    TinyConfig,
    TrainConfig,
    ValidationConfig,
    validate,
    validate_sft,
)
from trainers.config.mapping import from_mapping, has_option, known_keys, to_mapping
from trainers.config.other_names import options_named
from trainers.config_loading import RECIPES, load_yaml, read_command_line, write_yaml
from trainers.sampler_backends import VllmOptions
from trainers.train_env import make_agent

GOOD: dict[str, Any] = {"env": {"id": "rllm/Math-v0"}, "model": {"path": "somewhere"}}


def config(**sections: Any) -> TrainConfig:
    return from_mapping(TrainConfig, {**GOOD, **sections})


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"optimiser": {"lr": 1}}, r"optimiser\.lr=1 is not an option; did you mean optimizer\.lr\?"),
    ({"optimizer": {"lrr": 1}}, r"optimizer\.lrr=1 is not an option; did you mean optimizer\.lr\?"),
    ({"group_size": 8}, r"did you mean algorithm\.group_size\?"),
    ({"model": {"lora": {"rnak": 8}}}, r"model\.lora\.rnak=8 is not an option; did you mean model\.lora\.rank\?"),
    ({"optimizer": {"lr": "fast"}}, "'fast' must be a number"),
    ({"steps": 1.5}, "of type int"),
    ({"steps": True}, "of type int"),
    ({"resume": 1}, "of type bool"),
    ({"algorithm": {"name": "gropo"}}, "not one of grpo, .*, ppo; name an Algorithm of your own as my_module:MY_ALGO"),
    ({"algorithm": {"loss": "clap"}}, "algorithm.loss='clap' is not one of clip, .*my_module:MY_LOSS"),
    ({"algorithm": {"name": "math:pi"}}, "has type float, not trainers.algorithms.Algorithm"),
    ({"algorithm": {"name": "no_such_module:X"}}, "cannot be imported"),
    (
        {"algorithm": {"loss": "reinforce", "clip_high": 0.3}},
        "clip_high=0.3 is not an option here; it is one only with .*algorithm.loss=clip",
    ),
    ({"algorithm": {"name": "rloo", "normalize_std": True}}, "normalize_std=True is not .* with algorithm.name=grpo"),
    ({"algorithm": {"gamma": 0.9}}, "gamma=0.9 is not .* algorithm.name=reinforce.. or algorithm.name=rebn or .*=ppo"),
    ({"algorithm": {"group_sise": 8}}, r"did you mean algorithm\.group_size"),
    ({"model": "gpt2"}, "model='gpt2' is a section"),
    ({"model": {"tuning": "full", "lora": {}}}, "model.lora={} is not .* with model.tuning=lora or model.tuning=qlora"),
    ({"sampling": {"top_p": 0.9}}, "sampling.top_p=0.9 is not an option: training samples from the whole"),
    ({"env": {"workflow_args": {"n": 3}}}, "is not an option; did you mean env.agent_kwargs?"),
    ({"validation": {"every": "often"}}, "validation.every='often' must be of type int"),
    ({"validation": 3}, "validation=3 is a section"),
    ({"roles": {"judge": 3}}, "roles.judge=3 must be a mapping of options: adapter, max_tokens"),
    ({"model": {"tuning": "half"}}, "model.tuning='half' is not one of full, lora, qlora"),
    ({"env": {"kwargs": "size=4"}}, "must be a mapping"),
]


def read(*words: str) -> TrainConfig:
    return read_command_line(TrainConfig, words, program="train", description="")


def test_unknown_options_and_wrong_types_are_errors_that_name_them() -> None:
    assert not not_raised(UNKNOWN, lambda content: from_mapping(TrainConfig, content), ConfigError)


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"group_size": 1}}, "at least 2 episodes"),
    ({"algorithm": {"clip_low": 1.0}}, "never clips"),
    ({"validation": {"every": 0}}, "validation.every=0 must be above 0"),
    ({"deterministic": True, "model": {"path": "x", "device": "cuda"}}, "only the CPU"),
    ({"model": {"path": "x", "lora": {"targets": " "}}}, "model.lora.targets is empty"),
    ({"sampling": {"temperature": 0.0}}, "is greedy"),
    ({"model": {}}, "model.path is missing"),
    ({"env": {}}, "env.id is missing"),
    ({"steps": 0}, "steps=0 must be above 0"),
    ({"optimizer": {"lr": float("nan")}}, "lr=nan must be above 0"),
    ({"optimizer": {"weight_decay": -0.1}}, "weight_decay=-0.1 must be 0 or more"),
    ({"algorithm": {"loss": "reinforce", "importance_cap": 1.0}}, "importance_cap=1.0 must be one bound above 1"),
    (
        {"algorithm": {"importance_cap": [1.5, 5]}},
        r"importance_cap=\(1.5, 5.0\) must be one bound above 1, or two around",
    ),
    (
        {"algorithm": {"importance_cap": 2.0, "loss": "gspo"}},
        r"importance_cap=2.0 is not an option here.* algorithm.old_logprobs=trainer \(algorithm.loss=gspo\)",
    ),
    (
        {"asynchrony": {"steps_ahead": 2}, "sampler": {"backend": "openai", "url": "http://x/v1#m"}},
        "steps_ahead=2 with sampler.backend=openai",
    ),
    ({"algorithm": {"importance_cap": [0.5, 2, 5]}}, "must be one bound above 1, or two around 1"),
    (
        {"algorithm": {"importance_mode": "token-mask"}},
        "importance_mode='token-mask' is not an option here; it is one only with algorithm.importance_c",
    ),
    ({"algorithm": {"name": "ppo", "gamma": 1.1}}, r"gamma=1.1 must be in \[0, 1\]"),
    ({"algorithm": {"name": "ppo", "value_lr": 0.0}}, "value_lr=0.0 must be above 0"),
    ({"entropy": {"bonus": -0.01}}, "bonus=-0.01 must be 0 or more"),
]


def test_names_of_other_trainers_get_a_hint() -> None:
    types = (TrainConfig, SftConfig, DpoConfig)
    file = Path(trainers.__file__).parent / "config" / "other_names.yaml"
    known_names = yaml.safe_load(file.read_text())["same_meaning"].keys()
    for option in {option for name in known_names for option in options_named(name)}:
        assert any(has_option(config_type, option) for config_type in types), option
    assert not known_names & {key for key in known_keys(TrainConfig) if "." not in key}
    for command, option, answer in (
        (commands.train, "--learning-rate", "learning_rate='4' is not an option; did you mean optimizer.lr?"),
        (commands.train, "--num_generations=4", "did you mean algorithm.group_size?"),
        (commands.train, "--actor_rollout_ref.rollout.n", "did you mean algorithm.group_size?"),
        (commands.sft, "--num-train-epochs", "did you mean epochs or steps?"),
        (commands.train, "--agent-kwarg", "did you mean env.agent_kwargs?"),
        (commands.train, "--workflow-args", "did you mean env.agent_kwargs?"),
        (commands.train, "--sampling.top-p", "training samples from the whole distribution"),
        (commands.train, "--temperature", "did you mean sampling.temperature?"),
        (commands.train, "--per_device_train_batch_size", "did you mean algorithm.groups_per_step?"),
        (commands.train, "--beta", "did you mean algorithm.kl?"),
        (commands.train, "--report_to", "did you mean loggers?"),
        (commands.train, "--reward_funcs", "--dataset FILE (or hf:REPO) with --reward my_module:function"),
        (commands.train, "--log-completions", "completions.jsonl in the output folder has"),
        (commands.train, "--deepspeed", "`torchrun` runs one process per device"),
        (commands.train, "--data.train_files", "--dataset FILE"),
        (commands.sft, "--dataset_name", "did you mean demonstrations.file?"),
        (commands.dpo, "--train-dataset", "did you mean preferences.file?"),
        (commands.train, "--lam", "did you mean algorithm.gae_lambda?"),
        (commands.train, "--algorithm.gae-lambda", "it is one only with algorithm.name=ppo"),
        (commands.dpo, "--lora_r", "did you mean model.lora.rank?"),
        (commands.sft, "--lora_r", "did you mean model.lora.rank?"),
        (commands.sft, "--model.lora.rank", "it is one only with model.tuning=lora or model.tuning=qlora"),
    ):
        full = ["--model.tuning", "full"] if option == "--model.lora.rank" else []
        with pytest.raises(CommandError, match=re.escape(answer)):
            command([*full, option, "4"])
    with pytest.raises(ConfigError, match=r"epsilon=0.2 is not an option; did you mean algorithm.clip_low or"):
        from_mapping(TrainConfig, {"epsilon": 0.2})


def test_options_without_effect_or_with_invalid_values_are_errors() -> None:
    assert not not_raised(IDLE, lambda sections: validate(config(**sections)), ConfigError)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        validate(config(model={}, env={}, steps=0))
    assert len(str(error.value).splitlines()) == 4


FINE_TUNING: list[tuple[dict[str, Any], str]] = [
    ({}, "either demonstrations.file or demonstrations.policy"),
    ({"demonstrations": {"file": "a", "policy": "b:c"}}, "file='a' is not an option here"),
    ({"demonstrations": {"file": "a"}, "env": {"id": "x"}}, "env has no effect"),
    (
        {"demonstrations": {"file": "a", "policy_kwargs": {"x": 1}}},
        "policy_kwargs.*is one only with demonstrations.policy",
    ),
    ({"demonstrations": {"file": "a"}, "tiny": {}, "model": {"path": "x"}}, "set only one"),
    ({"demonstrations": {"policy": "a:b"}, "model": {"path": "x"}}, "env.id is missing"),
    ({"demonstrations": {"file": "a"}, "tiny": {}}, "adapters cannot train a random model; use model.tuning=full"),
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

    plain = read("--config", str(file))
    assert (plain.steps, plain.optimizer.lr, plain.env.kwargs) == (7, 1e-4, {"size": 3})
    over = read(f"--config={file}", "--steps", "9", "--env.kwargs", '{"p": [1, 2]}', "--resume", "--deterministic")
    assert (over.steps, over.optimizer.lr, over.env.kwargs) == (9, 1e-4, {"p": [1, 2]})
    assert over.resume
    assert over.deterministic
    with pytest.raises(ConfigError, match="no configuration file"):
        read("--config", "no_such_recipe")
    with pytest.raises(ConfigError, match="config has no value"):
        read("--config")


def test_all_invalid_options_of_the_file_and_the_command_line_are_listed_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("steps: many\noptimizer: {lrr: 1}\nsampling: {top_k: 5}\nmodel: {lora: {r: 4}}\n")
    with pytest.raises(ConfigError) as error:
        read(
            "--config", str(file), "--save-episodes-every=two", "--no-such-switch", "--validation.every",
            "--seed", "1", "2", "--env.kwargs", "[1]", "--sampler.backend", "trl",
        )  # fmt: skip
    first, *lines = str(error.value).splitlines()
    assert first == f"invalid configuration of train with {file}:"
    assert lines == [
        "  - steps='many' must be of type int",
        "  - optimizer.lrr=1 is not an option; did you mean optimizer.lr?",
        "  - sampling.top_k=5 is not an option: training samples from the whole distribution, whose log-probs the loss "
        "uses",
        "  - model.lora.r=4 is not an option; did you mean model.lora.rank?",
        lines[4],
        "  - save_episodes_every='two' must be of type int",
        lines[6],
        "  - validation.every has no value; write --validation.every VALUE",
        "  - seed=['1', '2'] must be of type int",
        '  - env.kwargs=[1] must be a mapping, for example {"name": value}',
    ]
    assert lines[6].startswith("  - such_switch=False is not an option")
    assert lines[4].startswith("  - sampler.backend='trl' is not one of torch, vllm")
    with pytest.raises(ConfigError, match="'twelve' belongs to no option"):
        read("twelve")


TEXTS = ["", "Use rule #1", "Line one\nLine two", "No", "{name}", "Think: answer", "2023-01-01"]


def test_words_of_the_command_line_are_read_by_the_type_of_the_option() -> None:
    """Text stays as it is; where the option has no type, JSON is read and everything else is text."""
    for text in TEXTS:
        assert read("--env.id", "x", "--env.agent-kwargs.system-prompt", text).env.agent_kwargs["system_prompt"] == text
    kwargs = read(
        "--env.id", "x", "--env.kwargs", '{"f": 1e5, "e": "\\ud83d\\ude00"}', "--env.kwargs.size", "3"
    ).env.kwargs
    assert kwargs == {"f": 100000.0, "e": "\N{GRINNING FACE}", "size": 3}
    assert read("--env.kwargs.slippery", "--env.kwargs.no-walls").env.kwargs == {"slippery": True, "walls": False}
    assert read("--steps", "010").steps == 10
    roles = read("--roles", '{"solver": {"adapter": "own"}}', "--roles.judge.adapter", "base").roles
    assert {name: role.adapter for name, role in roles.items()} == {"solver": "own", "judge": "base"}
    options = read_command_line(UserOptions, USER_WORDS, program="train", description="")
    assert options == UserOptions([1, 2], Path("/x"), 0.5, ("foo",), {"a": 1e-4}, (3,), 7, True, ("a #1", "b"))


@dataclass(frozen=True)
class UserOptions:
    """Options of an algorithm or sampler outside the package."""

    numbers: list[int] = field(default_factory=list)
    path: Path = Path()
    either: int | float = 1
    names: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    anything: Any = None
    switch: bool | None = None
    files: str | tuple[str, ...] = ""


USER_WORDS = [
    "--numbers", "1", "2", "--path", "/x", "--either", "0.5", "--names", "foo", "--weights.a", "1e-4", "--sizes", "3",
    "--anything", "7", "--switch", "--files", "a #1", "b",
]  # fmt: skip


def test_a_run_that_ends_within_its_warm_up_gives_a_warning() -> None:
    for name, effect in (("grpo", "the learning rate never reaches its peak"), ("ppo", "the model stays as it is")):
        words = ["--algorithm.name", name, "--env.id", "x", "--model.path", "x"]
        assert validate(read(*words, "--steps", "6")) == []
        (warning,) = validate(read(*words, "--steps", "5"))
        assert warning.startswith("optimizer.warmup_steps=5 with steps=5")
        assert effect in warning


def test_sections_are_switched_on_and_off() -> None:
    off = read("--validation", "none", "--checkpoint=none")
    assert (off.validation, off.checkpoint) == (None, None)
    assert validate(replace(off, env=EnvConfig("x"), model=ModelConfig("x"))) == []
    assert read("--validation.every", "3").validation == ValidationConfig(every=3)
    assert SftConfig().model == TrainConfig().model == DpoConfig().model, "the commands agree on the default tuning"
    sft = read_command_line(SftConfig, ["--tiny", "--stop.tasks", "9"], program="sft", description="")
    assert (sft.tiny, sft.stop, sft.validation) == (TinyConfig(), StopConfig(tasks=9), None)
    assert from_mapping(SftConfig, to_mapping(sft)) == sft


def test_single_entries_of_mappings_are_options(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("env: {kwargs: {size: 3, view: all}}\nroles: {judge: {max_tokens: 4}}\n")
    changed = read("--config", str(file), "--env.kwargs.size", "4", "5", "--roles.judge.adapter", "own")
    assert changed.env.kwargs == {"size": [4, 5], "view": "all"}
    assert changed.roles == {"judge": RoleConfig(adapter="own", max_tokens=4)}


def test_the_loss_of_a_file_stays_when_another_algorithm_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("algorithm: {name: grpo, loss: gspo, clip_low: 0.001}\n")
    words = ["--config", str(file), "--algorithm.name", "rloo"]
    chosen = read(*words).algorithm
    assert chosen == algorithm_options("rloo", loss="gspo", clip_low=0.001)
    assert options_of(ALGORITHMS["rloo"], algorithm_options("grpo", loss="gspo", clip_low=0.001)) == chosen


def test_the_algorithm_on_the_command_line_decides_which_options_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    ppo = read("--algorithm.gae-lambda=0.95", "--algorithm.name", "ppo", "--algorithm.loss=gspo")
    assert ppo.algorithm == algorithm_options("ppo", loss="gspo", gae_lambda=0.95)
    lake = read("--config", "frozen_lake_full", "--algorithm.name=dr-grpo")
    assert lake.algorithm == algorithm_options("dr-grpo", format_penalty=0.3)
    assert lake.algorithm.aggregation == "constant"
    other_loss = read("--config", "frozen_lake_ppo_full", "--algorithm.loss", "gspo").algorithm
    assert (other_loss.name, other_loss.loss, other_loss.aggregation) == ("ppo", "gspo", "sequence-mean")
    vllm = read("--sampler.backend", "vllm-server", "--sampler.engine-args", '{"gpu_memory_utilization": 0.3}').sampler
    assert vllm == VllmOptions(backend="vllm-server", engine_args={"gpu_memory_utilization": 0.3})
    model = read("--config", "frozen_lake_lora", "--model.tuning=qlora", "--model.lora.rank", "8").model
    assert model == LoraModelConfig(tuning="qlora", lora=LoraConfig(rank=8))
    model = read("--config", "frozen_lake_lora", "--model.tuning=full", "--model.device", "cpu").model
    assert model == ModelConfig(tuning="full", device="cpu")
    with pytest.raises(ConfigError, match=r"algorithm.normalize_std is not an option here.* algorithm.name=grpo"):
        read("--algorithm.name", "ppo", "--algorithm.normalize-std")
    with pytest.raises(ConfigError, match=r"lake_ppo_full.yaml:\n  - algorithm.gamma=0.95 is not an option here"):
        read("--config", "frozen_lake_ppo_full", "--algorithm.name", "grpo")
    for file in ([], ["--config", "frozen_lake_full"], ["--config", "frozen_lake_ppo_full"]):
        for name, own, other in (
            ("ppo", "--algorithm.gae-lambda", "--algorithm.normalize-std"),
            ("grpo", "--algorithm.normalize-std", "--algorithm.gae-lambda"),
        ):
            with pytest.raises(SystemExit):
                read(*file, "--algorithm.name", name, "--help")
            shown = capsys.readouterr().out
            assert own in shown
            assert other not in shown
            assert ("Lambda of GAE" in shown) == (name == "ppo")
    with pytest.raises(SystemExit):
        read("--config", "frozen_lake_lora", "--model.tuning", "full", "--sampler.backend", "vllm", "--help")
    shown = capsys.readouterr().out
    assert "--sampler.engine-args" in shown
    assert "--model.lora.rank" not in shown


def test_every_public_name_can_be_imported() -> None:
    for name in trainers.__all__:
        assert getattr(trainers, name).__name__ in (name, "train"), name


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
        command(["--help-all"])
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


@pytest.mark.parametrize("command", [commands.train, commands.sft, commands.dpo])
def test_the_short_help_fits_on_a_screen_and_names_existing_options(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(["--help"])
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 35
    with pytest.raises(SystemExit):
        command(["--help-all"])
    options = capsys.readouterr().out.partition(short.splitlines()[-2].strip())[2]
    of_the_call = {"--help-all", "--config", "--dataset", "--reward", "--reward-weights", "--validation-dataset"}
    of_the_call |= {"--dry-run", "--push-to-hub", "--env.kwargs.NAME"}
    every = set(re.findall(r"--[\w.-]+", options)) | of_the_call
    others = set(re.findall(r"--[\w.-]+", short.partition("\n")[2])) - every
    kind: Any = {commands.train: TrainConfig, commands.sft: SftConfig, commands.dpo: DpoConfig}[command]
    assert [name for name in others if not has_option(kind, name.removeprefix("--").replace("-", "_"))] == []


def test_options_exist_because_of_defaults_too() -> None:
    """The loss of distillation limits its weights by default, so how it limits them is an option."""
    assert algorithm_options("distillation", importance_mode="token-mask").importance_mode == "token-mask"
    for name in ALGORITHMS:
        options = algorithm_options(name, **({"teacher": "x"} if name in ("distillation", "gkd") else {}))
        assert options_type(to_mapping(options)) is type(options)  # as read from the config.yaml of a run


def test_the_help_shows_the_options_that_exist_with_those_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command, words, names in (
        (commands.sft, ["--demonstrations.policy", "a:b"], {"demonstrations.per-task"}),
        (commands.sft, ["--validation.file", "a"], {"validation.file"}),
        (commands.train, ["--algorithm.kl", "0.1"], {"algorithm.teacher", "algorithm.reference-sync"}),
        (commands.train, ["--algorithm.importance-cap", "2"], {"algorithm.importance-mode"}),
    ):
        for chosen, expected in ((words, names), ([], set())):
            with pytest.raises(SystemExit):
                command([*chosen, "--help-all"])
            text = capsys.readouterr().out
            assert {name for name in names if re.search(rf"^\W+{name} ", text, re.MULTILINE)} == expected, chosen
