"""What a run left in its folder, read for the report: metrics, evaluation, manifest, episodes. Everything is optional,
and nothing in it is trusted: a broken line is counted and left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.commands.errors import CommandError

METRICS = "metrics.jsonl"
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"
_MAX_LINE = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a transcript, as text."""

    observation: str
    reply: str
    reward: float
    invalid: bool


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode, as a person reads it."""

    task_id: str
    env_id: str
    turns: tuple[Turn, ...]
    reward: float
    success: bool
    stop_reason: str


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One line of the before/after table.

    Attributes:
        name: Who acted: "before training", "oracle" …
        kind: ``"model"`` or ``"reference"`` (what no training run can change).
        measures: Name → ``(value, low, high)``; low and high are ``None`` where there is no interval.
    """

    name: str
    kind: str
    measures: dict[str, tuple[float, float | None, float | None]]


@dataclass(slots=True)
class Run:
    """A run's folder, read.

    Attributes:
        name: The folder's name.
        curves: Metric → ``(step, value)`` in order of step.
        manifest: As it was written; ``{}`` without one.
        title: What was evaluated, of ``evaluation.json``.
        evaluation: Its rows.
        transcripts: Label, such as "before", → its episodes, in the order of the file.
        unreadable: Lines and files left out because they could not be read.
    """

    name: str
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    evaluation: list[EvaluationRow] = field(default_factory=list)
    transcripts: dict[str, list[Transcript]] = field(default_factory=dict)
    unreadable: int = 0


def read_run(folder: Path, *, transcripts: int) -> Run:
    """Read a run's folder.

    Args:
        folder: What ``rllm-gym train``, ``rllm-gym eval --output`` or the demo wrote.
        transcripts: Most episodes kept of each episode file.

    Raises:
        CommandError: There is no such folder, or nothing of a run is in it.
    """
    if not folder.is_dir():
        raise CommandError(f"{folder} is not a folder; give the folder of a run, such as runs/demo")
    run = Run(folder.resolve().name)
    run.manifest = _object(run, folder / MANIFEST)
    _read_metrics(run, folder / METRICS)
    _read_evaluation(run, folder / EVALUATION)
    for path in _episode_files(folder):
        found = _read_transcripts(run, path, transcripts)
        if found:
            run.transcripts[path.stem] = found
    if not (run.curves or run.evaluation or run.transcripts):
        raise CommandError(
            f"nothing of a run is in {folder}: neither {METRICS} nor {EVALUATION} nor episodes (*.jsonl); "
            "train with `rllm-gym train`, or evaluate with `rllm-gym eval --output FOLDER/episodes.jsonl`"
        )
    return run


def _episode_files(folder: Path) -> list[Path]:
    """``before`` and ``after`` first, then the rest by name; the ``episodes`` folder is looked into."""
    files = [*folder.glob("*.jsonl"), *folder.glob("episodes/*.jsonl")]
    order = {"before": 0, "after": 1}
    return sorted((f for f in files if f.name != METRICS), key=lambda path: (order.get(path.stem, 2), path.name))


def _read_metrics(run: Run, path: Path) -> None:
    for index, row in enumerate(_rows(run, path)):
        step = _number(row.get("step", index))
        if step is None:
            run.unreadable += 1
            continue
        for name, measured in _flat(row):
            value = _number(measured)
            if name != "step" and value is not None:
                run.curves.setdefault(name, []).append((step, value))
    for name, points in run.curves.items():
        # A resumed run writes steps again that came after its checkpoint: the later line holds.
        run.curves[name] = sorted(dict(points).items())


def _read_evaluation(run: Run, path: Path) -> None:
    saved = _object(run, path)
    run.title = str(saved.get("title", ""))
    rows = saved.get("rows", [])
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not isinstance(row.get("measures"), dict):
            run.unreadable += 1
            continue
        measures = {}
        for name, measure in row["measures"].items():
            parts = measure if isinstance(measure, dict) else {"value": measure}
            value, low, high = (_number(parts.get(key)) for key in ("value", "low", "high"))
            if value is not None:
                measures[str(name)] = (value, low, high)
        run.evaluation.append(EvaluationRow(str(row.get("name", "")), str(row.get("kind", "model")), measures))


def _read_transcripts(run: Run, path: Path, limit: int) -> list[Transcript]:
    found: list[Transcript] = []
    for row in _rows(run, path):
        if len(found) >= limit:
            break
        try:
            transcript = _transcript(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            run.unreadable += 1
            continue
        if transcript.turns:
            found.append(transcript)
    return found


def _transcript(row: dict[str, Any]) -> Transcript:
    turns = []
    for step in row["trajectories"][0]["steps"]:
        info = step.get("info") or {}
        turns.append(
            Turn(
                observation=_text(step.get("observation")),
                reply=_text(step.get("model_response")),
                reward=float(step.get("reward") or 0.0),
                invalid=bool(info.get("invalid_action", False)),
            )
        )
    return Transcript(
        task_id=str(row["task_id"]),
        env_id=str(row.get("env_id", "")),
        turns=tuple(turns),
        reward=float(row.get("reward", 0.0)),
        success=bool(row.get("success", False)),
        stop_reason=str(row.get("stop_reason", "")),
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def _rows(run: Run, path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        # A line that never ends must not fill the memory: it is read in bounded pieces, and its pieces do not parse.
        while line := file.readline(_MAX_LINE):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                run.unreadable += 1
                continue
            if isinstance(row, dict):
                yield row
            else:
                run.unreadable += 1


def _object(run: Run, path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        run.unreadable += 1
        return {}
    return value if isinstance(value, dict) else {}


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict) and prefix.count("/") < 3:
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _number(value: Any) -> float | None:
    """A finite float, or ``None`` for everything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
