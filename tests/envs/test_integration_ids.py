"""Environment ids of other libraries are registered without the library, and the error says what to install."""

from __future__ import annotations

import importlib.util

import gymnasium
import pettingzoo
import pytest

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.agents import default_agent
from rllm_gym.envs import INTEGRATIONS

NEEDS = {
    "rllm/ReasoningGym-v0": ("reasoning_gym", r"rllm-gym\[reasoning-gym\]"),
    "rllm/TextArena-v0": ("textarena", r"rllm-gym\[textarena\]"),
    "rllm/BrowserGym-v0": ("browsergym", r"rllm-gym\[browsergym\]"),
    "rllm/Web-v0": ("playwright", r"rllm-gym\[web\]"),
    "rllm/MCP-v0": ("jsonschema", r"jsonschema: pip install 'rllm-gym\[mcp\]'"),
}


def test_every_integration_id_is_covered() -> None:
    assert NEEDS.keys() >= INTEGRATIONS.keys()


@pytest.mark.parametrize("env_id", NEEDS)
def test_a_missing_library_is_an_error_with_the_install_command(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library, advice = NEEDS[env_id]
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == library else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=advice) as raised:
        gymnasium.make(env_id)
    assert raised.value.name == library
    if env_id in INTEGRATIONS:
        assert default_agent(env_id).__name__ == "ChatAgent"
    if library == "textarena":  # also the games of two players
        with pytest.raises(ModuleNotFoundError, match=advice):
            pettingzoo.make("aec", env_id)
