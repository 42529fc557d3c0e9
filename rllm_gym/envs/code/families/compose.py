"""Generation of a programming problem from a recipe: its statement, its tests, and its reference solution.

A recipe is a list of ``[name, parameters]``: a source and the steps after it. The functions that the recipe names
compute the expected results; their source text is the reference solution. A problem is drawn again unless its results
differ from each other and from the input, and every step makes a difference, so that neither a constant, nor the
input, nor a part of the steps is accepted as a solution.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rllm_gym.core import Task, TaskError, split_of
from rllm_gym.data import ProceduralTaskset
from rllm_gym.data.taskset import check_split
from rllm_gym.envs.code.families import (
    arithmetic,
    dynamic,
    graphs,
    grids,
    intervals,
    lists,
    numbers,
    parsers,
    simulations,
    texts,
    words,
)
from rllm_gym.envs.code.families.algorithms import ALGORITHMS
from rllm_gym.envs.code.families.building_blocks import KINDS, Op, ParameterValues, Source
from rllm_gym.envs.task_selection import HIGHEST_DIFFICULTY, LevelTable, difficulty_range, families_at

FAMILIES: dict[str, tuple[Source, ...]] = {
    **arithmetic.SOURCES,
    **intervals.SOURCES,
    **dynamic.SOURCES,
    **graphs.SOURCES,
    **grids.SOURCES,
    **simulations.SOURCES,
    **parsers.SOURCES,
}
"""Sources of difficulty 1 to 5 by family. A family is drawn first, then a source, then a difficulty, then the steps."""

_STEPS = (*lists.STEPS, *texts.STEPS, *words.STEPS, *numbers.STEPS, *grids.STEPS)
_BY_NAME: dict[str, Source | Op] = {
    **{step.name: step for step in _STEPS},
    **{source.name: source for table in (FAMILIES, ALGORITHMS) for sources in table.values() for source in sources},
}
_BY_KIND: dict[str, tuple[Op, ...]] = {kind: tuple(step for step in _STEPS if step.takes == kind) for kind in KINDS}

ENTRY_POINT = "solve"
PUBLIC_TESTS = 3
HIDDEN_TESTS = 12
_PROBES = 8
_MOST_ATTEMPTS = 10_000
_MOST_CHARS = 400  # of the longest result

Piece = tuple[str, dict[str, Any]]
Recipe = tuple[Piece, ...]

LEVELS: tuple[LevelTable, ...] = ((1, 5, FAMILIES), (6, HIGHEST_DIFFICULTY, ALGORITHMS))


@dataclass(frozen=True)
class CodeTaskMixture:
    """A generator of problems from several families, called by :class:`rllm_gym.data.ProceduralTaskset`.

    Attributes:
        families: Names from ``FAMILIES`` and ``ALGORITHMS``.
        lowest: Lowest difficulty.
        highest: Highest difficulty.
        split: Split of the problems, decided by their content.
    """

    families: tuple[str, ...]
    lowest: int
    highest: int
    split: str

    def __call__(self, rng: random.Random) -> tuple[str, Mapping[str, Any]]:
        # Without higher difficulties in this order since the first release: the problem of a task id never changes.
        family = rng.choice(self.families) if self.highest <= 5 else ""
        difficulty = rng.randint(self.lowest, self.highest)
        family = family or rng.choice([name for name in self.families if sources_at(name, difficulty)])
        for _ in range(_MOST_ATTEMPTS):
            recipe = _drawn(rng, sources_at(family, difficulty), difficulty)
            message = statement(recipe)
            # Checked this early because most of the work comes after it.
            if split_of(message) != self.split:
                continue
            inputs = _probes(rng, recipe, difficulty)
            if inputs is not None:
                return message, _data(rng, recipe, inputs, family, difficulty)
        raise TaskError(
            f"the family {family!r} has no problem of difficulty {difficulty} in the split {self.split!r}: none of "
            f"{_MOST_ATTEMPTS} had distinct results; use a different difficulty"
        )

    @property
    def name(self) -> str:
        """Short and unique for every mixture, so that a task id always names the same problem."""
        default = families_at(None, (self.lowest, self.highest), LEVELS)
        families = "" if self.families == default else "." + "+".join(self.families)
        levels = "" if (self.lowest, self.highest) == (1, 5) else f".d{self.lowest}-{self.highest}"
        return f"code{families}{levels}"


# Drawing


def sources_at(family: str, difficulty: int) -> tuple[Source, ...]:
    """Return the sources of a family that problems of a difficulty begin with."""
    if difficulty <= 5:
        return FAMILIES.get(family, ())
    return tuple(source for source in ALGORITHMS.get(family, ()) if source.level == difficulty)


def _drawn(rng: random.Random, sources: tuple[Source, ...], difficulty: int) -> Recipe:
    """Draw a source that is not too hard, and as many steps as the difficulty allows."""
    easy_enough = [source for source in sources if source.level <= difficulty]
    source = rng.choice(easy_enough or [min(sources, key=lambda source: source.level)])
    recipe: list[Piece] = [_with_parameters(rng, source)]
    if source.large is not None:
        return tuple(recipe)
    kind = source.gives
    for _ in range(_number_of_steps(rng, source.level, difficulty)):
        step = _next_step(rng, kind, difficulty, {name for name, _ in recipe})
        if step is None:
            break
        recipe.append(_with_parameters(rng, step))
        kind = step.gives
    return tuple(recipe)


def _number_of_steps(rng: random.Random, level: int, difficulty: int) -> int:
    if level == 0:  # this source consists of steps only
        return (rng.choice((1, 2, 2)), 2, rng.randint(2, 3), 3, 4)[difficulty - 1]
    return min(3, max(rng.choice((1, 2)), difficulty - level + 1))


def _next_step(rng: random.Random, kind: str, difficulty: int, used: set[str]) -> Op | None:
    steps = [step for step in _BY_KIND[kind] if step.name not in used and (difficulty > 1 or step.level == 1)]
    if not steps:
        return None
    # Steps that keep the kind are drawn more often; otherwise most problems would soon reduce to one number.
    same = [step for step in steps if step.gives == kind]
    return rng.choice(same if same and rng.random() < 0.5 else steps)


def _with_parameters(rng: random.Random, piece: Source | Op) -> Piece:
    options: ParameterValues = piece.options
    return piece.name, {name: rng.choice(values) for name, values in options.items()}


def _probes(rng: random.Random, recipe: Recipe, size: int) -> list[tuple[Any, ...]] | None:
    """Return inputs that distinguish the problem from simpler ones, ``None`` if there are too few."""
    source = _source(recipe)
    inputs = [source.draw(rng, size) for _ in range(_PROBES)]
    results = [results_of(recipe, values) for values in inputs]
    written = [repr(result[-1]) for result in results]
    if max(map(len, written)) > _MOST_CHARS:
        return None
    # Results must differ, no result may belong to more than half of the inputs, and results may not equal the inputs.
    if len(set(written)) < 4 or max(map(written.count, written)) > _PROBES // 2:
        return None
    if sum(text == repr(value) for text, values in zip(written, inputs) for value in values) > 2:
        return None
    if not all(_matters(recipe, at, results) for at in range(1, len(recipe))):
        return None
    return inputs


def _matters(recipe: Recipe, at: int, results: list[list[Any]]) -> bool:
    """Return whether the result changes without the step at this position."""
    step = _BY_NAME[recipe[at][0]]
    if isinstance(step, Op) and step.gives != step.takes:
        return True
    return any(_run(recipe[at + 1 :], before[at - 1]) != before[-1] for before in results)


def _source(recipe: Recipe) -> Source:
    source = _BY_NAME[recipe[0][0]]
    assert isinstance(source, Source)
    return source


# Expected results


def results_of(recipe: Recipe, values: tuple[Any, ...]) -> list[Any]:
    """Return the results of the source and of each step; the last one is the result of the problem."""
    name, parameters = recipe[0]
    results = [_source(recipe).function(*values, **parameters)]
    for name, parameters in recipe[1:]:
        results.append(_BY_NAME[name].function(results[-1], **parameters))
    return results


def _run(steps: Recipe, value: Any) -> Any:
    for name, parameters in steps:
        value = _BY_NAME[name].function(value, **parameters)
    return value


def _data(
    rng: random.Random, recipe: Recipe, probes: list[tuple[Any, ...]], family: str, difficulty: int
) -> dict[str, Any]:
    """Return the data of a task in row format, with the recipe and the family."""
    source = _source(recipe)
    hidden = list({repr(values): values for values in (*probes, *source.edges)}.values())
    seen = {repr(values) for values in hidden}
    public: list[tuple[Any, ...]] = []
    for attempt in range(400):
        if len(public) == PUBLIC_TESTS and len(hidden) >= HIDDEN_TESTS:
            break
        values = source.draw(rng, difficulty + attempt // 40)
        if repr(values) in seen:
            continue
        seen.add(repr(values))
        (public if len(public) < PUBLIC_TESTS else hidden).append(values)
    if source.large is not None:  # last, so that a wrong program fails before it uses its time
        hidden.append(source.large(rng))
    expected = [results_of(recipe, values)[-1] for values in (*public, *hidden)]
    cases = list(zip((*public, *hidden), expected))
    created = {"family": family, "difficulty": difficulty, "recipe": [list(piece) for piece in recipe]}
    if kind_of(recipe) == "stdio":
        written = [{"stdin": _input_text(source, values), "stdout": _output_text(recipe, result)}
                   for values, result in cases]  # fmt: skip
        return {"kind": "stdio", "tests": written, "public_tests": len(public), "cpu_s": 2.0, **created}
    assertions = [f"assert {ENTRY_POINT}({', '.join(map(repr, values))}) == {result!r}" for values, result in cases]
    return {
        "kind": "function",
        "entry_point": ENTRY_POINT,
        "test": "\n".join(assertions[len(public) :]),
        "test_style": "assert",
        "public_tests": assertions[: len(public)],
        "cpu_s": 2.0,
        **created,
    }


def _input_text(source: Source, values: tuple[Any, ...]) -> str:
    return "".join(f"{KINDS[kind].shown(value)}\n" for (_, kind), value in zip(source.inputs, values))


def _output_text(recipe: Recipe, result: Any) -> str:
    return f"{KINDS[_BY_NAME[recipe[-1][0]].gives].shown(result)}\n"


# Statement


def kind_of(recipe: Recipe) -> str:
    """Return ``"stdio"`` or ``"function"``, always the same for a recipe, so that no two splits share a problem."""
    if _source(recipe).large is not None:
        return "stdio"
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).digest()
    return "stdio" if digest[0] % 2 else "function"


def statement(recipe: Recipe) -> str:
    """Return the problem statement."""
    source = _source(recipe)
    values = source.input_description.format(**_spoken(recipe[0][1]))
    pieces = recipe if source.says else recipe[1:]
    instructions = [_BY_NAME[name].says.format(**_spoken(parameters)) for name, parameters in pieces]
    if len(instructions) == 1:
        parts = [values, instructions[0]]
    else:
        listed = "\n".join(f"{number}. {instruction}" for number, instruction in enumerate(instructions, start=1))
        parts = [values, f"Do this, one after the other:\n{listed}"]
    result = KINDS[_BY_NAME[recipe[-1][0]].gives]
    if kind_of(recipe) == "function":
        names = ", ".join(name for name, _ in source.inputs)
        parts.append(f"Write a function `{ENTRY_POINT}({names})` that returns the result, {result.noun}.")
    else:
        lines = "; ".join(f"`{name}` ({KINDS[kind].noun}): {KINDS[kind].line}" for name, kind in source.inputs)
        parts.append(f"Input: {lines}.\nOutput: {result.printed}.")
    return "\n\n".join(parts)


def _spoken(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters, and for each number also its ordinal (``3rd``) and the number below it."""
    spoken = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, int):
            spoken[f"{name}_th"] = f"{value}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(value, 'th') }"
            spoken[f"{name}_less"] = value - 1
    return spoken


# Reference solution


def reference_solution(task: Task) -> str:
    """Return a program that solves a built-in problem, for oracles, supervised training and tests.

    It is assembled from the source text of this package's functions. It is not part of the task, and no sandbox can
    import it.

    Raises:
        TaskError: The task is not a built-in one.
    """
    recipe = tuple((str(name), dict(parameters)) for name, parameters in task.data.get("recipe", ()))
    if not recipe or any(name not in _BY_NAME for name, _ in recipe):
        raise TaskError(f"task {task.task_id!r} is not a built-in problem, so it has no reference solution")
    source = _source(recipe)
    names = [name for name, _ in source.inputs]
    functions = {name: _text_of(_BY_NAME[name].function) for name, _ in recipe[0 if source.says else 1 :]}
    first = _call(recipe[0][0], names, recipe[0][1]) if source.says else names[0]
    body = [f"    result = {first}"]
    body += [f"    result = {_call(name, ['result'], parameters)}" for name, parameters in recipe[1:]]
    solve = "\n".join([f"def {ENTRY_POINT}({', '.join(names)}):", *body, "    return result"])
    parts = [*functions.values(), solve]
    if kind_of(recipe) == "stdio":
        readers = dict.fromkeys(KINDS[kind].read for _, kind in source.inputs)
        shown = KINDS[_BY_NAME[recipe[-1][0]].gives].shown
        parts = [*map(_text_of, (*readers, shown)), *parts, _main(source, shown.__name__)]
    return "\n\n\n".join(parts) + "\n"


def _call(name: str, arguments: list[str], parameters: Mapping[str, Any]) -> str:
    return f"{name}({', '.join([*arguments, *(f'{key}={value!r}' for key, value in parameters.items())])})"


def _main(source: Source, shown: str) -> str:
    arguments = "".join(f"{name} = {KINDS[kind].read.__name__}(lines)\n" for name, kind in source.inputs)
    names = ", ".join(name for name, _ in source.inputs)
    return f'import sys\n\nlines = sys.stdin.read().split("\\n")\n{arguments}print({shown}({ENTRY_POINT}({names})))'


@cache
def _text_of(function: Any) -> str:
    return inspect.getsource(function).replace("  # type: ignore[no-untyped-def]", "").rstrip()


# Task sets


def code_tasks(
    *,
    families: str | Iterable[str] | None = None,
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
) -> ProceduralTaskset:
    """Return the built-in problems as a task set.

    Args:
        families: Names of families, ``None`` for all.
        difficulty: 1 to 8, a pair ``(lowest, highest)``, or ``None`` for 1 to 5.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: A different seed gives different problems.
        size: Number of tasks, 1,000,000 by default.

    Raises:
        TaskError: A family or a difficulty does not exist; the message names those that do.

    >>> code_tasks(families="intervals", difficulty=1, split="test")[5].task_id
    'code.intervals.d1-1/test/0/5'
    """
    split = check_split("train" if split is None else split)
    levels = difficulty_range(difficulty, HIGHEST_DIFFICULTY)
    chosen = families_at(families, levels, LEVELS)
    for level in range(levels[0], levels[1] + 1):
        if not any(sources_at(name, level) for name in chosen):
            known = ", ".join(name for name in {**FAMILIES, **ALGORITHMS} if sources_at(name, level))
            raise TaskError(f"families={families!r} have no problems of difficulty {level}; those that do are {known}")
    mixture = CodeTaskMixture(chosen, *levels, split)
    return ProceduralTaskset(mixture, name=mixture.name, split=split, seed=seed, size=size or 1_000_000)
