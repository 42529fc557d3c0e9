from pathlib import Path

import pytest
from pickver import Index


@pytest.fixture
def index():
    return Index.from_text((Path(__file__).parent / "data" / "packages.txt").read_text())
