"""Unreliable servers: some failed calls had no effect, others took effect and lost the reply, as drawn by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import Call, DomainState, FinalAnswer, SolutionStep, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, a_today, listed, money, people, words
from rllm_gym.mcp.servers import InProcessServer

MAX_CHARS = 200
MAX_RECORDS = 500
Failure = Literal["refused", "lost", ""]

_REFUSED = "503 Service temporarily unavailable. Nothing was {done}; please try again."
_LOST = "504 Gateway timeout: the reply was lost. It is not known whether anything was {done}."


class Failures:
    """The failures of successive calls, drawn beforehand and applied in order.

    Args:
        plan: What happens to the first calls; later calls succeed.
    """

    def __init__(self, plan: Sequence[Failure]) -> None:
        self.plan = tuple(plan)
        self._calls = 0

    def next(self) -> Failure:
        self._calls += 1
        return self.plan[self._calls - 1] if self._calls <= len(self.plan) else ""


# Bank


@dataclass(frozen=True)
class Transfer:
    source: str
    target: str
    amount_cents: int
    reference: str


class Bank(DomainState):
    """Accounts, and transfers that are executed once per request id, however often they are sent."""

    def __init__(self, owners: dict[str, str], balances: dict[str, int], plan: Sequence[Failure]) -> None:
        self.owners = owners
        self.balances = balances
        self.failures = Failures(plan)
        self.transfers: dict[str, Transfer] = {}

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        tools = (self.list_accounts, self.list_transfers, self.transfer)
        return [server("bank", lambda: tools, instructions="Accounts of a company. The connection is unreliable.")]

    def facts(self, workspace: Path) -> Any:
        transfers = sorted((t.source, t.target, t.amount_cents, t.reference) for t in self.transfers.values())
        return {"balances": self.balances, "transfers": [list(transfer) for transfer in transfers]}

    def list_accounts(self) -> str:
        """All accounts, one a line: number, owner and balance in cents."""
        return "\n".join(f"{number}  {owner}  {self.balances[number]}" for number, owner in self.owners.items())

    def list_transfers(self, account: str) -> str:
        """The transfers from or to an account since this morning.

        Args:
            account: Number of the account.
        """
        number = self._account(account)
        found = [
            f"{t.source} to {t.target}: {t.amount_cents} cents, {t.reference} (request {request})"
            for request, t in self.transfers.items()
            if number in (t.source, t.target)
        ]
        return "\n".join(found) or "No transfers."

    def transfer(self, source: str, target: str, amount_cents: int, reference: str, request_id: str) -> str:
        """Transfer money. Sending a request again with the same request id never transfers twice.

        Args:
            source: Number of the account that pays.
            target: Number of the account that receives.
            amount_cents: How much, in cents.
            reference: What it is for.
            request_id: A word you choose, another one for each transfer.
        """
        wanted = Transfer(self._account(source), self._account(target), amount_cents, reference.strip())
        request = request_id.strip()
        if not 1 <= len(request) <= MAX_CHARS or not 1 <= len(wanted.reference) <= MAX_CHARS:
            raise Refusal(f"Reference and request id have 1 to {MAX_CHARS} characters.")
        if len(self.transfers) >= MAX_RECORDS:
            raise Refusal(f"No more than {MAX_RECORDS} transfers a day.")
        failure = self.failures.next()
        if failure == "refused":
            raise Refusal(_REFUSED.format(done="transferred"))
        reply = self._book(wanted, request)
        if failure == "lost":
            raise Refusal(_LOST.format(done="transferred"))
        return reply

    def _book(self, wanted: Transfer, request: str) -> str:
        earlier = self.transfers.get(request)
        if earlier == wanted:
            return "This request was carried out before; nothing was transferred again."
        if earlier is not None:
            raise Refusal(f"The request id {request!r} was used for another transfer.")
        if wanted.source == wanted.target or not 0 < wanted.amount_cents <= self.balances[wanted.source]:
            raise Refusal(
                f"{wanted.amount_cents} cents cannot go from {wanted.source} to {wanted.target}: {wanted.source} holds "
                f"{self.balances[wanted.source]} cents."
            )
        self.balances[wanted.source] -= wanted.amount_cents
        self.balances[wanted.target] += wanted.amount_cents
        self.transfers[request] = wanted
        return f"Transferred {wanted.amount_cents} cents from {wanted.source} to {wanted.target}."

    def book(self, source: str, target: str, amount_cents: int, reference: str, request_id: str) -> None:
        """Execute a transfer without the simulated failures; used by the outcome of a task."""
        self._book(Transfer(source, target, amount_cents, reference), request_id)

    def _account(self, account: str) -> str:
        number = account.strip()
        if number not in self.balances:
            raise Refusal(f"There is no account {account[:MAX_CHARS]!r}; list_accounts shows those there are.")
        return number


def bank(seed: int, difficulty: int) -> Bank:
    rng = Random(f"flaky/bank/{seed}/{difficulty}")
    numbers = [str(number) for number in rng.sample(range(10_000, 99_999), 3 + 2 * difficulty)]
    owners = dict(zip(numbers, people(rng, len(numbers)), strict=True))
    balances = {number: rng.randint(100_000, 900_000) for number in numbers}
    return Bank(owners, balances, _a_plan(rng, difficulty))


def _a_plan(rng: Random, difficulty: int) -> list[Failure]:
    """Draw a plan in which at least one reply is lost and no more than two consecutive calls fail."""
    plan: list[Failure] = ["refused", "lost"] if rng.random() < 0.5 else ["lost"]
    for _ in range(difficulty - 1):
        plan += ["", rng.choice(("refused", "lost"))]
    return plan


def _carried_out(tool: str, wanted: Sequence[dict[str, Any]], plan: Sequence[Failure]) -> list[Call]:
    """Return each call as often as it is needed to succeed, with the same arguments."""
    calls, results = [], list(plan)
    for arguments in wanted:
        while True:
            calls.append(Call(tool, arguments))
            if not results or not results.pop(0):
                break
    return calls


def transfer(state: Bank, rng: Random, difficulty: int) -> ToolTask:
    numbers = list(state.owners)
    wanted: list[dict[str, Any]] = []
    wishes = []
    for number in range(difficulty):
        source, target = rng.sample(numbers, 2)
        cents, what = rng.randint(500, 30_000), rng.choice(("rent", "invoice", "salary", "deposit", "refund"))
        reference = f"{what} {rng.randint(100, 999)}"
        wanted.append(
            {
                "source": source,
                "target": target,
                "amount_cents": cents,
                "reference": reference,
                "request_id": f"request-{number + 1}",
            }
        )
        wishes.append(f'{money(cents)} from account {source} to {state.owners[target]} (reference "{reference}")')
    goal = (
        f"Transfer {'; '.join(wishes)}. Each transfer has to be made exactly once, although the bank's connection "
        "fails now and then. Amounts are in units of 100 cents."
    )

    def outcome(state: Bank, workspace: Path) -> None:
        for arguments in wanted:
            state.book(**arguments)

    calls = _carried_out("transfer", wanted, state.failures.plan)
    # A new request id per attempt: a transfer whose reply was lost is executed twice.
    look = Call("list_accounts")
    return ToolTask(goal, (look, *calls, FinalAnswer()), outcome)


# Rooms


class Rooms(DomainState):
    """Rooms to book. There is no request id here: a model that retries without checking books twice."""

    def __init__(self, rooms: Sequence[str], today: date, plan: Sequence[Failure]) -> None:
        self.rooms = list(rooms)
        self.today = today
        self.failures = Failures(plan)
        self.bookings: list[dict[str, str]] = []

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        tools = (self.list_rooms, self.list_bookings, self.book_room)
        return [server("rooms", lambda: tools, instructions="Rooms of a house. The connection is unreliable.")]

    def facts(self, workspace: Path) -> Any:
        return sorted(list(booking.values()) for booking in self.bookings)

    def list_rooms(self) -> str:
        """The names of all rooms, one a line."""
        return "\n".join(self.rooms)

    def list_bookings(self, day: str) -> str:
        """All bookings of a day: room, part of the day, and for whom.

        Args:
            day: YYYY-MM-DD.
        """
        found = [booking for booking in self.bookings if booking["day"] == day.strip()]
        return "\n".join(f"{b['room']}, {b['part']}: {b['name']}" for b in found) or "No bookings."

    def book_room(self, room: str, day: str, part: Literal["morning", "afternoon", "evening"], name: str) -> str:
        """Book a room for a part of a day. A room holds several groups: every call is a booking of its own.

        Args:
            room: Name of the room.
            day: YYYY-MM-DD.
            part: morning, afternoon or evening.
            name: For whom.
        """
        booking = {"room": room.strip(), "day": self._day(day), "part": part, "name": name.strip()}
        if booking["room"] not in self.rooms:
            raise Refusal(f"There is no room {room[:MAX_CHARS]!r}; list_rooms shows those there are.")
        if not 1 <= len(booking["name"]) <= MAX_CHARS or len(self.bookings) >= MAX_RECORDS:
            raise Refusal(f"A name has 1 to {MAX_CHARS} characters, and there is room for {MAX_RECORDS} bookings.")
        failure = self.failures.next()
        if failure == "refused":
            raise Refusal(_REFUSED.format(done="booked"))
        self.bookings.append(booking)
        if failure == "lost":
            raise Refusal(_LOST.format(done="booked"))
        return f"Booked: {', '.join(booking.values())}."

    @staticmethod
    def _day(text: str) -> str:
        try:
            return date.fromisoformat(text.strip()).isoformat()
        except ValueError:
            raise Refusal(f"{text[:40]!r} is not a day; write YYYY-MM-DD.") from None


def rooms(seed: int, difficulty: int) -> Rooms:
    rng = Random(f"flaky/rooms/{seed}/{difficulty}")
    return Rooms(rng.sample(CITIES, 3 + 2 * difficulty), a_today(rng), _a_plan(rng, difficulty))


def book(state: Rooms, rng: Random, difficulty: int) -> ToolTask:
    wanted = []
    for name in people(rng, difficulty):
        day = state.today + timedelta(days=rng.randint(1, 60))
        part = rng.choice(("morning", "afternoon", "evening"))
        wanted.append({"room": rng.choice(state.rooms), "day": str(day), "part": part, "name": name})
    wishes = [f"the room {b['room']} on {b['day']} in the {b['part']} for {b['name']}" for b in wanted]
    goal = (
        f"Book {listed(wishes)}. There has to be exactly one booking for each, although the connection to the "
        "booking system fails now and then."
    )

    def outcome(state: Rooms, workspace: Path) -> None:
        state.bookings.extend(dict(booking) for booking in wanted)

    careful: list[SolutionStep] = []
    plan: list[Failure] = list(state.failures.plan)
    for booking in wanted:
        while True:
            careful.append(Call("book_room", booking))
            failure = plan.pop(0) if plan else ""
            if failure:
                careful.append(Call("list_bookings", {"day": booking["day"]}))
            if failure != "refused":
                break
    return ToolTask(goal, (*careful, FinalAnswer()), outcome)


# Sensors

PLACES = words("attic boiler cellar garage garden hall kitchen office roof stairs")


@dataclass(frozen=True)
class ReadingsPage:
    """Some readings, and where the next ones begin."""

    sensor: str
    readings: list[int]
    next_start: int | None


class Sensors(DomainState):
    """Readings that are returned in pages, over an unreliable connection."""

    def __init__(self, readings: dict[str, list[int]], plan: Sequence[Failure]) -> None:
        self.readings = readings
        self.failures = Failures(plan)

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        tools = (self.list_sensors, self.get_readings)
        return [server("sensors", lambda: tools, instructions="Hourly readings of sensors over a bad line.")]

    def facts(self, workspace: Path) -> Any:
        return {}

    def list_sensors(self) -> list[str]:
        """The names of all sensors."""
        return sorted(self.readings)

    def get_readings(self, sensor: str, start: int = 0) -> ReadingsPage:
        """Twelve hourly readings of a sensor at a time, in tenths of a degree.

        Args:
            sensor: Name of the sensor.
            start: Number of the first reading, from 0 on; next_start of the last answer leads on.
        """
        name = sensor.strip().lower()
        if name not in self.readings:
            raise Refusal(f"There is no sensor {sensor[:MAX_CHARS]!r}; list_sensors shows those there are.")
        values = self.readings[name]
        if not 0 <= start < len(values):
            raise Refusal(f"{name} has readings 0 to {len(values) - 1}; {start} is none of them.")
        if self.failures.next():
            raise Refusal("502 Bad gateway: the line broke down. Please read again.")
        return ReadingsPage(name, values[start : start + 12], start + 12 if start + 12 < len(values) else None)


def sensors(seed: int, difficulty: int) -> Sensors:
    rng = Random(f"flaky/sensors/{seed}/{difficulty}")
    readings = {
        name: [rng.randint(-50, 320) for _ in range(rng.randint(8, 24) + 20 * (difficulty - 1))]
        for name in rng.sample(PLACES, 2 + difficulty)
    }
    return Sensors(readings, ["refused", *_a_plan(rng, difficulty)])


def read_sensor(state: Sensors, rng: Random, difficulty: int) -> ToolTask:
    chosen = rng.sample(sorted(state.readings), (1, 1, 2)[difficulty - 1])
    values = [value for name in chosen for value in state.readings[name]]
    limit = sorted(values)[len(values) * rng.randint(4, 7) // 10]
    what, value = rng.choice(
        (
            ("highest reading", max(values)),
            ("lowest reading", min(values)),
            ("sum of all readings", sum(values)),
            (f"number of readings above {limit}", sum(reading > limit for reading in values)),
        )
    )
    where = " and ".join(chosen) + (" together" if len(chosen) > 1 else "")
    goal = f"What is the {what} of the sensor{'s' if len(chosen) > 1 else ''} {where}, over all its hours" + (
        ", in tenths of a degree?" if "number" not in what else "?"
    )
    pages = [{"sensor": name, "start": start} for name in chosen for start in range(0, len(state.readings[name]), 12)]
    reads = _carried_out("get_readings", pages, state.failures.plan)
    answer = {"type": "number", "value": value}
    return ToolTask(goal, (*reads, FinalAnswer(str(value))), answer=answer)


TEMPLATES = (
    ToolTaskTemplate("flaky/transfer", bank, transfer),
    ToolTaskTemplate("flaky/book-room", rooms, book),
    ToolTaskTemplate("flaky/sensors", sensors, read_sensor),
)
