"""Metrics of a run: one JSON object per step in ``metrics.jsonl``, and the same numbers in the loggers.

Keys are flat, grouped by a slash: ``groups/zero_std_fraction``, ``time/rollout``, ``validation/success``. Step 0 is the
model before training and has only validation metrics.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllm_gym.core import Episode, TurnTokens
from rllm_gym.engine import pass_at_k
from rllm_gym.parsing.quoting import quoted
from trainers.run.loggers import Loggers
from trainers.samples import Sample, component_sums, finite_number

FILE = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
COMPLETIONS_PER_STEP = 8
"""Number of training episodes of each step in the table of completions: the first ones, so that groups are whole."""
_CHARS = 4_000
"""Longest text in the table of completions."""


class MetricsLog:
    """Writes the metrics of a run. Close it, or use it as a context manager.

    Args:
        folder: The run's folder.
        keep_until: Rows of later steps are deleted first, since a resumed run writes them again.
        done: Number of complete steps; completions of later steps are deleted first.
        loggers: Names of the loggers that get the same numbers; see :mod:`trainers.run.loggers`.
        config: All options, for the loggers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_until: int = -1,
        done: int = 0,
        loggers: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for name, last in ((FILE, keep_until), (COMPLETIONS, done)):
            if (folder / name).exists():
                _drop_later(folder / name, last)
        self._loggers = Loggers(loggers, folder, config or {}, keep_until + 1)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Write one row. Non-finite numbers become null; the loggers get only numbers."""
        self._append(FILE, [{"step": step, **{key: _finite(value) for key, value in row.items()}}])
        values = {key: finite_number(value) for key, value in row.items() if not isinstance(value, bool)}
        self._loggers.metrics(step, {key: value for key, value in values.items() if value is not None})

    def write_completions(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write prompt, completion and rewards of the first episodes of a step."""
        rows = [completion_row(step, episode) for episode in episodes[:COMPLETIONS_PER_STEP]]
        if rows:
            self._append(COMPLETIONS, rows)
            self._loggers.completions(step, rows)

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        with open(self._folder / name, "a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def close(self) -> None:
        self._loggers.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the rows of a run from its folder or file: one dictionary per step. An incomplete last line is ignored.

    ``pandas.DataFrame(read_metrics(run))`` is a table of them.
    """
    path = Path(path)
    rows = []
    for line in (path / FILE if path.is_dir() else path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def holds_run(folder: Path) -> bool:
    """Return whether a run has already written rows or checkpoints to the folder. A run that failed at its start has
    not.
    """
    file = folder / FILE
    return (file.is_file() and file.stat().st_size > 0) or any((folder / "checkpoints").glob("step-*"))


def completion_row(step: int, episode: Episode) -> dict[str, Any]:
    """Return a row of the table of completions. Of several turns, later observations are quoted between the replies."""
    turns = [turn for trajectory in episode.trajectories for turn in trajectory.steps]
    parts = [part for turn in turns for part in (quoted(str(turn.observation)), turn.model_response)]
    return {
        "step": step,
        "task": episode.task_id,
        "group": episode.group_id,
        "prompt": str(turns[0].observation)[:_CHARS] if turns else "",
        "completion": "\n".join(parts[1:])[:_CHARS],
        "reward": episode.reward if episode.trainable else None,
        "rewards": json.dumps(component_sums(turns)),
        "success": episode.success,
        "stop_reason": str(episode.stop_reason.value),
    }


class PhaseClock:
    """Seconds per phase since the last :meth:`lap`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._began = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - began

    def lap(self) -> dict[str, float]:
        """Return the seconds of each phase and in ``step``, and reset the clock."""
        now = time.perf_counter()
        lap = {**self._seconds, "step": now - self._began}
        self._seconds.clear()
        self._began = now
        return lap


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Compute reward, success, length of episodes and responses, and stop reasons. Rates exclude dropped episodes."""
    counted = [episode for episode in episodes if episode.trainable]
    stochastic = [episode for episode in counted if not episode.greedy]
    row: dict[str, Any] = {
        "reward/mean": _mean([episode.reward for episode in stochastic]),
        "reward/std": float(np.std([episode.reward for episode in stochastic])) if stochastic else 0.0,
        "success": _mean([episode.success for episode in stochastic]),
        "episodes/mean_turns": _mean([episode.num_turns for episode in stochastic]),
        "episodes/count": len(episodes),
        "episodes/dropped": len(episodes) - len(counted),
        "completions/total_tokens": sum(_sampled_tokens(episode) for episode in counted),
        "episodes/invalid_action_fraction": _mean([_invalid_share(episode) for episode in stochastic]),
    }
    row |= _component_rewards(stochastic) | _role_rewards(stochastic) | _completion_metrics(stochastic)
    marked = [_suspicious(episode) for episode in stochastic]
    if any(mark is not None for mark in marked):
        row["env/suspicious_fraction"] = _mean([bool(mark) for mark in marked])
    reasons = Counter(episode.stop_reason.value for episode in episodes)
    return row | {f"env/stop_reason/{reason or 'none'}": count for reason, count in sorted(reasons.items())}


def group_metrics(episodes: Sequence[Episode], samples: Sequence[Sample]) -> dict[str, float]:
    """Compute the fraction of groups whose rewards are all equal, and the parts of it in which all episodes succeeded
    and in which not all did."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    tasks: dict[str, str] = {}
    for sample in samples:  # including greedy samples, which ReMax compares with
        rewards[sample.group_id].append(sample.reward)
        tasks[sample.group_id] = sample.task_group
    solved = success_by_group(episodes)
    kinds = Counter(
        "mixed" if max(group) > min(group) else "all_success" if solved.get(tasks[name]) == 1.0 else "all_failure"
        for name, group in rewards.items()
    )
    total = max(1, len(rewards))
    return {
        "groups/zero_std_fraction": (kinds["all_success"] + kinds["all_failure"]) / total,
        "groups/all_success_fraction": kinds["all_success"] / total,
        "groups/all_failure_fraction": kinds["all_failure"] / total,
    }


def success_by_group(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the success rate of each group's stochastic episodes; groups without any are omitted."""
    successes: defaultdict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        if episode.trainable and not episode.greedy:
            successes[episode.group_id].append(episode.success)
    return {name: _mean(group) for name, group in successes.items()}


def validation_metrics(episodes: Sequence[Episode], samples: int) -> dict[str, float]:
    """Compute success, reward, pass@1 … pass@samples (powers of two and the last) and, if sampled, greedy success.

    Dropped episodes count as failures: excluding them would overestimate the model.
    """
    stochastic = [episode for episode in episodes if not episode.greedy]
    greedy = [episode for episode in episodes if episode.greedy]
    by_task: defaultdict[str, list[bool]] = defaultdict(list)
    for episode in stochastic:
        by_task[episode.group_id].append(episode.success and episode.trainable)
    row = {
        "validation/success": _mean([episode.success and episode.trainable for episode in stochastic]),
        "validation/reward/mean": _mean([episode.reward for episode in stochastic if episode.trainable]),
        "validation/episodes/dropped": float(sum(not episode.trainable for episode in episodes)),
    }
    for k in sorted({1 << power for power in range(samples.bit_length())} | {samples}):
        row[f"validation/pass@{k}"] = _mean([pass_at_k(len(tries), sum(tries), k) for tries in by_task.values()])
    trainable = [episode for episode in stochastic if episode.trainable]
    row |= {f"validation/{name}": value for name, value in _role_rewards(trainable).items()}
    if greedy:
        row["validation/greedy_success"] = _mean([episode.success and episode.trainable for episode in greedy])
    return row


def _component_rewards(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return ``reward/{component}/mean``: each component's sum over the steps of an agent, averaged over agents."""
    trajectories = [trajectory for episode in episodes for trajectory in episode.trajectories]
    totals: defaultdict[str, float] = defaultdict(float)
    for trajectory in trajectories:
        for name, total in component_sums(trajectory.steps).items():
            totals[name] += total
    return {f"reward/{name}/mean": total / len(trajectories) for name, total in sorted(totals.items())}


def _completion_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean, largest and smallest number of sampled tokens per turn, and the fraction of turns that ended at
    a token limit. Empty if the sampler returns no tokens."""
    turns = [tokens for episode in episodes for tokens in _sampled_turns(episode)]
    if not turns:
        return {}
    lengths = [len(tokens.ids) for tokens in turns]
    return {
        "completions/mean_length": _mean(lengths),
        "completions/max_length": max(lengths),
        "completions/min_length": min(lengths),
        "completions/truncated_fraction": _mean([tokens.finish_reason == "length" for tokens in turns]),
    }


def _role_rewards(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return ``reward/mean/{role}``, the mean over the role's agents, if agents have roles; and the workflow's own
    metrics.
    """
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    measured: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for trajectory in episode.trajectories:
            rewards[trajectory.role].append(trajectory.reward)
        for name, value in episode.metrics.items():
            measured[name].append(value)
    roles = (
        {}
        if set(rewards) <= {"agent"}
        else {f"reward/mean/{role}": _mean(own) for role, own in sorted(rewards.items())}
    )
    return roles | {f"workflow/{name}": _mean(values) for name, values in sorted(measured.items())}


def _sampled_tokens(episode: Episode) -> int:
    return sum(len(tokens.ids) for tokens in _sampled_turns(episode))


def _sampled_turns(episode: Episode) -> list[TurnTokens]:
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    return [step.tokens for step in steps if step.tokens is not None]


def _suspicious(episode: Episode) -> bool | None:
    """Return whether a grader marked the episode as suspicious; ``None`` if the environment has no such mark."""
    marks = [step.info["suspicious"] for one in episode.trajectories for step in one.steps if "suspicious" in step.info]
    return any(map(bool, marks)) if marks else None


def _invalid_share(episode: Episode) -> float:
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    return _mean([bool(step.info.get("invalid_action", False)) for step in steps])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop_later(path: Path, keep_until: int) -> None:
    rows = [row for row in read_metrics(path) if row["step"] <= keep_until]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(partial, path)
