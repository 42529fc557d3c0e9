"""The built-in math problems: families of generators with difficulties 0 to 8, exact answers and no dependencies."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.envs.math.answer_form import form_of
from rllm_gym.envs.math.families import (
    algebra,
    arithmetic,
    geometry,
    number_theory,
    probability,
    strings,
    word_problems,
)
from rllm_gym.envs.math.families.first_steps import ONE_STEP_FAMILIES
from rllm_gym.envs.math.families.multi_step import MULTI_STEP_FAMILIES
from rllm_gym.envs.math.families.notation import Generator
from rllm_gym.envs.task_selection import HIGHEST_DIFFICULTY, LevelTable, families_at

__all__ = ["FAMILIES", "LEVELS", "MULTI_STEP_FAMILIES", "ONE_STEP_FAMILIES", "MathTaskMixture"]

FAMILIES: dict[str, tuple[Generator, ...]] = {
    "arithmetic": (arithmetic.sums, arithmetic.products, arithmetic.quotients, arithmetic.expressions),
    "fractions": (
        arithmetic.fraction_sums,
        arithmetic.fraction_products,
        arithmetic.percentages,
        arithmetic.decimals,
    ),
    "linear": (algebra.one_unknown, algebra.two_unknowns, algebra.three_unknowns),
    "algebra": (
        algebra.solve_for_letter,
        algebra.derivatives,
        algebra.antiderivatives,
        algebra.from_roots,
        algebra.quotients,
        algebra.compositions,
        algebra.inverses,
        algebra.expanded_coefficients,
        algebra.factored_roots,
        algebra.quadratic_roots,
    ),
    "number_theory": (
        number_theory.greatest_divisors,
        number_theory.least_multiples,
        number_theory.remainders,
        number_theory.power_remainders,
        number_theory.divisor_counts,
        number_theory.largest_primes,
        number_theory.base_values,
        number_theory.digit_sums,
    ),
    "word_problems": (
        word_problems.shopping,
        word_problems.travel,
        word_problems.ages,
        word_problems.savings,
        word_problems.sharing,
        word_problems.discounts,
        word_problems.tickets,
    ),
    "sequences": (
        probability.arithmetic_terms,
        probability.arithmetic_sums,
        probability.geometric_terms,
        probability.recurrences,
    ),
    "combinatorics": (probability.committees, probability.arrangements, probability.lattice_paths, probability.draws),
    "geometry": (
        geometry.rectangles,
        geometry.triangles,
        geometry.right_triangles,
        geometry.circles,
        geometry.boxes,
        geometry.distances,
    ),
    "statistics": (probability.summaries,),
    "counting": (strings.letters,),
    "sorting": (strings.digits,),
}
"""Generators of difficulty 1 to 5 by family. A family is drawn first, then one of its generators, then a difficulty."""

LEVELS: tuple[LevelTable, ...] = (
    (0, 0, ONE_STEP_FAMILIES),
    (1, 5, FAMILIES),
    (6, HIGHEST_DIFFICULTY, MULTI_STEP_FAMILIES),
)


@dataclass(frozen=True)
class MathTaskMixture:
    """A generator of problems from several families, called by :class:`rllm_gym.data.ProceduralTaskset`.

    Attributes:
        families: Names from ``LEVELS``.
        lowest: Lowest difficulty.
        highest: Highest difficulty.
    """

    families: tuple[str, ...]
    lowest: int
    highest: int

    def __call__(self, rng: random.Random) -> tuple[str, Mapping[str, Any]]:
        if self.lowest > 0 and self.highest <= 5:
            # In this order since the first release: the problem of a task id never changes.
            family = rng.choice(self.families)
            generator = rng.choice(FAMILIES[family])
            difficulty = rng.randint(self.lowest, self.highest)
        else:
            difficulty = rng.randint(self.lowest, self.highest)
            table = next(table for _, highest, table in LEVELS if difficulty <= highest)
            family = rng.choice([name for name in self.families if name in table])
            generator = rng.choice(table[family])
        question, gold = generator(rng, difficulty)
        while difficulty > 5 and gold in re.findall(r"-?\d+", question):
            question, gold = generator(rng, difficulty)  # a number of the question is never the answer
        return question, {
            "gold": gold,
            "form": form_of(gold),
            "family": family,
            "generator": generator.__name__,
            "difficulty": difficulty,
        }

    @property
    def name(self) -> str:
        """Short and unique for every mixture, so that a task id always names the same problem."""
        bounds = (self.lowest, self.highest)
        default = families_at(None, bounds, LEVELS)
        families = "" if self.families == default else "." + "+".join(self.families)
        levels = "" if bounds == (1, 5) else f".d{self.lowest}-{self.highest}"
        return f"math{families}{levels}"
