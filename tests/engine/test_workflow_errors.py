"""Errors in a workflow become part of the episode: errors of its code, environments, samplers and limits; all tasks
end.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from environments import BreaksOnce, Clock, Quiz

from rllm_gym.agents import ChatAgent
from rllm_gym.core import EnvironmentFault, Episode, StopReason, Trajectory
from rllm_gym.engine import AgentWorkflowEngine, Deadlines, EpisodeSpec, Truncated, Workflow, WorkflowContext
from rllm_gym.samplers import SamplerError, SamplingRequest, ScriptedSampler

FOREVER = threading.Event()


def engine_of(run: Any, *, roles: tuple[str, ...] = ("agent",), replies: Any = None, **arguments: Any) -> Any:
    """Return an engine whose workflow's ``run`` is the function."""
    workflow = type("Made", (Workflow,), {"run": run, "roles": roles})
    sampler = ScriptedSampler(replies or (lambda request: "1"))
    return AgentWorkflowEngine(workflow, **{"sampler": sampler, **arguments})


def play(run: Any, **arguments: Any) -> Episode:
    (episode,) = engine_of(run, **arguments).run_sync([EpisodeSpec(seed=1)])
    return episode


class AgentThatRaises(ChatAgent):
    def update_from_model(self, response: str, **_: Any) -> str:
        raise KeyError("no such thing")


async def a_bug(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0").generate("hello")
    return {}["missing"]


async def two_of_one_name(self: Any, task: Any, context: WorkflowContext) -> Any:
    context.agent("agent_0", "agent")
    context.agent("agent_0", "other")


async def no_such_role(self: Any, task: Any, context: WorkflowContext) -> Any:
    context.agent("referee_0")


async def a_name_with_a_slash(self: Any, task: Any, context: WorkflowContext) -> Any:
    context.agent("agent/0", "agent")


async def not_an_episode(self: Any, task: Any, context: WorkflowContext) -> Any:
    return "done"


async def trajectories_of_one_name(self: Any, task: Any, context: WorkflowContext) -> Any:
    return Episode("", "", trajectories=[Trajectory(name="a"), Trajectory(name="a")])


async def one_step_in_two_places(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0").generate("hello")
    created = context.finish()
    created.trajectories.append(Trajectory(name="other", steps=created.trajectories[0].steps))
    return created


async def a_step_without_a_finite_reward(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0").generate("hello")
    created = context.finish(reward=1.0)
    created.trajectories[0].steps[0].reward = float("inf")
    return created


async def a_metric_put_into_the_episode(self: Any, task: Any, context: WorkflowContext) -> Any:
    created = context.finish()
    created.metrics["late"] = "yes"  # type: ignore[assignment]
    return created


async def a_fault_of_its_own_making(self: Any, task: Any, context: WorkflowContext) -> Any:
    return Episode("", "", stop_reason=StopReason.FAULT)


async def a_reward_that_is_none(self: Any, task: Any, context: WorkflowContext) -> Any:
    context.agent("agent_0").add_reward(1.0)


async def a_nan(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0").generate("hello")
    context.agent("agent_0").add_reward(float("nan"))


async def a_metric_of_text(self: Any, task: Any, context: WorkflowContext) -> Any:
    context.metrics["best"] = "very good"  # type: ignore[assignment]


async def a_fault_as_an_ending(self: Any, task: Any, context: WorkflowContext) -> Any:
    return context.finish(stop_reason="fault")


async def two_at_once(self: Any, task: Any, context: WorkflowContext) -> Any:
    session = context.agent("agent_0")
    await asyncio.gather(session.generate("a"), session.generate("b"))


async def an_agent_that_raises(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0", agent=AgentThatRaises()).generate("hello")


async def no_such_environment(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.env("rllm/NoSuch-v0")


async def no_environment_at_all(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.env()


async def an_exit(self: Any, task: Any, context: WorkflowContext) -> Any:
    raise SystemExit(3)


async def cancels_itself(self: Any, task: Any, context: WorkflowContext) -> Any:
    raise asyncio.CancelledError


async def a_group_of_errors(self: Any, task: Any, context: WorkflowContext) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(context.agent("agent_1").generate("hello"))
        group.create_task(a_bug(self, task, context))


def test_an_error_in_the_workflow_ends_the_episode_with_a_reason() -> None:
    async def reply(request: SamplingRequest) -> str:
        await asyncio.sleep(0)
        return "1"

    wrong = []
    for run, pattern in (
        (a_bug, "KeyError: 'missing'"),
        (two_of_one_name, "'agent_0' already exists with the role 'agent'"),
        (no_such_role, "has the role 'referee'"),
        (a_name_with_a_slash, "'agent/0'"),
        (not_an_episode, "got str"),
        (trajectories_of_one_name, "several trajectories of the same name"),
        (one_step_in_two_places, "a step more than once"),
        (a_step_without_a_finite_reward, "reward of a step of agent_0=inf"),
        (a_metric_put_into_the_episode, "metrics['late']='yes'"),
        (a_fault_of_its_own_making, "raise EnvironmentFault"),
        (a_reward_that_is_none, "agent_0 has no step yet"),
        (a_nan, "must be a finite number"),
        (a_metric_of_text, "metrics['best']='very good'"),
        (a_fault_as_an_ending, "raise EnvironmentFault"),
        (two_at_once, "already generating a reply"),
        (an_agent_that_raises, "AgentThatRaises.update_from_model raised KeyError"),
        (no_such_environment, "NoSuch"),
        (no_environment_at_all, "no environment"),
        (an_exit, "SystemExit: 3"),
        (cancels_itself, "CancelledError"),
        (a_group_of_errors, "KeyError: 'missing'"),
    ):
        engine = engine_of(run, roles=("agent", "other"), replies=reply)
        episodes = engine.run_sync([EpisodeSpec(seed=1), EpisodeSpec(seed=2)])
        wrong += [
            (run.__name__, episode)
            for episode in episodes
            if episode.stop_reason is not StopReason.AGENT_ERROR
            or pattern not in (episode.fault or "")
            or (episode.reward, episode.trainable, episode.attempts) != (0.0, False, 1)
        ]
        if engine.stats.faults != {"agent": 2}:
            wrong.append((run.__name__, engine.stats.faults))
    assert wrong == []


@pytest.mark.parametrize("catches", [False, True])
def test_an_environment_fault_retries_the_episode_even_if_the_workflow_catches_it(catches: bool) -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        env = await context.env()
        observation, _ = await env.reset(seed=5)
        reply = await context.agent("agent_0").generate(observation)
        try:
            _, reward, *_ = await env.step(reply.text)
        except EnvironmentFault:
            if not catches:
                raise
            return context.finish(reward=0.0, success=True)
        context.agent("agent_0").add_reward(reward)
        return None

    seeds: dict[int, list[int]] = {}
    engine = engine_of(run, env=BreaksOnce, env_kwargs={"seeds": seeds})
    (episode,) = engine.run_sync([EpisodeSpec(7, seed=1)])
    assert (episode.stop_reason, episode.attempts, episode.reward) == (StopReason.SUCCESS, 2, 1.0)
    assert seeds == {7: [5, 5]}
    assert (engine.stats.faults, engine.stats.retries) == ({"hiccup": 1}, 1)


def test_a_fault_raised_by_the_workflow_is_retried_and_then_dropped() -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            raise EnvironmentFault("its own server is down", kind="server")

    engine = engine_of(run, retries=2)
    (episode,) = engine.run_sync([EpisodeSpec(seed=1)])
    assert (episode.stop_reason, episode.attempts) == (StopReason.FAULT, 3)
    assert episode.fault == "its own server is down"
    assert engine.stats.faults == {"server": 3}


def test_no_asyncio_task_continues_after_the_run() -> None:
    """One of the siblings that ``asyncio.gather`` leaves running samples again and again."""
    conversations: list[str] = []

    def reply(request: SamplingRequest) -> str:
        conversations.append(request.conversation)
        return "1"

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        async def talk() -> None:
            while True:
                await context.agent("agent_0").generate("go on")
                await asyncio.sleep(0)

        async def step() -> None:
            env = await context.env(Quiz)
            await env.reset(task=3)
            while True:
                await env.step("?")

        async def fail() -> None:
            await context.agent("agent_1").generate("hello")
            if task == 0:
                raise ValueError("wrong")
            if task == 1:
                raise EnvironmentFault("down", kind="server")

        await asyncio.gather(talk(), step(), fail())

    async def go() -> list[Episode]:
        engine = engine_of(run, replies=reply, retries=0)
        asking = asyncio.create_task(engine.run([EpisodeSpec(n, seed=n) for n in (0, 1)]))
        episodes = await asking
        count = len(conversations)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(conversations) == count
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return episodes

    reasons = [episode.stop_reason for episode in asyncio.run(go())]
    assert reasons == [StopReason.AGENT_ERROR, StopReason.FAULT]


def test_at_the_deadline_replies_are_kept_and_only_rewarded_ones_are_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")
        context.agent("agent_0").add_reward(0.5)
        await context.agent("agent_1").generate("hello")
        clock.forward(3)
        await asyncio.sleep(3600)

    episode = play(run, deadlines=Deadlines(episode=2))
    assert (episode.stop_reason, episode.reward, episode.success) == (StopReason.TIMEOUT, 0.5, False)
    assert [(item.name, item.trainable, len(item.steps)) for item in episode.trajectories] == [
        ("agent_0", True, 1),
        ("agent_1", False, 1),
    ]


def test_an_episode_without_a_reply_at_its_deadline_is_a_fault() -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await asyncio.sleep(3600)

    assert play(run, deadlines=Deadlines(episode=0.1)).stop_reason is StopReason.FAULT


def hang() -> None:
    FOREVER.wait()


def die() -> None:
    os._exit(3)


def divide(a: int, b: int) -> float:
    return a / b


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_call_that_hangs_dies_or_raises_is_reported_to_the_workflow(workers: str) -> None:
    reported: list[Any] = []

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")
        reported.append(await context.call(divide, 6, 4))
        for function, arguments in ((hang, ()), (divide, (1, 0)), *(((die, ()),) if workers == "process" else ())):
            try:
                await context.call(function, *arguments, timeout=60 if function is not hang else 0.3)
            except EnvironmentFault as fault:
                reported.append(fault.kind)
            except ZeroDivisionError as error:
                reported.append(str(error))

    FOREVER.clear()
    engine = engine_of(run, workers=workers)
    try:
        (episode,) = engine.run_sync([EpisodeSpec(seed=1)])
    finally:
        FOREVER.set()
    assert episode.fault is None  # the workflow has handled it
    died = ["worker_died"] if workers == "process" else []
    assert reported == [1.5, "call_deadline", "division by zero", *died]
    assert engine.stats.abandoned_threads + engine.stats.killed_processes == 1 + len(died)


def test_an_uncaught_call_error_is_a_fault() -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")
        await context.call(hang)

    FOREVER.clear()
    try:
        episode = play(run, deadlines=Deadlines(call=0.2), retries=1)
    finally:
        FOREVER.set()
    assert (episode.stop_reason, episode.attempts) == (StopReason.FAULT, 2)
    assert "hang did not finish within 0.2 s" in str(episode.fault)


@pytest.mark.parametrize("catches", [False, True])
def test_a_failed_sampler_ends_the_run_or_drops_the_episode(catches: bool) -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        try:
            await context.agent("agent_0").generate("hello")
        except SamplerError:
            if not catches:
                raise

    def reply(request: SamplingRequest) -> str:
        raise SamplerError("out of memory")

    with pytest.raises(SamplerError, match="out of memory"):
        play(run, replies=reply)
    dropped = play(run, replies=reply, on_sampler_error="drop")
    assert (dropped.stop_reason, dropped.fault) == (StopReason.FAULT, "out of memory")


def test_an_argument_the_sampler_rejects_ends_the_run() -> None:
    """For example an unknown name of weights: no episode could be played."""

    def reply(request: SamplingRequest) -> str:
        raise ValueError("there are no weights 'x'")

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")

    with pytest.raises(ValueError, match="no weights"):
        play(run, replies=reply)


@pytest.mark.parametrize("catches", [False, True])
def test_a_limit_ends_the_episode_with_its_reason_unless_the_workflow_continues(catches: bool) -> None:
    cuts: list[Any] = []

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        session = context.agent("agent_0")
        try:
            while True:
                await session.generate("go on")
                session.add_reward(0.25)
        except Truncated as cut:
            if not catches:
                raise
            cuts.append((cut.stop_reason, cut.agent))
            return context.finish(success=True)

    episode = play(run, max_turns=3)
    assert cuts == ([(StopReason.MAX_TURNS, "agent_0")] if catches else [])
    assert (episode.reward, episode.num_turns) == (0.75, 3)
    assert episode.stop_reason is (StopReason.SUCCESS if catches else StopReason.MAX_TURNS)
    assert episode.trajectories[0].trainable
    assert episode.fault is None


def test_leaving_the_stream_cancels_running_episodes() -> None:
    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        await context.agent("agent_0").generate("hello")
        if task:
            await asyncio.gather(asyncio.sleep(3600), context.env(Quiz))

    async def go() -> None:
        engine = engine_of(run, n_parallel=4)
        stream = engine.stream(range(100))
        async for episode in stream:
            assert episode.stop_reason is StopReason.FAILURE
            break
        await stream.aclose()  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


async def asks_beyond_its_limit(self: Any, task: Any, context: WorkflowContext) -> Any:
    agent = context.agent("agent_0")
    while True:
        try:
            await agent.generate("go on")
        except Exception:
            continue


class Down(Quiz):
    def _begin(self, task: Any) -> str:
        raise EnvironmentFault("the server is down", kind="server")


async def asks_a_broken_env(self: Any, task: Any, context: WorkflowContext) -> Any:
    env = await context.env(Down)
    while True:
        try:
            await env.reset(task=1)
        except Exception:
            continue


async def catches_every_cancellation(self: Any, task: Any, context: WorkflowContext) -> Any:
    await context.agent("agent_0").generate("hello")
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            continue


async def catches_every_cancellation_and_asks(self: Any, task: Any, context: WorkflowContext) -> Any:
    while True:
        try:
            await context.agent("agent_0").generate("go on")
        except BaseException:
            continue


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (asks_beyond_its_limit, StopReason.AGENT_ERROR),
        (asks_a_broken_env, StopReason.FAULT),
        (catches_every_cancellation, StopReason.TIMEOUT),
        (catches_every_cancellation_and_asks, StopReason.AGENT_ERROR),
    ],
)
def test_code_that_catches_all_exceptions_delays_neither_other_episodes_nor_the_end_of_the_run(
    run: Any, reason: StopReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    clock.run()

    async def either(self: Any, task: Any, context: WorkflowContext) -> Any:
        if task == 0:
            return await run(self, task, context)
        for _ in range(2):
            await context.agent("agent_0").generate("hello")
        return context.finish(reward=1.0)

    async def go() -> dict[str, StopReason]:
        engine = engine_of(either, max_turns=2, deadlines=Deadlines(episode=600, close=0.2), retries=0)
        reasons = {}
        async for episode in engine.stream([EpisodeSpec(0, episode_id="0"), EpisodeSpec(1, episode_id="1")]):
            reasons[episode.episode_id] = episode.stop_reason
            if len(reasons) == 1 and reason is StopReason.TIMEOUT:
                clock.forward(700)
        return reasons

    assert asyncio.run(go()) == {"0": reason, "1": StopReason.SUCCESS}


def test_a_task_of_the_workflow_that_catches_every_cancellation_never_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    iterations: list[int] = []

    async def run(self: Any, task: Any, context: WorkflowContext) -> Any:
        spinning = asyncio.Event()

        async def spin() -> None:
            await context.agent("agent_0").generate("hello")
            spinning.set()
            while True:
                iterations.append(len(iterations))
                try:
                    await asyncio.sleep(0)
                except BaseException:
                    continue

        async def fail() -> None:
            await spinning.wait()
            raise ValueError("wrong")

        await asyncio.gather(spin(), fail())

    async def go() -> Episode:
        (episode,) = await engine_of(run, deadlines=Deadlines(close=0.2)).run([EpisodeSpec(seed=1)])
        count = len(iterations)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(iterations) == count
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return episode

    assert asyncio.run(go()).stop_reason is StopReason.AGENT_ERROR
    assert caplog.text.count("was abandoned") == 1


EXITS = """
import asyncio
from rllm_gym.engine import AgentWorkflowEngine, Deadlines, Workflow
from rllm_gym.samplers import ScriptedSampler

class Stubborn(Workflow):
    async def run(self, task, context):
        child = asyncio.create_task(self.ask(context, "agent_1"))
        await self.ask(context, "agent_0")

    async def ask(self, context, name):
        while True:
            try:
                await context.agent(name).generate("go on")
            except BaseException:
                continue

engine = AgentWorkflowEngine(
    Stubborn, sampler=ScriptedSampler(lambda request: "1"), max_turns=2, deadlines=Deadlines(close=0.2)
)
(episode,) = engine.run_sync([0])
print(episode.stop_reason.value)
"""


def test_the_process_exits_after_a_workflow_that_catches_every_exception() -> None:
    """A coroutine that catches ``GeneratorExit`` would loop forever if the interpreter collected it."""
    ran = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=240)
    assert (ran.returncode, ran.stdout.strip()) == (0, StopReason.AGENT_ERROR.value), ran.stderr
    assert ran.stderr.count("was abandoned") == 2


def test_a_deadline_during_clean_up_does_not_replace_the_stop_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    async def slow_cleanup(self: Any, task: Any, context: WorkflowContext) -> Any:
        agent = context.agent("agent_0")
        await agent.generate("hello")
        env = await context.env(Down)
        try:
            await env.reset(task=1)
        except Exception:
            clock.forward(4)
            await asyncio.sleep(3600)

    deadlines = Deadlines(episode=3, close=60)
    (episode,) = engine_of(slow_cleanup, deadlines=deadlines, retries=0).run_sync([0])
    assert episode.stop_reason is StopReason.FAULT
    assert "the server is down" in str(episode.fault)
    assert not episode.trainable
