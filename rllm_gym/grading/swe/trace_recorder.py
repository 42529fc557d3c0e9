"""Makes the trace of a task from runs of its hidden tests with the reference solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rllm_gym.grading.swe.assertions import evaluate
from rllm_gym.grading.swe.instrument import SitePlan
from rllm_gym.grading.swe.observed_values import (
    ANYTHING,
    FieldNames,
    NotPlain,
    decode,
    infinities_in,
    merged,
    size_of,
)
from rllm_gym.grading.swe.recorded_sites import Level, RecordedSite, SiteKind
from rllm_gym.grading.swe.trace import UNOBSERVED, ObservedFiles, TestTrace, Trace, digest_of, order_of, sites_of
from rllm_gym.grading.swe.trace_check import TestCheck, item_count


class TraceRecorder:
    """Decides, from runs with the reference solution, how each site is recorded and what its trace is."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._plans: dict[str, dict[int, SitePlan]] = {}

    def files(self) -> ObservedFiles:
        """Return the files for the next run."""
        return ObservedFiles(self.texts, self._plans, recording=True)

    def refine(self, files: ObservedFiles, tests: Mapping[str, Sequence[Any]]) -> bool:
        """Take assertions less apart whose operands are no plain data; return whether any changed."""
        changed = False
        for events in tests.values():
            for event in events:
                match event:
                    case ["x", int(number), *_] | [int(number), list(), *_]:
                        path, local, site = files.place(number)
                        if site.kind is not SiteKind.ASSERTION or site.level >= Level.STATE:
                            continue
                        # What raises with the reference solution is an operand that the assertion itself does not need.
                        if event[0] != "x" and _suits(site, event[1]):
                            continue
                        plan = self._plans.setdefault(path, {})
                        if plan.get(local, SitePlan()).level == site.level:
                            plan[local] = SitePlan(Level(site.level + 1))
                            changed = True
        return changed

    def trace(self, files: ObservedFiles, runs: Sequence[Mapping[str, Sequence[Any]]]) -> Trace:
        """Return the trace of the tests of the first run, without what differs in others.

        Args:
            files: The files that were run.
            runs: For each run the events of each test, by node id.
        """
        first, *others = runs
        traces: dict[str, TestTrace] = {}
        kept: set[int] = set()
        for test, events in first.items():
            if all(order_of(run[test]) == order_of(events) for run in others if test in run):
                for number, same in self._varying(files, events, [run[test] for run in others if test in run]):
                    if not same:
                        kept.add(number)
            else:
                kept |= {event[0] for event in events if isinstance(event[0], int)}
        for number in kept:
            path, local, site = files.place(number)
            if site.kind is SiteKind.ASSERTION and any(site.known):
                self._plans.setdefault(path, {})[local] = SitePlan(site.level, kept=True)
        for test, events in first.items():
            again = [run[test] for run in others if test in run]
            steady = all(order_of(run) == order_of(events) for run in again)
            values = self._values(files, events, again) if steady else {}
            paths = files.paths_of(events)
            order = files.order(events, paths)
            sizes = self._sizes(files, [events, *again]) if steady else {}
            infinities = self._infinities(files, [events, *again]) if steady else {}
            digest = digest_of(order) if steady else ""
            same_sites = all(sites_of(files.order(run, paths)) == sites_of(order) for run in again)
            traces[test] = TestTrace(digest, sites_of(order) * same_sites, values, 0, paths, sizes, infinities)
        return Trace(self.plans, traces)

    @property
    def plans(self) -> dict[str, dict[int, SitePlan]]:
        return {path: plan for path, plan in self._plans.items() if plan}

    def keep(self, files: ObservedFiles, events: Sequence[Any]) -> None:
        """Let the known operands of a test be computed inside after all: what follows depends on it."""
        for event in events:
            match event:
                case [int(number), list(), *_]:
                    path, local, site = files.place(number)
                    if site.kind is SiteKind.ASSERTION and any(site.known):
                        self._plans.setdefault(path, {})[local] = SitePlan(site.level, kept=True)

    def _varying(
        self, files: ObservedFiles, events: Sequence[Any], others: Sequence[Sequence[Any]]
    ) -> Iterable[tuple[int, bool]]:
        """Yield the number of each assertion with known operands, and whether they are the same in all runs."""
        for place, event in enumerate(events):
            match event:
                case [int(number), list(operands), *_]:
                    site = files.place(number)[2]
                    same = all(
                        operands[at] == run[place][1][at]
                        for run in others
                        for at, known in enumerate(site.known)
                        if known
                    )
                    yield number, same

    def _values(
        self, files: ObservedFiles, events: Sequence[Any], others: Sequence[Sequence[Any]]
    ) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for place, event in enumerate(events):
            match event:
                case ["x" | "w" as kind, int(), seen, *expected] if expected:
                    raised: list[Any] = [[], None]
                    if kind == "x":
                        raised = seen[:2]
                        for run in others:
                            raised = merged(raised, run[place][2][:2])
                    found[place] = [expected[0], expected[1] if len(expected) > 1 else None, *raised[:2]]
                case [int(number), list(operands), *_]:
                    site = files.place(number)[2]
                    if site.kind is not SiteKind.ASSERTION:
                        continue
                    values: list[Any] = []
                    for at, operand in enumerate(operands):
                        needed = site.known[at] or at in site.faced or site.level >= Level.STATE
                        needed = needed or at in site.evidence
                        for run in others:
                            operand = merged(operand, run[place][1][at])
                        values.append([operand] if needed and (operand != ANYTHING or not site.known[at]) else None)
                    if any(value is not None for value in values):
                        found[place] = values
        return found

    def _sizes(self, files: ObservedFiles, runs: Sequence[Sequence[Any]]) -> dict[int, dict[int, int]]:
        """Return the size of each operand that is searched, or has to have items, and of the warnings, by place in the
        order.
        """
        found: dict[int, dict[int, int]] = {}
        for events in runs:
            for place, event in enumerate(events):
                match event:
                    case ["w", int(), list(seen), *_]:
                        sizes = found.setdefault(place, {})
                        sizes[0] = max(sizes.get(0, 0), size_of(seen))
                    case [int(number), list(operands), *_]:
                        site = files.place(number)[2]
                        for at in site.searched if site.level < Level.STATE else ():
                            if not site.known[at]:
                                sizes = found.setdefault(place, {})
                                sizes[at] = max(sizes.get(at, 0), size_of(operands[at]))
                        for at, count in _needed(site, operands).items():
                            sizes = found.setdefault(place, {})
                            sizes[-1 - at] = min(sizes.get(-1 - at, count), count)
        return found

    def _infinities(self, files: ObservedFiles, runs: Sequence[Sequence[Any]]) -> dict[int, dict[int, list[str]]]:
        """Return which infinities each operand has that depends on the code, by place in the order."""
        found: dict[int, dict[int, list[str]]] = {}
        for events in runs:
            for place, event in enumerate(events):
                match event:
                    case [int(number), list(operands), *_]:
                        site = files.place(number)[2]
                        for at, known in enumerate(site.known):
                            if not known and (kinds := infinities_in(operands[at])):
                                before = found.setdefault(place, {}).get(at, ())
                                found[place][at] = sorted(kinds.union(before))
        return found


def _needed(site: RecordedSite, operands: Sequence[Any]) -> dict[int, int]:
    """Return how many items an operand must have, for those without which the assertion is true as well.

    It must have all that are compared with values of the test one by one, half of those of which something else is
    said, because another solution may have fewer, and one if the assertion is about other things.
    """
    if site.kind is not SiteKind.ASSERTION or site.level >= Level.STATE:
        return {}
    try:
        values = {f"_v{at}": decode(item) for at, item in enumerate(operands) if at not in site.evidence}
    except NotPlain:
        return {}
    counts = {at: item_count(site, at, item) for at, item in enumerate(operands) if f"_v{at}" in values}
    counts = {at: count for at, count in counts.items() if count > 0 and not site.known[at]}

    def holds_without(places: Iterable[int]) -> bool:
        assert site.test is not None
        empty = {f"_v{at}": type(value)() for at in places if (value := _plain(values[f"_v{at}"])) is not None}
        try:
            return bool(evaluate(site.test, {**values, **empty}))
        except Exception:  # it is not true, whatever the evaluation raises
            return False

    found = [at for at in counts if holds_without([at])]
    found = found or (list(counts) if len(counts) > 1 and holds_without(counts) else [])
    paired = site.paired
    return {at: counts[at] if at in paired else (counts[at] + 1) // 2 if site.concerns_items else 1 for at in found}


def _plain(value: Any) -> Any:
    """Return a value of a type that can be created empty, with the same items."""
    return value if isinstance(value, int | str | bytes | bytearray | list | tuple | set | frozenset | dict) else []


def _suits(site: RecordedSite, operands: list[Any]) -> bool:
    """Return whether an assertion of the reference solution can be evaluated outside over these operands."""
    try:
        values = {f"_v{place}": decode(item) for place, item in enumerate(operands) if place not in site.evidence}
        assert site.test is not None
        if site.level == Level.SHALLOW and any(isinstance(value, bool) for value in values.values()):
            return False  # what says yes may be lying: its operands tell more
        return bool(evaluate(site.test, values))
    except Exception:  # whatever the evaluation raises, this level does not do
        return False


def with_counts(trace: Trace, files: ObservedFiles, tests: Mapping[str, Sequence[Any]]) -> tuple[Trace, dict[str, str]]:
    """Check a graded run with the reference solution.

    Args:
        trace: The trace.
        files: The files of that run, which is no recording.
        tests: The events of each test, by its id in the trace.

    Returns:
        The trace of the tests that pass, with the number of conclusive events, and why each other one does not.
    """
    passing: dict[str, TestTrace] = {}
    wrong: dict[str, str] = {}
    errors = trace.errors()
    for test, one in trace.tests.items():
        if one == UNOBSERVED:
            passing[test], wrong[test] = one, "it does not pass with the reference solution, or sends too much"
            continue
        check = TestCheck(files, one, FieldNames(), errors, strict=True)
        problem = check.problem(tests[test]) if test in tests else "it was not run"
        if problem:
            wrong[test] = problem
        passing[test] = replace(one, conclusive=check.conclusive)
    return replace(trace, tests=passing), wrong
