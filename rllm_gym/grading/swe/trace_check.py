"""Compares what a test observes in a graded run with its trace."""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_gym.grading.swe.assertions import UnsupportedAssertion, evaluate, searches
from rllm_gym.grading.swe.observed_values import (
    ClassRef,
    FieldNames,
    NotPlain,
    count_of,
    decode,
    has_content,
    infinities_in,
    matches,
    name_of,
    same_class,
    size_of,
)
from rllm_gym.grading.swe.recorded_sites import Level, RecordedSite, SiteKind
from rllm_gym.grading.swe.trace import ObservedFiles, TestTrace, digest_of, expected_classes, sites_of

MORE_CHARS = 60
"""What is searched for an expected part may be this much longer than twice that of the reference solution."""
MORE_MESSAGE_CHARS = 240
"""And so may the message of an exception."""


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
        if not any(self._is_instance(names, wanted) for wanted in expected_classes(expected)):
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
            if at < 0 and item_count(site, -1 - at, sent[-1 - at]) < size:
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


def item_count(site: RecordedSite, at: int, encoded: Any) -> int:
    """Return how many items an operand has, or stands for."""
    if at in site.ranged and type(encoded) is int:
        return encoded
    return count_of(encoded, nested=site.nested)
