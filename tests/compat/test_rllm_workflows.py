"""Workflows written for rLLM, as in its documentation, run with only their import changed."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from typing import Any

import gymnasium
import pytest

from rllm_gym.compat import (
    Action,
    AgentWorkflowEngine,
    Episode,
    LegacyWorkflowAdapter,
    MathAgent,
    ModelOutput,
    MultiTurnEnvironment,
    MultiTurnWorkflow,
    RewardOutput,
    RolloutEngine,
    SimpleWorkflow,
    SingleTurnEnvironment,
    SingleTurnWorkflow,
    Step,
    TerminationEvent,
    TerminationReason,
    Trajectory,
    Workflow,
    math_reward_fn,
)
from rllm_gym.core import StopReason
from rllm_gym.engine import AgentWorkflowEngine as NewEngine
from rllm_gym.engine import EpisodeSpec, Role
from rllm_gym.samplers import SamplerError, SamplingParams, SamplingRequest, ScriptedSampler

# User code, as it was written for rLLM


def exact(task: dict, answer: Any) -> RewardOutput:
    right = str(answer) == task["answer"]
    return RewardOutput(reward=float(right), is_correct=right)


class Proposer:
    """Asks for a number, in its own conversation."""

    def __init__(self, rollout_engine: RolloutEngine, **kwargs):
        self.rollout_engine = rollout_engine

    async def propose(self, question: str) -> Trajectory:
        messages = [{"role": "user", "content": f"{question} Answer with <answer>…</answer>."}]
        output: ModelOutput = await self.rollout_engine.get_model_response(messages)
        found = re.search(r"<answer>(.*?)</answer>", output.content)
        return Trajectory(
            name="solver",
            steps=[
                Step(
                    chat_completions=[
                        *messages,
                        {"role": "assistant", "content": output.content, "reasoning": output.reasoning},
                    ],
                    thought=output.reasoning,
                    action=found.group(1) if found else None,
                    model_output=output,
                )
            ],
        )


class Picker:
    """Chooses one of several answers."""

    def __init__(self, rollout_engine: RolloutEngine, **kwargs):
        self.rollout_engine = rollout_engine

    async def pick(self, question: str, answers: list) -> Trajectory:
        listed = "\n".join(f"{number}: {answer}" for number, answer in enumerate(answers, 1))
        messages = [{"role": "user", "content": f"{question}\n{listed}\nWhich one? <answer>number</answer>"}]
        output = await self.rollout_engine.get_model_response(messages)
        found = re.search(r"<answer>(\d+)</answer>", output.content)
        choice = int(found.group(1)) if found else 0
        action = answers[choice - 1] if 1 <= choice <= len(answers) else None
        steps = [Step(chat_completions=messages, action=action, model_output=output)]
        return Trajectory(name="judge", steps=steps)


class SolversAndJudge(Workflow):
    def __init__(self, rollout_engine: RolloutEngine, n_solutions: int = 2, reward_function=None, **kwargs):
        super().__init__(rollout_engine, **kwargs)
        self.n_solutions = n_solutions
        self.reward_function = reward_function
        self.proposer = Proposer(rollout_engine)
        self.picker = Picker(rollout_engine)

    async def run(self, task: dict, uid: str, **kwargs) -> Episode:
        self.reset(task, uid)
        proposals = [asyncio.create_task(self.proposer.propose(task["question"])) for _ in range(self.n_solutions)]
        solvers = await asyncio.gather(*proposals)
        for trajectory in solvers:
            trajectory.steps[0].reward = trajectory.reward = self.reward_function(
                task, trajectory.steps[0].action
            ).reward
        judge = await self.picker.pick(task["question"], [trajectory.steps[0].action for trajectory in solvers])
        verdict = self.reward_function(task, judge.steps[0].action)
        judge.steps[0].reward = judge.reward = verdict.reward
        accuracy = sum(trajectory.reward for trajectory in solvers) / len(solvers)
        return Episode(
            id=uid,
            task=task,
            trajectories=[*solvers, judge],
            is_correct=verdict.is_correct,
            metrics={"solver_acc": accuracy, "judge_acc": verdict.reward},
        )


class Refining(Workflow):
    """One conversation of several turns, committed turn by turn into two trajectories, ended by an event."""

    def __init__(self, rollout_engine: RolloutEngine, turns: int = 3, **kwargs):
        super().__init__(rollout_engine, **kwargs)
        self.turns = turns

    async def run(self, task: dict, uid: str, **kwargs) -> None:
        self.reset(task, uid)
        messages = [{"role": "user", "content": task["question"]}]
        critic = Trajectory(name="critic")
        writer = Trajectory(name="writer")
        for turn in range(self.turns):
            output = await self.rollout_engine.get_model_response(messages, application_id=uid, temperature=0.5)
            messages = [*messages, {"role": "assistant", "content": output.text}]
            step = Step(chat_completions=messages, action=Action(output.text), model_output=output, reward=0.25)
            (writer if turn != 1 else critic).steps.append(step)
            messages = [*messages, {"role": "user", "content": "Again."}]
        self.commit(trajectory=writer)
        self.commit(name="reviewer", trajectory=critic)
        raise TerminationEvent(TerminationReason.ENV_DONE)


class Guess(MultiTurnEnvironment):
    def get_reward_and_next_obs(self, task: dict, action: Any) -> tuple[float, dict]:
        right = str(action) == task["answer"]
        self.done = right
        return float(right), {"question": "No. Again."}

    @staticmethod
    def from_dict(row: dict) -> Guess:
        return Guess(task=row)


TASKS = [{"question": f"How many is {n}?", "answer": str(n % 3)} for n in range(6)]


def answers(request: SamplingRequest) -> str:
    return f"<think>hm</think><answer>{random.Random(request.seed).randint(0, 2)}</answer>"


def engine(workflow: Any, replies: Any = answers, tokenizer: Any = None, **arguments: Any) -> AgentWorkflowEngine:
    return AgentWorkflowEngine(
        workflow_cls=workflow,
        workflow_args=arguments.pop("workflow_args", {}),
        rollout_engine=RolloutEngine(ScriptedSampler(replies, tokenizer)),
        n_parallel_tasks=arguments.pop("n_parallel_tasks", 4),
        **arguments,
    )


def test_a_solver_and_judge_workflow_runs_unchanged() -> None:
    arguments = {"n_solutions": 3, "reward_function": exact}
    ids = ["a", "b", "a", "c", "b", "a"]
    created = engine(SolversAndJudge, workflow_args=arguments)
    episodes = asyncio.run(created.execute_tasks(TASKS, ids))
    assert [episode.id for episode in episodes] == ["a:0", "a:1", "a:2", "b:0", "b:1", "c:0"]
    for episode in episodes:
        assert [trajectory.name for trajectory in episode.trajectories] == ["solver", "solver", "solver", "judge"]
        rewards = [trajectory.reward for trajectory in episode.trajectories[:3]]
        assert rewards == [float(t.steps[0].action == episode.task["answer"]) for t in episode.trajectories[:3]]
        assert episode.metrics["solver_acc"] == pytest.approx(sum(rewards) / 3)
        assert episode.trajectories[0].steps[0].thought == "hm"
    again = asyncio.run(created.execute_tasks(TASKS, ids))
    assert [e.metrics for e in again] == [e.metrics for e in episodes]
    assert len({tuple(sorted(e.metrics.items())) for e in episodes}) > 1


def test_tokens_of_a_workflow_can_be_trained_on() -> None:
    from tests.chat.templates import make_tokenizer

    tokenizer = make_tokenizer("qwen2.5")
    drawn: list[tuple[tuple[int, ...], str]] = []

    def reply(request: SamplingRequest) -> str:
        text = answers(request)
        drawn.append((request.ids, text))
        return text

    ported = LegacyWorkflowAdapter(SolversAndJudge, {"n_solutions": 3, "reward_function": exact})
    new = NewEngine(ported, sampler=ScriptedSampler(reply, tokenizer))
    (episode,) = new.run_sync([EpisodeSpec(TASKS[1], seed=3, group_id="g")])
    assert [(t.name, t.role, t.trainable) for t in episode.trajectories] == [
        ("solver_0", "solver", True),
        ("solver_1", "solver", True),
        ("solver_2", "solver", True),
        ("judge_0", "judge", True),
    ]
    assert set(episode.metrics) == {"solver_acc", "judge_acc"}
    prompts = []
    for trajectory in episode.trajectories:
        (sequence,) = trajectory.branches()
        start = sequence.mask.index(1)
        prompts.append((sequence.ids[:start], trajectory.steps[0].model_response))
        assert sum(sequence.rewards) == trajectory.reward
    assert sorted(prompts) == sorted(drawn)


def test_a_conversation_split_over_trajectories_keeps_each_replys_whole_prompt() -> None:
    from tests.chat.templates import make_tokenizer

    requests: list[SamplingRequest] = []

    def reply(request: SamplingRequest) -> str:
        requests.append(request)
        return f"draft {len(requests)}"

    new = NewEngine(
        LegacyWorkflowAdapter(Refining, {"turns": 4}),
        sampler=ScriptedSampler(reply, make_tokenizer("qwen3")),
        sampling_params=SamplingParams(max_tokens=50),
    )
    (episode,) = new.run_sync([EpisodeSpec(TASKS[0], seed=3)])
    assert [request.params.temperature for request in requests] == [0.5] * 4
    # One conversation: each prompt is the previous one, the reply, and the new messages.
    for before, after in itertools.pairwise(requests):
        assert after.ids[: len(before.ids)] == before.ids
        assert after.conversation == before.conversation
    writer, reviewer = episode.trajectories
    assert (writer.name, reviewer.name) == ("writer_0", "reviewer_0")
    assert [len(sequence) - sequence.mask[::-1].index(1) for sequence in writer.branches()]  # all end with a reply
    first, second = writer.branches()
    assert first.ids[: len(requests[0].ids)] == requests[0].ids
    assert second.ids[: len(requests[2].ids)] == requests[2].ids
    assert second.ids[: len(requests[3].ids)] == requests[3].ids
    (only,) = reviewer.branches()
    assert only.ids[: len(requests[1].ids)] == requests[1].ids
    assert sum(map(sum, (s.mask for s in (first, second, only)))) == sum(
        len(step.tokens.ids) for trajectory in episode.trajectories for step in trajectory.steps if step.tokens
    )
    assert episode.stop_reason is StopReason.SUCCESS  # the rewards sum to more than 0
    assert (writer.reward, reviewer.reward) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("workflow", "arguments", "reply", "reason"),
    [
        (SimpleWorkflow, {"reward_function": math_reward_fn}, "\\boxed{0}", TerminationReason.ENV_DONE),
        (
            SingleTurnWorkflow,
            {"agent_cls": MathAgent, "env_cls": SingleTurnEnvironment, "env_args": {"reward_fn": math_reward_fn}},
            "\\boxed{0}",
            TerminationReason.ENV_DONE,
        ),
        (MultiTurnWorkflow, {"agent_cls": MathAgent, "env_cls": Guess, "max_steps": 2}, "9", "max_turns_exceeded"),
    ],
)
def test_the_built_in_workflows(workflow: Any, arguments: dict, reply: str, reason: Any) -> None:
    created = engine(workflow, lambda request: reply, workflow_args=arguments)
    (episode,) = asyncio.run(created.execute_tasks(TASKS[:1]))
    assert episode.termination_reason is TerminationReason(reason)
    assert episode.is_correct == (reply == "\\boxed{0}")
    (trajectory,) = episode.trajectories
    assert trajectory.reward == float(episode.is_correct)
    assert len(trajectory.steps) == (2 if workflow is MultiTurnWorkflow else 1)
    assert all(step.model_response == reply for step in trajectory.steps)


def test_a_workflow_that_raises_is_retried_and_then_reported() -> None:
    tried: list[str] = []

    class Fails(Workflow):
        async def run(self, task: dict, uid: str, **kwargs: Any) -> None:
            self.reset(task, uid)
            tried.append(uid)
            output = await self.rollout_engine.get_model_response([{"role": "user", "content": "?"}])
            self.commit(trajectory=Trajectory(name="a", steps=[Step(chat_completions=[{}], model_output=output)]))
            if task["answer"] == "1" or len(tried) == 1:
                raise KeyError("missing")
            raise TerminationEvent(TerminationReason.ENV_DONE)

    with pytest.raises(RuntimeError, match=r"\[1:0\] failed 3 times.*KeyError: 'missing'"):
        asyncio.run(engine(Fails, n_parallel_tasks=1).execute_tasks(TASKS[:2]))
    assert tried == ["0:0", "0:0", "1:0", "1:0", "1:0"]
    tried.clear()
    reported = asyncio.run(engine(Fails, retry_limit=2, raise_on_error=False).execute_tasks(TASKS[1:2]))
    assert reported[0].termination_reason is TerminationReason.ERROR
    assert reported[0].info["error"]["error_type"] == "KeyError"
    assert len(reported[0].trajectories) == 1


def test_a_workflow_that_times_out_keeps_committed_trajectories() -> None:
    class Hangs(Workflow):
        async def run(self, task: dict, uid: str, **kwargs: Any) -> None:
            self.reset(task, uid)
            await asyncio.sleep(3600)

    created = engine(Hangs, workflow_args={"timeout": 1})
    (episode,) = asyncio.run(created.execute_tasks(TASKS[:1], timeout=0.1))
    assert (episode.termination_reason, episode.trajectories) == (TerminationReason.TIMEOUT, [])


def test_a_failed_sampler_ends_the_run_even_if_the_workflow_catches_the_error() -> None:
    def reply(request: SamplingRequest) -> str:
        raise SamplerError("out of memory")

    with pytest.raises(SamplerError, match="out of memory"):
        asyncio.run(engine(Refining, reply).execute_tasks(TASKS[:1]))


def test_an_agent_attribute_is_collected_and_reset() -> None:
    class Talks(Workflow):
        def __init__(self, rollout_engine: RolloutEngine, **kwargs: Any) -> None:
            super().__init__(rollout_engine, **kwargs)
            self.agent = MathAgent()

        async def run(self, task: dict, uid: str, **kwargs: Any) -> None:
            self.reset(task, uid)
            self.agent.update_from_env(task, 0.0, False, {})
            output = await self.rollout_engine.get_model_response(self.agent.chat_completions)
            self.agent.update_from_model(output.text)
            self.agent.update_from_env({}, 1.0, True, {})

    (episode,) = asyncio.run(engine(Talks).execute_tasks(TASKS[:1]))
    assert episode.is_correct
    assert episode.termination_reason is TerminationReason.UNKNOWN
    assert episode.metrics == {"default_traj_name_acc": 1.0}
    (trained,) = NewEngine(LegacyWorkflowAdapter(Talks), sampler=ScriptedSampler(answers)).run_sync(
        [EpisodeSpec(TASKS[0])]
    )
    assert trained.trajectories[0].trainable  # found by its text
    assert trained.trajectories[0].reward == 1.0


def test_a_step_without_a_sampled_reply_is_not_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    class Invents(Workflow):
        async def run(self, task: dict, uid: str, **kwargs: Any) -> Episode:
            output = await self.rollout_engine.get_model_response([{"role": "user", "content": "?"}])
            twice = [Step(chat_completions=[{"role": "user", "content": "?"}], model_output=output) for _ in range(2)]
            return Episode(id=uid, trajectories=[Trajectory(name="a", steps=twice, reward=1.0)], is_correct=True)

    (episode,) = NewEngine(LegacyWorkflowAdapter(Invents), sampler=ScriptedSampler(answers)).run_sync(
        [EpisodeSpec(TASKS[0])]
    )
    assert not episode.trajectories[0].trainable
    assert "1 of 2 steps" in caplog.text


def test_a_task_of_an_environment_is_a_row_with_its_question() -> None:
    rows: list[dict] = []

    class Looks(Workflow):
        async def run(self, task: dict, uid: str, **kwargs: Any) -> None:
            self.reset(task, uid)
            rows.append(task)
            output = await self.rollout_engine.get_model_response([{"role": "user", "content": task["question"]}])
            step = Step(chat_completions=[{}], model_output=output, reward=float(task["gold"] in output.text))
            self.commit(trajectory=Trajectory(name="solver", steps=[step]))

    task = gymnasium.make("rllm/Math-v0").unwrapped.tasks[3]
    ported = LegacyWorkflowAdapter(Looks, roles=("solver",))
    sampler = ScriptedSampler(lambda request: f"\\boxed{{{task.data['gold']}}}")
    new = NewEngine(ported, env="rllm/Math-v0", sampler=sampler, roles={"solver": Role(trainable=True)})
    (episode,) = new.run_sync([EpisodeSpec(3, seed=1)])
    assert rows[0]["gold"] == task.data["gold"]
    assert rows[0]["question"].startswith(task.content)
    assert (episode.task_id, episode.reward, episode.success) == (task.task_id, 1.0, True)


def test_unsupported_features_are_errors() -> None:
    accepted = []
    for argument in ("config", "episode_logger", "gateway"):
        try:
            accepted.append((argument, engine(Refining, **{argument: {"a": 1}})))
        except ValueError as error:
            reported = str(error)
            if "docs/from-rllm" not in reported:
                accepted.append((argument, reported))
    assert accepted == []


def test_an_engine_can_be_called_outside_a_workflow() -> None:
    alone = RolloutEngine(ScriptedSampler(["<think>so</think>\n\n5"]))
    output = asyncio.run(alone.get_model_response([{"role": "user", "content": "2 + 3?"}]))
    assert (output.content, output.reasoning, output.finish_reason) == ("5", "so", "stop")
    assert ModelOutput.from_dict(output.to_dict()).text == output.text
