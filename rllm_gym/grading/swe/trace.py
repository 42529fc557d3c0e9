"""What the hidden tests of a task observe with its reference solution.

The trace is recorded when a task is made and stays outside the sandbox. It has, for each test, the order in which its
statements were recorded, the values that do not depend on the code, the expected exceptions, and the values of the
reference solution where a test compares the code with itself or where only the code's own classes can compare.
:mod:`rllm_gym.grading.swe.trace_recorder` makes it, and :mod:`rllm_gym.grading.swe.trace_check` compares a run with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.grading.swe.instrument import InstrumentedFile, SitePlan, instrument
from rllm_gym.grading.swe.observed_values import ClassRef, NotPlain, decode
from rllm_gym.grading.swe.recorded_sites import Level, RecordedSite
from rllm_gym.grading.swe.test_source import function_key

_SITES_PER_FILE = 1 << 20
_VERSION = 6


@dataclass(frozen=True, slots=True)
class TestTrace:
    """What one test observes with the reference solution.

    Attributes:
        order: Digest of the sites in the order they were recorded; empty if it differs between runs.
        sites: Digest of the sites, in no order; empty if they differ between runs.
        values: By position in that order, the operands to know; ``None`` for those that need not be known. For an
            expected exception or warning: its class and pattern, then the classes and the text that were seen.
        conclusive: How many events are compared with something that the code under test cannot read.
        files: The files of the sites, in the order of their first use.
        sizes: By position in that order, the size of the values that are searched for an expected part, by operand; and
            by ``-1 - operand``, the least number of items of those of which the assertion is true without items.
        infinities: By position, and operand, which infinities it has; see :func:`infinities_in`.
    """

    __test__ = False  # not a test class, despite its name

    order: str
    sites: str
    values: Mapping[int, list[Any]]
    conclusive: int
    files: tuple[str, ...] = ()
    sizes: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    infinities: Mapping[int, Mapping[int, list[str]]] = field(default_factory=dict)


UNOBSERVED = TestTrace("", "", {}, -1)
"""Stands for a test that cannot be graded. It keeps its place: parameters are recognized by their order."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What all listed tests observe with the reference solution.

    Attributes:
        plans: By file and number of the site, how it is recorded.
        tests: By node id, in the order the tests run.
    """

    plans: Mapping[str, Mapping[int, SitePlan]] = field(default_factory=dict)
    tests: Mapping[str, TestTrace] = field(default_factory=dict)

    def errors(self) -> dict[str, tuple[str, ...]]:
        """Return the bases of each class of exception that a test expects or the reference solution raises."""
        found: dict[str, tuple[str, ...]] = {}
        for test in self.tests.values():
            for value in test.values.values():
                match value:
                    case [expected, _, [*kinds], _]:
                        for wanted in expected_classes(expected):
                            found[wanted.name] = wanted.bases
                        names = [kind for kind in kinds if isinstance(kind, str)]
                        found.update((name, tuple(names[place:])) for place, name in enumerate(names[:1]))
        return found

    def to_json(self) -> str:
        """Return the trace as text. Equal values are written once."""
        pool: dict[str, int] = {}

        def stored(value: Any) -> int:
            return pool.setdefault(json.dumps(value, ensure_ascii=False, separators=(",", ":")), len(pool))

        tests = {
            test: [
                trace.order,
                trace.sites,
                trace.conclusive,
                {str(place): stored(value) for place, value in trace.values.items()},
                [stored(path) for path in trace.files],
                {str(place): stored(list(map(list, sizes.items()))) for place, sizes in trace.sizes.items()},
                {str(place): stored(list(map(list, kinds.items()))) for place, kinds in trace.infinities.items()},
            ]
            for test, trace in self.tests.items()
        }
        plans = {
            path: {str(number): [int(plan.level), int(plan.kept)] for number, plan in plan.items()}
            for path, plan in self.plans.items()
        }
        body = json.dumps([_VERSION, plans, tests], ensure_ascii=False, separators=(",", ":"))
        return f"{body}\n[{','.join(pool)}]"

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read a trace.

        Raises:
            TaskError: It is no trace of this version.
        """
        try:
            body, _, values = text.partition("\n")
            (version, plans, tests), pool = json.loads(body), json.loads(values)
            if version != _VERSION:
                raise ValueError(f"its version is {version!r:.20}")
            return cls(
                {
                    path: {int(number): SitePlan(Level(level), bool(kept)) for number, (level, kept) in plan.items()}
                    for path, plan in plans.items()
                },
                {
                    test: TestTrace(
                        order,
                        sites,
                        {int(place): pool[at] for place, at in known.items()},
                        conclusive,
                        tuple(pool[at] for at in paths),
                        {int(place): dict(pool[at]) for place, at in sizes.items()},
                        {int(place): dict(pool[at]) for place, at in infinities.items()},
                    )
                    for test, (order, sites, conclusive, known, paths, sizes, infinities) in tests.items()
                },
            )
        except (ValueError, TypeError, AttributeError, IndexError, KeyError, RecursionError) as error:
            raise TaskError(
                f"the trace of the hidden tests is unreadable ({type(error).__name__}: {error!s:.80}); record it again "
                f"with rllm_gym.grading.swe.record_trace"
            ) from None


class ObservedFiles:
    """The rewritten test files of one run, and the evaluation of what they report."""

    def __init__(
        self, texts: Mapping[str, str], plans: Mapping[str, Mapping[int, SitePlan]], *, recording: bool
    ) -> None:
        self.files: dict[str, InstrumentedFile] = {}
        self._recording = recording
        for number, path in enumerate(sorted(texts)):
            try:
                self.files[path] = instrument(
                    texts[path], plans.get(path, {}), first=number * _SITES_PER_FILE, recording=recording
                )
            except ValueError:
                continue  # it runs unchanged, and shows nothing
        self._paths = sorted(texts)

    def texts(self) -> dict[str, str]:
        return {path: file.text for path, file in self.files.items()}

    def place(self, number: object) -> tuple[str, int, RecordedSite]:
        """Return file, number and site of an event.

        Raises:
            ValueError: There is no such site.
        """
        if type(number) is not int or not 0 <= number < len(self._paths) * _SITES_PER_FILE:
            raise ValueError("an event names no statement")
        path, local = self._paths[number // _SITES_PER_FILE], number % _SITES_PER_FILE
        if path not in self.files or local >= len(self.files[path].sites):
            raise ValueError("an event names no statement")
        return path, local, self.files[path].sites[local]

    def order(self, events: Sequence[Any], paths: Sequence[str]) -> list[Any]:
        """Return the sites of events in order, by their place in one of the files ``paths``.

        In another file, the same number is another statement: one that is easier to satisfy, perhaps.
        """
        found: list[Any] = []
        for item in order_of(events):
            try:
                path, local, _ = self.place(None if item is None else item[1])
                found.append([item[0], paths.index(path), local])
            except ValueError:
                found.append("malformed")
        return found

    def paths_of(self, events: Sequence[Any]) -> tuple[str, ...]:
        """Return the files of the sites of events, in the order of their first use."""
        return tuple(dict.fromkeys(self.place(item[1])[0] for item in order_of(events) if item is not None))


def digest_of(order: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps(list(order)).encode()).hexdigest()[:16]


def order_of(events: Sequence[Any]) -> list[Any]:
    """Return the numbers of the sites of events in order, with those that raised marked; ``None``: it is malformed."""
    found: list[Any] = []
    for event in events:
        match event:
            case ["x" | "w" as kind, int(number), *_]:
                found.append([kind, number])
            case [int(number), list(), *_]:
                found.append(["", number])
            case _:
                found.append(None)
    return found


def sites_of(order: Iterable[object]) -> str:
    """Return the digest of the sites in an order, without the order."""
    return digest_of(sorted({json.dumps(site) for site in order}))


def expected_classes(encoded: Any) -> list[ClassRef]:
    """Return the classes that a test expects an exception to be of."""
    try:
        wanted = decode(encoded)
    except NotPlain:
        return []
    return [kind for kind in (wanted if isinstance(wanted, tuple) else (wanted,)) if isinstance(kind, ClassRef)]


def by_listed_id(reported: Iterable[str], trace: Trace) -> dict[str, str]:
    """Return the node id of the trace for each reported one. Erased parameters change ids, but not their order."""
    gold: dict[tuple[str, str], list[str]] = {}
    for test in trace.tests:
        gold.setdefault(function_key(test), []).append(test)
    found: dict[tuple[str, str], list[str]] = {}
    for test in reported:
        found.setdefault(function_key(test), []).append(test)
    return {
        wanted: now
        for key, tests in gold.items()
        if len(found.get(key, ())) == len(tests)
        for wanted, now in zip(tests, found[key])
    }
