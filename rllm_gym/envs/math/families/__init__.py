"""The built-in math problems: families of generators with difficulties 1 to 5, exact answers and no dependencies."""

from __future__ import annotations

import random
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
from rllm_gym.envs.math.families.notation import Generator

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
"""Generators by family. A family is drawn first, then one of its generators, then a difficulty, each uniformly."""


@dataclass(frozen=True)
class MathTaskMixture:
    """A generator of problems from several families, called by :class:`rllm_gym.data.ProceduralTaskset`.

    Attributes:
        families: Names from ``FAMILIES``.
        lowest: Lowest difficulty.
        highest: Highest difficulty.
    """

    families: tuple[str, ...]
    lowest: int
    highest: int

    def __call__(self, rng: random.Random) -> tuple[str, Mapping[str, Any]]:
        family = rng.choice(self.families)
        generator = rng.choice(FAMILIES[family])
        difficulty = rng.randint(self.lowest, self.highest)
        question, gold = generator(rng, difficulty)
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
        families = "" if self.families == tuple(FAMILIES) else "." + "+".join(self.families)
        levels = "" if (self.lowest, self.highest) == (1, 5) else f".d{self.lowest}-{self.highest}"
        return f"math{families}{levels}"
