"""Create environments in a worker from a registered id or a callable."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

Env = str | EnvSpec | Callable[..., Any]
"""A registered id, a spec, or a callable that returns an environment."""


@dataclass(frozen=True, slots=True)
class EnvBuildSpec:
    """How to create one kind of environment.

    Attributes:
        source: A registered spec, or a callable that returns an environment.
        kwargs: Its keyword arguments.
        wrappers: Applied in this order.
        max_episode_steps: Steps after which an episode is truncated; ``None`` for the limit of the registered spec.
    """

    source: EnvSpec | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    max_episode_steps: int | None = None


def may_share_threads(env_id: str) -> bool:
    """Return whether several environments of an id may run in one thread. Those of others may hold objects that are
    bound to a thread: sqlite3, Playwright.
    """
    return env_id.startswith("rllm/")


def imported_id(env_id: str) -> str:
    """Import the module of ``"module:id"``, which registers the id, and return the id."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return name


def resolve(env: Env) -> EnvSpec | Callable[..., Any]:
    """Return the registered spec of an id (``"module:id"`` imports the module first), or the argument itself.

    Raises:
        gymnasium.error.Error: There is no such id; Gymnasium's message names the nearest one.
        TypeError: ``env`` is neither an id, nor a spec, nor callable.
    """
    if isinstance(env, str):
        return gymnasium.spec(imported_id(env))
    if isinstance(env, EnvSpec) or callable(env):
        return env
    raise TypeError(
        f"the environment must be an id, an EnvSpec or a callable that returns one; got {type(env).__name__}"
    )


def build_env(spec: EnvBuildSpec, *, limit_steps: bool = True) -> gymnasium.Env[Any, Any]:
    """Create the environment. Exceptions of its constructor are not converted: they are mostly the caller's mistake.

    Args:
        spec: What to create.
        limit_steps: Whether to apply ``spec.max_episode_steps``.

    Raises:
        TypeError: The callable returned something without ``reset`` and ``step``.
    """
    limit = spec.max_episode_steps if limit_steps else None
    if isinstance(spec.source, EnvSpec):
        # Every result is checked by env_checks, so Gymnasium's checker is not needed.
        env = gymnasium.make(spec.source, limit, disable_env_checker=True, **spec.kwargs)
    else:
        env = spec.source(**spec.kwargs)
        if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
            raise TypeError(
                f"{spec.source!r} returned {type(env).__name__}, which has no reset() and step(); it must return a "
                "gymnasium.Env"
            )
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
    for wrapper in spec.wrappers:
        env = wrapper(env)
    return env


def async_env(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the unwrapped environment, whose coroutines can be awaited.

    Raises:
        TypeError: It has none, or a wrapper changes ``reset`` or ``step``, which coroutines would bypass.
    """
    base: Any = env.unwrapped
    if not all(callable(getattr(base, name, None)) for name in ("async_reset", "async_step", "async_close")):
        raise TypeError(
            f"workers='asyncio' awaits async_reset and async_step, which {type(base).__name__} does not have; "
            "use workers='thread'"
        )
    layer: Any = env
    while layer is not base:
        only_checks = isinstance(layer, OrderEnforcing | PassiveEnvChecker)
        passes = type(layer).reset is gymnasium.Wrapper.reset and type(layer).step is gymnasium.Wrapper.step
        if not (only_checks or passes):
            raise TypeError(
                f"workers='asyncio' awaits the coroutines of {type(base).__name__} directly and would skip the "
                f"wrapper {type(layer).__name__}, which changes reset or step; use workers='thread'"
            )
        layer = layer.env
    return base
