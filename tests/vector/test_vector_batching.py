"""Infos are batched as in Gymnasium; where Gymnasium would lose or fail on values, nothing is lost."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.vector.batching import batch_infos, split_options, split_seeds
from tests.errors import raised

LEAVES = {
    "int": st.integers(-(2**40), 2**40),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(),
    "none": st.none(),
    "list": st.lists(st.integers(), max_size=2),
    "float32": st.floats(width=32, allow_nan=False).map(np.float32),
    "npbool": st.booleans().map(np.bool_),
    "array": st.integers(0, 9).map(lambda n: np.array([n, n + 1], dtype=np.int16)),
    "final_obs": st.text(),
}
INFO = st.fixed_dictionaries({}, optional={**LEAVES, "nested": st.fixed_dictionaries({}, optional=LEAVES)})


class FixedInfo(gymnasium.Env):
    """Its ``reset`` returns the info passed to the constructor."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, info):
        self.info = info

    def reset(self, *, seed=None, options=None):
        return 0, self.info


@settings(deadline=None)
@given(st.lists(INFO, min_size=1, max_size=4))
def test_infos_are_batched_as_gymnasium_batches_them(infos):
    theirs = SyncVectorEnv([lambda info=info: FixedInfo(info) for info in infos])
    _, expected = theirs.reset()
    assert data_equivalence(batch_infos(infos), expected)


def test_nothing_is_truncated_or_lost_where_types_differ():
    batched = batch_infos(
        [{"a": 1, "b": 1, "c": 2**70, "d": np.zeros(2)}, {"a": 1.5, "b": "x", "c": 3, "d": np.zeros(3)}]
    )
    assert batched["a"].tolist() == [1.0, 1.5]
    assert batched["b"].tolist() == [1, "x"]
    assert batched["c"].tolist() == [2**70, 3]
    assert [item.shape for item in batched["d"]] == [(2,), (3,)]
    assert batch_infos([{"a": {"x": 1}}, {"a": 2}])["a"].tolist() == [{"x": 1}, 2]


def test_seeds_and_options_are_split_by_environment():
    assert split_seeds(5, [0, 3]) == [5, 8]
    assert split_seeds([1, None], [0, 3]) == [1, None]
    assert split_options({"task": [1, 2], "level": 3}, 2) == [{"task": 1, "level": 3}, {"task": 2, "level": 3}]
    assert split_options(None, 2) == [None, None]
    one, other = split_options({"level": 3}, 2)
    assert one is not other  # an environment that modifies its options does not affect the others


def test_a_numeric_space():
    class Numbers(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 9, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.full(2, action, np.float32), float(action), False, False, {}

    from rllm_gym.vector import TextVectorEnv

    envs = TextVectorEnv(3, env_id=Numbers)
    try:
        envs.reset(seed=0)
        observations, rewards, *_ = envs.step(np.array([1, 2, 3]))
        assert observations.tolist() == [[1, 1], [2, 2], [3, 3]]
        assert rewards.tolist() == [1, 2, 3]
        envs.send(np.array([4, 3]), [2, 0])
        received = envs.recv(2, timeout=30)
        assert dict(zip(received.env_ids.tolist(), received.rewards.tolist())) == {2: 4.0, 0: 3.0}
    finally:
        envs.close()


def test_a_custom_space():
    class Own(gymnasium.Space):
        def contains(self, x):
            return isinstance(x, bytes)

    class Bytes(gymnasium.Env):
        observation_space = action_space = Own()

        def reset(self, *, seed=None, options=None):
            return b"", {}

        def step(self, action):
            return action, 0.0, False, False, {}

    from rllm_gym.vector import TextVectorEnv

    envs = TextVectorEnv(2, env_id=Bytes)
    try:
        assert envs.reset(seed=0)[0] == (b"", b"")
        assert envs.step([b"1", b"2"])[0] == (b"1", b"2")
    finally:
        envs.close()


def test_invalid_seeds_and_options_are_errors():
    wrong = []
    for call, kind, says in (
        (lambda: split_seeds([1], [0, 1]), ValueError, "length=1"),
        (lambda: split_seeds([1, 2, 3], [0, 1]), ValueError, "length=3"),
        (lambda: split_seeds(-1, [0, 1]), gymnasium.error.Error, "the seed of environment 0 is -1"),
        (lambda: split_seeds([0, -3], [0, 1]), gymnasium.error.Error, "the seed of environment 1 is -3"),
        (lambda: split_seeds(1.5, [0, 1]), TypeError, "seed=1.5"),
        (lambda: split_seeds([0, "1"], [0, 1]), TypeError, "environment 1 is a str"),
        (lambda: split_options(5, 2), TypeError, "options=5"),
        (lambda: split_options("task", 2), TypeError, "options='task'"),
        (lambda: split_options([1, 2], 2), TypeError, "options="),
    ):
        error = raised(call)
        if not (isinstance(error, kind) and says in str(error)):
            wrong.append((says, error))
    assert wrong == []
