"""Several roles in one run: which weights each role uses, which roles learn, with every algorithm."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from echo_config import echo_config
from peft import PeftModel
from refused_options import not_raised
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rllm_gym.core import Episode
from rllm_gym.engine import load_episodes
from rllm_gym.samplers import TorchSampler, WeightUpdate
from trainers.config import ConfigError, TrainConfig, validate
from trainers.config.mapping import from_mapping
from trainers.dry_run import dry_run, report
from trainers.fine_tuning.demonstrations import read_demonstrations
from trainers.loop import TrainResult, train
from trainers.model import ModelUnusable, Policy
from trainers.run.checkpoint import load_checkpoint
from trainers.run.metrics import read_metrics
from trainers.run.setup import open_run
from trainers.train_env import open_train_env

ALGORITHMS = ["grpo", "dr-grpo", "rloo", "remax", "reinforce", "reinforce++", "rebn", "ppo"]
LOSSES = ["gspo", "cispo", "dppo", "reinforce"]


def team_config(folder: Path, workflow: str = "EchoTeam", **sections: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "steps": 2,
        "env": {"id": "echo_env:test/Echo-v0", "agent": f"echo_workflow:{workflow}"},
        "model": {"tuning": "lora", "lora": {"rank": 4, "alpha": 4.0}},
        "algorithm": {"group_size": 4, "groups_per_step": 2},
        "validation": None,
        "checkpoint": None,
        "save_episodes_every": 1,
    }
    for name, value in sections.items():
        updated = isinstance(defaults.get(name), dict) and name != "model"  # its options depend on the tuning
        defaults[name] = {**defaults[name], **value} if updated else value
    return echo_config(folder, **defaults)


def episodes_of(result: TrainResult, step: int = 1) -> list[Episode]:
    return list(load_episodes(result.output / "episodes" / f"train-{step:06d}.jsonl"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_a_team_with_one_adapter_a_role(tmp_path: Path, name: str) -> None:
    size = 4 if name in ("grpo", "dr-grpo", "rloo") else 2
    options = {"name": name, "group_size": size, "kl": 0.01}
    roles = {"solver": {"adapter": "own"}, "judge": {"adapter": "own"}}
    result = train(team_config(tmp_path, algorithm=options, roles=roles, optimizer={"warmup_steps": 0}))
    row = read_metrics(result.output)[-1]
    episodes = episodes_of(result)
    assert len(episodes) == 2 * (size + (name == "remax"))
    for episode in episodes:
        assert [(item.name, item.role) for item in episode.trajectories] == [
            ("solver_0", "solver"), ("solver_1", "solver"), ("judge_0", "judge")
        ]  # fmt: skip
    assert row["reward/mean/solver"] == pytest.approx(
        torch.tensor(
            [t.reward for e in episodes_of(result, 2) if not e.greedy for t in e.trajectories if t.role == "solver"]
        ).mean()
    )
    for role in ("solver", "judge"):
        assert row[f"optim/trained_tokens/{role}"] > 0
        assert 0 < row[f"policy/entropy/{role}"] < 6
        assert f"policy/kl/{role}" in row
        assert f"optim/grad_norm/{role}" in row
        assert changed(result, role)
    assert row["optim/trained_tokens"] == row["optim/trained_tokens/solver"] + row["optim/trained_tokens/judge"]
    assert row["sampling/logprob_difference/max"] < 1e-3  # each was sampled by the adapter that is trained


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_a_team_on_one_shared_adapter(tmp_path: Path, loss: str) -> None:
    result = train(team_config(tmp_path, algorithm={"loss": loss}))
    row = read_metrics(result.output)[-1]
    assert row["optim/trained_tokens/solver"] > 0 < row["optim/trained_tokens/judge"]
    assert row["sampling/logprob_difference/max"] < 1e-3
    assert not {"optim/grad_norm/solver", "optim/grad_norm/shared"} & row.keys()
    assert changed(result, "")


def changed(result: TrainResult, role: str) -> bool:
    """Return whether the role's saved adapter differs from zero."""
    assert result.model is not None
    weights = load_file(result.model / role / "adapter_model.safetensors")
    return any(bool(tensor.any()) for name, tensor in weights.items() if ".lora_B." in name)


def test_a_frozen_role_keeps_its_weights_while_the_other_learns(tmp_path: Path) -> None:
    result = train(team_config(tmp_path, roles={"solver": {"adapter": "own"}, "judge": {"adapter": "base"}}))
    assert result.model is not None
    assert changed(result, "solver")
    assert {path.name for path in result.model.iterdir() if path.is_dir()} == {"solver"}
    for episode in episodes_of(result, 2):
        assert [item.trainable for item in episode.trajectories] == [True, True, False]
        assert episode.info["weights"] == {"solver_0": "solver", "solver_1": "solver", "judge_0": "base"}
    assert "optim/trained_tokens/judge" not in read_metrics(result.output)[-1]


def test_full_weights_are_shared_and_the_base_model_is_unchanged(tmp_path: Path) -> None:
    """The frozen judge uses the model before training, also after full models were synced."""
    config = team_config(tmp_path, model={"tuning": "full"}, roles={"judge": {"adapter": "base"}})
    result = train(config)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    for episode in episodes_of(result, 2):
        (judge,) = [item for item in episode.trajectories if item.role == "judge"]
        (sequence,) = judge.branches()
        with torch.no_grad():
            logp_TV = model(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
        for place, (token, marked) in enumerate(zip(sequence.ids, sequence.mask, strict=True)):
            if marked:
                assert float(logp_TV[place - 1, token]) == pytest.approx(sequence.logprobs[place], abs=1e-4)


def test_a_shared_role_that_is_not_trained_uses_the_newest_weights(tmp_path: Path) -> None:
    result = train(team_config(tmp_path, roles={"judge": {"adapter": "shared-untrained"}}))
    for step in (1, 2):
        for episode in episodes_of(result, step):
            versions = {item.role: item.branches()[0].versions[-1] for item in episode.trajectories}
            assert versions == {"solver": step, "judge": step}
            assert not episode.trajectories[-1].trainable


def test_an_adapter_of_a_role_is_merged_like_any_other(tmp_path: Path) -> None:
    from trainers.config.merge import MergeConfig
    from trainers.model.merge import merge_adapter

    roles = {"solver": {"adapter": "own"}, "judge": {"adapter": "own"}}
    result = train(team_config(tmp_path, roles=roles, optimizer={"lr": 0.05}))
    assert result.model is not None
    ids = torch.arange(1, 12)[None]
    output = []
    for role in roles:
        merge_adapter(MergeConfig(str(result.model / role), str(tmp_path / f"merged-{role}")))
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / f"merged-{role}")
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
        adapted = PeftModel.from_pretrained(base, result.model / role)
        with torch.no_grad():
            output.append(merged(ids).logits)
            assert torch.allclose(output[-1], adapted(ids).logits, atol=1e-4)
    assert not torch.allclose(*output, atol=1e-3)


def test_each_role_has_its_own_limits(tmp_path: Path) -> None:
    result = train(team_config(tmp_path, roles={"judge": {"max_tokens": 1}}))
    for episode in episodes_of(result):
        lengths = {item.role: max(len(step.tokens.ids) for step in item.steps) for item in episode.trajectories}  # type: ignore[union-attr]
        assert lengths["judge"] == 1 < lengths["solver"]


def test_opponents_are_frozen_copies_of_the_player(tmp_path: Path) -> None:
    opponents = {"opponent": {"copies": {"pool": 2, "every": 1}}}
    config = team_config(tmp_path, "Duel", steps=5, roles=opponents, optimizer={"lr": 0.02})
    result = train(config)
    pools = []
    for step in range(1, 6):
        met = {episode.info["weights"]["opponent_0"] for episode in episodes_of(result, step)}
        by_group: dict[str, set[str]] = {}
        for episode in episodes_of(result, step):
            assert episode.trajectories[0].trainable
            assert not episode.trajectories[1].trainable
            by_group.setdefault(episode.group_id, set()).add(episode.info["weights"]["opponent_0"])
        assert all(len(names) == 1 for names in by_group.values())
        pools.append(met)
    assert pools[0] == {"opponent.0"}
    assert set().union(*pools) <= {f"opponent.{step}" for step in range(5)}
    assert all(len(pool) <= 2 for pool in pools)
    assert pools[4] <= {"opponent.3", "opponent.4"}


@pytest.mark.long
def test_a_pool_of_opponents_is_restored_after_an_interruption(tmp_path: Path) -> None:
    """Deterministic, resumed from its checkpoint: the same opponents, the same episodes, the same weights."""

    def run(name: str, steps: int, **options: Any) -> TrainResult:
        opponents = {"opponent": {"copies": {"pool": 3, "every": 1}}}
        config = team_config(
            tmp_path, "Duel", steps=steps, roles=opponents, deterministic=True, checkpoint={"every": 1}, **options,
            output=str(tmp_path / name), optimizer={"lr": 0.02, "schedule": "constant"},
        )  # fmt: skip
        return train(config)

    complete = run("whole", 6)
    run("parts", 3)
    parts = run("parts", 6, resume=True)
    for step in range(4, 7):
        assert [e.info["weights"] for e in episodes_of(complete, step)] == [
            e.info["weights"] for e in episodes_of(parts, step)
        ]
    assert complete.model is not None
    assert parts.model is not None
    one, other = (load_file(model / "adapter_model.safetensors") for model in (complete.model, parts.model))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_restores_every_adapter_and_its_optimizer(tmp_path: Path) -> None:
    roles = {"solver": {"adapter": "own"}, "judge": {"adapter": "own"}}
    options: dict[str, Any] = {"roles": roles, "deterministic": True, "checkpoint": {"every": 1}}
    options["optimizer"] = {"schedule": "constant"}
    complete = train(team_config(tmp_path, steps=4, output=str(tmp_path / "whole"), **options))
    train(team_config(tmp_path, steps=2, output=str(tmp_path / "parts"), **options))
    parts = train(team_config(tmp_path, steps=4, output=str(tmp_path / "parts"), resume=True, **options))
    for role in roles:
        one, other = (load_file(r.model / role / "adapter_model.safetensors") for r in (complete, parts))  # type: ignore[operator]
        assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ConfigError, match="adapters"):
        train(team_config(tmp_path, steps=5, output=str(tmp_path / "parts"), resume=True, **{**options, "roles": {}}))


@pytest.mark.long
def test_a_checkpoint_contains_every_adapter_also_when_none_has_changed(tmp_path: Path) -> None:
    """During the warm-up of the value heads no weights are synced, and PEFT has frozen all adapters but the last for
    the KL.
    """
    options: dict[str, Any] = {
        "roles": {"solver": {"adapter": "own"}, "judge": {"adapter": "own"}},
        "algorithm": {"name": "ppo", "kl": 0.01},
        "checkpoint": {"every": 1},
        "deterministic": True,
        "optimizer": {"schedule": "constant", "warmup_steps": 3},
    }
    complete = train(team_config(tmp_path, steps=4, output=str(tmp_path / "whole"), **options))
    train(team_config(tmp_path, steps=2, output=str(tmp_path / "parts"), **options))
    parts = train(team_config(tmp_path, steps=4, output=str(tmp_path / "parts"), resume=True, **options))
    for role in options["roles"]:
        one, other = (load_file(r.model / role / "adapter_model.safetensors") for r in (complete, parts))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_can_have_a_smaller_pool_or_add_opponents(tmp_path: Path) -> None:
    """A smaller pool drops the oldest; a run started without opponents copies the model it is resumed with."""

    def run(name: str, steps: int, **options: Any) -> TrainResult:
        config = team_config(
            tmp_path, "Duel", steps=steps, checkpoint={"every": 1}, output=str(tmp_path / name),
            optimizer={"schedule": "constant"}, **options,
        )  # fmt: skip
        return train(config)

    run("smaller", 3, roles={"opponent": {"copies": {"pool": 3, "every": 1}}})
    run("smaller", 5, roles={"opponent": {"copies": {"pool": 2, "every": 1}}}, resume=True)
    state = load_checkpoint(tmp_path / "smaller" / "checkpoints").state  # type: ignore[union-attr]
    assert list(state["opponents"]["copies"]) == [4, 5]

    run("later", 1, roles={"opponent": {"adapter": "base"}})
    later = run("later", 2, roles={"opponent": {"copies": {}}}, resume=True)
    assert {episode.info["weights"]["opponent_0"] for episode in episodes_of(later, 2)} == {"opponent.1"}


def test_the_sampler_never_holds_more_opponents_than_the_pool(tmp_path: Path) -> None:
    """Each may take the memory of a model: the oldest is dropped before the next one is added."""

    held: set[str] = set()
    sizes = []

    class Counting(TorchSampler):
        async def sync_weights(self, update: WeightUpdate) -> int:
            held.add(update.name)
            sizes.append(len(held - {""}))
            return await super().sync_weights(update)

        async def drop(self, name: str) -> None:
            held.remove(name)
            await super().drop(name)

    config = team_config(tmp_path, "Duel", steps=4, roles={"opponent": {"copies": {"pool": 2, "every": 1}}})
    train(config, sampler=Counting(config.model.path, max_batch=32))
    assert max(sizes) == 2
    assert held == {"", "opponent.3", "opponent.4"}


def test_an_environment_passed_as_an_object_supports_roles(tmp_path: Path) -> None:
    options = team_config(tmp_path, roles={"solver": {"adapter": "own"}, "judge": {"adapter": "base"}})
    train_env = open_train_env(options.env)
    config = replace(options, env=replace(options.env, id="", agent=""))
    assert dry_run(config, env=train_env).roles == {"solver": "its own weights", "judge": "the model before training"}
    result = train(config, env=train_env)
    assert changed(result, "solver")
    with pytest.raises(ConfigError, match=r"env.agent='echo_workflow:EchoTeam' has no effect"):
        train(options, env=train_env)
    other = replace(config, env=replace(config.env, train_kwargs={"letters": 3}))
    with pytest.raises(ConfigError, match=r"env.train_kwargs has letters=3, which has no effect"):
        train(other, env=train_env)


def test_a_role_named_like_a_part_of_the_model_is_an_error(tmp_path: Path) -> None:
    """PEFT identifies adapters by parts of parameter names: weights would be lost silently."""
    model = team_config(tmp_path).model
    cases = [(name, rf"roles.{name}.adapter=own.*another name") for name in ("mlp", "model", "weight", "lora_B")]
    assert not not_raised(cases, lambda name: Policy(model, adapters=("", name)), ModelUnusable)


def test_adapters_are_independent_of_each_other(tmp_path: Path) -> None:
    """Switching adapters trains none of the others, and all stay in the optimizer."""
    config = team_config(tmp_path)
    policy = Policy(config.model, adapters=("", "judge", "solver_b", "solver"))
    assert len(policy.parameters) == sum(len(policy.parameters_of(adapter)) for adapter in policy.adapters)
    for adapter in policy.adapters:
        policy.activate(adapter)
        assert len(policy.parameters) == 4 * len(policy.parameters_of(adapter))
        tensors = dict(policy.weight_update().tensors)
        assert len(tensors) == len(policy.parameters_of(adapter))
        assert policy.weight_update().name == adapter


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"model": {"tuning": "full"}, "roles": {"solver": {"adapter": "own"}}}, "model.tuning=lora"),
    ({"roles": {"base": {}}}, "roles.base"),
    ({"roles": {"a.b": {}}}, "roles.a.b"),
    ({"roles": {"solver": {"max_tokens": 0}}}, "roles.solver.max_tokens=0 must be above 0"),
    ({"roles": {"judge": {"copies": {}}, "solver": {"copies": {}}}}, "all have copies; only one role can"),
    ({"roles": {"judge": {"copies": {"every": 0}}}}, r"roles.judge.copies.every"),
    ({"roles": {"judge": {"copies": {}, "adapter": "own"}}}, "roles.judge.adapter=own"),
    ({"roles": {"judge": {"copies": {}, "adapter": "shared-untrained"}}}, "roles.judge.adapter=shared-untrained"),
]


def test_invalid_or_unused_role_options_are_errors(tmp_path: Path) -> None:
    assert not not_raised(IMPOSSIBLE, lambda options: validate(team_config(tmp_path, **options)), ConfigError)


def test_opponents_that_are_never_updated_give_a_warning(tmp_path: Path) -> None:
    assert not validate(team_config(tmp_path, "Duel", steps=21, roles={"opponent": {"copies": {}}}))
    (warning,) = validate(team_config(tmp_path, "Duel", steps=20, roles={"opponent": {"copies": {}}}))
    assert warning.startswith("roles.opponent.copies.every=20 with steps=20: the only opponent")


WRONG_ROLES: list[tuple[dict[str, Any], str]] = [
    ({"roles": {"sovler": {}}}, r"roles.sovler.*solver, judge"),
    ({"env": {"agent": ""}, "roles": {"solver": {}}}, "roles.solver: there is a single agent"),
    ({"env": {"agent": ""}, "roles": {"solver": {"copies": {}}}}, "roles.solver: there is a single agent"),
    ({"roles": {"enemy": {"copies": {}}}}, r"roles.enemy.*solver, judge"),
    ({"roles": {"solver": {"adapter": "base"}, "judge": {"adapter": "base"}}}, "no role is trained"),
    ({"roles": {"solver": {"adapter": "own"}, "judge": {"adapter": "shared-untrained"}}}, "use adapter: base"),
    ({"env": {"agent": "echo_workflow:reward_of"}}, "cannot be created"),
    ({"env": {"agent": "echo_workflow:HALVES"}}, "cannot be created"),
    ({"env": {"agent": "builtins:dict"}}, "creates a dict; name a subclass of rllm_gym.agents.BaseAgent or .*Workflow"),
    ({"env": {"agent": "echo_workflow:Missing"}}, "cannot be imported"),
    ({"env": {"agent_kwargs": {"judges": 2}}}, "judges"),
    (
        {
            "roles": {"solver": {"adapter": "own"}},
            "sampler": {"backend": "vllm", "engine_args": {"enable_lora": False}},
        },
        "full models",
    ),
]


def test_roles_unknown_to_the_workflow_are_errors_before_anything_is_loaded(tmp_path: Path) -> None:
    def begin(options: dict[str, Any]) -> None:
        with open_run(team_config(tmp_path, **options)):
            pass

    assert not not_raised(WRONG_ROLES, begin, ConfigError)


def test_a_dry_run_shows_the_role_assignment(tmp_path: Path) -> None:
    roles = {"solver": {"adapter": "own"}, "judge": {"adapter": "own", "max_tokens": 1}}
    config = team_config(tmp_path, roles=roles)
    found = dry_run(config)
    assert found.plan.agents == 3
    assert found.plan.reply == 4 * 3 + 1
    assert found.roles == {"solver": "its own weights", "judge": "its own weights"}
    one = dry_run(team_config(tmp_path))
    assert found.memory.resident["adapters"] == 2 * one.memory.resident["adapters"]
    assert found.memory.resident["sampler's named weights"] > one.memory.resident["sampler's named weights"] == 0
    row = read_metrics(train(config).output)[-1]
    assert row["episodes/count"] == found.plan.episodes
    assert row["completions/total_tokens"] <= found.plan.reply * found.plan.episodes
    duel = dry_run(team_config(tmp_path / "duel", "Duel", roles={"opponent": {"copies": {"pool": 3}}}, output="none"))
    assert "frozen copies, at most 3" in report(duel)
    assert duel.memory.resident["sampler's named weights"] == 3 * found.memory.resident["sampler's named weights"]


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "multi-agent-training.md").read_text()


def shown(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_documentation_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options, reduced, on a tiny model instead of the named one; its code unchanged."""
    base = tmp_path / yaml.safe_load(shown("yaml")[0])["model"]["path"]
    shutil.copytree(team_config(tmp_path).model.path, base)
    small = {
        "steps": 1, "progress": False, "validation": None, "checkpoint": None,
        "sampling": {"max_tokens": 4}, "algorithm": {"group_size": 2, "groups_per_step": 1},
    }  # fmt: skip
    for number, text in enumerate(shown("yaml")):
        options = yaml.safe_load(text)
        model = {**options.get("model", {}), "path": str(base)}
        output = str(tmp_path / "runs" / ("other", "rl")[number == 0])
        train(from_mapping(TrainConfig, {**options, **small, "model": model, "output": output}))
    (code,) = shown("python")
    code += "\nfor episode in episodes:\n    print(episode.info['weights'])\n"
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(code, "docs/multi-agent-training.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.count("'judge_0': 'judge'") == 4


def test_demonstrations_are_not_taken_from_frozen_opponents(tmp_path: Path) -> None:
    config = team_config(tmp_path, "Duel", roles={"opponent": {"copies": {}}}, steps=1)
    result = train(config)
    read = read_demonstrations(result.output / "episodes" / "train-000001.jsonl")
    assert {item.task.rpartition("/")[2] for item in read} == {"player_0"}
