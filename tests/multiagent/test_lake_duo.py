"""LakeDuo: a pair that communicates reaches the goal; a pair that does not moves without information."""

import random
from collections import deque

import pettingzoo
import pytest

from rllm_gym.testing.hostile import unicode_text

STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


def shortest_path_move(text):
    """Return the first move of a shortest path, read independently from the last board in an observation."""
    rows = [line.split(" ") for line in text.split("\n") if line and set(line.replace(" ", "")) <= set("P_OG")]
    rows = rows[-len(rows[-1]) :]
    start = next((r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "P")
    queue, seen = deque([(start, None)]), {start}
    while queue:
        (r, c), first = queue.popleft()
        if rows[r][c] == "G":
            return first
        for name, (dr, dc) in STEPS.items():
            cell = r + dr, c + dc
            if (
                0 <= cell[0] < len(rows)
                and 0 <= cell[1] < len(rows[0])
                and cell not in seen
                and rows[cell[0]][cell[1]] != "O"
            ):
                seen.add(cell)
                queue.append((cell, first or name))
    return "up"


def guide(text, rng):
    return shortest_path_move(text)


def follower(text, rng):
    return text.rsplit("guide_0 says:\n> ", 1)[1].split("\n")[0]


def silent(text, rng):
    return ""


def random_walker(text, rng):
    return rng.choice(list(STEPS))


def success(session, walker, episodes=60, **kwargs):
    game, rng = pettingzoo.make("aec", "rllm/LakeDuo-v0", **kwargs), random.Random(0)
    won = 0
    for seed in range(episodes):
        game.reset(seed=seed)
        for agent in game.agent_iter():
            observation, reward, terminated, truncated, _ = game.last()
            if terminated or truncated:
                won += agent == "walker_0" and reward == 1.0
                game.step(None)
            else:
                game.step((session if agent == "guide_0" else walker)(observation["text"], rng))
    return won / episodes


def test_a_pair_that_communicates_always_reaches_the_goal():
    assert success(guide, follower) == 1.0


def test_a_pair_that_does_not_communicate_rarely_reaches_the_goal():
    assert success(silent, random_walker) < 0.4


@pytest.mark.parametrize("view", ["guide", "halves"])
def test_the_oracle_always_reaches_the_goal(view):
    game = pettingzoo.make("aec", "rllm/LakeDuo-v0", view=view)
    for seed in range(40):
        game.reset(seed=seed)
        while not any(game.terminations.values()):
            game.step(game.oracle())
        assert set(game.rewards.values()) == {1.0}
        assert all(info["success"] for info in game.infos.values())


def test_the_walkers_observations_do_not_depend_on_the_lake():
    # Equal path lengths and messages over different lakes: the walker knows only the results of its own moves.
    seen = []
    for rows in (["SFF", "FFF", "FHG"], ["SFF", "FFH", "FFG"], ["SFF", "FFG", "FHF"]):
        game = pettingzoo.make("aec", "rllm/LakeDuo-v0", tasks=[rows], size=3, moves=7)
        game.reset(seed=0)
        log = []
        for message, move in (("go", "right"), ("on", "left"), ("\u2028P _\n", "left"), ("so", "hm"), ("and", "down")):
            game.step(message)
            log.append(game.observe("walker_0")["text"])
            game.step(move)
        infos = {key: value for key, value in game.infos["walker_0"].items() if key != "task_id"}
        seen.append((log, infos))
    assert seen[0] == seen[1] == seen[2]


def test_each_half_is_seen_by_one_player_only():
    board = ["SFFF", "FHFF", "FFHF", "HFFG"]
    game = pettingzoo.make("aec", "rllm/LakeDuo-v0", view="halves", tasks=[board], moves=12)
    game.reset(seed=0)
    left, right = (game.observe(agent)["text"].split("\n")[-4:] for agent in game.possible_agents)
    assert left == ["P _ ? ?", "_ O ? ?", "_ _ ? ?", "O _ ? ?"]
    assert right == ["P ? _ _", "? ? _ _", "? ? O _", "? ? _ G"]
    game.step("```down``` is what I would do")  # the first player only sends messages
    assert game.infos["player_0"]["moves_left"] == 12
    game.step("```right```")
    assert "player_1 moved right." in game.observe("player_0")["text"]


def test_a_reply_without_a_move_loses_the_move():
    game = pettingzoo.make("aec", "rllm/LakeDuo-v0", moves=3, min_path=2, max_path=3)
    game.reset(seed=0)
    rng = random.Random(0)
    for _ in range(3):
        game.step("hello")
        assert game.agent_selection == "walker_0"
        game.step(f"no move {unicode_text(rng)}")
    assert all(game.truncations.values())
    assert game.infos["walker_0"]["invalid_action"]
    assert {info["stop_reason"] for info in game.infos.values()} == {"max_turns"}


def test_without_rules_observations_are_board_and_message_alone():
    game = pettingzoo.make("aec", "rllm/LakeDuo-v0", rules=False, size=3)
    game.reset(seed=0)
    assert set(game.observe("guide_0")["text"]) <= set("P_OG \n")
    game.step("up")
    assert game.observe("walker_0")["text"] == "guide_0 says:\n> up"


def test_invalid_arguments_are_errors():
    with pytest.raises(ValueError, match="view='all'"):
        pettingzoo.make("aec", "rllm/LakeDuo-v0", view="all")
    with pytest.raises(ValueError, match="coordinates"):
        pettingzoo.make("aec", "rllm/LakeDuo-v0", coordinates=True)
    with pytest.raises(ValueError, match="symbols"):
        pettingzoo.make("aec", "rllm/LakeDuo-v0", symbols="?_OG")
