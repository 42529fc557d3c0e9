"""What each agent shows to the model, and what it passes to the environment."""

from __future__ import annotations

import pytest

from rllm_gym.agents import BaseAgent, ChatAgent, FrozenLakeAgent, MathAgent, default_agent, register_agent


def converse(agent: ChatAgent, *turns: tuple[str, str]) -> None:
    for number, (observation, response) in enumerate(turns):
        agent.update_from_env(observation, 0.25 if number else 0.0, False, {"turn": number})
        assert agent.update_from_model(response) == response


def test_the_conversation_grows_by_each_message() -> None:
    agent = ChatAgent("be brief")
    converse(agent, ("one", "1"), ("two", "2"))
    agent.update_from_env("three", 0.5, False, {"turn": 2})
    assert [message["content"] for message in agent.chat_completions] == ["be brief", "one", "1", "two", "2", "three"]
    assert [message["role"] for message in agent.chat_completions] == ["system"] + ["user", "assistant"] * 2 + ["user"]
    agent.reset()
    assert agent.chat_completions == [{"role": "system", "content": "be brief"}]
    assert agent.trajectory.steps == []
    assert agent.get_current_state() is None


def test_an_empty_system_prompt_adds_no_system_message() -> None:
    agent = FrozenLakeAgent(system_prompt="")
    agent.update_from_env("a lake", 0.0, False, {})
    assert agent.chat_completions == [{"role": "user", "content": "a lake"}]


def test_families_have_short_system_prompts_of_their_own() -> None:
    for family in (MathAgent, FrozenLakeAgent):
        agent = family()
        agent.update_from_env("task", 0.0, False, {})
        system, user = agent.chat_completions
        assert system["role"] == "system", family
        assert 0 < len(system["content"]) < 200, family
        assert user == {"role": "user", "content": "task"}, family


def test_the_latest_observation_alone_can_be_shown() -> None:
    agent = ChatAgent("rules", history="latest")
    converse(agent, ("board 1", "up"), ("board 2", "down"))
    agent.update_from_env("board 3", 0.0, False, {})
    assert [message["content"] for message in agent.chat_completions] == ["rules", "board 3"]
    with pytest.raises(ValueError, match="'none'"):
        ChatAgent(history="none")  # type: ignore[arg-type]


def test_thoughts_of_earlier_replies_can_be_dropped_from_prompts_but_stay_in_the_trajectory() -> None:
    agent = ChatAgent(keep_thoughts=False)
    converse(agent, ("q1", "<think>hm</think>a1"), ("q2", "<think>ho</think>\n\na2"))
    assert agent.chat_completions[-1]["content"] == "<think>ho</think>\n\na2"
    agent.update_from_env("q3", 0.0, False, {})
    assert [message["content"] for message in agent.chat_completions] == ["q1", "a1", "q2", "a2", "q3"]
    assert [step.thought for step in agent.trajectory.steps] == ["hm", "ho"]
    assert agent.trajectory.steps[0].model_response == "<think>hm</think>a1"


def test_each_reward_is_recorded_on_the_step_that_earned_it() -> None:
    agent = ChatAgent()
    converse(agent, ("q1", "a1"), ("q2", "a2"))
    agent.update_from_env("over", 1.0, True, {"turn": 2})
    assert [(step.reward, step.done) for step in agent.trajectory.steps] == [(0.25, False), (1.0, True)]
    assert agent.trajectory.reward == 1.25
    assert agent.chat_completions[-1] == {"role": "user", "content": "over"}
    assert agent.get_current_state() is agent.trajectory.steps[-1]


def test_recorded_prompts_are_not_changed_afterwards() -> None:
    agent = ChatAgent(keep_thoughts=False)
    converse(agent, ("q1", "<think>hm</think>a1"), ("q2", "a2"))
    shown = agent.trajectory.steps[1].chat_completions
    before = [dict(message) for message in shown]
    agent.update_from_env("q3", 0.0, False, {})
    assert shown == before


def test_the_family_decides_the_default() -> None:
    assert default_agent("rllm/Math-v0") is default_agent("rllm_gym:rllm/Math-v0") is MathAgent
    assert default_agent("rllm/MathMultiTurn-v0") is MathAgent
    assert default_agent("rllm/FrozenLake8x8-v0") is FrozenLakeAgent
    assert default_agent("somebody/Else-v3") is ChatAgent

    class Mine(ChatAgent):
        pass

    register_agent("tests/Mine", Mine)
    assert default_agent("tests/Mine-v0") is Mine


def test_a_subclass_without_a_required_method_gets_an_error_that_names_it() -> None:
    class Half(BaseAgent):
        def reset(self) -> None: ...

    with pytest.raises(NotImplementedError, match="Half must define update_from_env"):
        Half().update_from_env("", 0.0, False, {})
    with pytest.raises(NotImplementedError, match="Half must define update_from_model"):
        Half().update_from_model("")
