import itertools
import random

import pytest
from pickver import Index, NoSolution, Version, resolve
from pickver.index import Release
from pickver.requirement import parse_requirement


def picked(index, *requirements, **options):
    return {package: str(version) for package, version in resolve(index, requirements, **options).items()}


def test_the_newest_that_fit(index):
    assert picked(index, "web") == {"log": "1.4.2", "web": "2.3.0"}
    assert picked(index, "log") == {"log": "2.0.0"}
    assert picked(index, "web 3.0.0-rc.1") == {"log": "2.0.0", "web": "3.0.0-rc.1"}


def test_it_goes_back_when_a_choice_does_not_fit(index):
    assert picked(index, "site") == {"log": "1.1.0", "site": "1.0.0", "web": "2.2.0"}
    assert picked(index, "web", "log <1.2") == {"log": "1.1.0", "web": "2.2.0"}


def test_features_bring_requirements(index):
    with pytest.raises(NoSolution):
        resolve(index, ["web[tls] ^2.3"])
    assert picked(index, "web[tls]") == {"log": "1.4.2", "web": "2.2.0"}


def test_locked_versions_are_kept_if_they_fit(index):
    assert picked(index, "log ^1", locked={"Log": Version(1, 1, 0)}) == {"log": "1.1.0"}
    assert picked(index, "log ^2", locked={"log": Version(1, 1, 0)}) == {"log": "2.0.0"}
    assert picked(index, "log ^1", locked={"log": Version(1, 9, 0)}) == {"log": "1.4.2"}


def test_withdrawn_versions_are_picked_only_if_they_are_locked():
    index = Index.from_text("log 1.4.2\nlog 1.5.0 withdrawn\nold 1.0.0 withdrawn\n")
    assert picked(index, "log") == {"log": "1.4.2"}
    assert picked(index, "log", locked={"log": Version(1, 5, 0)}) == {"log": "1.5.0"}
    assert picked(index, "log <1.5", locked={"log": Version(1, 5, 0)}) == {"log": "1.4.2"}
    with pytest.raises(NoSolution, match="no version of old fits"):
        resolve(index, ["old"])


def test_errors_say_who_asked(index):
    with pytest.raises(NoSolution, match="there is no package mail: you needs mail"):
        resolve(index, ["mail"])
    with pytest.raises(NoSolution, match=r"no version of log fits: you needs log >2; you needs log <2"):
        resolve(index, ["log >2", "log <2"])
    with pytest.raises(NoSolution) as caught:
        resolve(index, ["log ^2", "web ^2"])
    assert caught.value.package == "log"
    assert "web 2.3.0 needs log ^1.2, but log 2.0.0 was chosen" in str(caught.value)


def test_packages_may_need_each_other():
    index = Index.from_text("a 1.0.0\n  b\nb 1.0.0\n  a\n")
    assert picked(index, "a") == {"a": "1.0.0", "b": "1.0.0"}


@pytest.mark.thorough
def test_a_solution_is_found_if_there_is_one():
    stream = random.Random(7)
    for _ in range(60):
        index = Index()
        for package in "abc":
            for minor in range(3):
                needs = [
                    parse_requirement(f"{other} {stream.choice(['<=1.1.0', '>=1.1.0', '1.0.0', '!=1.1.0'])}")
                    for other in "abc"
                    if other != package and stream.random() < 0.6
                ]
                index.add(Release(package, Version(1, minor, 0), needs))
        possible = any(
            all(
                combination["abc".index(need.package)] in need.range
                for package, version in zip("abc", combination)
                for need in index.release(package, version).requires
            )
            for combination in itertools.product([Version(1, minor, 0) for minor in range(3)], repeat=3)
        )
        try:
            resolve(index, ["a", "b", "c"])
        except NoSolution:
            assert not possible
        else:
            assert possible
