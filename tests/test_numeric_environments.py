"""Text environments as numbers (rllm_gym.integrations.features): every text has a vector, equal in every process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_raise

from rllm_gym.envs import TABLE
from rllm_gym.integrations.features import DiscreteActions, HashedFeatures, TokenIds, make_numeric

LAKE = "rllm/FrozenLake-v0"
assert TABLE


def texts_as(kind: Any, **arguments: Any) -> Any:
    return kind(gymnasium.make(LAKE), **arguments).observation


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_gymnasiums_checker_passes() -> None:
    for features in (HashedFeatures, partial(HashedFeatures, size=7), TokenIds):
        check_env(make_numeric(LAKE, features=features), skip_render_check=True)


@given(st.text(st.characters(codec=None), max_size=300))
def test_every_text_has_its_vector(text: str) -> None:
    """Also lone surrogates, control characters and the empty text."""
    env = gymnasium.make(LAKE)
    for wrapper in (HashedFeatures(env, 32), TokenIds(env, 16)):
        assert wrapper.observation_space.contains(wrapper.observation(text))


def test_vectors_are_the_same_in_every_process() -> None:
    program = f"""
from rllm_gym.integrations.features import make_numeric
env = make_numeric({LAKE!r})
print(env.reset(seed=3)[0].tobytes().hex() == {make_numeric(LAKE).reset(seed=3)[0].tobytes().hex()!r})
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.stdout == "True\n", result.stderr


def test_a_different_layout_differs_and_text_above_changes_no_feature_below() -> None:
    vector = texts_as(HashedFeatures, size=4096)
    board, moved = "_ P\nG _", "P _\nG _"
    assert not np.array_equal(vector(board), vector(moved))
    above = vector(f"You moved right.\n{board}")
    assert np.all(above[vector(board) == 1] == 1)
    assert set(np.unique(above)) == {0.0, 1.0}


def test_token_ids_are_the_last_ones_padded_in_front() -> None:
    assert texts_as(TokenIds, length=4)("ab").tolist() == [0, 0, 98, 99]
    assert texts_as(TokenIds, length=2)("xab").tolist() == [98, 99]
    words = ["<pad>", "up", "down"]
    encode = partial(map, words.index)
    reported = texts_as(TokenIds, length=3, encode=lambda text: list(encode(text.split())), vocabulary_size=3)
    assert reported("down up").tolist() == [0, 2, 1]


def test_an_action_number_becomes_the_text_of_its_choice() -> None:
    env = DiscreteActions(gymnasium.make(LAKE, tasks=[["SF", "FG"]]))
    assert env.choices == ("```left```", "```down```", "```right```", "```up```")
    env.reset(seed=0)
    env.step(2)
    assert env.step(np.int64(1))[4]["success"]
    quiz = DiscreteActions(gymnasium.make("rllm/Math-v0"), ["1", "2"])
    assert quiz.action_space.n == 2


def test_an_environment_can_be_made_again_from_its_spec() -> None:
    env = make_numeric(LAKE, choices=["up"], features=partial(TokenIds, length=8))
    again = gymnasium.make(env.spec)
    assert again.action_space == env.action_space
    assert np.array_equal(again.reset(seed=1)[0], env.reset(seed=1)[0])


def test_an_environment_can_be_pickled() -> None:
    make = pickle.loads(pickle.dumps(partial(make_numeric, LAKE, size=3)))  # noqa: S301 - our own bytes
    assert make().reset(seed=0)[0].shape == (1024,)


def test_invalid_arguments_are_errors() -> None:
    for use, kind, says in (
        (lambda: make_numeric("rllm/Math-v0"), ValueError, "defines no discrete actions"),
        (lambda: make_numeric(LAKE, choices=[]), ValueError, "choices=[]"),
        (lambda: HashedFeatures(gymnasium.make("CartPole-v1")), TypeError, "not text"),
        (lambda: DiscreteActions(gymnasium.make("CartPole-v1"), ["left"]), TypeError, "not text"),
        (lambda: HashedFeatures(gymnasium.make(LAKE), 0), ValueError, "size=0"),
        (lambda: TokenIds(gymnasium.make(LAKE), 0), ValueError, "length=0"),
        (lambda: TokenIds(gymnasium.make(LAKE), pad_id=3), ValueError, "need encode="),
        (lambda: TokenIds(gymnasium.make(LAKE), encode=list), ValueError, "vocabulary_size="),
        (lambda: TokenIds(gymnasium.make(LAKE), encode=list, vocabulary_size=0), ValueError, "vocabulary_size=0"),
        (lambda: TokenIds(gymnasium.make(LAKE), encode=list, vocabulary_size=9, pad_id=9), ValueError, "pad_id=9"),
        (lambda: texts_as(TokenIds, encode=lambda text: [9], vocabulary_size=9)("up"), ValueError, "0..8"),
        (lambda: DiscreteActions(gymnasium.make(LAKE), "up"), TypeError, "choices='up'"),
        (lambda: DiscreteActions(gymnasium.make(LAKE), [1, 2]), TypeError, "list of texts"),
        (lambda: DiscreteActions(gymnasium.make(LAKE)).action(-1), ValueError, "action=-1"),
        (lambda: DiscreteActions(gymnasium.make(LAKE)).action(1.7), ValueError, "action=1.7"),
    ):
        assert_all_raise(kind, lambda _, use=use: use(), [(says, says)], plain=True)


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        ("from rllm_gym.integrations.stable_baselines3 import make_vec_env; make_vec_env('{id}')", "stable-baselines3"),
        ("from rllm_gym.integrations.rllib import register; register('lake', '{id}')", "rllib"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(call: str, extra: str) -> None:
    hide = "import sys; sys.modules.update({'ray': None, 'stable_baselines3': None}); "
    program = hide + call.replace("{id}", LAKE)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert f"pip install 'rllm-gym[{extra}]'" in result.stderr
