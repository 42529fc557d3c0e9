"""What ``rllm-gym eval`` reads besides a model: the settings of a training run, and the episodes of an earlier call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.commands.errors import CommandError
from rllm_gym.core import Episode
from rllm_gym.engine import Deadlines, load_episodes
from rllm_gym.engine.episodes_file import EpisodeFileError

_ADAPTER = "adapter_config.json"
# Options that decide which episodes there are and how they are sampled; more tasks, samples or seeds may be added.
_SAME = (
    "env",
    "env_kwargs",
    "model",
    "url",
    "dtype",
    "agent",
    "agent_kwarg",
    "run_agent_kwargs",
    "system_prompt",
    "role",
    "shuffle",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_response_tokens",
    "context_length",
    "max_turns",
)


def settings_of_run(folder: Path) -> dict[str, Any]:
    """Return options of ``rllm-gym eval`` with which a training run is evaluated as it was validated.

    Raises:
        CommandError: The folder is not that of a run of ``rllm-gym train``.
    """
    try:
        config = json.loads((folder / "manifest.json").read_text())["config"]
        env, sampling, model = config["env"], config["sampling"], config["model"]
        timeout, deadline = env["step_timeout"], env["episode_timeout"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"--run {folder}: there is no manifest.json of `rllm-gym train` ({type(error).__name__}: {error}); give "
            "the output folder of a training run, or ENV and --model.path"
        ) from error
    settings = {
        "env": env["id"] if env["id"] not in ("", "given") else None,
        "run_kwargs": {**env["kwargs"], **(env.get("validation_kwargs") or {})},
        "agent": env["agent"] or None,
        "run_agent_kwargs": env["agent_kwargs"],
        "workers": "thread" if env["workers"] == "thread" else "process",
        "max_turns": env["max_turns"],
        "deadlines": Deadlines(reset=timeout, step=timeout, close=timeout, episode=deadline),
        "temperature": sampling["temperature"],
        "max_tokens": sampling["max_tokens"],
        "max_response_tokens": sampling["max_response_tokens"],
        "context_length": sampling["context_length"],
        "dtype": model["dtype"],
        **_weights_of_run(folder / "model", model["path"]),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _weights_of_run(folder: Path, base: str) -> dict[str, Any]:
    """Return the model of a run: none if it is not complete; of a workflow, the base and the adapters of the roles."""
    roles = sorted(path.parent for path in folder.glob(f"*/{_ADAPTER}"))
    if not roles:
        return {"model": str(folder)} if folder.exists() else {}
    if (folder / _ADAPTER).exists():
        raise CommandError(
            f"--run {folder.parent}: some roles share {folder} and others have adapters of their own; give ENV, "
            f"--model.path {base} and --role NAME=FOLDER for each role"
        )
    return {"model": base, "role": [f"{path.name}={path}" for path in roles]}


def episodes_to_resume(output: Path, config: Mapping[str, Any]) -> list[Episode]:
    """Return the episodes of an earlier call that are complete, for the continuation of that call.

    Raises:
        CommandError: The file is missing, or was written with other options.
    """
    try:
        earlier = json.loads(manifest_of(output).read_text())["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"--resume: there is no manifest of {output} ({error}); run without --resume") from error
    wanted = json.loads(json.dumps(config, default=str))
    changed = [name for name in _SAME if earlier.get(name) != wanted.get(name)]
    if wanted["seed"][: len(earlier.get("seed", []))] != earlier.get("seed"):  # others may be added
        changed.append("seed")
    if changed:
        name = changed[0]
        raise CommandError(
            f"--resume: {output} was written with {name}={earlier.get(name)!r:.200}, not {wanted.get(name)!r:.200}; "
            "use the same options, or another --output"
        )
    episodes: list[Episode] = []
    try:
        episodes.extend(load_episodes(output))
    except FileNotFoundError:
        pass  # stopped before the first episode
    except EpisodeFileError as error:
        if "incomplete line" not in str(error):  # the last one, of a process that was killed
            raise CommandError(f"--resume: {error}") from error
    return [episode for episode in episodes if episode.trainable]


def manifest_of(output: Path) -> Path:
    return output.with_suffix(".manifest.json")
