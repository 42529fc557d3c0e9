"""Run one seed of ``multiagent.py`` in its own process: create a base model, train it as a team, and measure both.

python -m benchmarks.multiagent_run FOLDER tictactoe 0
python -m benchmarks.multiagent_run FOLDER pairs 0
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks import multiagent_pairs as pairs
from benchmarks import multiagent_tictactoe as tictactoe
from rllm_gym.core import Episode
from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec, Role, Workflow
from rllm_gym.samplers import SamplingParams, TorchSampler, WeightUpdate
from trainers.config import SftConfig, TrainConfig
from trainers.config.mapping import from_mapping
from trainers.fine_tuning.sft import sft
from trainers.loop import train
from trainers.model import load_causal_lm, load_tokenizer
from trainers.run.metrics import read_metrics

TEST_GAMES, CURVE_GAMES, TEST_PROBLEMS = 512, 128, 512
CURVE_EVERY = 20

TINY = {"hidden_size": 64, "num_heads": 4, "rope_theta": 100.0}
SFT: dict[str, dict[str, Any]] = {
    "tictactoe": {"steps": 400, "demonstrations_per_step": 128},
    "pairs": {"steps": 700, "demonstrations_per_step": 64},
}
_LORA = {"tuning": "lora", "lora": {"rank": 32, "alpha": 32.0}}
TRAINING: dict[str, dict[str, Any]] = {
    "tictactoe": {
        "steps": 160,
        "env": {
            "id": "rllm/TicTacToe-v0",
            "agent": "benchmarks.multiagent_tictactoe:Game",
            "kwargs": {"illegal": "lose"},
        },
        "roles": {role: {"adapter": "own"} for role in tictactoe.ROLES},
        "sampling": {"max_tokens": 3},
        "algorithm": {"group_size": 8, "groups_per_step": 16},
        "entropy": {"bonus": 0.01, "target": 0.3},
        "optimizer": {"lr": 4e-3},
        "validation": None,
        "checkpoint": {"every": CURVE_EVERY, "keep": 100},
    },
    "pairs": {
        "steps": 120,
        "env": {"id": "rllm/Math-v0", "agent": "benchmarks.multiagent_pairs:TinyTeam"},
        "roles": {role: {"adapter": "own"} for role in ("solver", "verifier")},
        "sampling": {"max_tokens": 12},
        "algorithm": {"group_size": 4, "groups_per_step": 24},
        "entropy": {"bonus": 0.01, "target": 0.1},
        "optimizer": {"lr": 1.5e-3},
        "validation": {"every": CURVE_EVERY, "tasks": 256, "best": ""},
        "checkpoint": None,
    },
}


def run(folder: Path, family: str, seed: int) -> dict[str, Any]:
    """Train, measure before and after on test tasks, and return the results."""
    began = time.process_time()
    data = _write_data(folder, family, seed)
    base = _base_model(folder, family, seed)
    seconds = {"base": time.process_time() - began}
    config = _config(folder, family, seed, base, data)
    before = measure(family, base, {}, data, seed)
    began = time.process_time()
    result = train(config)
    seconds["training"] = time.process_time() - began
    assert result.model is not None
    final = {role: WeightUpdate.from_adapter(result.model / role) for role in config.roles}
    rows = read_metrics(result.output)
    found = {
        "family": family,
        "seed": seed,
        "before": before,
        "after": measure(family, base, final, data, seed),
        "curve": _curve(family, base, config, final, rows, seed),
        "episodes": sum(row.get("episodes/count", 0) for row in rows),
        "sampler_gap": max(row.get("sampling/logprob_difference/max", 0.0) for row in rows),
        "cpu_seconds": seconds,
    }
    (folder / f"{family}-{seed}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


def _write_data(folder: Path, family: str, seed: int) -> dict[str, Path]:
    """Write demonstrations, and for pairs disjoint problems to train, validate and test on."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        name: folder / f"{family}-{seed}-{name}.jsonl" for name in ("demonstrations", "train", "validation", "test")
    }
    if family == "tictactoe":
        tictactoe.write_demonstrations(files["demonstrations"], 4000, optimal=0.2, seed=seed)
        return files
    rows = pairs.problems(17024, seed)
    for name, some in (("train", rows[:16000]), ("validation", rows[16000:16512]), ("test", rows[16512:])):
        files[name].write_text("".join(json.dumps(row) + "\n" for row in some))
    pairs.write_demonstrations(files["demonstrations"], rows[:16000], solved=0.35, seed=seed)
    return files


def _base_model(folder: Path, family: str, seed: int) -> Path:
    options = {
        "output": str(folder / f"{family}-{seed}-base"),
        "seed": seed,
        "model": {"tuning": "full"},
        "tiny": {**TINY, "seed": seed},
        "demonstrations": {"file": str(folder / f"{family}-{seed}-demonstrations.jsonl")},
        "optimizer": {"lr": 2e-3},
        "progress": False,
        **SFT[family],
    }
    model = sft(from_mapping(SftConfig, options)).model
    assert model is not None
    return model


def _config(folder: Path, family: str, seed: int, base: Path, data: Mapping[str, Path]) -> TrainConfig:
    own = {"output": str(folder / f"{family}-{seed}-rl"), "seed": seed, "progress": False}
    config = from_mapping(TrainConfig, {**TRAINING[family], **own, "model": {"path": str(base), **_LORA}})
    if family == "tictactoe":
        return config
    train_kwargs, validation_kwargs = ({"tasks": str(data[name]), "split": None} for name in ("train", "validation"))
    return replace(config, env=replace(config.env, train_kwargs=train_kwargs, validation_kwargs=validation_kwargs))


# Evaluation


def measure(
    family: str, base: Path, adapters: Mapping[str, WeightUpdate], data: Mapping[str, Path], seed: int
) -> dict[str, float]:
    """Measure on test tasks at temperature 1; roles without an adapter use the base model."""
    if family == "tictactoe":
        return against_fixed(base, adapters, "test", TEST_GAMES, seed)
    kwargs = {"tasks": str(data["test"]), "split": None}
    (episodes,) = _play(base, adapters, [(pairs.TinyTeam(), "rllm/Math-v0", kwargs)], TEST_PROBLEMS, 12, seed)
    return team_numbers([episode.metrics for episode in episodes])


def against_fixed(
    base: Path, adapters: Mapping[str, WeightUpdate], split: str, games: int, seed: int
) -> dict[str, float]:
    """Return the fractions of games won, and of games not lost, by each role against each fixed player."""
    kwargs = {"split": split, "illegal": "lose"}
    players = [(role, opponent) for role in tictactoe.ROLES for opponent in tictactoe.OPPONENTS]
    envs = [(tictactoe.Game(*player), "rllm/TicTacToe-v0", kwargs) for player in players]
    numbers = {}
    for (role, opponent), episodes in zip(players, _play(base, adapters, envs, games, 3, seed), strict=True):
        rewards = [episode.reward for episode in episodes]
        numbers[f"{role} won, {opponent}"] = sum(reward > 0 for reward in rewards) / games
        numbers[f"{role} not lost, {opponent}"] = sum(reward >= 0 for reward in rewards) / games
    return numbers


def team_numbers(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the team's success, that of a single solver, and how often at least one solver was right."""
    names = {"joint": "best_success", "solver alone": "solver_success", "any solver": "any_success"}
    return {name: sum(row[key] for row in metrics) / len(metrics) for name, key in names.items()}


def _play(
    base: Path,
    adapters: Mapping[str, WeightUpdate],
    envs: Sequence[tuple[Workflow, str, dict[str, Any]]],
    tasks: int,
    max_tokens: int,
    seed: int,
) -> list[list[Episode]]:
    """Play the first tasks of each environment once."""

    async def play() -> list[list[Episode]]:
        model = load_causal_lm(str(base), dtype=torch.float32).eval()
        async with TorchSampler(model, load_tokenizer(str(base)), max_batch=128, num_threads=1) as sampler:
            for role, update in adapters.items():
                await sampler.sync_weights(replace(update, name=role))
            played = []
            for workflow, env, kwargs in envs:
                engine = AgentWorkflowEngine(
                    workflow,
                    env=env,
                    env_kwargs=kwargs,
                    sampler=sampler,
                    roles={role: Role(weights=role) for role in adapters},
                    sampling_params=SamplingParams(max_tokens=max_tokens),
                    n_parallel=128,
                    seed=seed,
                )
                played.append(await engine.run([EpisodeSpec(index) for index in range(tasks)]))
            return played

    return asyncio.run(play())


def _curve(
    family: str,
    base: Path,
    config: TrainConfig,
    final: Mapping[str, WeightUpdate],
    rows: Sequence[Mapping[str, Any]],
    seed: int,
) -> list[dict[str, float]]:
    """Return the results on validation tasks at every twentieth step."""
    if family == "pairs":
        names = {"joint": "best_success", "solver alone": "solver_success", "any solver": "any_success"}
        return [
            {"step": row["step"], **{name: row[f"validation/workflow/{key}"] for name, key in names.items()}}
            for row in rows
            if "validation/success" in row
        ]
    points = [{"step": 0.0, **against_fixed(base, {}, "validation", CURVE_GAMES, seed)}]
    for folder in sorted((Path(config.output) / "checkpoints").glob("step-*")):
        state = torch.load(folder / "state.pt", weights_only=True)
        trained = state["learner"]["parameters"]
        adapters = {role: replace(final[role], tensors=_tensors(trained, role)) for role in final}
        step = float(folder.name.removeprefix("step-"))
        points.append({"step": step, **against_fixed(base, adapters, "validation", CURVE_GAMES, seed)})
    return points


def _tensors(trained: Mapping[str, Any], role: str) -> list[tuple[str, Any]]:
    mine = f".{role}."
    return [(name.replace(mine, "."), tensor) for name, tensor in trained.items() if mine in name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("family", choices=["tictactoe", "pairs"])
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    run(options.folder, options.family, options.seed)


if __name__ == "__main__":
    main()
