"""AgentExecutionEngine: order, limits, seeds, stop reasons, and clean-up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from environments import BreaksOnce, Clock, Gate, Quiz

from rllm_gym.agents import BaseAgent, ChatAgent
from rllm_gym.core import Episode, StopReason, Task
from rllm_gym.engine import (
    AgentExecutionEngine,
    AgentWorkflowEngine,
    Deadlines,
    EnvironmentUnavailable,
    EpisodeSpec,
    group,
)
from rllm_gym.engine.progress import RunProgress
from rllm_gym.engine.stats import EngineStats
from rllm_gym.engine.workflows import MultiTurn
from rllm_gym.samplers import SamplerError, SamplingParams, SamplingRequest, ScriptedSampler
from tests.chat.templates import make_tokenizer


def engine_of(env: Any = Quiz, reply: Any = "give up", **arguments: Any) -> AgentExecutionEngine:
    sampler = arguments.pop("sampler", None) or ScriptedSampler(reply if callable(reply) else lambda request: reply)
    return AgentExecutionEngine(env=env, sampler=sampler, **arguments)


@pytest.fixture
def gates() -> Iterator[dict[int, threading.Event]]:
    gates = {number: threading.Event() for number in range(100)}
    yield gates
    for gate in gates.values():
        gate.set()


# Order and streaming


def test_results_stream_as_they_finish_and_run_returns_them_in_order(gates: dict[int, threading.Event]) -> None:
    engine = engine_of(Gate, env_kwargs={"gates": gates})

    async def scenario() -> list[str]:
        order = []
        gates[2].set()
        async for episode in engine.stream(range(3)):
            order.append(episode.task_id)
            for number in (1, 0):
                if not gates[number].is_set():
                    gates[number].set()
                    break
        return order

    assert asyncio.run(scenario()) == ["2", "1", "0"]
    assert [episode.task_id for episode in engine.run_sync(range(3))] == ["0", "1", "2"]


def test_no_more_than_n_parallel_episodes_run_at_a_time() -> None:
    running, most = 0, 0
    five = asyncio.Barrier(5)

    async def reply(request: SamplingRequest) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await five.wait()  # none continues before five are here
        running -= 1
        return "give up"

    assert len(engine_of(reply=reply, n_parallel=5).run_sync(range(50))) == 50
    assert most == 5


def test_a_slow_consumer_limits_the_engine() -> None:
    taken = 0

    def specs() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    async def scenario() -> None:
        delivered = 0
        async for _ in engine_of(n_parallel=4).stream(specs()):
            delivered += 1
            # In the queue, in the workers, and one more held by each worker.
            assert taken <= delivered + 3 * 4
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert taken == 100


def test_specs_can_be_an_async_iterator() -> None:
    async def specs() -> Any:
        for number in range(7):
            await asyncio.sleep(0)
            yield number

    assert len(asyncio.run(engine_of(n_parallel=3).run(specs()))) == 7


class OpensAnother(threading.Event):
    """A gate that opens another one when a step waits at it."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def wait(self, timeout: float | None = None) -> bool:
        self._other.set()
        return super().wait(timeout)


def test_leaving_the_loop_early_cancels_running_episodes(gates: dict[int, threading.Event]) -> None:
    gates[1] = OpensAnother(gates[0])  # the first episode ends when the step of the second one is running
    engine = engine_of(Gate, env_kwargs={"gates": gates}, n_parallel=4)

    async def scenario() -> None:
        stream = engine.stream(range(50))
        async for episode in stream:
            assert episode.task_id == "0"
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
    assert engine.stats.episodes <= 2
    # Steps waiting at their gates could only be abandoned.
    assert 1 <= engine.stats.abandoned_threads <= 4


def test_two_loops_and_two_threads_share_an_engine() -> None:
    with engine_of() as engine:
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(len(engine.run_sync(range(30))))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert results == [30, 30, 30]
        assert len(engine.run_sync(range(5))) == 5


def test_run_sync_inside_a_loop_is_an_error_that_names_the_alternative() -> None:
    async def scenario() -> None:
        engine_of().run_sync([0])

    with pytest.raises(RuntimeError, match="await engine"):
        asyncio.run(scenario())


def test_duplicate_episode_ids_are_errors() -> None:
    with pytest.raises(ValueError, match="'same'"):
        engine_of().run_sync([EpisodeSpec(0, episode_id="same"), EpisodeSpec(1, episode_id="same")])


# Environments


def test_a_custom_environment_is_made_and_closed_for_every_episode() -> None:
    Quiz.made = Quiz.closed = 0
    engine_of(n_parallel=3).run_sync(range(10))
    assert (Quiz.made, Quiz.closed) == (10, 10)


def test_environments_are_reused_on_request_and_closed_with_the_engine() -> None:
    Quiz.made = Quiz.closed = 0
    with engine_of(n_parallel=3, reuse_envs=True) as engine:
        engine.run_sync(range(10))
        engine.run_sync(range(10))
        assert Quiz.closed == 0
    assert Quiz.made == Quiz.closed
    assert 1 <= Quiz.made <= 3


def test_registered_environments_are_reused() -> None:
    with engine_of("rllm/FrozenLake-v0", "```up```", n_parallel=4) as engine:
        episodes = engine.run_sync(range(40))
    assert all(episode.trainable and episode.env_id == "rllm/FrozenLake-v0" for episode in episodes)
    assert len({episode.task_id for episode in episodes}) == 40


def test_a_custom_registered_id_works_in_processes_too() -> None:
    gymnasium.register("engine-tests/Quiz-v0", entry_point=Quiz, kwargs={"max_turns": 2})
    try:
        episodes = engine_of("engine-tests/Quiz-v0", "?", workers="process", n_parallel=2).run_sync(range(4))
    finally:
        del gymnasium.registry["engine-tests/Quiz-v0"]
    assert [episode.num_turns for episode in episodes] == [2, 2, 2, 2]


def test_an_environment_that_can_never_be_made_stops_the_run() -> None:
    with pytest.raises(EnvironmentUnavailable, match="colour"):
        engine_of(env_kwargs={"colour": "red"}).run_sync(range(3))
    with pytest.raises(gymnasium.error.Error, match="FrozenLake"):
        engine_of("rllm/FrozenLace-v0")


def test_a_constructor_that_fails_sometimes_is_a_fault_and_does_not_stop_the_run() -> None:
    created: list[int] = []

    def flaky() -> Quiz:
        created.append(1)
        if len(created) % 3 == 1:
            raise OSError("too many open files")
        return Quiz()

    engine = engine_of(flaky, n_parallel=1)
    assert all(episode.trainable for episode in engine.run_sync(range(10)))
    assert engine.stats.faults["make"] >= 5


def test_a_task_that_does_not_exist_is_counted_and_not_retried() -> None:
    engine = engine_of()
    (episode,) = engine.run_sync([100_000])
    assert (episode.stop_reason, episode.attempts) == (StopReason.FAULT, 1)
    assert "100000" in (episode.fault or "")
    assert engine.stats.faults == {"task": 1}


# Seeds, groups, retries


def record(requests: list[SamplingRequest]) -> Callable[[SamplingRequest], str]:
    def reply(request: SamplingRequest) -> str:
        requests.append(request)
        return "?"

    return reply


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def first_words(seed: int) -> list[str]:
        requests: list[SamplingRequest] = []
        engine_of(reply=record(requests), seed=seed, max_turns=1).run_sync([0] * 20)
        return sorted(f"{request.messages[0]['content']} {request.seed}" for request in requests)

    assert first_words(1) == first_words(1)
    assert not set(first_words(1)) & set(first_words(2))


def test_a_group_shares_only_its_task() -> None:
    requests: list[SamplingRequest] = []
    engine = engine_of(reply=record(requests), sampling_params=SamplingParams(temperature=0.7, top_p=0.9))
    episodes = engine.run_sync(group("task-7", 5, group_id="task-7@3", seed=11, greedy_baseline=True))
    assert {episode.task_id for episode in episodes} == {"task-7"}
    assert {episode.group_id for episode in episodes} == {"task-7@3"}
    assert [episode.greedy for episode in episodes] == [False] * 5 + [True]
    assert len({episode.seed for episode in episodes}) == 6
    assert len({episode.episode_id for episode in episodes}) == 6
    assert len({episode.trajectories[0].steps[0].observation for episode in episodes}) == 6
    assert len({request.seed for request in requests}) == len(requests) == 6 * 4
    by_temperature = [request.params.temperature for request in requests]
    assert (by_temperature.count(0.7), by_temperature.count(0.0)) == (20, 4)
    with pytest.raises(ValueError, match="task"):
        group(None, 2, group_id="g")  # type: ignore[arg-type]


def test_a_retry_uses_the_same_seeds_on_a_new_environment() -> None:
    seeds: dict[int, list[int]] = {}
    requests: list[SamplingRequest] = []
    engine = engine_of(BreaksOnce, record(requests), env_kwargs={"seeds": seeds})
    episodes = engine.run_sync(range(10))
    assert all(episode.attempts == 2 and episode.reward == 1.0 and episode.trainable for episode in episodes)
    assert all(first == second for first, second in seeds.values())
    assert engine.stats.faults == {"hiccup": 10}
    assert (engine.stats.retries, engine.stats.dropped) == (10, 0)
    # The second attempt is a separate conversation, with the reply seeds of the first.
    assert len({request.conversation for request in requests}) == 20
    assert len({request.seed for request in requests}) == 10


# Stop reasons


def test_stop_reasons() -> None:
    engine = engine_of(reply=lambda request: {"3": "3", "4": "give up"}.get(_number(request), "?"))
    solved, failed, out_of_turns = engine.run_sync([3, 4, 5])
    assert (solved.stop_reason, solved.success, solved.reward) == (StopReason.SUCCESS, True, 1.0)
    assert (failed.stop_reason, failed.success, failed.reward) == (StopReason.FAILURE, False, 0.0)
    assert (out_of_turns.stop_reason, out_of_turns.num_turns) == (StopReason.MAX_TURNS, 4)
    assert out_of_turns.reward == 0.5
    assert [step.done for step in out_of_turns.trajectories[0].steps] == [False, False, False, True]
    assert engine.stats.stop_reasons == {"success": 1, "failure": 1, "max_turns": 1}


def _number(request: SamplingRequest) -> str:
    return str(request.messages[0]["content"]).split()[1].rstrip(",")


def test_max_turns_lowers_the_environments_own_limit_and_never_raises_it() -> None:
    (lowered,) = engine_of(reply="?", max_turns=2).run_sync([1])
    (kept,) = engine_of(reply="?", max_turns=50).run_sync([1])
    assert (lowered.num_turns, lowered.stop_reason, lowered.reward) == (2, StopReason.MAX_TURNS, 0.25)
    assert kept.num_turns == 4


def test_a_truncated_episode_keeps_the_prompt_after_its_last_step() -> None:
    """PPO predicts the remaining return from it. There is none after the end of the task, or where it does not fit."""
    tokenizer = make_tokenizer("qwen2.5")

    def play(reply: str, **limits: int) -> Episode:
        (episode,) = engine_of(sampler=ScriptedSampler(lambda request: reply, tokenizer), **limits).run_sync([1])
        return episode

    final = play("?", max_turns=2).trajectories[0]
    (branch,) = final.branches()
    assert final.final_ids[: len(branch)] == branch.ids
    suffix = tokenizer.decode(final.final_ids[len(branch) :])
    assert suffix.endswith("<|im_start|>assistant\n"), suffix
    assert "<|im_start|>user\n" in suffix
    assert not play("1").trajectories[0].final_ids
    workflow = AgentWorkflowEngine(
        MultiTurn(), env=Quiz, sampler=ScriptedSampler(lambda request: "?", tokenizer), max_turns=2
    )
    (same,) = workflow.run_sync([1])
    assert same.trajectories[0].final_ids == final.final_ids, "in a workflow, too"
    fits = len(final.final_ids)
    for limit, expected in ((fits + 1, final.final_ids), (fits, ())):
        episode = play("?", max_turns=2, max_context_tokens=limit)
        assert episode.num_turns == 2
        assert episode.trajectories[0].final_ids == expected


class Counted(ScriptedSampler):
    """Ten tokens per reply, or as many as allowed; records its limits."""

    def __init__(self, **arguments: Any) -> None:
        self.allowed: list[int] = []
        super().__init__(self._reply, make_tokenizer("qwen2.5"), **arguments)

    def _reply(self, request: SamplingRequest) -> str:
        self.allowed.append(request.params.max_tokens)
        return "9" * 9


def test_a_reply_is_limited_to_the_remaining_response_budget() -> None:
    sampler = Counted()
    engine = engine_of(
        sampler=sampler, max_response_tokens=25, sampling_params=SamplingParams(max_tokens=15), max_turns=10
    )
    (episode,) = engine.run_sync([1])
    assert sampler.allowed == [15, 15, 5]
    assert (episode.stop_reason, episode.num_turns) == (StopReason.MAX_TOKENS, 3)
    assert episode.trainable
    last = episode.trajectories[0].steps[-1].tokens
    assert last is not None
    assert (len(last.ids), last.finish_reason) == (5, "length")
    assert engine.stats.sampled_tokens == 25


def test_a_conversation_that_no_longer_fits_is_truncated_and_keeps_its_reward() -> None:
    (complete,) = engine_of(sampler=Counted()).run_sync([1])
    lengths = [step.tokens for step in complete.trajectories[0].steps]
    first = len(lengths[0].context_ids)  # type: ignore[union-attr]
    second = first + len(lengths[0].ids) + len(lengths[1].context_ids)  # type: ignore[union-attr]

    (cut,) = engine_of(sampler=Counted(), max_context_tokens=second).run_sync([1])
    assert (cut.stop_reason, cut.num_turns, cut.reward) == (StopReason.CONTEXT_LENGTH, 1, 0.125)
    sampler = Counted(context_length=second + 3)
    (cut,) = engine_of(sampler=sampler).run_sync([1])
    assert (cut.stop_reason, cut.num_turns) == (StopReason.CONTEXT_LENGTH, 2)
    assert sampler.allowed[1] == 3


def test_a_first_prompt_that_does_not_fit_is_a_stop_reason_and_not_an_exception() -> None:
    for limit in ({"max_prompt_tokens": 5}, {"max_context_tokens": 5}):
        sampler = Counted()
        engine = engine_of(sampler=sampler, **limit)
        (episode,) = engine.run_sync([1])
        assert (episode.stop_reason, episode.num_turns, episode.trainable) == (StopReason.PROMPT_TOO_LONG, 0, False)
        assert sampler.allowed == []


def test_a_reply_stops_at_the_templates_end_of_turn_also_for_a_base_model() -> None:
    tokenizer = make_tokenizer("qwen2.5")
    stops: list[tuple[int, ...]] = []

    def reply(request: SamplingRequest) -> str:
        stops.append(request.params.stop_token_ids)
        return "give up"

    engine_of(sampler=ScriptedSampler(reply, tokenizer), sampling_params=SamplingParams(stop_token_ids=(7,))).run_sync(
        [1]
    )
    assert stops == [(7, tokenizer.convert_tokens_to_ids("<|im_end|>"))]


def test_an_option_that_is_unknown_or_invalid_is_an_error() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        engine_of(max_response_tokens=5)
    with pytest.raises(TypeError, match=r"deadlines=5 must be a Deadlines, such as Deadlines\(step=5\.0\)"):
        engine_of(deadlines=5)
    with pytest.raises(TypeError, match="BaseAgent"):
        engine_of(agent=dict).run_sync([0])


def test_an_option_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"n_paralell=3 is not an argument of AgentExec.*; did you mean n_parallel\?"):
        engine_of(n_paralell=3)


def test_an_episode_past_its_deadline_keeps_the_turns_that_were_answered(
    gates: dict[int, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    never = asyncio.Event()

    async def reply(request: SamplingRequest) -> str:
        if len(request.messages) > 1:
            clock.forward(3.0)
            await never.wait()
        return "?"

    engine = engine_of(reply=reply, deadlines=Deadlines(episode=2.0))
    (episode,) = engine.run_sync([1])
    assert (episode.stop_reason, episode.num_turns, episode.reward) == (StopReason.TIMEOUT, 1, 0.125)
    assert episode.trajectories[0].steps[-1].done

    clock.run()
    engine = engine_of(Gate, env_kwargs={"gates": gates}, deadlines=Deadlines(episode=0.5))
    (episode,) = engine.run_sync([1])
    # The only reply was never answered: its outcome is unknown.
    assert (episode.stop_reason, episode.trainable, episode.num_turns) == (StopReason.FAULT, False, 0)
    assert engine.stats.faults == {"episode_deadline": 1}


# Samplers and agents that fail


def test_a_failed_sampler_ends_the_run_and_closes_everything() -> None:
    Quiz.made = Quiz.closed = 0

    def reply(request: SamplingRequest) -> str:
        if _number(request) == "17":
            raise SamplerError("out of memory")
        return "?"

    with pytest.raises(SamplerError, match="out of memory"):
        engine_of(reply=reply, n_parallel=8).run_sync(range(50))
    assert Quiz.made == Quiz.closed

    engine = engine_of(reply=reply, n_parallel=8, on_sampler_error="drop")
    episodes = engine.run_sync(range(50))
    assert [episode.stop_reason is StopReason.FAULT for episode in episodes] == [n == 17 for n in range(50)]
    assert engine.stats.faults == {"sampler": 1}


class Clumsy(ChatAgent):
    """Raises in the given method on question 13."""

    def __init__(self, trips_in: str) -> None:
        self._trips_in = trips_in
        super().__init__()

    def _trip(self, method: str) -> None:
        if method == self._trips_in and "question 13," in self._observation:
            raise KeyError("question")

    def update_from_model(self, response: str, **kwargs: Any) -> str:
        self._trip("update_from_model")
        return super().update_from_model(response)

    def get_current_state(self) -> Any:
        self._trip("get_current_state")
        return super().get_current_state()

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        self._trip("chat_completions")
        return super().chat_completions


def test_an_agent_error_fails_only_its_own_episode() -> None:
    for method in ("update_from_model", "get_current_state", "chat_completions"):
        engine = engine_of(reply="?", agent=lambda method=method: Clumsy(method))
        episodes = engine.run_sync(range(20))
        failed = episodes.pop(13)
        assert failed.stop_reason is StopReason.AGENT_ERROR, method
        assert "KeyError" in (failed.fault or ""), method
        assert (failed.reward, failed.trainable) == (0.0, False), method
        assert engine.stats.faults == {"agent": 1}, method
        assert engine.stats.dropped == 1, method
        assert all(episode.stop_reason is StopReason.MAX_TURNS for episode in episodes), method


def test_an_action_that_is_not_text_is_an_agent_error_and_not_a_fault() -> None:
    class Forgets(ChatAgent):
        def update_from_model(self, response: str, **kwargs: Any) -> Any:
            super().update_from_model(response)

    for workers in ("thread", "process"):
        engine = engine_of("rllm/FrozenLake-v0", reply="?", agent=Forgets, workers=workers)
        (episode,) = engine.run_sync([1])
        assert (episode.stop_reason, episode.attempts) == (StopReason.AGENT_ERROR, 1)
        assert "NoneType" in (episode.fault or "")


def test_a_sampler_that_loses_a_request_is_detected() -> None:
    class Loses(ScriptedSampler):
        async def sample(self, requests: Any) -> Any:
            return (await super().sample(requests))[1:]

    for deterministic in (False, True):
        with pytest.raises(SamplerError, match="completions for"):
            engine_of(sampler=Loses(lambda request: "?"), deterministic=deterministic).run_sync(range(3))


def test_a_progress_bar_is_shown_only_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    engine_of().run_sync(range(3))
    assert capfd.readouterr().err == ""
    engine_of(progress=True).run_sync(range(3))
    assert "3/3" in capfd.readouterr().err


def test_the_progress_bar_shows_the_mean_reward_of_this_run(capfd: pytest.CaptureFixture[str]) -> None:
    stats = EngineStats(episodes=10, rewards=10.0, turns=10)
    with RunProgress(True, 3, stats) as progress:
        stats.episodes, stats.rewards, stats.dropped = 13, 10.5, 1
        progress.advance()
    assert "reward 0.250" in capfd.readouterr().err


# What agents see


class RecordingAgent(BaseAgent):
    """Records everything it receives."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def reset(self) -> None:
        self.received.append("reset")

    def receive_task(self, task: Any) -> None:
        self.received.append(task)

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        self.received.append((observation.split(",")[0], reward, done, info["turn"]))

    def update_from_model(self, response: str, **kwargs: Any) -> str:
        self.received.append(response)
        return response

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "?"}]


def test_an_agent_receives_all_calls_in_order() -> None:
    agents: list[RecordingAgent] = []

    def factory() -> RecordingAgent:
        agents.append(RecordingAgent())
        return agents[-1]

    engine_of(reply="2", agent=factory, max_turns=2).run_sync([1])
    task = Task("task-1", "question 1", {"answer": "1"})
    assert agents[0].received == [
        "reset",
        task.to_json(),
        ("question 1", 0.0, False, 0),
        "2",
        ("not 2", 0.125, False, 1),
        "2",
        ("not 2", 0.125, True, 2),
    ]


def test_recorded_prompts_are_unchanged_when_the_agent_modifies_them_in_place() -> None:
    class MutatingAgent(ChatAgent):
        def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **_: Any) -> None:
            super().update_from_env(observation, reward, done, info)
            self._messages[0]["content"] = f"rewritten {info['turn']}"

    (episode,) = engine_of(reply="?", agent=MutatingAgent).run_sync([1])
    shown = [step.chat_completions[0]["content"] for step in episode.trajectories[0].steps]
    assert shown == ["rewritten 0", "rewritten 1", "rewritten 2", "rewritten 3"]


def test_stats_can_be_read_for_one_step_of_a_run() -> None:
    with engine_of(reply="?") as engine:
        engine.run_sync(range(3))
        before = engine.stats.copy()
        engine.run_sync(range(5))
        step = engine.stats.since(before)
    assert (step.episodes, step.turns, step.stop_reasons) == (5, 20, {"max_turns": 5})
    assert engine.stats.episodes == 8
    assert step.wall > 0
    assert step.turns_per_second == step.turns / step.wall
