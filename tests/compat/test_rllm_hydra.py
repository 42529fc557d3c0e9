"""rLLM's training scripts: their Hydra configurations, for agents and workflows."""

from __future__ import annotations

import copy
import logging
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro", reason="training needs the extra `train`")
import yaml

from rllm_gym.compat import (
    SEARCH_SYSTEM_PROMPT,
    AgentSFTTrainer,
    AgentTrainer,
    DatasetRegistry,
    FrozenLakeAgent,
    FrozenLakeEnv,
    RewardOutput,
    SimpleWorkflow,
    ToolAgent,
    ToolEnvironment,
    math_reward_fn,
    search_reward_fn,
)
from rllm_gym.compat.hydra_config import is_hydra_config, translate, translate_sft
from trainers import ConfigError, SftConfig, TrainConfig
from trainers.config.mapping import from_mapping
from trainers.config.train import validate

ROWS = [{"question": f"{n} + 1?", "ground_truth": str(n + 1)} for n in range(6)]
SCRIPT = shlex.split("""
algorithm.adv_estimator=rloo data.train_batch_size=4 data.max_prompt_length=100 data.max_response_length=50
actor_rollout_ref.model.path=some/model actor_rollout_ref.hybrid_engine=True actor_rollout_ref.actor.optim.lr=2e-6
actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum actor_rollout_ref.actor.ppo_mini_batch_size=2
actor_rollout_ref.actor.ppo_epochs=2 actor_rollout_ref.actor.clip_ratio_high=0.28
actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.003
actor_rollout_ref.actor.entropy_coeff=0.002
actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8
actor_rollout_ref.rollout.temperature=0.6 actor_rollout_ref.rollout.val_kwargs.n=2 actor_rollout_ref.rollout.top_p=0.95
rllm.agent.max_steps=10 rllm.mask_truncated_samples=True rllm.rejection_sample.enable=True
rllm.rejection_sample.multiplier=2 rllm.agent.agent_args.max_steps=7 rllm.env.env_args.is_slippery=False
trainer.logger=[console] trainer.test_freq=5 trainer.save_freq=20 trainer.default_local_dir=out trainer.total_epochs=100
trainer.n_gpus_per_node=8 trainer.resume_mode=disable
""")


def tree(name: str = "agent_ppo_trainer", overrides: list[str] | None = None) -> dict[str, Any]:
    """Return a configuration as Hydra composes it from the files of the package."""
    content = yaml.safe_load(files("rllm_gym.compat.config").joinpath(f"{name}.yaml").read_text("utf-8"))
    composed: dict[str, Any] = {}
    for default in content.pop("defaults", []):
        composed = composed if default == "_self_" else tree(default)
    merge(composed, content)
    for override in overrides or []:
        key, value = override.split("=", 1)
        *sections, leaf = key.split(".")
        node = composed
        for section in sections:
            node = node[section]
        number = value.replace(".", "", 1).replace("e-", "", 1).isdigit()
        node[leaf] = float(value) if number and not value.isdigit() else yaml.safe_load(value)
    return composed


def merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


class View(Mapping[str, Any]):
    """A mapping that is no dictionary, as OmegaConf's."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content

    def __getitem__(self, key: str) -> Any:
        value = self.content[key]
        return View(value) if isinstance(value, Mapping) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def test_a_script_of_rllm_is_translated_to_the_options_with_the_same_meaning(caplog: pytest.LogCaptureFixture) -> None:
    config = tree(overrides=SCRIPT)
    with caplog.at_level(logging.WARNING):
        translated = translate(config, workflow=False, train_rows=10, validation_rows=6)
    assert [record.getMessage().partition("=")[0] for record in caplog.records] == ["actor_rollout_ref.rollout.top_p"]
    assert translate(View(config), workflow=False, train_rows=10, validation_rows=6) == translated
    built = from_mapping(TrainConfig, {**translated.options, "env": {**translated.options["env"], "id": "given"}})
    validate(built)
    assert (built.algorithm.name, built.algorithm.loss, built.algorithm.aggregation) == ("rloo", "clip", "constant")
    assert (built.algorithm.group_size, built.algorithm.groups_per_step) == (8, 4)
    assert (built.algorithm.minibatches, built.algorithm.epochs) == (2, 2)
    clips = built.algorithm.clip_low, built.algorithm.clip_high  # type: ignore[attr-defined]
    assert (*clips, built.algorithm.kl, built.algorithm.kl_reward) == (0.2, 0.28, 0.003, 0.0)
    assert (built.algorithm.overlong, built.algorithm.dynamic_sampling) == ("mask", 1)  # type: ignore[attr-defined]
    assert (built.optimizer.lr, built.optimizer.schedule, built.optimizer.warmup_steps) == (2e-6, "constant", 0)
    assert (built.model.path, built.model.tuning, built.entropy.bonus) == ("some/model", "full", 0.002)
    sampling = built.sampling
    assert (sampling.temperature, sampling.max_response_tokens, sampling.context_length) == (0.6, 50, 150)
    assert built.steps == 100 * (10 // 4)
    assert built.validation is not None
    assert (built.validation.every, built.validation.tasks, built.validation.samples) == (5, 6, 2)
    assert built.validation.greedy, "validation at temperature 0"
    assert built.checkpoint is not None
    assert (built.checkpoint.every, built.output, built.resume, built.loggers) == (20, "out", False, None)
    assert built.env.max_turns == 10
    assert (translated.agent_args, translated.env_args) == ({"max_steps": 7}, {"is_slippery": False})


@pytest.mark.parametrize("name", ["agent_ppo_trainer", "ppo_trainer", "agent_ppo_trainer_megatron"])
def test_the_defaults_of_every_configuration_are_options_that_are_translated(name: str) -> None:
    overrides = ["actor_rollout_ref.model.path=m", "trainer.logger=[console]", "trainer.default_local_dir=o"]
    small = [*overrides, "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2"]
    for estimator, algorithm in (("gae", "ppo"), ("grpo", "grpo"), ("reinforce_plus_plus", "reinforce++")):
        config = tree(name, [*small, f"algorithm.adv_estimator={estimator}"])
        options = translate(config, workflow=True, train_rows=6, validation_rows=0).options
        built = from_mapping(TrainConfig, {**options, "env": {"id": "given"}})
        validate(built)
        assert (built.algorithm.name, built.validation, built.checkpoint) == (algorithm, None, None)
    lora = ["actor_rollout_ref.model.lora_rank=16", "actor_rollout_ref.model.target_modules=[q_proj,v_proj]"]
    model = translate(tree(name, small + lora), workflow=True, train_rows=6, validation_rows=0).options["model"]
    assert (model["tuning"], model["lora"]) == ("lora", {"rank": 16, "alpha": 16.0, "targets": "q_proj,v_proj"})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("actor_rollout_ref.actor.clip_ratio_c", 3.0, "dual clipping is a loss of your own"),
        ("actor_rollout_ref.rollout.max_model_len", 4096, "use sampling.context_length"),
        ("actor_rollout_ref.actor.optim.lrr", 1e-6, r"did you mean actor_rollout_ref\.actor\.optim\.lr\?"),
        ("rllm.agent.max_step", 3, r"did you mean rllm\.agent\.max_steps\?"),
        ("actor_rollout_ref.actor.loss_agg_mode", "sum", "seq-mean-token-mean"),
        ("trainer.resume_mode", "resume_path", "trainer.default_local_dir"),
    ],
)
def test_an_option_that_cannot_be_translated_is_an_error_with_a_hint(key: str, value: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){key.rpartition('.')[2]}.*{hint}"):
        AgentTrainer(
            agent_class=FrozenLakeAgent, env_class=FrozenLakeEnv, config={**tree(), key: value}, train_dataset=ROWS
        )


def test_a_workflow_is_trained_on_the_rows() -> None:
    config = tree(overrides=["actor_rollout_ref.model.path=m", "data.train_batch_size=2", "trainer.logger=[console]"])
    arguments: dict[str, Any] = {"workflow_class": SimpleWorkflow, "workflow_args": {"reward_function": math_reward_fn}}
    trainer = AgentTrainer(**arguments, config=config, train_dataset=ROWS, val_dataset=ROWS[:2])
    assert (trainer.config.steps, len(trainer.train_env.train)) == (90, 6)
    assert trainer.config.env.max_turns is None, "rllm.agent.max_steps is about agents"
    assert trainer.config.validation is not None
    assert AgentTrainer(**arguments, config=config, train_dataset=ROWS).config.validation is None
    for wrong, message in (
        ({"env_args": {"a": 1}}, "env_args: a workflow"),
        ({"train_dataset": []}, "train_dataset has none"),
        ({"workflow_class": None}, "agent_class and env_class"),
    ):
        with pytest.raises(ConfigError, match=message):
            AgentTrainer(**{**arguments, "config": config, "train_dataset": ROWS, **wrong})


def test_fine_tuning_reads_its_own_tree(tmp_path: Path) -> None:
    overrides = shlex.split("""
    model.partial_pretrain=m model.lora_rank=32 data.train_files=rows.parquet data.train_batch_size=4
    data.max_length=13500 data.truncation=right trainer.total_epochs=3 trainer.default_local_dir=out optim.lr=1e-5
    trainer.test_freq=7 data.val_files=held.parquet""")
    for name in ("sft_trainer", "agent_sft_trainer"):
        config = AgentSFTTrainer(tree(name, overrides)).config
        assert isinstance(config, SftConfig)
        assert (config.demonstrations.file, config.demonstrations_per_step, config.epochs) == ("rows.parquet", 4, 3)
        assert (config.length.max_length, config.length.too_long, config.optimizer.lr) == (13500, "cut_right", 1e-5)
        assert config.validation is not None
        assert (config.validation.file, config.validation.every, config.output) == ("held.parquet", 7, "out")
        assert config.model.tuning == "lora"
    with pytest.raises(ConfigError, match=r"trainer\.total_epoch"):
        translate_sft({**tree("sft_trainer"), "trainer.total_epoch": 1})
    assert not is_hydra_config({"model": {"path": "m"}, "algorithm": {"name": "grpo"}, "steps": 1})


def test_the_listing_of_a_search_agent_and_a_workflow_train_with_a_tree_of_rllm(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the extra `train`")
    from trainers import make_tiny_model

    seen: list[Any] = []

    def by_length(task_info: dict[str, Any], action: Any) -> RewardOutput:
        seen.append(task_info["question"])
        search_reward_fn(task_info, action)
        return RewardOutput(reward=float(len(str(getattr(action, "action", action))) % 3))

    def local_search(query: str) -> str:
        """Search."""
        return query

    model = make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    DatasetRegistry.register_dataset("hotpotqa_combined", ROWS, "train", home=tmp_path)
    rows = DatasetRegistry.load_dataset("hotpotqa_combined", "train", home=tmp_path)
    tool_map = {"local_search": local_search}
    agent: dict[str, Any] = {
        "agent_class": ToolAgent,
        "env_class": ToolEnvironment,
        "agent_args": {"system_prompt": SEARCH_SYSTEM_PROMPT, "tool_map": tool_map, "parser_name": "qwen"},
        "env_args": {"max_steps": 20, "tool_map": tool_map, "reward_fn": by_length},
    }
    workflow: dict[str, Any] = {"workflow_class": SimpleWorkflow, "workflow_args": {"reward_function": by_length}}
    for name, trained in (("agent", agent), ("workflow", workflow)):
        seen.clear()
        config = tree(
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                f"trainer.default_local_dir={tmp_path / name}",
                *("trainer.logger=[console]", "trainer.total_training_steps=1", "trainer.val_before_train=False"),
                *("data.train_batch_size=2", "actor_rollout_ref.rollout.n=3", "algorithm.adv_estimator=grpo"),
                *("data.max_prompt_length=3000", "data.max_response_length=6"),
                "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            ]
        )
        AgentTrainer(config=config, train_dataset=rows, val_dataset=rows, **trained).train()
        assert (len(seen), len(set(seen))) == (6, 2), "three episodes of two rows"
        assert len((tmp_path / name / "metrics.jsonl").read_text().splitlines()) == 1
