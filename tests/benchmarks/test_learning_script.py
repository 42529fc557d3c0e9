"""The learning benchmark: which jobs run, which are skipped, and what tables and verdicts contain."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.learning import LAKE, Job, jobs, plot, results_in, run_all, table, verdicts, write_results
from benchmarks.learning_run import ALGORITHMS, EPISODES_PER_STEP, FAMILIES, config_of
from trainers.algorithms import make_algorithm
from trainers.config import TrainConfig, validate
from trainers.config_loading import load_yaml


def result(algorithm: str, tuning: str, seed: int, sampled: float, family: str = "lake", **more: Any) -> dict[str, Any]:
    curve = [
        {"step": step, "episodes": 128 * step, "cpu_seconds": 2.0 * step, "sampled": 0.4 + step / 200, "greedy": 0.8}
        for step in (0, 50, 100)
    ]
    return {
        "family": family,
        "algorithm": algorithm,
        "tuning": tuning,
        "seed": seed,
        "episodes": 12_800,
        "cpu_seconds": 200.0,
        "curve": curve,
        "after": {"sampled": sampled, "greedy": sampled},
        "diverged": "",
        "skipped_updates": 0,
        **more,
    }


BASES = {(family, seed): {"sampled": 0.4, "greedy": 0.7} for family in ("lake", "letters") for seed in (0, 1, 2)}


def test_every_algorithm_has_valid_options_and_the_same_number_of_episodes(tmp_path: Path) -> None:
    for algorithm in LAKE:
        for tuning in ("full", "lora"):
            config = config_of(tmp_path / "run", tmp_path / "base", "lake", algorithm, tuning, seed=0)
            validate(config)
            plan = make_algorithm(config.algorithm).rollout_plan()
            assert len(plan) * config.algorithm.groups_per_step == EPISODES_PER_STEP, (algorithm, tuning)
            assert config.steps == FAMILIES["lake"].steps, (algorithm, tuning)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_ppo_recipes_are_what_was_benchmarked(tmp_path: Path, tuning: str) -> None:
    measured = config_of(tmp_path / "run", tmp_path / "base", "lake", "ppo-turn", tuning, seed=0)
    recipe = load_yaml(TrainConfig, f"frozen_lake_ppo_{tuning}")
    # The benchmark also measures greedy episodes, and writes no checkpoints.
    same = {"output": recipe.output, "progress": recipe.progress, "checkpoint": recipe.checkpoint}
    validation = recipe.validation
    assert replace(measured.validation, greedy=False, best=validation.best) == validation
    model = replace(measured.model, path="")
    assert replace(measured, **same, validation=validation, model=model) == recipe


def test_all_algorithms_are_run_for_one_seed_before_the_next_and_letters_with_all_weights_only() -> None:
    wanted = jobs(["lake", "letters"], LAKE, ["full", "lora"], [0, 1, 2])
    trained = [job for job in wanted if job.what == "train"]
    assert len(trained) == 3 * (2 * len(ALGORITHMS) + 1)
    assert [job.names[-1] for job in wanted] == sorted(job.names[-1] for job in wanted)
    assert not any(job.names[0] == "letters" and "lora" in job.names for job in trained)
    assert all(job.needs in wanted for job in trained)


def test_jobs_with_a_result_are_skipped_and_a_failed_base_model_fails_its_dependents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = jobs(["lake"], ["grpo"], ["full"], [0])
    (tmp_path / "lake-0.json").write_text(json.dumps({"success": {"sampled": 0.4, "greedy": 0.7}}))
    (tmp_path / "lake-grpo-full-0.json").write_text(json.dumps(result("grpo", "full", 0, 0.9)))
    assert run_all(wanted, tmp_path, parallel=1) == []
    assert not list(tmp_path.glob("*.log")), "nothing was started"

    monkeypatch.setattr("sys.executable", "/bin/false")
    failed = run_all(jobs(["lake"], ["grpo"], ["full"], [1]), tmp_path, parallel=2)
    assert failed == ["lake-1", "lake-grpo-full-1"]


def test_two_schedulers_do_not_share_a_folder(tmp_path: Path) -> None:
    wanted = jobs(["lake"], ["grpo"], ["full"], [0])
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="another process runs jobs"):
            run_all(wanted, tmp_path, parallel=1)


def test_verdicts_report_missed_medians_diverged_runs_and_insufficient_gains() -> None:
    runs = [result("grpo", "full", seed, value) for seed, value in enumerate((0.95, 0.89, 0.91))]
    assert verdicts(runs, BASES) == [("grpo, full: median 0.910 (target 0.9)", True), ("no run diverged", True)]

    runs += [result("rebn", "lora", 0, 0.2), result("ppo-turn", "lora", 1, 0.84)]
    runs += [result("grpo", "full", 0, 0.75, family="letters")]
    output = dict(verdicts(runs, BASES))
    assert output["rebn, lora: diverged with seed 0"] is False
    assert output["ppo-turn, lora: median 0.840 (target 0.85)"] is False
    assert output["grpo, letters: sampled rises by 0.350 (target 0.4)"] is False
    assert "no run diverged" not in output


def test_table_and_plot_show_every_run(tmp_path: Path) -> None:
    runs = [result(algorithm, tuning, 0, 0.9) for algorithm in LAKE for tuning in ("full", "lora")]
    lines = table(runs, BASES)
    assert sum(line.startswith(("| full", "| lora")) for line in lines) == 16
    assert "| 12,800 | 200 | 200 | 0 |" in lines[4], "validation success reached 0.80 after 200 CPU seconds"
    picture = ElementTree.fromstring(plot(runs))
    curves = [element for element in picture.iter() if "curve" in element.get("class", "")]
    assert len(curves) == 2 * 2 * len(LAKE)
    write_results(runs, {("lake", 0): BASES["lake", 0]}, tmp_path)
    assert len(json.loads((tmp_path / "learning.json").read_text())) == 16
    assert "NOT MET" not in (tmp_path / "learning.md").read_text()


def test_partial_results_can_be_read(tmp_path: Path) -> None:
    base = {"family": "lake", "seed": 0, "success": {"sampled": 0.4, "greedy": 0.7}}
    (tmp_path / "lake-0.json").write_text(json.dumps(base))
    (tmp_path / "lake-grpo-full-0.json").write_text(json.dumps(result("grpo", "full", 0, 0.9)))
    trained, bases = results_in(tmp_path, jobs(["lake"], LAKE, ["full"], [0, 1]))
    assert [run["algorithm"] for run in trained] == ["grpo"]
    assert bases == {("lake", 0): base["success"]}
    assert Job("base", ("lake", "0")).needs is None
