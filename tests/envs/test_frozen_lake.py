"""FrozenLake as a user sees it: solvable maps, disjoint splits, and moves that do what their names say."""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing.checks import assert_all_raise

import rllm_gym
from rllm_gym import Task
from rllm_gym.core import TaskError, split_of
from rllm_gym.envs.frozen_lake import FrozenLakeEnv, difficulty_bounds, parse_map
from rllm_gym.testing import check_text_env

OPEN = ["SFF", "FHF", "FFG"]


def shortest_path(rows: list[str]) -> int | None:
    """Return the length of the shortest path from the start, by an independent breadth-first search."""
    cells = {(r, c): letter for r, row in enumerate(rows) for c, letter in enumerate(row)}
    start = next(cell for cell, letter in cells.items() if letter == "S")
    seen, queue = {start: 0}, deque([start])
    while queue:
        r, c = queue.popleft()
        if cells[r, c] == "G":
            return seen[r, c]
        for step in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
            if cells.get(step, "H") != "H" and step not in seen:
                seen[step] = seen[r, c] + 1
                queue.append(step)
    return None


def make(**kwargs) -> FrozenLakeEnv:
    return FrozenLakeEnv(**kwargs)


# Maps


def test_every_generated_map_is_solvable_in_time_and_its_path_length_is_exact():
    for size in range(2, 11):
        env = make(size=size)
        for index in range(100):
            task = env.tasks[index]
            rows = task.content.split("\n")
            assert [len(row) for row in rows] == [size] * size
            assert shortest_path(rows) == task.data["path_length"] <= env.max_turns


def test_few_maps_end_in_one_move_and_starts_and_goals_are_everywhere():
    env = make()
    lengths, starts, goals = Counter(), Counter(), Counter()
    for index in range(2000):
        task = env.tasks[index]
        flat = task.content.replace("\n", "")
        lengths[task.data["path_length"]] += 1
        starts[flat.index("S")] += 1
        goals[flat.index("G")] += 1
    assert lengths[1] == 0
    assert max(lengths) >= 7
    assert len(starts) == len(goals) == 16
    assert max(starts.values()) < 2000 / 16 * 2


def test_difficulty_is_the_length_of_the_shortest_path():
    for size, difficulty in itertools.product((3, 4, 8), ("easy", "medium", "hard")):
        low, high = difficulty_bounds(size, difficulty)
        env = make(size=size, difficulty=difficulty)
        lengths = {env.tasks[index].data["path_length"] for index in range(60)}
        assert low <= min(lengths), (size, difficulty)
        assert max(lengths) <= high, (size, difficulty)
        if difficulty != "hard":
            assert lengths == set(range(low, high + 1)), (size, difficulty)


def test_path_bounds_corners_and_hole_probabilities_are_respected():
    env = make(min_path=4, max_path=5, p_frozen=(0.5, 0.8))
    tasks = [env.tasks[i] for i in range(200)]
    assert {task.data["path_length"] for task in tasks} == {4, 5}
    assert [make(difficulty=[4, 5], p_frozen=(0.5, 0.8)).tasks[i] for i in range(200)] == tasks
    assert {task.data["p_frozen"] for task in tasks} == {0.5, 0.8}
    corners = make(start="corner", goal="corner", p_frozen=0.6)
    for index in range(50):
        task = corners.tasks[index]
        assert task.content[0] == "S"
        assert task.content[-1] == "G"
        assert task.data["path_length"] == 6
    holes = [make(p_frozen=p).tasks[i].content.count("H") for p in (0.95, 0.5) for i in range(100)]
    assert sum(holes[:100]) < sum(holes[100:]) / 4


def test_maps_depend_only_on_split_seed_and_index():
    one, two, other = make(), make(slip_probability=0.0, view="window"), make(task_seed=1)
    assert [one.tasks[i] for i in range(50)] == [two.tasks[i] for i in reversed(range(50))][::-1]
    shared = {one.tasks[i].content for i in range(500)} & {other.tasks[i].content for i in range(500)}
    assert len(shared) < 50  # two streams, not one shifted by the seed
    assert one.tasks.find("frozen_lake/train/0/17") == one.tasks[17]
    # -v0: these maps must never change.
    assert [one.tasks[i].content.replace("\n", "/") for i in range(3)] == [
        "GHFF/FFFF/FFHF/HFSF",
        "FFHG/FFFF/FFFF/FSFF",
        "HFHF/FGFF/FHFF/HHHS",
    ]


# Splits


@pytest.mark.parametrize(
    ("size", "share"),
    [(4, 0.25), pytest.param(4, 1, marks=pytest.mark.long), pytest.param(8, 1, marks=pytest.mark.long)],
)
def test_ten_thousand_maps_are_disjoint_between_splits(size, share):
    maps, terrains = {}, {}
    for split, number in (("train", 8000), ("validation", 1500), ("test", 1500)):
        env = make(size=size, split=split, p_frozen=(0.5, 0.65, 0.8))
        contents = [env.tasks[index].content for index in range(int(number * share))]
        assert all(split_of(content) == split for content in contents)
        maps[split] = set(contents)
        # The board after some moves looks like a map with another start: it must not be a map of another split.
        terrains[split] = {content.replace("S", "F") for content in contents}
    for one, other in itertools.combinations(maps, 2):
        assert not maps[one] & maps[other]
        assert not terrains[one] & terrains[other]
    assert len(maps["train"]) > 5000 * share


# Observations


def test_the_first_observation_suffices_to_act():
    text, _ = make(tasks=[OPEN], slip_probability=0.1, max_turns=20).reset(seed=0)
    for needed in ("P", "goal G", "holes O", "ice _", "slip", "0.1", "20 turns", "```up```", "P _ _\n_ O _\n_ _ G"):
        assert needed in text
    assert len(text) < 300


def test_later_observations_contain_what_is_new():
    env = make(tasks=[OPEN])
    env.reset(seed=0)
    assert env.step("right")[0] == "You moved right.\n_ P _\n_ O _\n_ _ G"
    assert env.step("up")[0] == "You moved up against the edge and stayed.\n_ P _\n_ O _\n_ _ G"
    assert env.step("down")[0] == "You moved down into a hole."
    env.reset(seed=0)
    for move in ("right", "right", "down"):
        env.step(move)
    assert env.step("down")[0] == "You reached the goal."


def test_the_views_show_the_expected_text():
    text, _ = make(tasks=[OPEN], view="neighbours").reset(seed=0)
    assert text.endswith("P _ _\n_ O _\n_ _ G\nup: edge, down: ice, left: edge, right: ice")
    env = make(tasks=[OPEN], view="window", rules=False)
    assert env.reset(seed=0)[0] == "# # # # #\n# # # # #\n# # P _ _\n# # _ O _\n# # _ _ G"
    assert env.step("right")[0] == "# # # # #\n# # # # #\n# _ P _ #\n# _ O _ #\n# _ _ G #"
    assert env.step("right")[0] == "# # # # #\n# # # # #\n_ _ P # #\n_ O _ # #\n_ _ G # #"
    assert env.step("down")[0] == "# # # # #\n_ _ _ # #\n_ O P # #\n_ _ G # #\n# # # # #"
    small = make(tasks=[["SFFFFF", "FFFFFG"]], view="window", window_size=3, rules=False)
    assert small.reset(seed=0)[0] == "# # #\n# P _\n# _ _"
    rules, _ = make(tasks=[OPEN], view="window").reset(seed=0)
    assert "# is outside the lake" in rules
    assert "```up```" in rules


def test_coordinates_are_shown():
    text, _ = make(tasks=[OPEN], coordinates=True, rules=False).reset(seed=0)
    assert text == "  0 1 2\n0 P _ _\n1 _ O _\n2 _ _ G"
    text, _ = make(tasks=["S" + "F" * 10 + "G"], coordinates=True, rules=False, max_turns=20).reset(seed=0)
    assert text == "    0  1  2  3  4  5  6  7  8  9 10 11\n 0  P  _  _  _  _  _  _  _  _  _  _  G"
    with pytest.raises(ValueError, match="window"):
        make(coordinates=True, view="window")


def test_symbols_can_be_chosen():
    env = make(tasks=[OPEN], symbols="@.X*")
    assert env.reset(seed=0)[0].endswith("@ . .\n. X .\n. . *")
    env = make(tasks=[OPEN], symbols={"hole": "!", "edge": "%"}, view="window", rules=False)
    assert env.reset(seed=0)[0] == "% % % % %\n% % % % %\n% % P _ _\n% % _ ! _\n% % _ _ G"


@given(st.integers(2, 7), st.integers(0, 500), st.sampled_from([3, 5, 7, 9]))
@settings(max_examples=40, deadline=None)
def test_the_window_is_a_part_of_the_board(size, index, side):
    env = make(size=size, rules=False)
    near = make(size=size, rules=False, view="window", window_size=side)
    board = [row.split(" ") for row in env.reset(options={"task": index})[0].split("\n")]
    window = [row.split(" ") for row in near.reset(options={"task": index})[0].split("\n")]
    [(row, column)] = [(r, c) for r in range(size) for c in range(size) if board[r][c] == "P"]
    assert len(window) == side
    for r, c in itertools.product(range(side), repeat=2):
        there = (row + r - side // 2, column + c - side // 2)
        inside = 0 <= there[0] < size and 0 <= there[1] < size
        assert window[r][c] == (board[there[0]][there[1]] if inside else "#")


def test_render_modes():
    env = make(tasks=[OPEN], render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "[_] _  _ \n _  O  _ \n _  _  G "
    env.step("right")
    env.step("down")
    assert env.render() == " _  _  _ \n _ [O] _ \n _  _  G "
    env = make(tasks=[OPEN], render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        env.render()
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (192, 192, 3)
    assert before.dtype == np.uint8
    start, ice, hole, goal = before[:64, :64], before[:64, 64:128], before[64:128, 64:128], before[128:, 128:]
    assert len({tile.tobytes() for tile in (start, ice, hole, goal)}) == 4
    ice = ice.copy()
    before[:] = 0  # the caller owns the picture
    env.step("right")
    after = env.render()
    assert not np.array_equal(after[:64, 64:128], ice)  # the player is there
    assert np.array_equal(after[:64, 128:], ice)


# Episodes


def test_an_episode_ends_at_the_goal_in_a_hole_and_after_the_last_turn():
    env = make(tasks=[OPEN], max_turns=5)
    env.reset(seed=0)
    results = [env.step(move) for move in ("right", "right", "down", "down")]
    assert [result[1] for result in results] == [0.0, 0.0, 0.0, 1.0]
    assert results[-1][2:4] == (True, False)
    assert results[-1][4]["success"]
    assert results[-1][4]["distance"] == 0
    env.reset(seed=0)
    env.step("right")
    _, reward, terminated, truncated, info = env.step("down")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["success"], info["stop_reason"], info["distance"]) == (False, "failure", -1)
    env.reset(seed=0)
    results = [env.step("up") for _ in range(5)]
    assert results[-1][2:4] == (False, True)
    assert results[-1][4]["stop_reason"] == "max_turns"


def test_an_invalid_action_costs_a_turn_and_moves_nothing():
    env = make(tasks=[OPEN], invalid_action_penalty=0.3)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("up or down")
    assert info["invalid_action"]
    assert reward == -0.3
    assert not terminated
    assert not truncated
    assert info["turn"] == 1
    assert "P" not in observation.split("Give one move")[0]  # nothing new to show except the error message
    assert env.step("right")[0].endswith("_ P _\n_ O _\n_ _ G")


def test_slips_go_sideways_with_the_given_probability():
    env = make(tasks=[["FFFFF", "FFFFF", "FFSFF", "FFFFF", "FFFFG"]], slip_probability=0.3, max_turns=40)
    ends = Counter()
    for seed in range(3000):
        env.reset(seed=seed)
        board = env.step("up")[0].split("\n", 1)[1].replace("\n", " ").split(" ")
        ends[board.index("P") - 12] += 1
    assert set(ends) == {-5, -1, 1}
    assert abs(ends[-5] / 3000 - 0.7) < 0.04
    assert abs(ends[-1] / 3000 - 0.15) < 0.03
    assert abs(ends[1] / 3000 - 0.15) < 0.03


def test_a_slip_is_reported():
    env = make(tasks=[["FFF", "FSF", "FFG"]], slip_probability=1.0, max_turns=60)
    texts = set()
    for seed in range(20):
        env.reset(seed=seed)
        texts.add(env.step("up")[0].split("\n")[0])
    assert texts == {"You slipped left.", "You slipped right."}


def test_the_seed_of_an_episode_on_a_chosen_map_affects_only_the_slips():
    env = make(slip_probability=0.4, max_turns=30)
    runs = {}
    for seed in range(8):
        first, _ = env.reset(seed=seed, options={"task": 5})
        runs[seed] = (first, tuple(env.step(env.oracle().action)[0] for _ in range(2)))
    assert len({first for first, _ in runs.values()}) == 1
    assert len({moves for _, moves in runs.values()}) > 1


# The oracle


def test_the_oracle_walks_the_shortest_path():
    for size, index in itertools.product((2, 4, 7, 10), range(40)):
        env = make(size=size)
        _, info = env.reset(options={"task": index})
        length = info["distance"]
        assert length == env.task.data["path_length"]
        for turn in range(1, length + 1):
            advice = env.oracle()
            assert advice.success == 1.0
            assert advice.regret[advice.action] == 0.0
            _, _, terminated, _, info = env.step(advice.action)
            assert info["regret"] == 0.0
            assert info["distance"] == length - turn
        assert terminated
        assert info["success"]


def test_regret_is_the_lost_probability_of_success():
    env = make(tasks=[OPEN], max_turns=5)
    env.reset(seed=0)
    assert env.oracle().regret == {"left": 0.0, "down": 0.0, "right": 0.0, "up": 0.0}  # one turn more than needed
    assert env.step("nonsense")[4]["regret"] == 0.0
    assert env.oracle().regret == {"left": 1.0, "down": 0.0, "right": 0.0, "up": 1.0}
    assert env.step("left")[4]["regret"] == 1.0  # now four moves do not fit into three turns
    assert env.step("nonsense")[4]["regret"] == 0.0
    env.reset(seed=0)
    env.step("right")
    assert env.step("down")[4]["regret"] == 1.0
    with pytest.raises(ResetNeeded):
        env.oracle()


def test_on_slippery_ice_the_oracles_value_is_its_success_rate():
    """The value of the start equals the success rate of the oracle, and no other fixed policy beats it."""
    env = make(tasks=[["SFFF", "FHFH", "FFFF", "HFFG"]], slip_probability=0.3, max_turns=16)
    env.reset(seed=0)
    promised = env.oracle().success
    assert 0.5 < promised < 0.95
    wins = greedy = 0
    for seed in range(1500):
        for by_regret in (True, False):
            env.reset(seed=seed)
            over = False
            while not over:
                move = env.oracle().action if by_regret else shortest_move(env)
                _, reward, terminated, truncated, _ = env.step(move)
                over = terminated or truncated
            if by_regret:
                wins += reward
            else:
                greedy += reward
    assert abs(wins / 1500 - promised) < 0.04
    assert greedy < wins


def shortest_move(env: FrozenLakeEnv) -> str:
    lake = env._lake
    after = lake.after[env._player]
    names = ("left", "down", "right", "up")
    return min((lake.distances[cell], name) for cell, name in zip(after, names) if lake.distances[cell] >= 0)[1]


def test_values_equal_a_naive_recursion():
    rows, slip, horizon = ["SFH", "FFF", "HFG"], 0.3, 6
    lake = parse_map(rows)

    @cache
    def value(cell: int, left: int) -> float:
        if lake.cells[cell] in "GH" or left == 0:
            return float(lake.cells[cell] == "G")
        return max(action_value(cell, left, move) for move in range(4))

    def action_value(cell: int, left: int, move: int) -> float:
        after = lake.after[cell]
        sideways = (1, 3) if move in (0, 2) else (0, 2)
        return (1 - slip) * value(after[move], left - 1) + sum(slip / 2 * value(after[s], left - 1) for s in sideways)

    env = make(tasks=[rows], slip_probability=slip, max_turns=horizon)
    env.reset(seed=0)
    advice = env.oracle()
    assert advice.success == pytest.approx(value(0, horizon))
    for move, name in enumerate(("left", "down", "right", "up")):
        assert advice.regret[name] == pytest.approx(advice.success - action_value(0, horizon, move))


def test_the_optimal_success_rate_of_a_slippery_map_is_above_one_half():
    for kwargs in ({"slip_probability": 0.2}, {"slip_probability": 2 / 3, "max_turns": 60}):
        env = make(**kwargs)
        for index in range(60):
            env.reset(options={"task": index})
            assert env.oracle().success > 0.5, (kwargs, index)


# User-defined maps


def test_user_maps_in_every_format(tmp_path):
    text = "SFF\nFHF\nFFG"
    path = tmp_path / "maps.jsonl"
    path.write_text(json.dumps({"map": OPEN, "task_id": "mine"}) + "\n" + json.dumps({"map": text.replace("H", "F")}))
    for tasks in (
        [OPEN],
        [text],
        [{"map": OPEN}],
        [{"map": text}],
        [Task("mine", text)],
        str(path),
        make(tasks=[OPEN]).tasks,
    ):
        env = make(tasks=tasks, rules=False)
        observation, _ = env.reset(options={"task": 0})
        assert observation == "P _ _\n_ O _\n_ _ G"
        assert env.tasks[0].content == text
    assert make(tasks=str(path)).tasks.find("mine").content == text
    large = "S" + "F" * 7 + "\n" + "\n".join(["F" * 8] * 6) + "\n" + "F" * 7 + "G"
    assert gymnasium.make("rllm/FrozenLake8x8-v0", tasks=[large]).reset()[1]["distance"] == 14
    env = make(tasks=[OPEN])
    other_task = Task("other", "SG")
    assert env.reset(options={"task": other_task})[0].endswith("P G")


def test_an_invalid_map_is_refused_with_its_name():
    cases = [
        ([["SF", "HF"]], "exactly one goal"),
        ([["SG", "SF"]], "exactly one start"),
        ([["SFF", "HG"]], "same number of cells"),
        ([["SHG"]], "no path from S to G"),
        ([["SxG"]], "['x']"),
        ([OPEN, {"map": ["S"]}], "row 1"),
        ([{"map": []}], "same number of cells"),
        ([{"map": [3]}], "list of rows"),
        ([{"map": None}], "'map'"),
        ([{"maps": OPEN}], "'map' is missing"),
        ([["S" + "F" * 30 + "G"]], "maximum is 20"),
        ([], "empty"),
    ]
    assert_all_raise(TaskError, lambda tasks: make(tasks=tasks), cases, plain=True)


def test_a_map_that_cannot_be_solved_in_time_is_refused():
    with pytest.raises(TaskError, match="shortest path has 4 moves"):
        make(tasks=[OPEN], max_turns=3)
    with pytest.raises(TaskError, match=r"must be above 0\.5"):
        make(tasks=[["SFFFFF", "HHHHHG"]], slip_probability=0.5)
    env = make(tasks=[OPEN], max_turns=4)
    with pytest.raises(TaskError, match="max_turns=4"):
        env.reset(options={"task": Task("far", "SFFFFG")})


def test_invalid_arguments_are_refused_with_a_reason():
    cases = [
        {"size": 1},
        {"size": 11},
        {"size": 4.0},
        {"p_frozen": 0},
        {"p_frozen": ()},
        {"p_frozen": (0.5, 1.5)},
        {"slip_probability": -0.1},
        {"slip_probability": 1.1},
        {"start": "middle"},
        {"goal": "corners"},
        {"difficulty": "extreme"},
        {"difficulty": "easy", "min_path": 3},
        {"difficulty": 3},
        {"difficulty": (3, 4, 5)},
        {"difficulty": (5, 3)},
        {"min_path": 5, "max_path": 4},
        {"min_path": 11, "max_turns": 10},
        {"max_turns": 0},
        {"view": "map"},
        {"window_size": 4},
        {"window_size": 1},
        {"symbols": "PPOG"},
        {"symbols": "P_O"},
        {"symbols": {"lava": "L"}},
        {"symbols": {"hole": "oo"}},
        {"symbols": {"hole": " "}},
        {"split": "dev"},
        {"num_tasks": 0},
        {"tasks": [OPEN], "size": 5},
        {"tasks": [OPEN], "difficulty": "easy"},
        {"start": "corner", "goal": "corner", "max_turns": 5},
        {"size": 2, "difficulty": "hard"},
    ]
    long_message = r"(?s).{21}"
    assert_all_raise(ValueError, lambda case: make(**case).reset(seed=0), [(case, long_message) for case in cases])


def test_an_argument_that_is_not_a_number_is_refused_with_its_name():
    names = ("size", "max_turns", "min_path", "max_path", "num_tasks")
    cases = [
        ({name: value}, f"{name}={value!r} must be a whole number")
        for name, value in itertools.product(names, ("5", 2.5, True, 0))
    ]
    cases.append(({"p_frozen": "0.8"}, "p_frozen='0.8' must be a number"))
    assert_all_raise(ValueError, lambda arguments: make(**arguments), cases, plain=True)


# The contract


def test_the_contract_holds_for_other_arguments():
    for kwargs in (
        {},
        {"view": "window", "rules": False, "max_turns": 10, "p_frozen": [0.5, 0.65, 0.8]},
        {"view": "neighbours", "slip_probability": 0.3, "invalid_action_penalty": 0.1},
        {"size": 10, "difficulty": "medium", "split": "test"},
        {"max_turns": 1},
        {"tasks": [OPEN, {"map": ["SG"]}]},
    ):

        def factory(render_mode: str | None = None, kwargs: dict = kwargs) -> gymnasium.Env:
            return gymnasium.make("rllm/FrozenLake-v0", render_mode=render_mode, disable_env_checker=True, **kwargs)

        solvable = kwargs.get("max_turns") != 1
        report = check_text_env(factory, oracle=(lambda env: env.oracle().action) if solvable else None)
        assert report.ok, (kwargs, report)
    assert rllm_gym.__version__


def test_arguments_survive_the_json_of_the_spec():
    env = gymnasium.make("rllm/FrozenLake-v0", p_frozen=(0.5, 0.8), symbols={"hole": "X"}, tasks=None)
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=4)[0] == env.reset(seed=4)[0]


def test_a_state_with_an_impossible_position_is_refused():
    env = make()
    env.reset(seed=11)
    state = json.loads(env.get_state())
    state["env_state"]["player"] = 99
    with pytest.raises(ValueError, match="position 99"):
        env.set_state(json.dumps(state).encode())
