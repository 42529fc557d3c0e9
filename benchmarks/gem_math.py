"""GEM's environment of math problems, for the benchmarks that compare ours with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Rows(list[dict[str, str]]):
    """A data set of GEM as a plain list: reading an Arrow table should not be measured."""

    def shuffle(self, seed: int) -> Rows:
        return self


def gem_math(problems: list[dict[str, str]]) -> Callable[[], Any]:
    """Return a function that creates GEM's ``MathEnv`` on these problems."""
    from datasets import Dataset
    from gem.envs.math_env import MathEnv

    data = Dataset.from_list(problems)

    def create() -> Any:
        env = MathEnv(dataset=data, question_key="question", use_mp=False)
        env.dataset = Rows(problems)
        return env

    return create
