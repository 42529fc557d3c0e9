from datetime import date

import pytest
from tablequery.types import convert_column, show


@pytest.mark.parametrize(
    ("texts", "cells"),
    [
        (["1", "-2", "+3"], [1, -2, 3]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1e3", ".5"], [1000.0, 0.5]),
        (["yes", "No", "TRUE"], [True, False, True]),
        (["2024-02-29"], [date(2024, 2, 29)]),
        (["2024-02-30"], ["2024-02-30"]),
        (["1", "x"], ["1", "x"]),
        (["007", "010"], ["007", "010"]),
        (["0", "0.5"], [0.0, 0.5]),
        (["1", "", "NA", "n/a", "null"], [1, None, None, None, None]),
        ([" 1 ", "2"], [1, 2]),
        (["", ""], [None, None]),
        (["nan", "inf"], ["nan", "inf"]),
        ([], []),
    ],
)
def test_the_type_fits_every_cell(texts, cells):
    found = convert_column(texts)
    assert found == cells
    assert [type(cell) for cell in found] == [type(cell) for cell in cells]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        (True, "true"),
        (1, "1"),
        (2.0, "2"),
        (0.1 + 0.2, "0.3"),
        (date(2024, 1, 2), "2024-01-02"),
        ("a", "a"),
    ],
)
def test_cells_are_shown(cell, text):
    assert show(cell) == text
