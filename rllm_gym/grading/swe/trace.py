"""What the hidden tests of a task observe with its reference solution, and whether another run observes the same.

The trace is recorded when a task is made and stays outside the sandbox. It has, for each test, the order in which its
statements were recorded, the values that do not depend on the code, the expected exceptions, and the values of the
reference solution where a test compares the code with itself or where only the code's own classes can compare.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.grading.swe.assertions import UnsupportedAssertion, evaluate, searches
from rllm_gym.grading.swe.instrument import InstrumentedFile, Level, RecordedSite, SiteKind, SitePlan, instrument
from rllm_gym.grading.swe.observed_values import (
    ANYTHING,
    ClassRef,
    FieldNames,
    NotPlain,
    count_of,
    decode,
    has_content,
    infinities_in,
    matches,
    merged,
    name_of,
    same_class,
    size_of,
)
from rllm_gym.grading.swe.test_source import function_key

_SITES_PER_FILE = 1 << 20
_VERSION = 6
MORE_CHARS = 60
"""What is searched for an expected part may be this much longer than twice that of the reference solution."""
MORE_MESSAGE_CHARS = 240
"""And so may the message of an exception."""


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
                        for wanted in _classes(expected):
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


class TestCheck:
    """Compares the events of one test with its trace.

    Args:
        files: The files of the run.
        trace: What the test observes with the reference solution.
        names: Which fields of an object a solution may lack.
        errors: The bases of known classes of exceptions; see :meth:`Trace.errors`.
        strict: Whether two values of the code under test that equal each other must also be those of the reference
            solution, and reached in the same order. So it is for a test to fix; one to keep passed before the change,
            whatever these values are.
    """

    __test__ = False

    def __init__(
        self,
        files: ObservedFiles,
        trace: TestTrace,
        names: FieldNames,
        errors: Mapping[str, tuple[str, ...]] | None = None,
        *,
        strict: bool,
    ) -> None:
        self._files = files
        self._trace = trace
        self._names = names
        self._errors = errors or {}
        self._strict = strict
        self._in_order = False
        self.conclusive = 0

    def problem(self, events: Sequence[Any]) -> str:
        """Return why the test does not pass outside; empty if it does."""
        order = self._files.order(events, self._trace.files)
        same = digest_of(order) == self._trace.order
        # The values that are known belong to places in the order.
        self._in_order = bool(self._trace.order) and (same or self._strict)
        for place, event in enumerate(events):
            try:
                problem = self._event(event, place if self._in_order else -1)
            except ValueError as error:
                problem = str(error)
            except Exception as error:  # a forged event can have any form: it fails the test and no more
                problem = f"an event is malformed ({type(error).__name__})"
            if problem:
                return problem
        if not same and (self._in_order or (self._trace.sites and sites_of(order) != self._trace.sites)):
            return "its statements are not reached as with the reference solution"
        least = self._trace.conclusive if self._trace.order else (self._trace.conclusive + 1) // 2
        if self._strict and self.conclusive < least:
            return "less can be compared than with the reference solution"
        return ""

    def _event(self, event: Any, place: int) -> str:
        """Return why an event is not as with the reference solution. ``place``: that in its order; -1: none."""
        known = self._trace.values.get(place)
        match event:
            case ["x", number, [list(kinds), str(text), *_]]:
                _, _, site = self._files.place(number)
                if site.kind is SiteKind.RAISES and not self._in_order:
                    return ""
                if site.kind is SiteKind.RAISES and known:
                    self.conclusive += 1
                    return self._unexpected(kinds, text, known, f"line {site.line}")
                return f"line {site.line}: {_short(kinds)}: {text[:200]}"
            case ["w", number, list(seen)]:
                _, _, site = self._files.place(number)
                if not self._in_order:
                    return ""
                if not known:
                    raise ValueError("the class of a warning is not known")
                if self._strict and size_of(seen) > 2 * self._trace.sizes.get(place, {}).get(0, 0) + MORE_CHARS:
                    return f"line {site.line}: there are many more warnings than with the reference solution"
                found = [self._unexpected(list(one[0]), str(one[1]), known, "") for one in seen]
                self.conclusive += 1
                return "" if "" in found else f"line {site.line}: no such warning"
            case [number, list(operands), *whole]:
                _, _, site = self._files.place(number)
                if site.kind is SiteKind.RAISES:
                    return f"line {site.line}: nothing was raised"
                if site.kind is not SiteKind.ASSERTION:
                    return ""
                problem = self._assertion(site, operands, whole, place)
                return f"line {site.line}: {problem}" if problem else ""
        raise ValueError("an event is malformed")

    def _unexpected(self, kinds: list[Any], text: str, known: list[Any], where: str) -> str:
        """Return how an exception differs from the expected class and pattern."""
        expected, pattern, _, reference = [*known, None, None, None][:4]
        names = [name for name in kinds if isinstance(name, str)]
        if not any(self._is_instance(names, wanted) for wanted in _classes(expected)):
            return f"{where}: {_short(names)} is raised: {text[:200]}"
        if pattern is None:
            return ""
        try:
            found = searches(_pattern(pattern), text)
        except (NotPlain, UnsupportedAssertion) as error:
            return f"{where}: {error}"
        if isinstance(reference, str) and len(text) > 2 * len(reference) + MORE_MESSAGE_CHARS:
            return f"{where}: the message of the exception is much longer than with the reference solution"
        return "" if found else f"{where}: the message of the exception is another: {text[:200]}"

    def _is_instance(self, names: Sequence[str], wanted: ClassRef) -> bool:
        """Return whether a class is the wanted one or a subclass of it, and not of many other known classes.

        Code that does not know what the test expects could raise an exception of every class.
        """
        place = next((at for at, name in enumerate(names) if same_class(name, wanted.name)), None)
        if place is None:
            return False

        def bases(name: str) -> tuple[str, ...]:
            same = (known for other, known in self._errors.items() if same_class(name, other))
            return next(same, ()) or _builtin_bases(name)

        def among(name: str, known: Sequence[str]) -> bool:
            return any(same_class(name, other) for other in known)

        narrower = all(among(wanted.name, bases(name)) for name in names[:place] if bases(name))
        others = [name for name in names[place:] if bases(name) and not among(name, wanted.bases)]
        # A class that comes with the solution may have another base than in the reference solution.
        name = wanted.name.rpartition(":")[2].rpartition(".")[2]
        is_new = bool(self._names.before) and name not in self._names.before and not _builtin_bases(wanted.name)
        return narrower and len(others) <= (1 if is_new else 0)

    def _assertion(self, site: RecordedSite, operands: list[Any], whole: list[Any], place: int) -> str:
        known, sizes = self._trace.values.get(place), self._trace.sizes.get(place, {})
        gold = known or [None] * len(site.known)
        if site.level == Level.WHOLE:
            return self._whole(site, operands, whole, known)
        if site.identity and whole != [True]:
            return "two values are not the same object"
        if len(operands) != len(site.sent) or len(gold) != len(site.known):
            return "an event has another number of operands"
        if site.level == Level.STATE:
            return self._state(site, dict(zip(site.sent, operands)), gold)
        sent = dict(zip(site.sent, operands))
        for at, size in sizes.items() if self._strict else ():
            if at >= 0 and size_of(sent[at]) > 2 * size + MORE_CHARS:
                return "a value that is searched is much larger than with the reference solution"
            if at < 0 and _count(site, -1 - at, sent[-1 - at]) < size:
                return "a value has fewer items than with the reference solution"
        infinities = self._trace.infinities.get(place, {})
        for at, value in sent.items() if self._strict else ():
            if not site.known[at] and not infinities_in(value) <= set(infinities.get(at, ())):
                return "a value is not finite, but it is with the reference solution"
        values = {}
        try:
            for place in range(len(site.known)):
                if place in site.evidence:
                    continue
                if place not in sent and gold[place] is None:
                    return "a value of the test is not known" if self._in_order else ""
                values[f"_v{place}"] = self._value(site, place, sent, gold)
        except NotPlain as error:
            if _is_inequality(site) and all(place in sent for place in range(len(site.known))):
                return "" if operands[0] != operands[1] else "two objects are the same"
            return f"{error}, but it is with the reference solution"
        for place, value in sent.items():
            self.conclusive += place in site.evidence and gold[place] is not None and has_content(gold[place][0])
            own = not self._strict and (place in site.faced or place in site.evidence)
            if (
                not site.known[place]
                and not own
                and gold[place] is not None
                and not matches(gold[place][0], value, self._names)
            ):
                return "a value differs from that of the reference solution"
        assert site.test is not None
        try:
            holds = bool(evaluate(site.test, values))
        except UnsupportedAssertion:
            return "it cannot be evaluated over these values"
        except Exception as error:  # what the comparison of these values raises
            return f"{type(error).__name__}: {error!s:.100}"
        self.conclusive += bool(sent)
        return "" if holds else f"{ast.unparse(site.test)[:200]} is false for {_shown(values)}"

    def _value(self, site: RecordedSite, place: int, sent: Mapping[int, Any], gold: Sequence[Any]) -> Any:
        """Return the value of an operand: one that does not depend on the code is that of the reference solution."""
        if place not in sent:
            return decode(gold[place][0])
        if site.known[place] and gold[place] is not None:
            with contextlib.suppress(NotPlain):  # it differs from run to run
                return decode(gold[place][0])
        return decode(sent[place])

    def _whole(self, site: RecordedSite, operands: list[Any], whole: list[Any], known: list[Any] | None) -> str:
        """Evaluate an assertion over objects: true inside, and each operand as with the reference solution."""
        if whole != [True]:
            return "it is false"
        if known is not None and len(operands) != len(known):
            return "an event has another number of operands"
        if not self._strict:
            # Another solution may hold the same in another way: its objects are held against each other, or not at all.
            if site.compares_own and all(matches(operands[0], item, self._names) for item in operands):
                return ""
            if all(
                stored is None or name_of(stored[0]) == name_of(item) for stored, item in zip(known or [], operands)
            ):
                return ""
        return self._state(site, dict(enumerate(operands)), known or [None] * len(operands))

    def _state(self, site: RecordedSite, operands: Mapping[int, Any], known: list[Any]) -> str:
        for place, found in operands.items():
            stored = known[place]
            if stored is not None and not matches(stored[0], found, self._names):
                return f"{name_of(found)} differs from that of the reference solution"
            self.conclusive += stored is not None and place not in site.passed_only and has_content(stored[0])
        return ""


def _is_inequality(site: RecordedSite) -> bool:
    return isinstance(site.test, ast.Compare) and len(site.known) == 2 and isinstance(site.test.ops[0], ast.NotEq)


def _classes(encoded: Any) -> list[ClassRef]:
    """Return the classes that a test expects an exception to be of."""
    try:
        wanted = decode(encoded)
    except NotPlain:
        return []
    return [kind for kind in (wanted if isinstance(wanted, tuple) else (wanted,)) if isinstance(kind, ClassRef)]


def _builtin_bases(name: str) -> tuple[str, ...]:
    kind = getattr(builtins, name.partition(":")[2], None) if name.startswith("builtins:") else None
    return tuple(f"{base.__module__}:{base.__qualname__}" for base in kind.__mro__) if isinstance(kind, type) else ()


def _pattern(encoded: Any) -> Any:
    value = decode(encoded)
    return value[1] if isinstance(value, tuple) and value[:1] == ("re.Pattern",) else value


def _short(kinds: Sequence[Any]) -> str:
    return str(kinds[0]).rpartition(":")[2][:80] if kinds else "an exception"


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r:.100}" for name, value in values.items())


# Recording


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


def _count(site: RecordedSite, at: int, encoded: Any) -> int:
    """Return how many items an operand has, or stands for."""
    if at in site.ranged and type(encoded) is int:
        return encoded
    return count_of(encoded, nested=site.nested)


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
    counts = {at: _count(site, at, item) for at, item in enumerate(operands) if f"_v{at}" in values}
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
