"""Conversions that a model cannot know by heart: fictional units of towns, and the clocks of a fictional timetable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from rllm_gym.envs.math.calculator import CalculatorError, calculate
from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import Call, DomainState, FinalAnswer, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, a_today, listed, words
from rllm_gym.mcp.servers import InProcessServer

UNITS = {
    "pound": "gram",
    "stone": "gram",
    "ell": "centimetre",
    "rod": "centimetre",
    "bushel": "litre",
    "firkin": "litre",
}
_RANGES = {
    "pound": (320, 620),
    "stone": (4200, 9800),
    "ell": (55, 140),
    "rod": (280, 560),
    "bushel": (18, 60),
    "firkin": (21, 52),
}
GOODS = {
    "gram": words("butter cheese honey salt soap sugar wax wool"),
    "centimetre": words("cord lace linen ribbon rope silk velvet"),
    "litre": words("barley beer cider flour oats oil wheat wine"),
}


@dataclass(frozen=True)
class Measure:
    """What one old unit is in a modern one."""

    town: str
    unit: str
    value: float
    modern_unit: str


@dataclass(frozen=True)
class Clock:
    """How far the clock of a town is ahead of UTC."""

    town: str
    minutes_ahead_of_utc: int


class ConversionState(DomainState):
    """Read-only tables.

    Attributes:
        measures: Thousandths of the modern unit, by town and old unit.
        clocks: Minutes ahead of UTC, by town.
        today: The current date in the task.
    """

    def __init__(self, measures: Mapping[tuple[str, str], int], clocks: Mapping[str, int], today: Any) -> None:
        self.measures = measures
        self.clocks = clocks
        self.today = today

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [
            server(
                "conversion",
                lambda: (self.list_towns, self.get_measure, self.get_clock, self.calculate),
                instructions="Old measures and local clocks of towns. They differ from those of today.",
            )
        ]

    def facts(self, workspace: Path) -> Any:
        return {}

    def list_towns(self) -> list[str]:
        """The towns whose measures and clocks are known."""
        return sorted(self.clocks)

    def get_measure(self, town: str, unit: str) -> Measure:
        """How much one old unit was in a town, in grams, centimetres or litres.

        Args:
            town: Name of the town.
            unit: pound, stone, ell, rod, bushel or firkin.
        """
        key = (self._town(town), unit.strip().lower().removesuffix("s"))
        if key not in self.measures:
            raise Refusal(f"There is no unit {unit[:100]!r}. The units are: {', '.join(UNITS)}.")
        return Measure(*key, self.measures[key] / 1000, UNITS[key[1]])

    def get_clock(self, town: str) -> Clock:
        """How many minutes the clock of a town is ahead of UTC, all year round; negative where it is behind.

        Args:
            town: Name of the town.
        """
        name = self._town(town)
        return Clock(name, self.clocks[name])

    def calculate(self, expression: str) -> str:
        """Exact arithmetic with + - * / and brackets.

        Args:
            expression: Such as 12 * 0.467 + 3.
        """
        try:
            return calculate(expression)
        except CalculatorError as error:
            raise Refusal(str(error)) from None

    def _town(self, town: str) -> str:
        name = town.strip().title()
        if name not in self.clocks:
            raise Refusal(f"There is no town {town[:100]!r}; list_towns shows those there are.")
        return name

    def amount(self, count: int, town: str, unit: str) -> Fraction:
        """Return a number of old units in the modern unit."""
        return Fraction(count * self.measures[town, unit], 1000)


def build(seed: int, difficulty: int) -> ConversionState:
    rng = Random(f"conversion/{seed}/{difficulty}")
    towns = rng.sample(CITIES, 4 + 3 * difficulty)
    measures = {
        (town, unit): 1000 * rng.randint(*_RANGES[unit]) + rng.randrange(1, 1000) for town in towns for unit in UNITS
    }
    return ConversionState(measures, {town: 15 * rng.randint(-40, 48) for town in towns}, a_today(rng))


def _towns(state: ConversionState, rng: Random, count: int) -> list[str]:
    return rng.sample(sorted(state.clocks), count)


def _decimal(value: Fraction) -> str:
    return f"{float(value):.3f}"


def _number(value: Fraction, tolerance: float) -> dict[str, Any]:
    return {"type": "number", "value": round(float(value), 6), "tolerance": tolerance}


# Measures


def convert(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    unit, count = rng.choice(sorted(UNITS)), rng.randint(3, 80)
    good = rng.choice(GOODS[UNITS[unit]])
    first, second = _towns(state, rng, 2)
    modern = state.amount(count, first, unit)
    calls = [Call("get_measure", {"town": first, "unit": unit})]
    if difficulty == 1:
        goal = f"How many {UNITS[unit]}s are {count} {unit}s of {good}, measured in {first}? Give three decimal places."
        value = modern
    else:
        calls.append(Call("get_measure", {"town": second, "unit": unit}))
        value = modern / state.amount(1, second, unit)
        goal = (
            f"A merchant bought {count} {unit}s of {good} in {first}. How many {unit}s is that by the measure of "
            f"{second}? Give three decimal places."
        )
    return ToolTask(goal, (*calls, FinalAnswer(_decimal(value))), answer=_number(value, 0.00051))


def add_up(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    modern = rng.choice(("gram", "centimetre", "litre"))
    units = [unit for unit, of in UNITS.items() if of == modern]
    lots = [(rng.randint(2, 40), rng.choice(units), town) for town in _towns(state, rng, 1 + difficulty)]
    total = sum((state.amount(*(count, town, unit)) for count, unit, town in lots), Fraction())
    good = rng.choice(GOODS[modern])
    description = listed(f"{count} {unit}s measured in {town}" for count, unit, town in lots)
    goal = rng.choice(
        (
            f"A cart carries {good}: {description}. How many {modern}s is that in all? Give three decimal places.",
            f"Add up these lots of {good} in {modern}s, to three decimal places: {description}.",
        )
    )
    calls = [Call("get_measure", {"town": town, "unit": unit}) for _, unit, town in lots]
    return ToolTask(goal, (*calls, FinalAnswer(_decimal(total))), answer=_number(total, 0.00051))


def cheapest(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    unit = rng.choice(sorted(UNITS))
    good = rng.choice(GOODS[UNITS[unit]])
    while True:  # until no two offers are nearly equal
        offers = [(rng.randint(20, 90), rng.randint(2, 12), town) for town in _towns(state, rng, 2 + difficulty)]
        prices = {town: price / state.amount(count, town, unit) for price, count, town in offers}
        first, second = sorted(prices, key=lambda town: prices[town])[:2]
        if prices[second] > prices[first] * Fraction(101, 100):
            break
    description = "; ".join(f"in {town} {count} {unit}s cost {price} thalers" for price, count, town in offers)
    goal = (
        f"{good.capitalize()} is offered in several towns: {description}. Each town has its own {unit}. In which "
        f"town is the same amount cheapest? Answer with the name of the town."
    )
    calls = [Call("get_measure", {"town": town, "unit": unit}) for _, _, town in offers]
    return ToolTask(goal, (*calls, FinalAnswer(first)), answer={"type": "string", "value": first})


# Clocks


def _a_moment(state: ConversionState, rng: Random) -> datetime:
    midnight = datetime(state.today.year, state.today.month, state.today.day)
    return midnight + timedelta(minutes=5 * rng.randrange(24 * 12))


def _local(state: ConversionState, moment: datetime, here: str, there: str) -> datetime:
    return moment + timedelta(minutes=state.clocks[there] - state.clocks[here])


def _clocks(towns: Sequence[str]) -> list[Call]:
    return [Call("get_clock", {"town": town}) for town in towns]


def convert_time(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    here, *towns = _towns(state, rng, 1 + difficulty)
    moment = _a_moment(state, rng)
    there = [_local(state, moment, here, town) for town in towns]
    calls = _clocks([here, *towns])
    goal = f"When the clocks of {here} show {moment:%H:%M} on {moment.date()}, "
    if difficulty > 1 and rng.random() < 0.4:
        days = [str(local.date()) for local in there]
        goal += f"what is the date in {listed(towns)}? Answer with YYYY-MM-DD for each, in this order, between commas."
        return ToolTask(
            goal, (*calls, FinalAnswer(", ".join(days))), answer={"type": "list", "value": days, "of": "date"}
        )
    times = [f"{local:%H:%M}" for local in there]
    if difficulty == 1:
        goal += f"what do those of {towns[0]} show? Answer with HH:MM."
        return ToolTask(goal, (*calls, FinalAnswer(times[0])), answer={"type": "time", "value": times[0]})
    goal += f"what do those of {listed(towns)} show? Answer with HH:MM for each, in this order, between commas."
    return ToolTask(
        goal, (*calls, FinalAnswer(", ".join(times))), answer={"type": "list", "value": times, "of": "time"}
    )


def arrival(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    towns = _towns(state, rng, 1 + difficulty)
    leaves = moment = _a_moment(state, rng)
    legs = []
    for number, town in enumerate(towns[1:]):
        minutes = 5 * rng.randint(12, 150)
        rest = 5 * rng.randint(6, 30) if number < difficulty - 1 else 0
        moment += timedelta(minutes=minutes + rest)
        pause = f", stays there for {rest} minutes" if rest else ""
        took = f"{minutes // 60} h {minutes % 60:02d} min to {town}"
        legs.append(f" and takes {took}{pause}" if number == 0 else f", then takes {took}{pause}")
    arrives = _local(state, moment, towns[0], towns[-1])
    goal = (
        f"An airship leaves {towns[0]} at {leaves:%H:%M} local time{''.join(legs)}. What time do the "
        f"clocks of {towns[-1]} show when it arrives there? Answer with HH:MM."
    )
    calls = _clocks([towns[0], towns[-1]])
    arrival_time = f"{arrives:%H:%M}"
    return ToolTask(goal, (*calls, FinalAnswer(arrival_time)), answer={"type": "time", "value": arrival_time})


def overlap(state: ConversionState, rng: Random, difficulty: int) -> ToolTask:
    home = rng.choice(sorted(state.clocks))
    near = sorted(state.clocks, key=lambda town: (abs(state.clocks[town] - state.clocks[home]), town))
    towns = near[: 1 + difficulty]
    rng.shuffle(towns)
    hours = [(rng.randint(6, 9), rng.randint(17, 21)) for _ in towns]
    opens = [60 * start - state.clocks[town] for (start, _), town in zip(hours, towns, strict=True)]
    closes = [60 * end - state.clocks[town] for (_, end), town in zip(hours, towns, strict=True)]
    # Offices of the next or the previous day count too, because a span may cross midnight.
    minutes = _common(opens, closes)
    spans = zip(hours, towns, strict=True)
    description = listed(f"in {town} from {start:02d}:00 to {end}:00" for (start, end), town in spans)
    goal = (
        f"A company has offices that are open every day, by their local time: {description}. For how many minutes of "
        f"each 24 hours are all of them open at once?"
    )
    return ToolTask(goal, (*_clocks(towns), FinalAnswer(str(minutes))), answer={"type": "number", "value": minutes})


def _common(opens: Sequence[int], closes: Sequence[int]) -> int:
    """Return the minutes of a day in all of these spans, each of which may cross midnight."""
    day = 24 * 60
    return (
        sum(
            all((minute - start) % day < end - start for start, end in zip(opens, closes, strict=True))
            for minute in range(0, day, 15)
        )
        * 15
    )


TEMPLATES = (
    ToolTaskTemplate("units/convert", build, convert),
    ToolTaskTemplate("units/add-up", build, add_up),
    ToolTaskTemplate("units/cheapest", build, cheapest),
    ToolTaskTemplate("time/convert", build, convert_time),
    ToolTaskTemplate("time/arrival", build, arrival),
    ToolTaskTemplate("time/overlap", build, overlap),
)
