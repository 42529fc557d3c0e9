import pytest
from tallybook import accounts


def test_depth_and_parent():
    assert accounts.depth("assets") == 1
    assert accounts.depth("assets:bank:savings") == 3
    assert accounts.parent("assets:bank:savings") == "assets:bank"
    assert accounts.parent("assets") is None


def test_ancestors_come_nearest_first():
    assert accounts.ancestors("a:b:c") == ["a:b", "a"]
    assert accounts.ancestors("a") == []


def test_a_name_that_only_begins_alike_is_not_within():
    names = "assets", "assets:cash", "assets:cash:purse", "assets:cashbox"
    assert [accounts.is_within(name, "assets:cash") for name in names] == [False, True, True, False]
    assert [accounts.is_within(name, "assets") for name in names] == [True, True, True, True]


@pytest.mark.parametrize(
    ("width", "short"),
    [
        (23, "expenses:food:groceries"),
        (20, "expen:food:groceries"),
        (16, "e:food:groceries"),
        (15, "e:foo:groceries"),
        (5, "e:f:groceries"),
    ],
)
def test_names_are_shortened_from_the_left(width, short):
    assert accounts.shorten("expenses:food:groceries", width) == short
