"""Multi-task suites: sampling weights, reproducibility, and curricula that follow success."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from vector_environments import Counting, Echo, Picture

from rllm_gym.vector import LevelCurriculum, MultiTaskVectorEnv, SuccessCurriculum, WeightedEnv

LAKE, MATH = "rllm/FrozenLake-v0", "rllm/Math-v0"
SUITE = {LAKE: 2.0, "large": WeightedEnv("rllm/FrozenLake8x8-v0", 1.0, {"max_turns": 2}), MATH: 1.0}


@pytest.fixture
def suite():
    created = []

    def make(num_envs=3, envs=SUITE, **kwargs):
        created.append(MultiTaskVectorEnv(num_envs, envs=envs, **kwargs))
        return created[-1]

    yield make
    for item in created:
        item.close()


def play(envs, turns, seed=0, actions=("```down```", "\\boxed{3}", "```right```", "```up```")):
    observations, infos = envs.reset(seed=seed)
    shown = [(observations, infos["env_name"].tolist())]
    for turn in range(turns):
        result = envs.step([actions[(turn + index) % len(actions)] for index in range(envs.num_envs)])
        shown.append((*(list(item) for item in result[:4]), result[4]["env_name"].tolist()))
    return shown


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_same_seeds_sample_the_same_tasks_with_every_worker_kind(suite, mode):
    def make(**kwargs):
        return suite(autoreset_mode=mode, curriculum=SuccessCurriculum(window=5), **kwargs)

    threads = make()
    shown = play(threads, 25)
    assert shown == play(make(workers="process"), 25)
    assert shown == play(make(), 25)
    assert shown != play(make(), 25, seed=100)
    assert len({name for *_, names in shown for name in names}) == 3


def test_weights_determine_sampling_frequencies(suite):
    envs = suite(
        8,
        {
            "a": WeightedEnv(Counting, 3.0, {"length": 1}),
            "b": WeightedEnv(Counting, 1.0, {"length": 1}),
            "c": WeightedEnv(Counting, 0),
        },
    )
    counts = Counter()
    _, infos = envs.reset(seed=0)
    for _ in range(400):
        counts.update(infos["env_name"])
        *_, infos = envs.step(["x"] * 8)
    assert set(counts) == {"a", "b"}
    assert 0.70 < counts["a"] / counts.total() < 0.80


def test_each_episode_belongs_to_the_environment_in_its_info(suite):
    envs = suite(
        4,
        {
            "one": WeightedEnv(Counting, kwargs={"mark": "1:", "length": 2}),
            "two": WeightedEnv(Counting, kwargs={"mark": "2:", "length": 3}),
        },
        autoreset_mode="SameStep",
    )
    observations, infos = envs.reset(seed=3)
    mark = {"one": "1:", "two": "2:"}
    for _ in range(20):
        for text, name in zip(observations, infos["env_name"]):
            assert text.startswith(mark[name])
        before = infos["env_name"]
        observations, _, terminated, _, infos = envs.step(["x"] * 4)
        for index in np.flatnonzero(terminated):
            assert infos["final_info"]["env_name"][index] == before[index]
            assert infos["final_obs"][index].startswith(mark[before[index]])
            assert infos["final_info"]["count"][index] == {"one": 2, "two": 3}[before[index]]


def test_spaces_are_those_of_the_longest_texts(suite):
    envs = suite(2, {"short": WeightedEnv(Counting), "long": WeightedEnv(Echo)})
    assert envs.single_observation_space.max_length == 100_000
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    with pytest.raises(RuntimeError, match="are incompatible"):
        MultiTaskVectorEnv(2, envs={"text": WeightedEnv(Counting), "picture": WeightedEnv(Picture)})


def test_more_environments_than_slots(suite):
    envs = suite(1, [LAKE, MATH, "rllm/FrozenLake8x8-v0"])
    names = set()
    for seed in range(30):
        names.update(envs.reset(seed=seed)[1]["env_name"])
    assert names == {LAKE, MATH, "rllm/FrozenLake8x8-v0"}


def test_a_fault_names_its_environment_and_does_not_change_the_curriculum(suite):
    curriculum = SuccessCurriculum()
    envs = suite(2, {"only": WeightedEnv(Counting)}, curriculum=curriculum)
    envs.reset(seed=0)
    *_, truncated, infos = envs.step(["fault", "done"])
    assert truncated.tolist() == [True, False]
    assert infos["env_name"].tolist() == ["only", "only"]
    assert curriculum.state_dict() == {"results": {"only": [0]}}


def test_invalid_arguments_are_errors_that_name_them():
    with pytest.raises(ValueError, match="empty"):
        MultiTaskVectorEnv(2, envs={})
    with pytest.raises(ValueError, match=r"-1\.0"):
        MultiTaskVectorEnv(2, envs={"a": WeightedEnv(Counting, -1.0)})
    with pytest.raises(ValueError, match="every weight is 0"):
        MultiTaskVectorEnv(2, envs={"a": WeightedEnv(Counting, 0.0)})
    with pytest.raises(ValueError, match="nan"):
        MultiTaskVectorEnv(2, envs={LAKE: float("nan")})


def test_a_single_id_is_an_error():
    with pytest.raises(TypeError, match="TextVectorEnv"):
        MultiTaskVectorEnv(2, envs=LAKE)


# Curricula


def test_tasks_with_half_success_are_sampled_most_often():
    curriculum = SuccessCurriculum(target=0.5, window=20, floor=0.1)
    names = ["hopeless", "learning", "mastered", "new"]
    assert len(set(curriculum.weights(names).values())) == 1
    for turn in range(40):
        curriculum.update("hopeless", False)
        curriculum.update("learning", turn % 2 == 0)
        curriculum.update("mastered", True)
    weights = curriculum.weights(names)
    assert weights["learning"] == weights["new"] == 1.0
    assert weights["hopeless"] == pytest.approx(weights["mastered"])
    assert 0.1 <= weights["hopeless"] < 0.2
    for _ in range(20):
        curriculum.update("hopeless", True)
    assert curriculum.success_rate("hopeless") > 0.9  # episodes before the window are ignored
    again = SuccessCurriculum(target=0.5, window=20, floor=0.1)
    again.load_state_dict(curriculum.state_dict())
    assert again.weights(names) == curriculum.weights(names)


def test_levels_are_unlocked_in_order():
    curriculum = LevelCurriculum(["easy", "medium", "hard"], promote_at=0.75, window=4, review=0.2)
    names = ["hard", "easy", "medium"]
    assert curriculum.weights(names) == {"easy": 1.0, "medium": 0.0, "hard": 0.0}
    for success in (True, True, True):
        curriculum.update("easy", success)
    assert curriculum.level == 0  # not enough episodes yet
    curriculum.update("easy", False)
    assert curriculum.level == 1
    assert curriculum.weights(names) == pytest.approx({"easy": 0.2, "medium": 0.8, "hard": 0.0})
    for _ in range(10):
        curriculum.update("easy", True)  # review episodes do not change the level
    assert curriculum.level == 1
    for _ in range(20):
        curriculum.update("medium", True)
        curriculum.update("hard", True)
    assert curriculum.level == 2
    assert curriculum.weights(names) == pytest.approx({"easy": 0.1, "medium": 0.1, "hard": 0.8})
    again = LevelCurriculum(["easy", "medium", "hard"])
    again.load_state_dict(curriculum.state_dict())
    assert again.level == 2
    with pytest.raises(ValueError, match="must be the names of"):
        curriculum.weights(["easy"])


def test_a_curriculum_changes_the_sampled_tasks(suite):
    envs = suite(
        4,
        {"easy": WeightedEnv(Echo, kwargs={"max_turns": 2}), "hard": WeightedEnv(Counting, kwargs={"length": 1})},
        curriculum=LevelCurriculum(["easy", "hard"], window=8, review=0.0),
        autoreset_mode="SameStep",
    )
    _, infos = envs.reset(seed=0)
    assert set(infos["env_name"]) == {"easy"}
    for _ in range(4):
        *_, infos = envs.step(["bye"] * 4)
    assert envs.curriculum.level == 1
    assert set(infos["env_name"]) == {"hard"}
