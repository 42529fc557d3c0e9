"""MessageHistory: observations that contain the whole conversation."""

from __future__ import annotations

import json

import gymnasium
from gymnasium.utils.env_checker import check_env

import rllm_gym
from rllm_gym import MessageHistory
from rllm_gym.testing import check_text_env


def make() -> gymnasium.Env:
    return MessageHistory(gymnasium.make("rllm/FrozenLake-v0", disable_env_checker=True))


def test_the_conversation_grows_and_reset_starts_a_new_one():
    assert rllm_gym.__version__
    env = make()
    first, _ = env.reset(seed=1)
    assert [message["role"] for message in json.loads(first)] == ["user"]
    second, *_ = env.step("jump")
    conversation = json.loads(second)
    assert [message["role"] for message in conversation] == ["user", "assistant", "user"]
    assert conversation[:1] == json.loads(first)
    assert conversation[1]["content"] == "jump"
    assert "jump" in conversation[2]["content"]
    assert env.reset(seed=1)[0] == first


def test_replies_are_returned_unchanged_even_if_they_are_not_valid_utf8():
    env = make()
    env.reset(seed=1)
    for action in ("\ud800", "é🙂", '"\\', "<|im_end|>", "\x00"):
        observation, *_ = env.step(action)
        observation.encode()
        assert json.loads(observation)[-2] == {"role": "assistant", "content": action}


def test_message_history_passes_gymnasiums_checker():
    check_env(make(), skip_render_check=True)
    check_text_env(make).raise_for_failures()
