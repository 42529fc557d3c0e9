"""Checks and plays the given ids (or all) under the oldest supported Gymnasium.

``test_oldest_gymnasium.py`` runs it in a separate process; it needs no test runner.
"""

from __future__ import annotations

import importlib.util
import sys

import gymnasium

import rllm_gym
from rllm_gym.envs import TABLE
from rllm_gym.testing import check_text_env


def main(expected: str, *env_ids: str) -> int:
    if not gymnasium.__version__.startswith(expected):
        print(f"gymnasium is {gymnasium.__version__}, not {expected}")
        return 2
    failed = 0
    for env_id in env_ids or sorted(TABLE):
        if "Web" in env_id and importlib.util.find_spec("playwright") is None:
            print(f"{env_id}: left out, as playwright is not installed")
            continue
        oracle = (lambda env: env.oracle().action) if "FrozenLake" in env_id else None
        report = check_text_env(env_id, oracle=oracle)
        print(report)
        failed += not report.ok
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(gymnasium.spec(env_id).to_json()))
        first, _ = rllm_gym.MessageHistory(again).reset(seed=0)
        vector = gymnasium.vector.AsyncVectorEnv([lambda name=env_id: gymnasium.make(name)] * 2, shared_memory=False)
        observations, _ = vector.reset(seed=0)
        vector.step(("up", "down"))
        vector.close()
        ours = gymnasium.make_vec(env_id, num_envs=2, autoreset_mode="SameStep")
        shown, _ = ours.reset(seed=0)
        failed += shown != observations
        ours.step(("up", "down"))
        ours.close()
        again.close()
        if not first or len(observations) != 2:
            print(f"{env_id}: no observations")
            failed += 1
    print(f"gymnasium {gymnasium.__version__}: {len(env_ids or TABLE)} environments, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
