"""Save and load episodes: one JSON line per episode, with no partial lines and no loss of information."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rllm_gym.core import SCHEMA_VERSION, Episode, RllmGymError, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine.json_values import from_json, to_json


class EpisodeFileError(RllmGymError, ValueError):
    """Raised for a file of episodes that cannot be read or appended to. Names the file and the line."""


def save_episodes(path: str | os.PathLike[str], episodes: Iterable[Episode], *, append: bool = False) -> int:
    """Write episodes as JSON lines and return how many.

    A new file is written under a temporary name and renamed when it is complete; until then an existing file stays
    unchanged. With ``append=True`` the lines are added to the end of the file, under a lock, so that several processes
    can append.

    Args:
        path: The file, usually ``….jsonl``. Its folder is created if it does not exist.
        episodes: The episodes, in order.
        append: Add to the file instead of replacing it.

    Raises:
        EpisodeFileError: The file to append to ends with an incomplete line.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if append:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _check_end(file, path)
            return _write(file, episodes)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            count = _write(file, episodes)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return count


def load_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Yield the episodes of a file, one by one.

    Raises:
        EpisodeFileError: A line is incomplete, is not an episode, or has another schema version; names the line.
            Everything before it has been yielded.
    """
    path = Path(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                raise EpisodeFileError(
                    f"{path}, line {number}: incomplete line without a newline (the writing process was stopped); "
                    "delete this line to read the others"
                )
            try:
                row = json.loads(line)
            except ValueError as error:
                raise EpisodeFileError(f"{path}, line {number}: not a JSON line ({error})") from error
            version = row.get("schema_version") if isinstance(row, dict) else None
            if version != SCHEMA_VERSION:
                raise EpisodeFileError(
                    f"{path}, line {number}: schema_version is {version!r}; this version of rllm-gym reads "
                    f"{SCHEMA_VERSION}"
                )
            try:
                yield episode_from_json(row)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise EpisodeFileError(
                    f"{path}, line {number}: not an episode ({type(error).__name__}: {error})"
                ) from error


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as JSON types. Each step stores only the messages that differ from those of the step before."""
    return {
        "schema_version": episode.schema_version,
        "episode_id": episode.episode_id,
        "task_id": episode.task_id,
        "env_id": episode.env_id,
        "seed": int(episode.seed),
        "group_id": episode.group_id,
        "greedy": bool(episode.greedy),
        "reward": to_json(float(episode.reward)),
        "success": bool(episode.success),
        "stop_reason": str(episode.stop_reason),
        "fault": episode.fault,
        "attempts": int(episode.attempts),
        "seconds": to_json(episode.seconds),
        "info": to_json(episode.info),
        "metrics": to_json(episode.metrics),
        "usage": to_json(episode.usage),
        "trajectories": [_trajectory_to_json(trajectory) for trajectory in episode.trajectories],
    }


def episode_from_json(row: dict[str, Any]) -> Episode:
    """Return the episode for a row of :func:`episode_to_json`.

    Raises:
        KeyError, TypeError, ValueError: The row is not such an episode.
    """
    return Episode(
        episode_id=row["episode_id"],
        task_id=row["task_id"],
        env_id=row["env_id"],
        seed=row["seed"],
        group_id=row["group_id"],
        greedy=row["greedy"],
        trajectories=[_trajectory_from_json(trajectory) for trajectory in row["trajectories"]],
        reward=from_json(row["reward"]),
        success=row["success"],
        stop_reason=StopReason(row["stop_reason"]),
        fault=row["fault"],
        attempts=row["attempts"],
        seconds=from_json(row["seconds"]),
        info=from_json(row["info"]),
        # Older files have no metrics and no usage.
        metrics=from_json(row.get("metrics", {})),
        usage=from_json(row.get("usage", {})),
        schema_version=row["schema_version"],
    )


# Private functions


def _trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    steps = []
    before: list[dict[str, Any]] = []
    for step in trajectory.steps:
        shared = 0
        for old, new in zip(before, step.chat_completions, strict=False):
            if old != new:
                break
            shared += 1
        before = step.chat_completions
        steps.append(
            {
                "observation": to_json(step.observation),
                "messages": {"as_before": shared, "new": to_json(list(step.chat_completions[shared:]))},
                "response": step.model_response,
                "thought": step.thought,
                "action": to_json(step.action),
                "reward": to_json(float(step.reward)),
                "done": bool(step.done),
                "info": to_json(step.info),
                "mc_return": to_json(float(step.mc_return)),
                "tokens": None if step.tokens is None else _tokens_to_json(step.tokens),
            }
        )
    return {
        "name": trajectory.name,
        "role": trajectory.role,
        "trainable": trajectory.trainable,
        "task": to_json(trajectory.task),
        "reward": to_json(float(trajectory.reward)),
        "final_ids": [int(index) for index in trajectory.final_ids],
        "steps": steps,
    }


def _trajectory_from_json(row: dict[str, Any]) -> Trajectory:
    steps: list[Step] = []
    messages: list[dict[str, Any]] = []
    for step in row["steps"]:
        messages = messages[: step["messages"]["as_before"]] + from_json(step["messages"]["new"])
        steps.append(
            Step(
                observation=from_json(step["observation"]),
                chat_completions=messages,
                model_response=step["response"],
                thought=step["thought"],
                action=from_json(step["action"]),
                reward=from_json(step["reward"]),
                done=step["done"],
                info=from_json(step["info"]),
                tokens=None if step["tokens"] is None else _tokens_from_json(step["tokens"]),
                mc_return=from_json(step["mc_return"]),
            )
        )
    return Trajectory(
        name=row["name"],
        # Older files have no roles.
        role=row.get("role", "agent"),
        trainable=row.get("trainable", True),
        task=from_json(row["task"]),
        steps=steps,
        reward=from_json(row["reward"]),
        # Older files have none.
        final_ids=tuple(row.get("final_ids", ())),
    )


def _tokens_to_json(tokens: TurnTokens) -> dict[str, Any]:
    return {
        "context_ids": [int(index) for index in tokens.context_ids],
        "ids": [int(index) for index in tokens.ids],
        "mask": [0] * len(tokens.context_ids) + [1] * len(tokens.ids),
        "logprobs": [to_json(float(logprob)) for logprob in tokens.logprobs],
        "weight_version": int(tokens.weight_version),
        "branch": int(tokens.branch),
        "finish_reason": tokens.finish_reason,
        **({"advantages": [to_json(float(value)) for value in tokens.advantages]} if tokens.advantages else {}),
    }


def _tokens_from_json(row: dict[str, Any]) -> TurnTokens:
    tokens = TurnTokens(
        tuple(row["context_ids"]),
        tuple(row["ids"]),
        tuple(from_json(row["logprobs"])),
        row["weight_version"],
        row["branch"],
        row["finish_reason"],
        tuple(from_json(row.get("advantages", []))),
    )
    if row["mask"] != [0] * len(tokens.context_ids) + [1] * len(tokens.ids):
        raise ValueError("the mask does not cover the context ids with 0 and the sampled ids with 1")
    return tokens


def _write(file: Any, episodes: Iterable[Episode]) -> int:
    count = 0
    for episode in episodes:
        # ASCII keeps lone surrogates, and prevents readers from splitting lines at U+2028.
        line = json.dumps(episode_to_json(episode), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        file.write(line.encode("ascii") + b"\n")
        count += 1
    file.flush()
    os.fsync(file.fileno())
    return count


def _check_end(file: Any, path: Path) -> None:
    file.seek(0, os.SEEK_END)
    if file.tell() == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        torn = sum(1 for _ in file)
        raise EpisodeFileError(f"{path}, line {torn}: incomplete line without a newline; delete it before appending")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
