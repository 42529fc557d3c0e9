"""The engine with an OpenAI-compatible endpoint, as in rLLM's documentation; tests/samplers tests the sampler."""

from __future__ import annotations

import asyncio

from samplers.hostile_endpoint import HostileEndpoint, answer, chat

from rllm_gym.compat import AgentExecutionEngine, MathAgent, SingleTurnEnvironment, math_reward_fn


def test_the_old_constructor_reaches_the_endpoint() -> None:
    with HostileEndpoint([answer(chat("\\boxed{42}"))]) as server:
        engine = AgentExecutionEngine(
            agent_class=MathAgent,
            env_class=SingleTurnEnvironment,
            env_args={"reward_fn": math_reward_fn},
            engine_name="openai",
            rollout_engine_args={"base_url": server.url, "api_key": "secret"},
            sampling_params={"temperature": 0.6, "top_p": 0.95, "model": "some/model"},
            max_response_length=100,
        )
        results = asyncio.run(engine.execute_tasks([{"question": "6 * 7?", "answer": "42"}] * 3))
    assert [trajectory.reward for trajectory in results] == [1.0, 1.0, 1.0]
    assert [received.headers["authorization"] for received in server.received] == ["Bearer secret"] * 3
    body = server.received[0].body
    assert body["messages"] == [{"role": "user", "content": "6 * 7?"}]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("some/model", 0.6, 0.95, 100)
    assert len({received.body["seed"] for received in server.received}) == 3
