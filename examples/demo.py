"""Complete training demo in five minutes on two cores: a new tiny model learns to solve unseen FrozenLake maps.

``make demo`` runs it. Four steps: creation of a tiny model and a short fine-tuning on weak demonstrations, stopped
by a rule on validation maps; evaluation on test maps; GRPO; evaluation again, compared with optimal play and the
best policy that does not observe the map. The training options are the recipes ``frozen_lake_sft`` and
``frozen_lake_full`` (or ``frozen_lake_lora``), which ``rllm-gym sft --config`` and ``rllm-gym train --config``
accept as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

import rllm_gym  # noqa: F401 - registers the environments
from examples.frozen_lake_baselines import best_blind_outcomes, oracle_outcomes
from rllm_gym.commands.view.report import write_report
from rllm_gym.core import Episode, Task
from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec, Estimate, compute_pass_at_k, save_episodes
from rllm_gym.engine.metrics import confidence_interval
from rllm_gym.samplers import SamplingParams, TorchSampler
from trainers.config import SftConfig, TrainConfig
from trainers.config_loading import load_yaml
from trainers.fine_tuning.sft import sft
from trainers.loop import train
from trainers.model import load_causal_lm, load_tokenizer
from trainers.train_env import make_agent

TEST_MAPS = 256
SAMPLED, GREEDY, TURNS = "success, sampled", "success, greedy", "turns"


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a policy on the test maps. ``greedy`` and ``turns`` are ``None`` if they do not apply."""

    name: str
    kind: str
    sampled: Estimate
    greedy: Estimate | None
    turns: float | None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of a demo: its folder, the scores in the order of the table, and the seconds of each step."""

    folder: Path
    scores: list[Score]
    seconds: dict[str, float]

    @property
    def before(self) -> Score:
        return self.scores[0]

    @property
    def after(self) -> Score:
        return self.scores[1]


def run_demo(folder: Path, *, seed: int, lora: bool, console: Console, steps: int | None = None) -> DemoResult:
    """Train and evaluate.

    Args:
        folder: Output folder; it must not contain a run.
        seed: Seed of the model's initial weights, the tasks and all sampling.
        lora: Train adapters instead of all weights.
        console: Console for progress messages.
        steps: Number of GRPO steps, if fewer than in the recipe.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def chapter(title: str) -> Iterator[None]:
        console.rule(f"[bold]{title}", align="left", style="bright_black")
        started = time.perf_counter()
        yield
        seconds[title] = time.perf_counter() - started

    sft_config = load_yaml(SftConfig, "frozen_lake_sft")
    sft_config = replace(sft_config, output=str(folder / "sft"), seed=seed, tiny=replace(sft_config.tiny, seed=seed))
    config = load_yaml(TrainConfig, "frozen_lake_lora" if lora else "frozen_lake_full")
    config = replace(config, output=str(folder), seed=seed, steps=steps or config.steps)
    tasks = distinct_maps(config, TEST_MAPS)

    with chapter("1 of 4 · create a tiny model and fine-tune it on weak demonstrations"):
        base = sft(sft_config)
        met = "the stopping rule was met" if base.stopped else "the stopping rule was not met"
        console.print(f"fine-tuned for {base.steps} steps; {met} on validation maps", highlight=False)
    with chapter("2 of 4 · evaluate before reinforcement learning"):
        before = evaluate(config, base.model, tasks, seed=seed)
        save_episodes(folder / "before.jsonl", before)
        console.print(f"success on {len(tasks)} test maps: {compute_pass_at_k(_sampled(before))[1]}", highlight=False)
    config = replace(config, model=replace(config.model, path=str(base.model)))
    with chapter("3 of 4 · GRPO"):
        trained = train(config)
        if trained.model is None:
            raise SystemExit(f"stopped after step {trained.steps}")
    with chapter("4 of 4 · evaluate after GRPO, on unseen maps"):
        after = evaluate(config, trained.model, tasks, seed=seed)
        save_episodes(folder / "after.jsonl", after)
        scores = [
            _score("before", before),
            _score("after", after),
            *_references(config, tasks),
        ]
        _write_evaluation(folder, scores, lora=lora, seed=seed)
        write_report([folder], folder / "report.html")
    return DemoResult(folder, scores, seconds)


def distinct_maps(config: TrainConfig, number: int) -> list[Task]:
    """Return the first ``number`` distinct maps of the test split. The splits are disjoint by content: none is
    trained on.
    """
    env = gymnasium.make(config.env.id, **_test_kwargs(config))
    try:
        tasks: Sequence[Task] = env.unwrapped.tasks  # type: ignore[attr-defined]
        distinct: dict[str, Task] = {}
        for index in range(len(tasks)):
            task = tasks[index]
            distinct.setdefault(task.content, task)
            if len(distinct) == number:
                break
        return list(distinct.values())
    finally:
        env.close()


def evaluate(config: TrainConfig, model: Path, tasks: Sequence[Task], *, seed: int) -> list[Episode]:
    """Run one sampled and one greedy episode on each task, in this order."""
    sampler = TorchSampler(
        load_causal_lm(str(model), dtype=torch.float32).eval(),
        load_tokenizer(str(model)),
        max_batch=config.env.parallel,
        num_threads=1,
    )
    engine = AgentExecutionEngine(
        env=config.env.id,
        env_kwargs=_test_kwargs(config),
        sampler=sampler,
        agent=make_agent(config.env),
        sampling_params=SamplingParams(max_tokens=config.sampling.max_tokens),
        n_parallel=config.env.parallel,
        seed=seed,
    )
    specs = [
        EpisodeSpec(task, seed=index, group_id=f"{task.task_id}@{name}", greedy=greedy)
        for greedy, name in ((False, "sampled"), (True, "greedy"))
        for index, task in enumerate(tasks)
    ]

    async def run() -> list[Episode]:
        try:
            return await engine.run(specs)
        finally:
            await sampler.close()

    return asyncio.run(run())


def _test_kwargs(config: TrainConfig) -> dict[str, Any]:
    return {**config.env.kwargs, "split": "test"}


def _sampled(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if not episode.greedy]


def _score(name: str, episodes: Sequence[Episode]) -> Score:
    sampled = _sampled(episodes)
    greedy = [episode for episode in episodes if episode.greedy]
    turns = sum(episode.num_turns for episode in sampled) / len(sampled)
    return Score(name, "model", compute_pass_at_k(sampled)[1], compute_pass_at_k(greedy)[1], turns)


def _references(config: TrainConfig, tasks: Sequence[Task]) -> list[Score]:
    env = gymnasium.make(config.env.id, **_test_kwargs(config))
    max_turns: int = env.unwrapped.max_turns  # type: ignore[attr-defined]
    env.close()
    oracle = oracle_outcomes(config.env.id, _test_kwargs(config), tasks)
    _, blind = best_blind_outcomes(tasks, max_turns)
    oracle_turns = sum(turns for _, turns in oracle) / len(oracle)
    return [
        Score("best policy that does not observe the map", "reference", _share(blind), None, None),
        Score("oracle", "reference", _share([success for success, _ in oracle]), None, oracle_turns),
    ]


def _share(outcomes: Sequence[bool]) -> Estimate:
    values = [float(outcome) for outcome in outcomes]
    low, high = confidence_interval(values, episodes=len(values))
    return Estimate(sum(values) / len(values), low, high, len(values), len(values))


def _write_evaluation(folder: Path, scores: Sequence[Score], *, lora: bool, seed: int) -> None:
    """Write the table in the format of the report."""

    def measure(estimate: Estimate) -> dict[str, float]:
        return {"value": estimate.value, "low": estimate.low, "high": estimate.high}

    rows = []
    for score in scores:
        measures: dict[str, Any] = {SAMPLED: measure(score.sampled)}
        if score.greedy is not None:
            measures[GREEDY] = measure(score.greedy)
        if score.turns is not None:
            measures[TURNS] = score.turns
        name = f"{score.name} training" if score.kind == "model" else score.name
        rows.append({"name": name, "kind": score.kind, "measures": measures})
    how = "LoRA" if lora else "all weights"
    title = f"A tiny model learns FrozenLake ({how}, seed {seed})"
    (folder / "evaluation.json").write_text(json.dumps({"title": title, "rows": rows}, indent=2) + "\n")


def _table(scores: Sequence[Score]) -> Table:
    table = Table(
        title=f"\n{TEST_MAPS} test maps, not used in fine-tuning or GRPO",
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bright_black",
        padding=(0, 2, 0, 0),
    )
    for heading in ("", SAMPLED, "95% interval", GREEDY, TURNS):
        table.add_column(heading, justify="left" if not heading else "right")
    for score in scores:
        table.add_row(
            score.name,
            f"{score.sampled.value:.3f}",
            f"{score.sampled.low:.3f} – {score.sampled.high:.3f}",
            "–" if score.greedy is None else f"{score.greedy.value:.3f}",
            "–" if score.turns is None else f"{score.turns:.1f}",
            style="bold" if score.name == "after" else "italic bright_black" if score.kind == "reference" else "",
        )
    return table


def new_folder(parent: Path, name: str) -> Path:
    """Create ``parent/name``, or the first of ``name-2``, ``name-3`` … that does not exist."""
    for number in range(1, 10_000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise SystemExit(f"{parent} contains too many demo folders: remove some")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Train a tiny model on FrozenLake with GRPO (a few minutes on two idle cores) and write a report.",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--lora", action="store_true", help="train LoRA adapters instead of all weights")
    parser.add_argument("--steps", type=int, help="number of GRPO steps, e.g. for a quick test")
    parser.add_argument("--output", type=Path, help="default: a new folder under runs/")
    options = parser.parse_args()
    disable_progress_bar()  # transformers' bars for loading and saving, which take milliseconds here
    console = Console()
    name = f"demo-{'lora' if options.lora else 'full'}-seed{options.seed}"
    folder = options.output or new_folder(Path("runs"), name)
    started = time.perf_counter()
    try:
        result = run_demo(folder, seed=options.seed, lora=options.lora, console=console, steps=options.steps)
    except KeyboardInterrupt:
        console.print("\ninterrupted")
        raise SystemExit(130) from None
    console.print(_table(result.scores))
    console.print(
        f"{time.perf_counter() - started:.0f} s in total\n"
        f"report       {result.folder / 'report.html'}\n"
        f"TensorBoard  .venv/bin/tensorboard --logdir {result.folder / 'tensorboard'}\n"
        f"model        {result.folder / 'model'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
