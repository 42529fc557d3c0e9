"""Run an environment and check everything it returns: the requirements that hold for every single call."""

from __future__ import annotations

import copy
import inspect
import json
import math
import random
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rllm_gym.core import StopReason
from rllm_gym.runtime.env_host import StepResult
from rllm_gym.testing.hostile import unicode_text
from rllm_gym.testing.report import Finding, Report

GymEnv = gymnasium.Env[Any, str]
Oracle = Callable[..., str]

MAX_TURNS = 10_000
_MAX_FINDINGS = 5
_INFO_TYPES: dict[str, type] = {
    "task_id": str,
    "turn": int,
    "invalid_action": bool,
    "success": bool,
    "stop_reason": str,
    "reward_components": dict,
}
_STOP_REASONS = tuple(
    reason.value
    for reason in (
        StopReason.SUCCESS,
        StopReason.FAILURE,
        StopReason.INVALID_ACTION,
        StopReason.SERVER_LOST,
        StopReason.USER_LOST,
        StopReason.MAX_TURNS,
    )
)


class CheckedEnv:
    """Runs an environment and checks everything it returns. Findings are added to the report."""

    def __init__(
        self, target: str | Callable[..., GymEnv], oracle: Oracle | None, fuzz: int, seed: int, report: Report
    ) -> None:
        self.target, self.oracle, self.fuzz, self.seed, self.report = target, oracle, fuzz, seed, report
        self.check = ""
        self.torch_before = "torch" in sys.modules
        self.step_keys: set[str] | None = None
        self.info_types: dict[str, type] = {}
        self._envs: list[GymEnv] = []

    # Building blocks of the checks

    def add_finding(self, message: str, check: str | None = None) -> None:
        finding = Finding(check or self.check, message)
        known = [other for other in self.report.findings if other.check == finding.check]
        if finding not in known and len(known) < _MAX_FINDINGS:
            self.report.findings.append(finding)

    def expect(self, truth: bool, message: str, check: str | None = None) -> bool:
        if not truth:
            self.add_finding(message, check)
        return truth

    def make(self, **kwargs: Any) -> GymEnv:
        if isinstance(self.target, str):
            env = gymnasium.make(self.target, disable_env_checker=True, **kwargs)
        else:
            env = self.target(**kwargs)
        if isinstance(env, gymnasium.Env):
            self._envs.append(env)
        return env

    def close_all(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs:
            try:
                env.close()
            except Exception as error:
                self.add_finding(f"close() raised {type(error).__name__}: {error}", "close")

    def reset(self, env: GymEnv, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and check the result."""
        result = env.reset(**kwargs)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"reset() must return (observation, info); got {show(result)}")
        observation, info = result
        if not isinstance(info, dict):
            raise TypeError(f"info must be a dict; got {show(info)}")
        self._check_observation(env, observation, "reset")
        if isinstance(observation, str):
            self.expect(observation.strip() != "", "the first observation is empty; it must suffice to act", "reset")
        self._check_info(info, "reset()")
        tools = info.get("tools")
        if self.expect(
            isinstance(tools, str), f"info['tools'] of reset() must be a JSON list as str; got {show(tools)}", "reset"
        ):
            try:
                listed = json.loads(str(tools))
            except ValueError:
                listed = None
            self.expect(
                isinstance(listed, list) and all(isinstance(tool, dict) for tool in listed),
                f"info['tools'] must be a JSON list of tool schemas, '[]' for none; got {show(tools)}",
                "reset",
            )
        for key, start in (("turn", 0), ("invalid_action", False), ("success", False), ("stop_reason", "")):
            self.expect(
                info.get(key) == start,
                f"info[{key!r}] of reset() must be {start!r}; got {show(info.get(key))}",
                "reset",
            )
        return observation, info

    def step(self, env: GymEnv, action: str, turn: int) -> StepResult:
        """Execute one step and check the result. ``turn`` counts from 1."""
        result = env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            raise TypeError(
                f"step() must return (observation, reward, terminated, truncated, info); got {show(result)}"
            )
        observation, reward, terminated, truncated, info = result
        if not isinstance(info, dict):
            raise TypeError(f"info must be a dict; got {show(info)}")
        self._check_observation(env, observation, "step")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            self.expect(type(flag) is bool, f"{name} must be a bool; got {show(flag)}", "step")
        self.expect(
            not (terminated and truncated),
            "terminated and truncated are both true; they exclude each other",
            "episode_end",
        )
        self.expect(
            not (truncated and turn == 1),
            "truncated on the first step: a single-turn environment terminates",
            "episode_end",
        )
        self.expect(
            observation != "" or not info.get("invalid_action"),
            "the observation after an invalid action is empty; it must say what was wrong",
            "step",
        )
        limit = getattr(env.unwrapped, "max_turns", turn)
        self.expect(
            not truncated or turn >= limit, f"truncated after turn {turn}, but max_turns is {limit}", "episode_end"
        )
        self._check_info(info, "step()")
        keys = set(info)
        if self.step_keys is None:
            self.step_keys = keys
        self.expect(
            keys == self.step_keys,
            f"the info keys of step() differ between calls: {sorted(map(str, keys ^ self.step_keys))}",
            "info",
        )
        self.expect(
            info.get("turn") == turn,
            f"info['turn'] must be {turn} after step {turn}; got {show(info.get('turn'))}",
            "info",
        )
        over, stop = bool(terminated or truncated), info.get("stop_reason")
        self.expect(
            stop in _STOP_REASONS if over else stop == "",
            f"info['stop_reason'] is {show(stop)}; it must be one of {_STOP_REASONS} at the end and '' before",
            "info",
        )
        self.expect(
            not info.get("success") or bool(terminated), "info['success'] is true before the task is over", "info"
        )
        self.expect(
            bool(info.get("success")) == (stop == "success"),
            f"info['success'] is {info.get('success')!r} but the stop_reason is {show(stop)}",
            "info",
        )
        self.expect(
            not truncated or stop == "max_turns",
            f"truncated, but the stop_reason is {show(stop)}, not 'max_turns'",
            "info",
        )
        self._check_reward(reward, info)
        return observation, float(reward), terminated, truncated, info

    def _check_observation(self, env: GymEnv, observation: Any, check: str) -> None:
        if not self.expect(
            observation in env.observation_space,
            f"{check}(): the observation {show(observation)} is not in {env.observation_space}",
            check,
        ):
            return
        text = observation.get("text") if isinstance(observation, dict) else observation
        if not isinstance(text, str):
            self.add_finding(f"{check}(): an observation must be text; got {show(text)}", check)
            return
        try:
            text.encode()
        except UnicodeEncodeError:
            self.add_finding(
                f"{check}(): the observation contains a lone surrogate, which no tokenizer accepts: {ascii(text)[:80]}",
                check,
            )

    def _check_info(self, info: dict[str, Any], call: str) -> None:
        for key, kind in _INFO_TYPES.items():
            if self.expect(key in info, f"info of {call} lacks {key!r} ({kind.__name__})", "info"):
                self.expect(
                    type(info[key]) is kind,
                    f"info[{key!r}] of {call} must be {kind.__name__}; got {show(info[key])}",
                    "info",
                )
        for key, value in info.items():
            first = self.info_types.setdefault(key, type(value))
            self.expect(
                type(value) is first,
                f"info[{key!r}] was {first.__name__} and is {type(value).__name__} in {call}; the type must not change",
                "info",
            )

    def _check_reward(self, reward: Any, info: dict[str, Any]) -> None:
        number = isinstance(reward, int | float | np.integer | np.floating) and not isinstance(reward, bool)
        if not self.expect(
            number and math.isfinite(reward), f"the reward must be a finite float; got {show(reward)}", "reward"
        ):
            return
        self.expect(isinstance(reward, float), f"the reward must be a float; got {show(reward)}", "reward")
        components = info.get("reward_components")
        if isinstance(components, dict):
            sound = all(isinstance(k, str) and type(v) is float and math.isfinite(v) for k, v in components.items())
            if self.expect(
                sound, f"reward_components must be names with finite floats; got {show(components)}", "reward"
            ):
                total = math.fsum(components.values())
                self.expect(
                    math.isclose(total, reward, rel_tol=1e-6, abs_tol=1e-9),
                    f"the reward is {reward!r} but its components sum to {total!r} ({components})",
                    "reward",
                )

    def act(self, env: GymEnv, observation: Any, info: dict[str, Any]) -> str:
        """Return the oracle's action."""
        assert self.oracle is not None
        if takes_env(self.oracle):
            return self.oracle(env.unwrapped)
        return self.oracle(observation, info)

    def play(self, env: GymEnv, source: random.Random, *, max_turns: int = MAX_TURNS, **reset: Any) -> list[Any]:
        """Run an episode with a mixture of random text and the oracle's actions. Return a list of the results."""
        observation, info = self.reset(env, **reset)
        log: list[Any] = [(observation, copy.deepcopy(info))]
        for turn in range(1, max_turns + 1):
            if self.oracle is not None and source.random() < 0.7:
                action = self.act(env, observation, info)
            else:
                action = unicode_text(source)
            observation, reward, terminated, truncated, info = self.step(env, action, turn)
            log.append((observation, reward, terminated, truncated, copy.deepcopy(info)))
            if terminated or truncated:
                break
        return log

    def random(self, *salt: int) -> random.Random:
        return random.Random(f"{self.seed}/{salt}")


def takes_env(oracle: Oracle) -> bool:
    try:
        parameters = list(inspect.signature(oracle).parameters.values())
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1


def show(value: Any, max_chars: int = 80) -> str:
    text = f"{value!a} ({type(value).__name__})"
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."
