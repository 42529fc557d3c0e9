"""Plans the runs of one verdict: test files run unchanged, with sentinels, with withheld values, or mutated to fail."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rllm_gym.grading.swe.log_parsers import canonical_id
from rllm_gym.grading.swe.mutated_tests import LineSpan, mutate_tests, sentinel_file, with_sentinel
from rllm_gym.grading.swe.test_source import MAX_BYTES, TestSource, function_key, same_function
from rllm_gym.grading.swe.verdict import RepositoryTests
from rllm_gym.grading.swe.withheld_values import WithheldValues, answer_choices, withhold_values

MAX_SENTINELS = 3
MAX_SEEN_TEST_FILES = 2

_STOPS_EARLY = re.compile(r"(^|\s)(-x|-f|--exitfirst|--failfast|--maxfail)\b")

TestLocation = tuple[str, str]
"""A test function: its file and its key, ``("tests/test_a.py", "TestB::test_c")``."""


@dataclass(frozen=True, slots=True)
class HiddenRun:
    """The test files of one run.

    Attributes:
        files: The files to run, in order.
        texts: Texts that differ from the task's.
        sentinels: Where the added tests fail, by their id in the run.
        mutated: Where the mutated functions fail.
        withheld: The expected values withheld from functions.
        placeholder: The name, during the run, of the function that stands for a withheld value.
        choices: Literals to compare a computed value with, by its key, if a digest of the value is not meaningful.
        observed: The module that rewritten tests import what records from; empty if they are not rewritten.
    """

    files: tuple[str, ...]
    texts: Mapping[str, str]
    sentinels: Mapping[str, LineSpan] = field(default_factory=dict)
    mutated: Mapping[TestLocation, LineSpan] = field(default_factory=dict)
    withheld: Mapping[TestLocation, WithheldValues] = field(default_factory=dict)
    placeholder: str = ""
    choices: Mapping[str, list[str]] = field(default_factory=dict)
    observed: str = ""


class HiddenRuns:
    """All runs for a task, drawn again for each verdict.

    Args:
        base: The original tree.
        tests: The hidden tests.
        node_ids: Whether the run identifies tests by pytest's node ids; otherwise by the names in the log.
        rng: The random generator. The code under test must not be able to predict it.
    """

    def __init__(self, base: Path, tests: RepositoryTests, *, node_ids: bool, rng: random.Random | None = None) -> None:
        rng = rng or random.Random(0)
        self._base = base
        self._tests = tests
        self._node_ids = node_ids
        self._rng = rng
        self._sources: dict[str, TestSource | None] = {}
        self._ids: dict[str, str] = {}
        self._locations: dict[str, TestLocation] = {}
        for test in tests.listed:
            self._look_up(test)
        to_fix = [self._locations[test][0] for test in tests.fail_to_pass if test in self._locations]
        all_files = [self._locations[test][0] for test in tests.listed if test in self._locations]
        # A custom test command runs everything at once.
        first = list(dict.fromkeys(to_fix if to_fix and node_ids else all_files))
        others = [path for path in dict.fromkeys(all_files) if path not in first]
        self.main = self._run_of_files(first, MAX_SENTINELS)
        self.others = self._run_of_files(others, 1) if others else None

    @property
    def files(self) -> tuple[str, ...]:
        """The files of all listed tests, those of tests to fix first."""
        return tuple(dict.fromkeys(location[0] for location in self._locations.values()))

    def paths(self, more: Iterable[str]) -> list[str]:
        """Return the Python files of the listed tests and of ``more``."""
        return [path for path in dict.fromkeys([*self.files, *more]) if path.endswith(".py")]

    def text(self, path: str) -> str | None:
        """Return the text of a test file as it will run."""
        return self._text(path)

    def id_of(self, test: str) -> str:
        """Return the id of a listed test in a run."""
        return self._ids[test]

    def tests_of(self, run: HiddenRun) -> list[str]:
        """Return the listed tests that a run decides; the main run also decides those that are in no file."""
        not_located = [test for test in self._tests.listed if test not in self._locations] if run is self.main else []
        return not_located + [test for test, (path, _) in self._locations.items() if path in run.files]

    def is_at(self, reported: str, location: TestLocation) -> bool:
        """Return whether a test of a run is this function, with any parameters."""
        if self._node_ids or "::" in reported:
            return function_key(reported) == location
        return any(self._ids[test] == reported and found == location for test, found in self._locations.items())

    def without_mutation(self, run: HiddenRun) -> list[str]:
        """Return the tests to fix that a run neither mutates nor withholds values from."""
        nothing_withheld = self.without_withheld(run)
        return [test for test in nothing_withheld if self._locations.get(test) not in run.mutated]

    def without_withheld(self, run: HiddenRun) -> list[str]:
        """Return the tests to fix that have no withheld values in a run."""
        return [test for test in self._tests.fail_to_pass if self._locations.get(test) not in run.withheld]

    def mutated_run(self) -> HiddenRun:
        """Return the main run with withheld values or mutations in each test to fix or not seen by the agent."""
        to_fix = set(self._tests.fail_to_pass)
        locations = {
            location for test, location in self._locations.items() if test in to_fix or not self._seen(location)
        }
        wanted = {key for key in locations if key[0] in self.main.files}
        return self.mutate(self.main, wanted, withhold=True)

    def visible_mutated_run(self) -> HiddenRun:
        """Return a few files with mutated tests that the agent could read before.

        They are run separately: code that knows a test can detect that it is mutated, and would thereby recognize the
        mutated run.
        """
        to_fix = {self._locations.get(test) for test in self._tests.fail_to_pass}
        seen = {location for location in self._locations.values() if location not in to_fix and self._seen(location)}
        files = sorted({path for path, _ in seen})
        chosen = self._rng.sample(files, min(len(files), MAX_SEEN_TEST_FILES))
        texts = {**(self.others.texts if self.others else {}), **self.main.texts}
        run = HiddenRun(tuple(chosen), {path: text for path, text in texts.items() if path in chosen})
        return self.mutate(run, {location for location in seen if location[0] in chosen})

    def mutate(
        self, run: HiddenRun, locations: Iterable[TestLocation], *, withhold: bool = False, choices: bool = False
    ) -> HiddenRun:
        """Return a run in which these functions are mutated to fail, where possible.

        Args:
            run: The original run.
            locations: The functions.
            withhold: Withhold expected values instead, where possible. Only our own pytest run can evaluate them.
            choices: Provide literals with the withheld values.
        """
        texts = dict(run.texts)
        spans: dict[TestLocation, LineSpan] = {}
        withheld_by_location: dict[TestLocation, WithheldValues] = {}
        name = f"_{self._rng.choice(('same', 'equals', 'expected', 'matches'))}_{self._rng.randrange(1 << 32):x}"
        keys: dict[str, list[str]] = {}
        for path, key in sorted(locations):
            keys.setdefault(path, []).append(key)
        for path, of_file in keys.items():
            source = _source(texts[path]) if path in texts else self._source(path)
            if source is None:
                continue
            if withhold and self._node_ids:
                found = {key: withhold_values(source, key, name, self._rng) for key in of_file}
                withheld_by_location |= {
                    (path, key): withheld for key, withheld in found.items() if withheld is not None
                }
            edits = [
                edit
                for key in of_file
                if (path, key) in withheld_by_location
                for edit in withheld_by_location[path, key].edits
            ]
            mutated = mutate_tests(
                source, [key for key in of_file if (path, key) not in withheld_by_location], self._rng, edits
            )
            texts[path] = mutated.text
            spans |= {(path, key): span for key, span in mutated.mutated.items()}
        offered = {}
        if choices:
            offered = {
                key: few
                for item in withheld_by_location.values()
                for key, few in answer_choices(item, self._rng).items()
            }
        return HiddenRun(
            run.files, texts, run.sentinels, spans, withheld_by_location, name if withheld_by_location else "", offered
        )

    # Lookup

    def _look_up(self, test: str) -> None:
        if "::" in test:
            location = function_key(test)
            self._ids[test] = test
        else:
            found = self._dotted(canonical_id(test))
            self._ids[test] = canonical_id(test)
            if found is None:
                return
            location = found
            if self._node_ids:
                self._ids[test] = "::".join(location)
        if self._text(location[0]) is not None:
            self._locations[test] = location

    def _dotted(self, name: str) -> TestLocation | None:
        """Return the location of ``package.module.Class.test``, from the root or from a folder of tests."""
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            path = "/".join(parts[:end]) + ".py"
            for candidate in (path, f"tests/{path}", f"test/{path}", f"src/{path}"):
                if self._text(candidate) is not None:
                    return candidate, "::".join(parts[end:])
        return None

    def _text(self, path: str) -> str | None:
        """Return the text of a test file as it will run."""
        if path in self._tests.hidden_tests:
            return self._tests.hidden_tests[path]
        return self._in_base(path)

    def _in_base(self, path: str) -> str | None:
        file = self._base / path
        if ".." in PurePosixPath(path).parts or path.startswith("/") or not file.is_file() or file.is_symlink():
            return None
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        return data.decode(errors="surrogateescape")

    def _source(self, path: str) -> TestSource | None:
        if path not in self._sources:
            text = self._text(path)
            self._sources[path] = None if text is None or not path.endswith(".py") else _source(text)
        return self._sources[path]

    def _seen(self, location: TestLocation) -> bool:
        """Return whether the agent can read the text of this test."""
        path, key = location
        if path not in self._tests.hidden_tests:
            return True
        text, source = self._in_base(path), self._source(path)
        return text is not None and source is not None and same_function(source, _source(text), key)

    # Sentinels

    def _run_of_files(self, files: list[str], max_sentinels: int) -> HiddenRun:
        texts: dict[str, str] = {}
        sentinels: dict[str, LineSpan] = {}
        if _STOPS_EARLY.search(self._tests.test_command or "") and not self._node_ids:
            max_sentinels = 0
        for path in self._rng.sample(files, len(files)):
            source = self._source(path)
            beside = [test for test, location in self._locations.items() if location[0] == path]
            if source is None or not beside or len(sentinels) == max_sentinels:
                continue
            test = self._rng.choice(beside)
            key = self._locations[test][1]
            sentinel = with_sentinel(source, key, self._rng)
            if sentinel is not None:
                text, new_key, span = sentinel
                texts[path] = text
                sentinels[self._sibling_id(test, key, new_key)] = span
        if not sentinels and files and self._node_ids:
            path, text, name, span = self._own_file(files[0])
            files = [*files, path]
            self._rng.shuffle(files)
            texts[path] = text
            sentinels[f"{path}::{name}"] = span
        return HiddenRun(tuple(files), texts, sentinels)

    def _own_file(self, beside: str) -> tuple[str, str, str, LineSpan]:
        text, name, span = sentinel_file(self._rng)
        folder = PurePosixPath(beside).parent
        path = str(folder / f"{name}.py")
        while self._text(path) is not None:
            path = str(folder / f"{name}_{self._rng.randrange(1000)}.py")
        return path, text, name, span

    def _sibling_id(self, test: str, key: str, new_key: str) -> str:
        known = self._ids[test]
        if "::" in known:
            return f"{known.partition('::')[0]}::{new_key}"
        return known.removesuffix(key.replace("::", ".")) + new_key.replace("::", ".")


def _source(text: str) -> TestSource | None:
    try:
        return TestSource(text)
    except (ValueError, UnicodeEncodeError):
        return None
