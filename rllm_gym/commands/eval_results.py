"""The results of ``rllm-gym eval``: numbers from the episodes, and their form as tables, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rllm_gym.commands.terminal import visible
from rllm_gym.core import Episode, StopReason
from rllm_gym.engine import compute_pass_at_k
from rllm_gym.engine.metrics import episodes_by_task, mean_interval, paired_permutation_test

Result = dict[str, Any]
_CUT = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH)
RESULTS = "results"
"""Name of the files with the results, without the suffix."""


def measured(episodes: Sequence[Episode], *, attempts: int, price: Sequence[float] | None) -> Result:
    """Return what the episodes of one model on one environment show, as JSON types.

    Args:
        episodes: The episodes, those of unfinished tasks included.
        attempts: Number of episodes that each task has when all are finished.
        price: Price of a million tokens of prompts and of replies.
    """
    kept = [episode for episode in episodes if episode.trainable]
    tasks, by_task = episodes_by_task(episodes), episodes_by_task(kept)
    # If every episode was dropped, their failures say nothing about the model.
    fewest = min(map(len, tasks.values())) if kept else 0
    sizes = sorted({1, attempts, *(1 << power for power in range(attempts.bit_length()))})
    estimates = compute_pass_at_k(episodes, [size for size in sizes if size <= fewest]) if kept else {}
    tokens = {
        name: sum(episode.usage.get(name, 0) for episode in episodes) for name in ("input_tokens", "sampled_tokens")
    }
    cost = (
        None
        if price is None or not tokens["sampled_tokens"]
        else sum(map(float.__mul__, price, map(float, tokens.values()))) / 1e6
    )
    return {
        "tasks": len(tasks),
        "episodes": len(episodes),
        "pass": {
            str(size): {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            for size, estimate in estimates.items()
        },
        "mean_reward": _mean([[episode.reward for episode in group] for group in by_task.values()]),
        "mean_turns": sum(episode.num_turns for episode in kept) / len(kept) if kept else None,
        "stop_reasons": dict(Counter(str(episode.stop_reason) for episode in episodes).most_common()),
        "truncated_fraction": sum(map(_is_cut, kept)) / len(kept) if kept else None,
        "dropped": len(episodes) - len(kept),
        "dropped_fraction": (len(episodes) - len(kept)) / len(episodes) if episodes else None,
        **tokens,
        "cost": cost,
        "episode_seconds": sum(episode.seconds.get("total", 0.0) for episode in kept) / len(kept) if kept else None,
    }


def of_agents(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Return the means of the workflow's metrics and of each role's reward."""
    metrics: dict[str, list[float]] = {}
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        if episode.trainable:
            for name, value in episode.metrics.items():
                metrics.setdefault(name, []).append(value)
            for trajectory in episode.trajectories:
                rewards.setdefault(trajectory.role, []).append(trajectory.reward)
    return {
        what: {name: sum(values) / len(values) for name, values in found.items()}
        for what, found in (("workflow", metrics), ("reward_by_role", rewards))
    }


def comparison(first: Sequence[Episode], second: Sequence[Episode]) -> Result | None:
    """Return the paired comparison of two models by success and by reward; ``None`` without a common task.

    Dropped episodes are failures in the success rate, as in pass@1, and are left out of the rewards.
    """
    found: Result = {}
    for name in ("success", "reward"):
        sides = []
        for episodes in (first, second):
            groups = episodes_by_task(episodes).items()
            values = {task: [_value(one, name) for one in group] for task, group in groups}
            known = {task: [value for value in own if value is not None] for task, own in values.items()}
            sides.append({task: sum(own) / len(own) for task, own in known.items() if own})
        if not sides[0].keys() & sides[1].keys():
            return None
        found[name] = asdict(paired_permutation_test(*sides))
    return found


def _value(episode: Episode, name: str) -> float | None:
    if name == "success":
        return float(episode.success and episode.trainable)
    return episode.reward if episode.trainable else None


def _mean(groups: Sequence[Sequence[float]]) -> dict[str, float | None] | None:
    """Return the mean over tasks of the mean of each task's values, with its interval."""
    if not groups:
        return None
    values = [sum(group) / len(group) for group in groups]
    low, high = mean_interval(values) or (None, None)
    return {"value": sum(values) / len(values), "low": low, "high": high}


def _is_cut(episode: Episode) -> bool:
    """Return whether a token limit cut a reply or ended the episode."""
    return episode.stop_reason in _CUT or episode.usage.get("truncated_replies", 0) > 0


# Output


def save_results(folder: Path, report: Result) -> None:
    """Write ``results.json``, ``results.csv`` and ``results.md``."""
    (folder / f"{RESULTS}.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder / f"{RESULTS}.csv").write_text(as_csv(report["results"]))
    (folder / f"{RESULTS}.md").write_text(as_markdown(report))


def as_csv(results: Sequence[Result]) -> str:
    """Return one row per model and environment."""
    rows = [_flat(result) for result in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _csv_cell(value: Any) -> Any:
    """Mark a text that spreadsheets would run as a formula: names of models come from anywhere."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def as_markdown(report: Result) -> str:
    """Return the results, the comparisons and the notices as Markdown."""
    parts = [_markdown_table(result_rows(report["results"]))]
    if report["comparisons"]:
        parts.append(_markdown_table(comparison_rows(report["comparisons"])))
    notices = {(result["env"], result["contamination"]): None for result in report["results"]}
    parts.append("\n".join(f"- Contamination: {_cell(env)}: {_cell(notice)}" for env, notice in notices))
    if not report["complete"]:
        parts.append("Not complete: the evaluation was stopped.")
    return "\n\n".join(parts) + "\n"


def print_report(report: Result) -> None:
    """Print one result in full, or a table of several, and the comparisons."""
    console = Console(highlight=False)
    results = report["results"]
    if len(results) == 1:
        _print_one(console, results[0])
    else:
        console.print(_table(console, result_rows(results)))
    if report["comparisons"]:
        console.print(_table(console, comparison_rows(report["comparisons"])))
    for env, notice in {result["env"]: result["contamination"] for result in results}.items():
        console.print(Text(f"contamination: {visible(env)}: {notice}", style="bright_black"))
    if report["output"]:
        console.print(Text(f"output: {report['output']}", style="bright_black"))


def result_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return the cells of the table of results: one row per model and environment."""
    rows = []
    sizes = sorted({int(size) for result in results for size in result["pass"]})
    has_cost = any(result["cost"] is not None for result in results)
    for result in results:
        row = {"environment": result["env"], "model": result["model"], "tasks": str(result["tasks"])}
        for size in {str(size): None for size in (*sizes[:1], *sizes[-1:])}:
            row[f"pass@{size} [95% CI]"] = _estimate(result["pass"].get(size))
        row["mean reward [95% CI]"] = _estimate(result["mean_reward"])
        row["truncated"] = _percent(result["truncated_fraction"])
        row["dropped"] = _percent(result["dropped_fraction"])
        row["tokens in / out"] = f"{_count(result['input_tokens'])} / {_count(result['sampled_tokens'])}"
        row["seconds"] = f"{result['seconds']:.1f}"
        if has_cost:
            row["cost"] = "–" if result["cost"] is None else f"{result['cost']:.4g}"
        rows.append(row)
    return rows


def comparison_rows(comparisons: Sequence[Result]) -> list[dict[str, str]]:
    """Return the cells of the table of paired comparisons."""
    rows = []
    for one in comparisons:
        for metric in ("success", "reward"):
            test = one[metric]
            if metric == "reward" and test == one["success"]:
                continue  # the reward is 1 for a success and 0 otherwise
            low, high = test["interval"] or (None, None)
            rows.append(
                {
                    "environment": one["env"],
                    "model": one["model"],
                    "compared with": one["baseline"],
                    "metric": "pass@1" if metric == "success" else "mean reward",
                    "difference [95% CI]": _estimate({"value": test["difference"], "low": low, "high": high}, sign="+"),
                    "p": "< 0.0001" if test["p_value"] < 1e-4 else f"{test['p_value']:.4f}",
                    "tasks": str(test["tasks"]),
                    "better / worse": f"{test['better']} / {test['worse']}",
                }
            )
    return rows


def _print_one(console: Console, result: Result) -> None:
    console.print(
        Text(visible(f"{result['env']} · {result['model']}"), style="bold"),
        Text(
            f"{result['tasks']} tasks, {result['episodes']} episodes, temperature {result['temperature']:g}, "
            + visible(f"{result['split']} split" if result["split"] else "the environment has no splits"),
            style="bright_black",
        ),
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for heading in ("", "value", "95% CI over tasks"):
        table.add_column(heading)
    estimates = {f"pass@{size}": estimate for size, estimate in result["pass"].items()}
    for name, estimate in {**estimates, "mean reward": result["mean_reward"]}.items():
        known = estimate is not None and estimate["low"] is not None
        interval = f"{estimate['low']:.3f} – {estimate['high']:.3f}" if known else ""
        value = "–" if estimate is None else f"{estimate['value']:.3f}"
        table.add_row(name, value, interval, style="bold" if name in estimates else "")
    table.add_row("mean turns", "–" if result["mean_turns"] is None else f"{result['mean_turns']:.3f}", "")
    for name, value in result.get("reward_by_role", {}).items():
        table.add_row(Text(visible(f"mean reward ({name})")), f"{value:.3f}", "")
    for name, value in result.get("workflow", {}).items():
        table.add_row(Text(visible(name)), f"{value:.3f}", "")
    console.print(table)
    if len(result["seeds"]) > 1:
        by_seed = ", ".join(f"{seed}: {value:.3f}" for seed, value in result["pass_at_1_by_seed"].items())
        console.print(Text(f"pass@1 by seed: {by_seed}"))
    reasons = ", ".join(f"{reason or 'none'} {count}" for reason, count in result["stop_reasons"].items())
    console.print(Text(f"stop reasons: {visible(reasons)}; truncated {_percent(result['truncated_fraction'])}"))
    if result["faults"] or result["dropped"]:
        faults = ", ".join(f"{kind} {count}" for kind, count in result["faults"].items()) or "none"
        console.print(
            Text(
                f"faults: {visible(faults)}; {result['retries']} retries, {result['dropped']} episodes dropped "
                "(counted as failures)",
                style="yellow",
            )
        )
    else:
        console.print(Text("faults: none; 0 episodes dropped"))
    speed = f", {result['tokens_per_second']:.0f} tokens/s" if result["tokens_per_second"] else ""
    cost = "" if result["cost"] is None else f", cost {result['cost']:.4g}"
    console.print(
        Text(
            f"tokens: {_count(result['input_tokens'])} in, {_count(result['sampled_tokens'])} out{cost}; "
            f"{result['seconds']:.1f} s{speed}",
            style="bright_black",
        )
    )


def _table(console: Console, rows: Sequence[Mapping[str, str]]) -> Table | Text:
    """Return a table, or a paragraph for each row if the lines are too short for it."""
    columns = [[name, *(visible(row[name]) for row in rows)] for name in rows[0]]
    if sum(2 + max(map(cell_len, column)) for column in columns) > console.width + 2:
        text = Text()
        for row in rows:
            (_, env), (_, model), *others = row.items()
            text.append(visible(f"{env} · {model}\n"), style="bold")
            text.append(visible("; ".join(f"{name} {cell}" for name, cell in others)) + "\n")
        return text
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row.values()))
    return table


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(map(_cell, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return (
        " ".join(visible(text).split())
        .replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("](", "]\\(")
    )


def _flat(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in result.items():
        if name == "pass":
            for size, estimate in value.items():
                row |= {f"pass@{size}": estimate["value"]} | {
                    f"pass@{size}_{end}": estimate[end] for end in ("low", "high")
                }
        elif name == "mean_reward":
            row |= {name: value["value"], f"{name}_low": value["low"], f"{name}_high": value["high"]} if value else {}
        elif isinstance(value, Mapping):
            row |= {f"{name}/{key}": own for key, own in value.items()}
        elif isinstance(value, list):
            row[name] = " ".join(map(str, value))
        else:
            row[name] = value
    return row


def _estimate(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    if estimate is None:
        return "–"
    ends = ", ".join(f"{estimate[end]:{sign}.3f}" for end in ("low", "high") if estimate[end] is not None)
    return f"{estimate['value']:{sign}.3f}" + (f" [{ends}]" if ends else "")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _count(count: int) -> str:
    return f"{count:,}" if count else "–"
