"""The Unicode text space: text that Gymnasium's own space rejects, and what libraries expect of a space."""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym import Text


@given(st.text(max_size=300))
def test_any_text_up_to_the_bound_is_a_member(text):
    assert text in Text(300)
    assert (text in Text(20)) == (len(text) <= 20)


def test_only_text_is_a_member():
    members = [other for other in (None, 3, b"x", ["x"], np.array("x"), {"text": "x"}) if other in Text()]
    assert members == []


def test_samples_are_members_seeded_and_cheap_at_any_bound():
    for bound in (0, 1, 5, 10_000_000):
        space = Text(bound, seed=3)
        begin = time.process_time()
        samples = [space.sample() for _ in range(200)]
        assert time.process_time() - begin < 2
        assert all(sample in space for sample in samples)
        space.seed(3)
        assert samples == [space.sample() for _ in range(200)]
    assert len(set(samples)) > 50
    with pytest.raises(ValueError, match="mask"):
        Text().sample(mask=(1, None))


def test_the_space_is_recognized_by_libraries():
    space = Text(100)
    assert isinstance(space, spaces.Text)
    assert space == copy.deepcopy(space) == pickle.loads(pickle.dumps(space)) == Text(100)  # noqa: S301
    assert space != Text(101)
    assert hash(space) == hash(Text(100))
    assert space != spaces.Text(100)
    assert batch_space(space, 2).contains(("a\n", "é"))
    assert len(create_empty_array(space, 2)) == 2
