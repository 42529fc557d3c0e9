"""Read a run's folder for the report: metrics, evaluation, manifest, episodes.

Everything is optional and untrusted: an unreadable line is counted and skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.commands.errors import CommandError
from rllm_gym.core import Trajectory
from rllm_gym.engine.episodes_file import episode_from_json

METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
MANIFEST = "manifest.json"
EVALUATION = "evaluation.json"
_VALIDATION = re.compile(r"validation-(\d+)")
_MAX_LINE = 16 * 2**20


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """One turn of a transcript, as text."""

    observation: str
    reply: str
    reward: float
    invalid: bool


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode, as text."""

    task_id: str
    env_id: str
    turns: tuple[TranscriptTurn, ...]
    reward: float
    success: bool
    stop_reason: str


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One line of the before/after table.

    Attributes:
        name: The policy: "before training", "oracle" …
        kind: ``"model"`` or ``"reference"`` (does not change with training).
        measures: Name → ``(value, low, high)``; low and high are ``None`` if there is no interval.
    """

    name: str
    kind: str
    measures: dict[str, tuple[float, float | None, float | None]]


@dataclass(slots=True)
class RunData:
    """The contents of a run's folder.

    Attributes:
        name: The folder's name.
        curves: Metric → ``(step, value)`` in order of step.
        manifest: The manifest; ``{}`` if there is none.
        title: What was evaluated, from ``evaluation.json``.
        evaluation: Its rows.
        transcripts: Label, such as "before", → its episodes, in the order of the file.
        unreadable: Number of unreadable lines and files.
    """

    name: str
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    evaluation: list[EvaluationRow] = field(default_factory=list)
    transcripts: dict[str, list[Transcript]] = field(default_factory=dict)
    unreadable: int = 0


def read_run(folder: Path, *, transcripts: int) -> RunData:
    """Read a run's folder.

    Args:
        folder: Output of ``rllm-gym train``, ``rllm-gym eval --output`` or the demo.
        transcripts: Maximum number of episodes kept from each episode file.

    Raises:
        CommandError: There is no such folder, or it holds no output of a run.
    """
    if not folder.is_dir():
        raise CommandError(f"{folder} is not a directory; expected the output directory of a run, e.g. runs/demo")
    run = RunData(folder.resolve().name)
    run.manifest = _object(run, folder / MANIFEST)
    _read_metrics(run, folder / METRICS)
    _read_evaluation(run, folder / EVALUATION)
    for label, path in _episode_files(folder):
        found = _read_transcripts(run, path, transcripts)
        if found:
            run.transcripts[label] = found
    if not (run.curves or run.evaluation or run.transcripts):
        raise CommandError(
            f"no output of a run in {folder}: expected {METRICS}, {EVALUATION} or episodes (*.jsonl); "
            "run `rllm-gym train` or `rllm-gym eval --output FOLDER/episodes.jsonl` first"
        )
    return run


def _episode_files(folder: Path) -> list[tuple[str, Path]]:
    """Return the files for a comparison, with a label each.

    These are ``before`` and ``after``; else the first and the last validation of a training run; else the first two
    files of episodes.
    """
    paths = [*folder.glob("*.jsonl"), *folder.glob("episodes/*.jsonl")]
    found = sorted(path for path in paths if path.name not in (METRICS, COMPLETIONS))
    named = [(path.stem, path) for stem in ("before", "after") for path in found if path.stem == stem]
    if named:
        return named
    validations = [(match[1], path) for path in found if (match := _VALIDATION.fullmatch(path.stem))]
    if validations:
        ends = validations[:1] + validations[1:][-1:]
        return [(f"after {int(step)} steps", path) for step, path in ends]
    return [(path.stem, path) for path in found[:2]]


def _read_metrics(run: RunData, path: Path) -> None:
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
        # A resumed run repeats the steps after its checkpoint: the later line counts.
        run.curves[name] = sorted(dict(points).items())


def _read_evaluation(run: RunData, path: Path) -> None:
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


def _read_transcripts(run: RunData, path: Path, limit: int) -> list[Transcript]:
    found: list[Transcript] = []
    for row in _rows(run, path):
        if len(found) >= limit:
            break
        try:
            transcript = _transcript(row)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            run.unreadable += 1
            continue
        if transcript.turns:
            found.append(transcript)
    return found


def _transcript(row: dict[str, Any]) -> Transcript:
    episode = episode_from_json(row)
    trajectory = episode.trajectories[0] if episode.trajectories else Trajectory()
    return Transcript(
        task_id=episode.task_id,
        env_id=episode.env_id,
        turns=tuple(
            TranscriptTurn(
                observation=_text(step.observation),
                reply=step.model_response,
                reward=float(step.reward),
                invalid=bool(step.info.get("invalid_action", False)),
            )
            for step in trajectory.steps
        ),
        reward=float(episode.reward),
        success=bool(episode.success),
        stop_reason=str(episode.stop_reason),
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def _rows(run: RunData, path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        # An endless line must not fill the memory: it is read in limited chunks, which do not parse.
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


def _object(run: RunData, path: Path) -> dict[str, Any]:
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
    """Return a finite float, or ``None`` for everything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
