"""Negotiation: payoffs are exact, commands are parsed, and private values stay private."""

import itertools
import json
import random
from contextlib import suppress

import pettingzoo
import pytest

from rllm_gym.core import SPLITS, Task, TaskError
from rllm_gym.multiagent.division import Division
from rllm_gym.testing.hostile import unicode_text

ROW = {"items": ["book", "hat", "ball"], "counts": [2, 1, 3], "values": [[1, 2, 2], [3, 1, 1]]}


def make(**kwargs):
    game = pettingzoo.make("aec", "rllm/Negotiation-v0", **({"tasks": [ROW]} | kwargs))
    game.reset(seed=0)
    return game


def test_a_deal_gives_both_agents_the_exact_reward():
    game = make()
    game.step("I love balls.\n```propose 0 1 2```")
    received = game.observe("negotiator_1")["text"]
    assert "keep 0 books, 1 hat and 2 balls; you would get 2 books, 0 hats and 1 ball" in received
    game.step("<think>7 of 10</think>fine ```accept```")
    assert game.rewards == {"negotiator_0": 0.6, "negotiator_1": 0.7}
    assert all(game.terminations.values())
    infos = game.infos
    assert (infos["negotiator_0"]["points"], infos["negotiator_1"]["points"]) == (6, 7)
    assert infos["negotiator_0"]["joint_points"] == 13
    assert infos["negotiator_1"]["agreement"] == "2 0 1"
    assert infos["negotiator_0"]["success"]


def test_references_agree_with_brute_force():
    game, rng = pettingzoo.make("aec", "rllm/Negotiation-v0"), random.Random(0)
    for seed in range(25):
        game.reset(seed=seed)
        division = game.division
        mine, yours = division.values
        everything = list(itertools.product(*(range(n + 1) for n in division.counts)))

        def points(got, division=division, mine=mine, yours=yours):
            return (
                sum(n * v for n, v in zip(got, mine)),
                sum((all_ - n) * v for all_, n, v in zip(division.counts, got, yours)),
            )

        kept = rng.choice(everything)
        game.step(f"propose {' '.join(map(str, kept))}")
        game.step("accept")
        info = game.infos["negotiator_0"]
        got = points(kept)
        assert (info["points"], info["joint_points"]) == (got[0], sum(got))
        assert game.rewards == {"negotiator_0": got[0] / 10, "negotiator_1": got[1] / 10}
        better = [p for p in map(points, everything) if p != got and p[0] >= got[0] and p[1] >= got[1]]
        assert info["pareto_optimal"] == (not better)
        assert info["best_joint_points"] == max(sum(points(d)) for d in everything)
        products = [p[0] * p[1] for p in map(points, everything)]
        nash = points(division.nash())
        assert nash[0] * nash[1] == max(products)
        assert info["nash_points"] == nash[0]


def test_the_oracle_pair_agrees_on_the_nash_deal():
    game = pettingzoo.make("aec", "rllm/Negotiation-v0")
    for seed in range(20):
        game.reset(seed=seed)
        nash = game.division.points(game.division.nash())
        game.step(game.oracle())
        game.step(game.oracle())
        assert list(game.rewards.values()) == [nash[0] / 10, nash[1] / 10]


def test_what_one_agent_sees_does_not_depend_on_the_others_values():
    # The same replies on problems that differ only in negotiator_1's values.
    replies = [unicode_text(random.Random(seed)) for seed in range(3)]
    script = [
        "hi",
        replies[0],
        "```propose 1 1 1```",
        replies[1],
        replies[2],
        "```propose 2 0 0```",
        "no ```accep```",
        "no",
    ]
    seen = []
    for values in ([3, 1, 1], [0, 10, 0], [2, 0, 2], [5, 0, 0]):
        game = make(tasks=[ROW | {"values": [ROW["values"][0], values]}])
        log = []
        for reply in script:
            log.append((game.observe("negotiator_0"), dict(game.infos["negotiator_0"])))
            game.step(reply)
        seen.append(log)
    assert all(log == seen[0] for log in seen)


@pytest.mark.parametrize("ending", ["leave", "turns"])
def test_without_a_deal_nobody_gets_anything_and_nothing_is_revealed(ending):
    game = make(max_turns=4)
    for reply in ["hm", "```leave```"] if ending == "leave" else ["a", "b", "c", "```propose 1 1 1```"]:
        game.step(reply)
    assert any(game.terminations.values()) == (ending == "leave")
    assert any(game.truncations.values()) == (ending == "turns")
    for agent, info in game.infos.items():
        assert game.rewards[agent] == 0.0
        assert (info["points"], info["joint_points"], info["nash_points"], info["agreement"]) == (0, 0, 0, "")


def test_proposals_are_parsed():
    replies = (
        "propose 1 0 2",
        "Propose: 1, 0, 2.",
        "```propose 1 0 2```",
        "```\npropose 1 0 2\n```",
        "```propose 1 0 2\n```",
        "<deal>propose book=1 ball=2</deal>",
        "<action>propose ball: 2, book: 1</action>",
        "not ```propose 0 0 0``` but ```propose 1 0 2```",
    )
    assert {reply: proposal(reply) for reply in replies} == dict.fromkeys(replies, (0, (1, 0, 2)))


def proposal(reply):
    game = make()
    game.step(reply)
    return game._proposal


def test_an_invalid_command_is_explained_and_not_passed_on():
    replies = [
        "```propose 3 0 0```", "```propose 1 0```", "```propose```", "```propose -1 0 0```", "```propose 1 1 1 1```",
        "```propose 99999999999999999999 0 0```", "```accept```", "```accept 1```", "```dance```", "``````",
        "<think>accept",
        "```propose pen=1```", "```propose ١ 0 0```", "a" * 2001,
    ]  # fmt: skip
    for reply in replies:
        game = make()
        before = game.observe("negotiator_1")
        game.step(reply)
        assert game.infos["negotiator_0"]["invalid_action"], reply
        assert game.agent_selection == "negotiator_0", reply
        assert game.observe("negotiator_1") == before, reply
        assert game.observe("negotiator_0")["text"], reply


def test_text_without_a_command_is_only_a_message():
    for reply in ("I accept that you leave.", "accepting is hard", "", "We could propose 1 1 1 later"):
        game = make()
        game.step(reply)
        assert game.agent_selection == "negotiator_1", reply
        assert game._proposal is None, reply


def test_a_counterproposal_replaces_the_previous_proposal():
    game = make()
    game.step("propose 0 1 2")
    game.step("propose 2 1 0")
    game.step("hm")
    game.step("accept")
    assert game.infos["negotiator_1"]["invalid_action"]
    game.step("hm")
    game.step("accept")
    assert game.rewards["negotiator_0"] == 0.6


def test_splits_share_no_problem_in_any_arrangement():
    problems = {}
    for split in SPLITS:
        tasks = pettingzoo.make("aec", "rllm/Negotiation-v0", split=split, num_tasks=80).tasks
        problems[split] = {Division.of(task).canonical() for task in tasks}
        assert all(task.split == split for task in tasks)
        assert all(Division.of(task).worth(agent) == 10 for task in tasks for agent in (0, 1))
    assert not problems["train"] & (problems["test"] | problems["validation"])
    assert not problems["validation"] & problems["test"]


def test_invalid_rows_are_errors():
    rows = [
        {"items": ["a"]}, ROW | {"counts": [1, 2]}, ROW | {"counts": [0, 1, 1]},
        ROW | {"values": [[0, 0, 0], [1, 1, 1]]},
        ROW | {"counts": [999, 999, 999]}, ROW | {"items": ["a", "a", "b"]}, ROW | {"values": [[1.5, 1, 1], [1, 1, 1]]},
        ROW | {"items": ["a b", "c", "d"]},
    ]  # fmt: skip
    accepted = []
    for row in rows:
        with suppress(TaskError):
            make(tasks=[row])
            accepted.append(row)
    assert accepted == []


def test_an_invalid_task_is_an_error():
    game = make()
    for content, data in (
        ("{}", {}),
        ("x", {}),
        (json.dumps(ROW), {"order": [0]}),
        (json.dumps(ROW), {"order": [9, 0, 1]}),
    ):
        with pytest.raises(TaskError, match="not a division"):
            game.reset(options={"task": Task("odd", content, data)})
