"""A suite: several environments in one vector environment, sampled for every episode by weight or curriculum."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from gymnasium.vector import AutoresetMode

from rllm_gym.core import stream_seed
from rllm_gym.runtime.env_building import Env, EnvBuildSpec, resolve
from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.vector.bookkeeping import EnvSchedule, EnvState
from rllm_gym.vector.curriculum import EnvCurriculum, checked_weights
from rllm_gym.vector.env_commands import checked_wrappers
from rllm_gym.vector.text_vector_env import TextVectorEnv


@dataclass(frozen=True, slots=True)
class WeightedEnv:
    """One environment of a :class:`MultiTaskVectorEnv`.

    Attributes:
        env_id: A registered id, a spec, or a callable that creates one.
        weight: Its relative frequency, 0 or more.
        kwargs: Its keyword arguments.
        max_episode_steps: Steps after which its episodes are truncated.
    """

    env_id: Env
    weight: float = 1.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None


class MultiTaskVectorEnv(TextVectorEnv):
    """A :class:`TextVectorEnv` that samples the environment of each episode; ``infos["env_name"]`` is its name.

    The choice is a pure function of the seed of ``reset``, the index of the sub-environment, the number of its episode
    and the current weights: the same seeds give the same choices with any kind of worker. With a curriculum, weights
    follow the results of episodes, in the order of sub-environments for :meth:`step`, and in the order of arrival for
    :meth:`recv`. An environment is created when a sub-environment first samples it, and kept.

    Args:
        num_envs: Number of sub-environments.
        envs: The environments: ids, ids with weights, or any names with a :class:`WeightedEnv` each.
        curriculum: Updates the weights after every episode; its weights are multiplied with those of ``envs``.
        workers: As for :class:`TextVectorEnv`, like all that follow.

    Raises:
        ValueError: An argument is out of range.
        RuntimeError: The spaces are incompatible. Texts of different length are compatible.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        envs: Mapping[str, float | WeightedEnv] | Sequence[str],
        curriculum: EnvCurriculum | None = None,
        workers: str = "thread",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        env_wrappers: Sequence[Callable[[Any], Any]] = (),
        deadlines: Mapping[str, float] | EnvDeadlines | None = None,
    ) -> None:
        weighted = _weighted_envs(envs)
        wrappers = checked_wrappers(env_wrappers)
        build_specs = {
            name: EnvBuildSpec(resolve(env.env_id), env.kwargs, wrappers, env.max_episode_steps)
            for name, env in weighted.items()
        }
        self.curriculum = curriculum
        suite = _SuiteSchedule({name: env.weight for name, env in weighted.items()}, curriculum)
        self._open(num_envs, build_specs, suite, workers, autoreset_mode, EnvDeadlines.of(deadlines))


class _SuiteSchedule(EnvSchedule):
    """Samples the environment of each episode."""

    def __init__(self, weights: Mapping[str, float], curriculum: EnvCurriculum | None) -> None:
        self._own = checked_weights(weights, "envs")
        self._names = list(weights)
        self._curriculum = curriculum
        self._root = secrets.randbits(64)  # seeds the choice for episodes without a seed
        self._limits: list[float] | None = None
        self._current_weights()

    def next_env(self, index: int, state: EnvState) -> str:
        root = self._root if state.seed is None else state.seed
        limits = self._limits or self._current_weights()
        point = (stream_seed("suite", root, index, state.episode) >> 75) / (1 << 53) * limits[-1]
        return self._names[min(bisect_right(limits, point), len(limits) - 1)]

    def add_info(self, env_name: str, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "env_name": env_name}

    def episode_ended(self, env_name: str, info: dict[str, Any]) -> None:
        if self._curriculum is not None:
            self._curriculum.update(env_name, bool(info.get("success", False)))
            self._limits = None

    def _current_weights(self) -> list[float]:
        weights = self._own
        if self._curriculum is not None:
            learned = self._curriculum.weights(self._names)
            weights = checked_weights({name: self._own[name] * learned[name] for name in self._names}, "the curriculum")
        self._limits = list(accumulate(weights.values()))
        return self._limits


def _weighted_envs(envs: Mapping[str, float | WeightedEnv] | Sequence[str]) -> dict[str, WeightedEnv]:
    if isinstance(envs, str):
        raise TypeError(f"envs={envs!r} is a single id; use TextVectorEnv, or pass a list")
    if not isinstance(envs, Mapping):
        envs = dict.fromkeys(envs, 1.0)
    if not envs:
        raise ValueError("envs is empty; pass at least one environment")
    return {name: env if isinstance(env, WeightedEnv) else WeightedEnv(name, env) for name, env in envs.items()}
