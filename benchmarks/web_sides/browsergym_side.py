"""One BrowserGym environment per task, played by the script; commands and results are lines of JSON.

Runs in an interpreter with ``browsergym-miniwob``; ``benchmarks/web.py`` starts one process per context.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripted import TASKS, number_of, solve


def main() -> None:
    sleeps = json.loads(sys.argv[1])["sleeps"]
    # The pages in the package `miniwob`.
    package = Path(importlib.util.find_spec("miniwob").origin).parent
    os.environ["MINIWOB_URL"] = f"file://{package}/html/miniwob/"
    import browsergym.miniwob  # noqa: F401  registers the tasks
    import gymnasium

    options = {} if sleeps else {"slow_mo": 0, "pre_observation_delay": 0.0}
    envs = {task: gymnasium.make(f"browsergym/miniwob.{task}", disable_env_checker=True, **options) for task in TASKS}
    reply({"ready": f"BrowserGym {version('browsergym-core')}, Playwright {version('playwright')}"})
    for line in sys.stdin:
        command = json.loads(line)
        reply(play(envs[command["task"]], command["task"], command["seed"]))


def play(env: Any, task: str, seed: int) -> dict[str, Any]:
    from browsergym.utils.obs import flatten_axtree_to_str

    clock = time.perf_counter
    began = clock()
    observation, _ = env.reset(seed=seed)
    tree = flatten_axtree_to_str(observation["axtree_object"])
    reset, steps, reward = clock() - began, [], 0.0
    for move in solve(task, observation["goal"]):
        number = json.dumps(number_of(move, tree))
        action = f"click({number})" if move.text is None else f"fill({number}, {json.dumps(move.text)})"
        began = clock()
        observation, reward, done, _, _ = env.step(action)
        tree = flatten_axtree_to_str(observation["axtree_object"])
        steps.append(clock() - began)
        if done:
            break
    # The next episode may be another task's; without this, the resources of this one would stay open.
    began = clock()
    env.unwrapped.close()
    return {"reset": reset, "steps": steps, "close": clock() - began, "reward": float(reward)}


def reply(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
