"""Agents that call tools: what their models see in each turn."""

from __future__ import annotations

import pytest

from rllm_gym.agents import MCPAgent, ToolAgent, default_agent


def test_each_family_has_its_agent():
    assert default_agent("rllm/MCP-v0") is MCPAgent
    assert default_agent("rllm/ToolMath-v0") is ToolAgent
    assert default_agent("rllm/Search-v0") is ToolAgent
    assert "report_infeasible" in MCPAgent.system_prompt
    assert ToolAgent.uses_tools  # the chat template renders the schemas


def test_tool_results_are_placed_where_the_template_expects_them():
    for results in ("user", "tool"):
        agent = MCPAgent(results=results)
        agent.update_from_env("The task.", 0.0, False, {})
        assert agent.update_from_model("<tool_call>…</tool_call>") == "<tool_call>…</tool_call>"
        agent.update_from_env("Result, look:\n1", 0.0, False, {})
        assert [message["role"] for message in agent.chat_completions] == ["system", "user", "assistant", results]
        agent.update_from_model("1")
        agent.update_from_env("The task is done as asked.", 1.0, True, {})
        assert agent.chat_completions[-1] == {"role": results, "content": "The task is done as asked."}
        agent.reset()
        agent.update_from_env("Another.", 0.0, False, {})
        assert [message["role"] for message in agent.chat_completions] == ["system", "user"], results


def test_an_unknown_place_for_tool_results_is_an_error():
    with pytest.raises(ValueError, match="results='system'"):
        ToolAgent(results="system")
