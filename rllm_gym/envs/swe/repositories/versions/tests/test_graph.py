import pytest
from pickver import CycleError, install_order
from pickver.graph import dependents

NEEDS = {"site": ["web", "log"], "web": ["log", "crypto"], "crypto": [], "tool": []}


def test_what_is_needed_comes_first():
    assert install_order(NEEDS) == ["crypto", "log", "tool", "web", "site"]
    assert install_order({}) == []


def test_the_argument_is_not_changed():
    needs = {"a": {"b"}}
    install_order(needs)
    assert [(package, sorted(needed)) for package, needed in needs.items()] == [("a", ["b"])]


def test_circles_are_named():
    with pytest.raises(CycleError) as caught:
        install_order({"d": ["b"], "b": ["c"], "c": ["a"], "a": ["b"], "e": []})
    assert caught.value.cycle == ["a", "b", "c", "a"]
    assert str(caught.value) == "a needs b needs c needs a"
    with pytest.raises(CycleError):
        install_order({"a": ["a"]})


def test_dependents():
    assert dependents(NEEDS, "log") == {"web", "site"}
    assert dependents(NEEDS, "crypto") == {"web", "site"}
    assert dependents(NEEDS, "site") == set()
    assert dependents({"a": ["b"], "b": ["a"]}, "a") == {"a", "b"}
