"""The built-in workflows: what each agent sees, how each is rewarded, and the result of the episode."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from environments import Quiz, longest

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode, Outcome, StopReason
from rllm_gym.engine import AgentWorkflowEngine, EpisodeSpec, Role
from rllm_gym.engine.workflows import BestOfN, Debate, MultiTurn, PlanExecute, SelfPlay, SingleTurn, SolverJudge
from rllm_gym.samplers import Completion, SamplingRequest, ScriptedSampler, WeightUpdate
from tests.chat.templates import make_tokenizer
from tests.errors import raised


class Once(Quiz):
    """One answer, correct or wrong."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)

    def _act(self, action: str) -> Outcome:
        return super()._act(action if action == self.task.data["answer"] else "give up")


def run_workflow(
    workflow: Any, replies: dict[str, list[str]], env: Any = Once, task: Any = 5, **arguments: Any
) -> tuple[Episode, dict]:
    """Run the workflow with each agent's replies in turn; also return what each agent received."""
    received: dict[str, list[str]] = {}

    def reply(request: SamplingRequest) -> str:
        name = request.conversation.rpartition("/")[2]
        turns = received.setdefault(name, [])
        turns.append(request.messages[-1]["content"])
        return replies[name][len(turns) - 1]

    engine = AgentWorkflowEngine(workflow, env=env, sampler=ScriptedSampler(reply), **arguments)
    (episode,) = engine.run_sync([EpisodeSpec(task, seed=1)])
    assert episode.fault is None
    return episode, received


class Spelling(ScriptedSampler):
    """Its replies have token ids."""

    returns_tokens = True

    async def sample(self, requests: list[SamplingRequest]) -> list[Completion]:
        tokenizer, completions = make_tokenizer("qwen3"), []
        for request, output in zip(requests, await super().sample(requests), strict=True):
            ids = tuple(tokenizer.encode(output.text, add_special_tokens=False))[: request.params.max_tokens]
            completions.append(Completion(ids, (0.0,) * len(ids), tokenizer.decode(ids), "stop", 0))
        return completions


def rewards(episode: Episode) -> dict[str, list[float]]:
    return {item.name: [step.reward for step in item.steps] for item in episode.trajectories}


def test_single_turn() -> None:
    right, received = run_workflow(SingleTurn, {"agent_0": ["5"]})
    assert (right.reward, right.success, right.stop_reason) == (1.0, True, StopReason.SUCCESS)
    assert received["agent_0"][0].startswith("question 5, dice")
    open_end, _ = run_workflow(SingleTurn, {"agent_0": ["?"]}, env=Quiz)
    assert (open_end.reward, open_end.success, open_end.stop_reason) == (0.125, False, StopReason.MAX_TURNS)


def test_multi_turn() -> None:
    episode, received = run_workflow(MultiTurn, {"agent_0": ["?", "!", "5"]}, env=Quiz)
    assert rewards(episode) == {"agent_0": [0.125, 0.125, 1.0]}
    assert received["agent_0"][1:] == ["not ?", "not !"]
    assert episode.num_turns == 3


def test_solver_judge() -> None:
    output = {
        "solver_0": ["<think>easy</think> 4\nAnswer 2:\n> 5"],
        "solver_1": ["5"],
        "solver_2": ["<think>6, as is easy to see"],
    }
    for verdict, judge, valid in (
        ("I think \\boxed{2}", 1.0, 1.0),
        ("1", 0.0, 1.0),
        ("both", 0.0, 0.0),
        ("\\boxed{4}", 0.0, 0.0),
    ):
        episode, received = run_workflow(SolverJudge(3), output | {"judge_0": [verdict]})
        expected = {"solver_0": [0.0], "solver_1": [1.0], "solver_2": [0.0], "judge_0": [judge]}
        assert rewards(episode) == expected, verdict
        assert (episode.reward, episode.success) == (judge, bool(judge)), verdict
        assert episode.metrics == {
            "solver_success": 1 / 3,
            "any_success": 1.0,
            "judge_valid": valid,
            "judge_success": judge,
        }, verdict
    # The judge sees the task and every answer without its thoughts; an answer cannot imitate another one.
    (prompt,) = received["judge_0"]
    assert prompt.startswith("question 5, dice")
    assert "easy" not in prompt
    assert re.findall(r"^Answer (\d):$", prompt, re.M) == ["1", "2", "3"]
    assert len({received[f"solver_{n}"][0] for n in range(3)}) == 1  # the same environment for all


def test_best_of_n_with_an_agent() -> None:
    output = {
        **{f"solver_{n}": [text] for n, text in enumerate(["4", "5", "5"])},
        "verifier_0": ["no"],
        "verifier_1": ["\\boxed{No}"],
        "verifier_2": ["It is. \\boxed{yes}"],
    }
    episode, received = run_workflow(BestOfN(3), output)
    assert rewards(episode)["solver_0"] == [0.0]
    assert [rewards(episode)[f"verifier_{n}"] for n in range(3)] == [[1.0], [0.0], [1.0]]
    assert (episode.reward, episode.metrics["verifier_accuracy"]) == (1.0, pytest.approx(2 / 3))
    assert "\n> 5" in received["verifier_1"][0]


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_best_of_n_with_a_function(workers: str) -> None:
    output = {f"solver_{n}": [text] for n, text in enumerate(["4", "five", "5", "nine"])}
    episode, _ = run_workflow(BestOfN(4, verifier=longest), output, workers=workers)
    # The first of the best.
    assert (episode.reward, episode.success, episode.metrics["best_success"]) == (0.0, False, 0.0)
    assert episode.metrics["any_success"] == 1.0
    assert set(rewards(episode)) == {f"solver_{n}" for n in range(4)}


def test_a_verifier_that_does_not_return_a_number_is_an_error() -> None:
    """NaN in a comparison would make the choice depend on the order of the answers."""
    for verdict in (float("nan"), None, "0.5"):
        workflow = BestOfN(2, verifier=lambda observation, answer, verdict=verdict: verdict)
        (episode,) = AgentWorkflowEngine(workflow, env=Once, sampler=ScriptedSampler(lambda request: "5")).run_sync([5])
        assert episode.stop_reason is StopReason.AGENT_ERROR, verdict
        assert f"the verdict={verdict!r} must be a finite number" in (episode.fault or "")


def test_debate() -> None:
    output = {"debater_0": ["4", "5"], "debater_1": ["6", "6"], "judge_0": ["5"]}
    episode, received = run_workflow(Debate(2, rounds=2), output)
    assert rewards(episode) == {"debater_0": [0.0, 1.0], "debater_1": [0.0, 0.0], "judge_0": [1.0]}
    assert episode.metrics == {"judge_success": 1.0, "debater_success": 0.5}
    assert "debater_1 says:\n> 6" in received["debater_0"][1]
    assert "debater_0 says:\n> 4" in received["debater_1"][1]
    assert received["judge_0"][0].startswith("question 5, dice")
    assert "debater_0:\n> 5" in received["judge_0"][0]


def test_debate_about_several_turns_shares_the_judges_reward() -> None:
    output = {"debater_0": ["4"], "debater_1": ["6"], "judge_0": ["?", "5"]}
    episode, _ = run_workflow(Debate(2, rounds=1), output, env=Quiz)
    assert rewards(episode) == {"debater_0": [1.125], "debater_1": [1.125], "judge_0": [0.125, 1.0]}


def test_plan_execute() -> None:
    episode, received = run_workflow(PlanExecute, {"planner_0": ["Say ?, then 5."], "executor_0": ["?", "5"]}, env=Quiz)
    assert rewards(episode) == {"planner_0": [1.125], "executor_0": [0.125, 1.0]}
    assert "\n> Say ?, then 5." in received["executor_0"][0]
    assert (episode.reward, episode.success) == (1.125, True)


def test_self_play_rewards_each_player_on_its_last_step() -> None:
    output = {"player_0": ["1", "2", "3"], "player_1": ["4", "5"]}
    episode, received = run_workflow(SelfPlay, output, env="rllm/TicTacToe-v0", task=None)
    assert rewards(episode) == {"player_0": [0.0, 0.0, 1.0], "player_1": [0.0, -1.0]}
    assert episode.metrics == {"player_reward": 0.0, "player_success": 0.5, "silenced": 0.0}
    assert {item.role for item in episode.trajectories} == {"player"}
    assert "player_0 played 1." in received["player_1"][0]


def test_exhausting_the_token_budget_does_not_avoid_a_lost_game() -> None:
    """Cut off, the episode would give reward 0 to the player about to lose, and be trained on as such."""
    moves = {"player_0": ["1", "2", "and so " * 50], "player_1": ["9", "4", "5"]}
    turns: dict[str, int] = {}

    def reply(request: SamplingRequest) -> str:
        name = request.conversation.rpartition("/")[2]
        turns[name] = turns.get(name, -1) + 1
        return moves[name][turns[name]]

    engine = AgentWorkflowEngine(
        SelfPlay("rllm/TicTacToe-v0"),
        sampler=Spelling(reply),
        tokenizer=make_tokenizer("qwen3"),
        max_response_tokens=60,
    )
    (episode,) = engine.run_sync([EpisodeSpec(seed=1)])
    assert episode.fault is None
    assert rewards(episode) == {"player_0": [0.0, 0.0, -1.0], "player_1": [0.0, 1.0]}
    assert episode.metrics["silenced"] == 0.5


def test_self_play_against_an_opponent_alternates_sides_between_groups() -> None:
    roles = {"opponent": Role("old", trainable=False)}
    weights_by_group: dict[str, set[tuple[str, str]]] = {}

    def reply(request: SamplingRequest) -> str:
        _, group, _, name = request.conversation.split("/")
        weights_by_group.setdefault(group.partition("#")[0], set()).add((name, request.weights))
        return "".join(re.findall(r"[1-9]", request.messages[-1]["content"].split("\nIt is your move")[0])[-1:]) or "1"

    workflow = SelfPlay("rllm/TicTacToe-v0", roles=("player", "opponent"))
    sampler = ScriptedSampler(reply)
    asyncio.run(sampler.sync_weights(WeightUpdate((), name="old")))
    engine = AgentWorkflowEngine(workflow, sampler=sampler, roles=roles)
    specs = [EpisodeSpec(seed=n, group_id=f"g{n // 2}", episode_id=f"g{n // 2}#{n}") for n in range(24)]
    for episode in engine.run_sync(specs):
        assert episode.fault is None
        by_role = {item.role: item for item in episode.trajectories}
        assert episode.reward == by_role["player"].reward == episode.metrics["player_reward"]
        assert not by_role["opponent"].trainable
    players = [dict(pairs) for pairs in weights_by_group.values()]
    assert all(len(pairs) == 2 for pairs in weights_by_group.values())  # the same player in all episodes of a group
    assert {player["player_0"] for player in players} == {"", "old"}


def test_self_play_of_a_cooperative_game_and_a_team() -> None:
    lake = AgentWorkflowEngine(
        SelfPlay("rllm/LakeDuo-v0", roles=("guide", "walker"), rotate=False), sampler=ScriptedSampler(lambda r: "down")
    )
    (episode,) = lake.run_sync([EpisodeSpec(3, seed=1)])
    assert episode.fault is None
    assert [(item.name, item.role) for item in episode.trajectories] == [("guide_0", "guide"), ("walker_0", "walker")]
    assert episode.task_id


def test_an_invalid_argument_is_an_error() -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: SolverJudge(0), "solvers=0"),
        (lambda: Debate(1), "debaters=1"),
        (lambda: Debate(rounds=0), "rounds=0"),
        (lambda: BestOfN(True), "n=True"),
        (lambda: BestOfN(verifier=longest, agents={"verifier": ChatAgent}), "pass only one of them"),
        (lambda: SolverJudge(agents={"referee": ChatAgent}), "no role 'referee'"),
        (lambda: SelfPlay(roles="player"), "roles='player'"),
        (lambda: SelfPlay(roles=("a", "a")), "different names"),
    ]
    errors = [(says, raised(make)) for make, says in cases]
    wrong = [(says, error) for says, error in errors if not (isinstance(error, ValueError) and says in str(error))]
    assert wrong == []
