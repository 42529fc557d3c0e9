"""AgentWorkflowEngine: names, roles, weights, budgets, metrics, tasks and its interface."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import pytest
from environments import Quiz

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode, StopReason, Task
from rllm_gym.engine import (
    AgentWorkflowEngine,
    EpisodeSpec,
    Role,
    Truncated,
    Workflow,
    WorkflowContext,
    group,
)
from rllm_gym.engine.workflows import MultiTurn, SingleTurn
from rllm_gym.samplers import SamplingParams, SamplingRequest, ScriptedSampler, WeightUpdate
from tests.errors import raised


class Pair(Workflow):
    """Two agents with one reply each."""

    roles = ("player", "opponent")

    async def run(self, task: Any, context: WorkflowContext) -> Episode:
        for name, role in (("b", "opponent"), ("a_0", "player"), ("a_10", "player"), ("a_2", "player")):
            await context.agent(name, role, system=f"You are {name}.").generate("hello")
            context.agent(name, role).add_reward(1.0)
        context.metrics["length"] = 4
        return context.finish(stop_reason="success")


class Watching(ScriptedSampler):
    """Records the requests."""

    def __init__(self, tokenizer: Any = None, reply: str = "fine") -> None:
        self.requests: list[SamplingRequest] = []
        super().__init__(lambda request: self.requests.append(request) or reply, tokenizer)


def qwen() -> Any:
    from tests.chat.templates import make_tokenizer

    return make_tokenizer("qwen2.5")


def test_trajectories_have_the_names_and_roles_of_their_agents_in_order() -> None:
    engine = AgentWorkflowEngine(Pair, sampler=Watching(), roles={"opponent": Role(trainable=False)})
    (episode,) = engine.run_sync([EpisodeSpec(seed=1, group_id="g", episode_id="e")])
    assert [(item.name, item.role, item.trainable, item.reward) for item in episode.trajectories] == [
        ("a_0", "player", True, 1.0),
        ("a_2", "player", True, 1.0),
        ("a_10", "player", True, 1.0),
        ("b", "opponent", False, 1.0),
    ]
    assert (episode.episode_id, episode.group_id, episode.seed, episode.env_id) == ("e", "g", 1, "Pair")
    assert (episode.reward, episode.success, episode.metrics) == (4.0, True, {"length": 4.0})
    assert all(item.steps[-1].done for item in episode.trajectories)
    assert engine.stats.turns == 4


def test_conversations_of_one_sampler_never_share_a_name() -> None:
    sampler = Watching()
    engine = AgentWorkflowEngine(Pair, sampler=sampler)
    for _ in range(2):
        engine.run_sync([EpisodeSpec(seed=1, episode_id="x"), EpisodeSpec(seed=1, episode_id="x/1")])
    names = [request.conversation for request in sampler.requests]
    assert len(set(names)) == len(names) == 16


def test_weights_are_chosen_from_a_pool_by_group() -> None:
    sampler = Watching()
    pool = ("old-1", "old-2", "old-3")
    for name in pool:
        asyncio.run(sampler.sync_weights(WeightUpdate((), name=name)))
    engine = AgentWorkflowEngine(Pair, sampler=sampler, roles={"opponent": Role(pool, trainable=False)})
    specs = [spec for number in range(12) for spec in group(number, 3, group_id=f"t{number}@0")]
    episodes = engine.run_sync(specs)
    weights_by_group: dict[str, set[str]] = {}
    for request in sampler.requests:
        _, episode_id, _, name = request.conversation.split("/")
        if name == "b":
            weights_by_group.setdefault(episode_id.partition("#")[0], set()).add(request.weights)
        else:
            assert request.weights == ""
    assert len(weights_by_group) == 12
    assert all(len(names) == 1 for names in weights_by_group.values())  # one opponent per group
    assert set.union(*weights_by_group.values()) == set(pool)
    for episode in episodes:
        assert episode.info["weights"] == {"b": next(iter(weights_by_group[episode.group_id]))}
    assert Role(pool).weights_for("opponent", "t0@0") == next(iter(weights_by_group["t0@0"]))


def test_each_role_has_its_own_parameters_and_greedy_applies_to_all() -> None:
    sampler = Watching(qwen())
    roles = {"opponent": Role(params=SamplingParams(temperature=0.3, max_tokens=7))}
    engine = AgentWorkflowEngine(Pair, sampler=sampler, roles=roles, sampling_params=SamplingParams(temperature=0.9))
    engine.run_sync([EpisodeSpec(seed=1), EpisodeSpec(seed=1, greedy=True)])
    drawn = {(request.conversation[2:].split("/")[0], request.params.temperature) for request in sampler.requests}
    assert drawn == {("0-0", 0.3), ("0-0", 0.9), ("0-1", 0.0)}
    assert {request.params.max_tokens for request in sampler.requests} == {7, 256}
    # A reply of either stops at the end-of-turn token of its template.
    assert all(request.params.stop_token_ids for request in sampler.requests)


class RepliesOnce(Workflow):
    """Samples until the budget is exhausted."""

    roles = ("a", "b")

    async def run(self, task: Any, context: WorkflowContext) -> Episode:
        cut: dict[str, StopReason] = {}

        async def talk(name: str) -> None:
            try:
                while True:
                    await context.agent(name).generate("go on")
                    context.agent(name).add_reward(0.0)
            except Truncated as truncated:
                cut[name] = truncated.stop_reason

        await asyncio.gather(talk("a"), talk("b"))
        return context.finish(info={"cut": {name: str(reason) for name, reason in cut.items()}})


def test_budgets_hold_for_each_agent_and_for_the_episode() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Role], dict[str, int]]] = [
        ({"max_response_tokens": 10}, {}, {"a": 10, "b": 10}),
        ({"max_response_tokens": 10}, {"b": Role(max_response_tokens=4)}, {"a": 10, "b": 4}),
        ({"max_episode_tokens": 17}, {}, {"both": 17}),
        ({"max_turns": 3}, {}, {"turns": 3}),
    ]
    for limits, roles, spent in cases:
        sampler = ScriptedSampler(lambda request: "a b c d e f g h", qwen())
        engine = AgentWorkflowEngine(
            RepliesOnce, sampler=sampler, roles=roles, sampling_params=SamplingParams(max_tokens=3), **limits
        )
        (episode,) = engine.run_sync([EpisodeSpec(seed=1)])
        tokens = {
            item.name: sum(len(step.tokens.ids) for step in item.steps if step.tokens) for item in episode.trajectories
        }
        found = {**tokens, "both": sum(tokens.values()), "turns": episode.num_turns}
        assert {name: found[name] for name in spent} == spent, (limits, roles)
        wanted = "max_turns" if "turns" in spent else "max_tokens"
        assert episode.info["cut"] == {"a": wanted, "b": wanted}, (limits, roles)


def test_a_judge_whose_prompt_does_not_fit_truncates_the_episode() -> None:
    class Long(Workflow):
        async def run(self, task: Any, context: WorkflowContext) -> None:
            if task:
                await context.agent("agent_0").generate("short")
                context.agent("agent_0").add_reward(1.0)
            await context.agent("agent_1").generate("long " * 500)

    engine = AgentWorkflowEngine(Long, sampler=Watching(qwen()), max_context_tokens=300)
    first, second = engine.run_sync([EpisodeSpec(0, seed=1), EpisodeSpec(1, seed=1)])
    assert (first.stop_reason, first.trainable) == (StopReason.PROMPT_TOO_LONG, False)
    assert (second.stop_reason, second.trainable, second.reward) == (StopReason.CONTEXT_LENGTH, True, 1.0)


def test_the_episode_reward_is_used_for_agents_without_their_own_reward() -> None:
    class Team(Workflow):
        async def run(self, task: Any, context: WorkflowContext) -> Episode:
            for name in ("agent_0", "agent_1"):
                await context.agent(name).generate("first")
                await context.agent(name).generate("second")
            if task:
                context.agent("agent_0").add_reward(0.25)
            return context.finish(reward=1)

    shared, own = AgentWorkflowEngine(Team, sampler=Watching()).run_sync([EpisodeSpec(0), EpisodeSpec(1)])
    assert [[step.reward for step in item.steps] for item in shared.trajectories] == [[0.0, 1.0], [0.0, 1.0]]
    assert [item.reward for item in own.trajectories] == [0.25, 0.0]
    assert (shared.reward, own.reward, own.success) == (1.0, 1.0, True)


def test_every_reset_without_arguments_uses_the_episodes_own_task_and_seed() -> None:
    seen: list[str] = []
    task: Any = None

    class Twice(Workflow):
        async def run(self, argument: Any, context: WorkflowContext) -> Episode:
            assert argument == task
            for _ in range(2):
                env = await context.env()
                for seed in (None, None, 3):
                    observation, _ = await env.reset(seed=seed)
                    seen.append(observation)
            await context.agent("agent_0").generate(seen[0])
            context.agent("agent_0").add_info(checked=True)
            return context.finish()

    for task in (7, "task-7", Task("task-7", "question 7", {"answer": "7"})):
        seen.clear()
        (episode,) = AgentWorkflowEngine(Twice, env=Quiz, sampler=Watching()).run_sync([EpisodeSpec(task, seed=5)])
        assert episode.fault is None, (task, episode.fault)
        assert seen[0] == seen[1] == seen[3] == seen[4] != seen[2] == seen[5], task
        assert seen[0].startswith("question 7, dice"), task
        assert (episode.task_id, episode.env_id) == ("task-7", "Quiz"), task
        (trajectory,) = episode.trajectories
        assert trajectory.task == {"task_id": "task-7", "content": "question 7", "data": {"answer": "7"}}, task
        assert trajectory.steps[0].info == {"checked": True}, task


def test_environments_are_reused_and_closed_with_the_engine() -> None:
    class Counted(Quiz):
        made = closed = 0

    async def go() -> None:
        workflow = MultiTurn(agents={"agent": ChatAgent})
        engine = AgentWorkflowEngine(
            workflow, env=Counted, sampler=Watching(reply="give up"), reuse_envs=True, n_parallel=2
        )
        async with engine:
            await engine.run(range(10))
            await engine.run(range(10))
            assert (Counted.made, Counted.closed) == (2, 0)
        assert Counted.closed == 2

    asyncio.run(go())


def test_an_agent_receives_the_same_in_a_workflow_as_in_the_agent_engine() -> None:
    """It receives reward and info of the previous turn, tools if it uses them, and the end of the episode."""
    received: list[Any] = []

    class RecordingAgent(ChatAgent):
        def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **_: Any) -> None:
            received.append((observation, reward, done, info["turn"]))
            super().update_from_env(observation, reward, done, info)

    sampler = ScriptedSampler(["?", "3"], per_conversation=True)
    engine = AgentWorkflowEngine(MultiTurn(agents={"agent": RecordingAgent}), env=Quiz, sampler=sampler)
    (episode,) = engine.run_sync([EpisodeSpec(3, seed=1)])
    assert received[1:] == [("not ?", 0.125, False, 1), ("right", 1.0, True, 2)]
    assert (episode.reward, episode.success, episode.stop_reason) == (1.125, True, StopReason.SUCCESS)
    assert episode.info["success"] is True


def test_an_invalid_or_unused_argument_is_an_error() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"roles": {"referee": Role()}}, ValueError, "no role 'referee'; its roles are"),
        ({"roles": {"player": "base"}}, TypeError, "not a rllm_gym.engine.Role"),
        ({"env": "rllm/NoSuch-v0"}, gymnasium.error.Error, "NoSuch"),
        ({"env_kwargs": {"max_turns": 3}}, ValueError, "has no effect without env"),
        ({"max_episode_tokens": 5}, ValueError, "token limits need token ids"),
        ({"roles": {"player": Role(max_response_tokens=5)}}, ValueError, "token limits need token ids"),
        ({"max_episode_tokens": 0}, ValueError, "max_episode_tokens=0"),
        ({"n_parallel": 0}, ValueError, "n_parallel=0"),
        ({"workflow": "Pair"}, TypeError, "'Pair'"),
        ({"workflow": dict}, TypeError, "not a Workflow"),
        ({"workflow": Pair.run}, TypeError, "coroutine function"),
        ({"workflow": SingleTurn(), "workflow_kwargs": {"k": 1}}, ValueError, "existing workflow object"),
    ]
    wrong = []
    for arguments, kind, says in cases:
        error = raised(AgentWorkflowEngine, **{"workflow": Pair, "sampler": Watching(), **arguments})
        if not (isinstance(error, kind) and says in str(error)):
            wrong.append((arguments, error))
    assert wrong == []


def test_an_invalid_role_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one name"):
        Role(weights=())
    with pytest.raises(ValueError, match="max_response_tokens=0 must be"):
        Role(max_response_tokens=0)
