from pathlib import Path

import pytest
from tablequery import read_csv

ORDERS = Path(__file__).parent / "data" / "orders.csv"


@pytest.fixture
def orders_file():
    return ORDERS


@pytest.fixture
def orders():
    return read_csv(ORDERS)
