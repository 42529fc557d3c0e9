"""Ray: workers that are actors of a cluster."""

import ray


def test_version() -> None:
    assert ray.__version__
