from pathlib import Path

import pytest
import tallybook


@pytest.fixture
def household():
    text = (Path(__file__).parent / "data" / "household.journal").read_text()
    return tallybook.read_journal(text)


@pytest.fixture
def book(household):
    return tallybook.Ledger(household)
