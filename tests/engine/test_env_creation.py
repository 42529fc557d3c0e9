"""`split` reaches every environment that takes it, whatever its constructor looks like, and no other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import WrapperSpec

from rllm_gym.core import Text
from rllm_gym.data import Taskset
from rllm_gym.engine.env_creation import make_env, make_env_with_split
from rllm_gym.envs import MINIWOB, TABLE
from rllm_gym.envs.math import MathEnv
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.multiagent import GAMES
from trainers.config import EnvConfig
from trainers.train_env import open_train_env

ROWS = [{"question": f"{number} + {number}?", "answer": str(2 * number)} for number in range(50)]


class Sums(QuestionEnv):
    """Has one set of tasks, and passes on its other arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(tasks=Taskset.from_rows(ROWS, name="sums"), max_turns=1, **arguments)


class SumsBySplit(Sums):
    """Has splits."""

    def __init__(self, split: str = "train", **arguments: Any) -> None:
        self.split = split
        super().__init__(**arguments)


class SumsBySplitAndSize(SumsBySplit):
    """Has the splits of its base class."""

    def __init__(self, *, size: int = 3, **arguments: Any) -> None:
        self.size = size
        super().__init__(**arguments)


class Ignoring(Sums):
    """Ignores options that it does not know."""

    def __init__(self, **options: Any) -> None:
        self.size = options.get("size", 3)
        super().__init__()


class Refusing(Ignoring):
    """Refuses options that it does not know."""

    def __init__(self, **options: Any) -> None:
        if unknown := options.keys() - {"size"}:
            raise ValueError(f"unknown options: {sorted(unknown)}")
        super().__init__(**options)


class Wrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes its arguments on to the environment that it wraps."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(math(**arguments))


class NoArguments(gymnasium.Env[str, str]):
    """Has no constructor of its own."""

    observation_space = action_space = Text(10)


def math(**arguments: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("rllm/MathMultiTurn-v0", **arguments)


def no_arguments() -> Sums:
    return Sums()


def split_of(source: str | Callable[..., Any]) -> str | None:
    """Return the split that the environment was created with."""
    env, created_with = make_env_with_split(source, {}, "validation")
    env.close()
    return created_with.get("split")


def test_a_split_is_found_behind_other_arguments_functions_and_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    wrapper = WrapperSpec("TimeLimit", "gymnasium.wrappers:TimeLimit", {"max_episode_steps": 3})
    for env_id, entry_point in {
        "test/Class-v0": "rllm_gym.envs.math:MathMultiTurnEnv",
        "test/Function-v0": math,
        "test/Partial-v0": functools.partial(MathEnv, task_seed=3),
        "test/Sums-v0": Sums,
        "test/NoArguments-v0": NoArguments,
    }.items():
        gymnasium.register(env_id, entry_point=entry_point, additional_wrappers=(wrapper,))
    with_split = (
        MathEnv, SumsBySplit, SumsBySplitAndSize, Wrapped, math,
        functools.partial(MathEnv, split="train"), functools.partial(math, task_seed=3),
        lambda **arguments: SumsBySplit(**arguments), "test/Class-v0", "test/Function-v0", "test/Partial-v0",
        "rllm_gym:rllm/CodeMultiTurn-v0", "rllm/LakeDuo-v0",
    )  # fmt: skip
    without = (
        Sums, Ignoring, Refusing, functools.partial(Refusing, size=4), lambda **arguments: Refusing(**arguments),
        no_arguments, NoArguments, "test/Sums-v0", "test/NoArguments-v0", "CartPole-v1", "CartPole",
    )  # fmt: skip
    expected = [(source, "validation") for source in with_split] + [(source, None) for source in without]
    assert [(source, split_of(source)) for source, _ in expected] == expected


@pytest.mark.parametrize("env_id", [*TABLE, *list(MINIWOB)[:1], *GAMES])
def test_every_id_that_can_be_created_with_a_split_is(env_id: str) -> None:
    try:
        make_env(env_id, {"split": "test"}).close()
        accepted = True
    except TypeError:
        accepted = False
    except Exception as error:  # a browser that is not installed
        pytest.skip(str(error))
    env, kwargs = make_env_with_split(env_id, {}, "test")
    env.close()
    assert ("split" in kwargs) == accepted


@pytest.mark.parametrize("source", [Sums, Ignoring, Refusing])
def test_an_environment_without_splits_is_not_validated_on_its_training_tasks(source: Callable[..., Any]) -> None:
    train_env = open_train_env(EnvConfig(id="own", agent="rllm_gym.agents:ChatAgent"), env=source)
    assert len(train_env.train) == len(ROWS)
    assert train_env.validation is None


def test_other_errors_are_those_of_the_constructor(tmp_path: Path) -> None:
    def broken(split: str = "train") -> None:
        raise TypeError(f"no rows of {split}")

    with pytest.raises(TypeError, match="no rows of test"):
        make_env_with_split(broken, {}, "test")
    with pytest.raises(TypeError, match="colour"):
        make_env_with_split("rllm/MathMultiTurn-v0", {"colour": "red"}, "test")
    with pytest.raises(TypeError, match="split"):
        make_env_with_split(Sums, {"split": "test"}, "train")
    with pytest.raises(ValueError, match="'exam'"):
        make_env_with_split("rllm/MathMultiTurn-v0", {}, "exam")
    with pytest.raises(ValueError, match=r"missing\.jsonl"):
        make_env_with_split("rllm/MathMultiTurn-v0", {"tasks": str(tmp_path / "missing.jsonl")}, "test")
