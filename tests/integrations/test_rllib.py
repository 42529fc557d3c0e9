"""RLlib."""

import ray.rllib


def test_version() -> None:
    assert ray.rllib
