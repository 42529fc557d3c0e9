"""Our vector environments behave like Gymnasium's: compared with ``SyncVectorEnv`` step by step."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from vector_environments import AsyncEcho, Counting, Echo, Picture

import rllm_gym
from rllm_gym.core import TaskError
from rllm_gym.envs import MINIWOB, TABLE
from rllm_gym.vector import TextVectorEnv
from rllm_gym.vector.env_commands import EnvCommand

LAKE = "rllm/FrozenLake-v0"
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
KINDS = ["thread", "process"]
# Where the kind of worker matters least, processes are tested only in `make test-long`.
MOSTLY_THREADS = ["thread", pytest.param("process", marks=pytest.mark.long)]
MOVES = ["```up```", "```down```", "```left```", "I go ```right```", "neither here nor there", "", "\ud800 🧊"]
assert rllm_gym.__version__


def assert_same(ours, theirs):
    assert ours[0] == theirs[0]
    for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
        assert mine.dtype == other.dtype
        assert mine.tolist() == other.tolist()
    assert data_equivalence(ours[4], theirs[4]), (ours[4], theirs[4])


def dones(result):
    return result[2] | result[3]


# Equality with Gymnasium


@pytest.mark.parametrize(
    ("env_id", "replies", "kind"),
    [
        (LAKE, MOVES, "thread"),
        (LAKE, MOVES, "process"),
        ("rllm/FrozenLake-Slippery-v0", MOVES, "thread"),
        ("rllm/Math-v0", ["\\boxed{4}", "4", "\x00"], "thread"),
    ],
)
def test_every_step_equals_gymnasiums(vector, env_id, replies, kind):
    for mode in MODES:
        assert_every_step_the_same(vector, env_id, replies, kind, mode)


def assert_every_step_the_same(vector, env_id, replies, kind, mode):
    count = 4
    ours = vector(count, env_id, workers=kind, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: gymnasium.make(env_id)] * count, autoreset_mode=mode)
    assert ours.num_envs == theirs.num_envs
    for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.metadata == theirs.metadata
    first, expected = ours.reset(seed=7), theirs.reset(seed=7)
    assert first[0] == expected[0]
    assert first[0] in ours.observation_space
    assert data_equivalence(first[1], expected[1])
    random = np.random.default_rng(0)
    ended = 0
    for _ in range(60):
        actions = [replies[int(i)] for i in random.integers(len(replies), size=count)]
        mine, other = ours.step(actions), theirs.step(actions)
        assert_same(mine, other)
        over = dones(mine)
        ended += over.sum()
        if mode is AutoresetMode.DISABLED and over.any():
            mask = {"reset_mask": over}
            again = ours.reset(options=mask)
            assert "reset_mask" in mask  # the caller's dictionary is not modified
            expected = theirs.reset(options={"reset_mask": over})
            assert again[0] == expected[0]
            assert data_equivalence(again[1], expected[1])
    assert ended > 10
    theirs.close()


@pytest.mark.parametrize("kind", KINDS)
def test_with_next_step_autoreset_the_step_after_the_end_resets(vector, kind):
    envs = vector(workers=kind, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.set_attr("length", [2, 3, 3])
    first, _ = envs.reset(seed=0)
    rewards, ends = [], []
    for _ in range(5):
        observations, reward, terminated, truncated, infos = envs.step(["a", "b", "c"])
        rewards.append(reward.tolist())
        ends.append(terminated.tolist())
        assert not truncated.any()
        assert infos["count"].tolist() == [int(text.partition("/")[2]) for text in observations]
    assert rewards == [[1, 1, 1], [2, 2, 2], [0, 3, 3], [1, 0, 0], [2, 1, 1]]
    assert ends == [[False] * 3, [True, False, False], [False, True, True], [False] * 3, [True, False, False]]
    assert "final_obs" not in infos
    assert observations[0].partition("/")[0] != first[0].partition("/")[0]  # random numbers continued


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_with_same_step_autoreset_final_values_are_in_info(vector, kind):
    envs = vector(workers=kind, autoreset_mode="SameStep")
    envs.set_attr("length", [2, 3, 3])
    envs.reset(seed=0)
    assert "final_obs" not in envs.step(["a", "b", "c"])[4]
    observations, rewards, terminated, _, infos = envs.step(["a", "b", "c"])
    assert [text.partition("/")[2] for text in observations] == ["0", "2", "2"]
    assert rewards.tolist() == [2, 2, 2]
    assert terminated.tolist() == [True, False, False]
    assert infos["final_obs"][0].endswith("/2")
    assert infos["final_obs"][1] is None
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, False, False]
    assert infos["final_info"]["echo"][0] == "a"
    assert infos["count"].tolist() == [0, 2, 2]
    observations, *_, infos = envs.step(["a", "b", "c"])
    assert [text.partition("/")[2] for text in observations] == ["1", "0", "0"]
    assert infos["_final_obs"].tolist() == [False, True, True]


def test_without_autoreset_the_caller_resets(vector):
    envs = vector(autoreset_mode="Disabled")
    envs.set_attr("length", [1, 3, 3])
    envs.reset(seed=0)
    *_, terminated, _, _ = envs.step(["a", "b", "c"])
    with pytest.raises(ResetNeeded, match=r"environment 0 is over.*reset_mask"):
        envs.step(["a", "b", "c"])
    observations, infos = envs.reset(options={"reset_mask": terminated})
    assert [text.partition("/")[2] for text in observations] == ["0", "1", "1"]
    assert infos["_count"].tolist() == [True, False, False]
    assert envs.step(["a", "b", "c"])[1].tolist() == [1, 2, 2]


def test_the_mode_is_in_the_metadata(vector):
    for mode in MODES:
        for values in (mode, mode.value):
            assert vector(1, autoreset_mode=values).metadata["autoreset_mode"] is mode, values
    assert "autoreset_mode" not in Counting.metadata  # the class attribute is unchanged


# Seeds and options


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_seeds_are_one_number_or_one_per_environment(vector, kind):
    envs = vector(workers=kind)
    one, _ = envs.reset(seed=5)
    item, _ = envs.reset(seed=[5, 6, 7])
    assert one == item == envs.reset(seed=np.array([5, 6, 7]))[0] == envs.reset(seed=np.int64(5))[0]
    assert len(set(one)) == 3
    assert envs.np_random_seed == (5, 6, 7)
    unseeded, _ = envs.reset()
    assert unseeded != one
    assert envs.np_random_seed == (5, 6, 7)
    single = Counting()
    assert single.reset(seed=6)[0] == one[1]
    assert [random.bit_generator.state for random in envs.np_random][1] != single.np_random.bit_generator.state
    with pytest.raises(ValueError, match="must match num_envs=3 but got length=2"):
        envs.reset(seed=[1, 2])
    with pytest.raises(TypeError, match="environment 1"):
        envs.reset(seed=[1, "2", 3])


def test_a_masked_reset_does_not_change_the_others(vector):
    envs = vector()
    envs.reset(seed=0)
    before = envs.step(["a"] * 3)[0]
    after, infos = envs.reset(seed=[8, 9, 10], options={"reset_mask": np.array([False, True, False])})
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] == vector().reset(seed=[8, 9, 10])[0][1]
    assert infos["_count"].tolist() == [False, True, False]
    for mask, error in (
        ([True, False, True], TypeError),
        (np.array([True]), ValueError),
        (np.array([[True, True, True]]), ValueError),
        (np.array([1, 0, 1]), TypeError),
        (np.array([False] * 3), ValueError),
    ):
        with pytest.raises(error, match="reset_mask") as ours:
            envs.reset(options={"reset_mask": mask})
        with pytest.raises(error) as gymnasiums:
            SyncVectorEnv([Counting] * 3).reset(options={"reset_mask": mask})
        assert str(ours.value) == str(gymnasiums.value)
    assert envs.step(["a"] * 3)[1].tolist() == [2, 1, 2]


def test_the_first_reset_must_include_all_environments(vector):
    with pytest.raises(ResetNeeded, match="not reset yet: environment 2"):
        vector().reset(options={"reset_mask": np.array([True, True, False])})
    with pytest.raises(ResetNeeded, match="reset"):
        vector().step(["a"] * 3)


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_options_are_for_all_or_one_per_environment(vector, kind):
    envs = vector(3, LAKE, workers=kind)
    (everyone,) = set(envs.reset(seed=0, options={"task": 4})[1]["task_id"])
    ids = envs.reset(seed=0, options={"task": [4, 1, 2]})[1]["task_id"].tolist()
    assert ids[0] == everyone
    assert len(set(ids)) == 3
    for options in (
        {"task": np.array([4, 1, 2])},
        {"task": tuple(ids)},
        [{"task": 4}, {"task": 1}, {"task": ids[2]}],
    ):
        assert envs.reset(seed=0, options=options)[1]["task_id"].tolist() == ids
    some = envs.reset(seed=0, options=[{"task": 4}, None, {}])[1]["task_id"].tolist()
    assert some[0] == ids[0]
    assert some[1:] == envs.reset(seed=0)[1]["task_id"].tolist()[1:]
    mask = np.array([False, True, False])
    envs.reset(seed=0, options={"task": [9, 4, 9], "reset_mask": mask})
    with pytest.raises(ValueError, match=r"options\['task'\] has 2 entries for 3"):
        envs.reset(options={"task": [1, 2]})
    with pytest.raises(ValueError, match="options has 1 entries"):
        envs.reset(options=[{"task": 1}])


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_an_unknown_task_raises_in_the_caller(vector, kind):
    envs = vector(3, LAKE, workers=kind)
    envs.reset(seed=0)
    with pytest.raises(TaskError):
        envs.reset(options={"task": ["no such task", 1, 2]})
    with pytest.raises(ResetNeeded, match="environment 0"):
        envs.step(["up"] * 3)
    assert len(envs.reset(seed=0)[0]) == 3
    assert envs.step(["up"] * 3)[1].shape == (3,)
    assert not envs.stats.faults


# Actions, observations, infos


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_is_passed_unchanged(vector, kind):
    texts = [
        "",
        "\x00",
        "a\x00",
        "\ud800",
        "\udcff\ud83d",
        "🧊",
        "e\u0301",
        "日本\u202e",
        "<|im_start|>",
        "x" * 100_000,
        "\r\n",
    ]
    envs = vector(len(texts), Echo, workers=kind)
    envs.reset(seed=0)
    observations, rewards, *_ = envs.step(texts)
    assert observations == tuple(texts)
    assert observations in envs.observation_space
    assert rewards.tolist() == [len(text) for text in texts]


def test_actions_are_any_sequence_of_strings(vector):
    envs = vector(2, Echo, max_turns=100)
    envs.reset(seed=0)
    for actions in (
        ["up", "downwards"],
        ("up", "downwards"),
        np.array(["up", "downwards"]),
        np.array(["up", "downwards"], dtype=object),
        iter(["up", "downwards"]),
    ):
        observations, *_ = envs.step(actions)
        assert observations == ("up", "downwards")
        assert [type(text) for text in observations] == [str, str]
    with pytest.raises(TypeError, match="one str"):
        envs.step("up")
    with pytest.raises(TypeError, match="action 1 must be a str"):
        envs.step(["up", 1])
    with pytest.raises(TypeError, match="bytes"):
        envs.step([b"up", b"down"])
    with pytest.raises(ValueError, match="got 1 actions for 2"):
        envs.step(["up"])
    with pytest.raises(ValueError, match="got 3 actions for 2"):
        envs.step(["up"] * 3)
    assert envs.step(envs.action_space.sample())[0] in envs.observation_space  # none of this changed anything


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_batched_with_texts(vector, kind):
    envs = vector(3, Picture, workers=kind, autoreset_mode="SameStep")
    theirs = SyncVectorEnv([Picture] * 3, autoreset_mode="SameStep")
    observations, _ = envs.reset(seed=0)
    theirs.reset(seed=0)
    assert observations in envs.observation_space
    kept = observations["image"]
    for _ in range(2):
        observations, *_, infos = envs.step(["a"] * 3)
        expected, *_, other = theirs.step(["a"] * 3)
        assert observations["text"] == expected["text"]
        assert np.array_equal(observations["image"], expected["image"])
        assert observations["image"].dtype == np.uint8
    assert infos["final_obs"][1]["text"] == other["final_obs"][1]["text"] == "seen 2"
    assert kept.max() == 0  # returned arrays are never overwritten
    observations, *_, infos = envs.step(["a", "fault", "a"])
    assert observations in envs.observation_space
    assert infos["final_obs"][1]["image"].shape == (2, 3)


def test_results_are_not_overwritten_later(vector):
    envs = vector()
    envs.reset(seed=0)
    first = envs.step(["a"] * 3)
    copies = [np.copy(first[1]), np.copy(first[4]["count"])]
    envs.step(["a"] * 3)
    assert np.array_equal(first[1], copies[0])
    assert np.array_equal(first[4]["count"], copies[1])


# Construction


def test_make_vec_uses_our_class_for_every_id():
    for env_id in TABLE | MINIWOB:
        spec = EnvSpec.from_json(gymnasium.spec(env_id).to_json())
        maker = load_env_creator(spec.vector_entry_point)
        assert (maker.func, maker.keywords) == (TextVectorEnv, {"env_id": env_id})


def test_make_vec_uses_our_class_by_default():
    for env_id in ("rllm/FrozenLake8x8-v0", "rllm/MathMultiTurn-v0", "rllm/ToolMath-v0", "rllm/SWE-v0"):
        envs = gymnasium.make_vec(env_id, num_envs=2)
        try:
            assert type(envs) is TextVectorEnv, env_id
            assert envs.spec.id == env_id
            assert repr(envs) == f"TextVectorEnv({env_id}, num_envs=2)"
            observations, infos = envs.reset(seed=1)
            single = gymnasium.make(env_id)
            assert single.reset(seed=2)[0] == observations[1], env_id
            assert infos["tools"].dtype == object, env_id
            single.close()
        finally:
            envs.close()


def test_make_vec_passes_arguments_to_environments_and_vector_environment(vector):
    envs = gymnasium.make_vec(LAKE, num_envs=3, workers="process", autoreset_mode="SameStep", size=5)
    board = envs.reset(seed=0)[0][0].splitlines()[2:]
    assert [len(row.split()) for row in board] == [5] * 5
    spec = EnvSpec.from_json(envs.spec.to_json())
    envs.close()
    again = gymnasium.make_vec(spec)
    try:
        assert (again.num_envs, again.metadata["autoreset_mode"]) == (3, AutoresetMode.SAME_STEP)
        assert again.reset(seed=0)[0][0].splitlines()[2:] == board
        assert again.spec.to_json() == spec.to_json()
    finally:
        again.close()
    direct = vector(2, LAKE, autoreset_mode="Disabled", max_episode_steps=3, size=5)
    remade = gymnasium.make_vec(EnvSpec.from_json(direct.spec.to_json()))
    try:
        assert remade.num_envs == 2
        assert remade.metadata == direct.metadata
        assert remade.reset(seed=0)[0] == direct.reset(seed=0)[0]
    finally:
        remade.close()
    for mode, kind in (("sync", SyncVectorEnv), ("async", gymnasium.vector.AsyncVectorEnv)):
        kwargs = {"vector_kwargs": {"shared_memory": False}} if mode == "async" else {}
        gymnasiums = gymnasium.make_vec(LAKE, num_envs=1, vectorization_mode=mode, **kwargs)
        assert type(gymnasiums) is kind
        gymnasiums.close()
    # Gymnasium's shared memory of characters would return letters "a" silently.
    with pytest.raises(ValueError, match="shared_memory=False") as refused:
        gymnasium.make_vec(LAKE, num_envs=1, vectorization_mode="async")
    assert "any Unicode" in str(refused.value.__cause__)


def test_construction_errors_are_raised_immediately():
    for kwargs, error, text in (
        ({"num_envs": 0}, ValueError, "num_envs=0"),
        ({"num_envs": 2.0}, ValueError, r"num_envs=2\.0"),
        ({"workers": "fiber"}, ValueError, "'thread', 'process', 'asyncio', 'ray'"),
        ({"autoreset_mode": "Sometimes"}, ValueError, "Sometimes"),
        ({"deadlines": {"stop": 1.0}}, ValueError, r"unknown deadline\(s\) \['stop'\]"),
        ({"deadlines": {"step": 0}}, ValueError, "step=0"),
        ({"deadlines": {"step": float("inf")}}, ValueError, "finite"),
        ({"deadlines": 5}, TypeError, "deadlines=5 must be a mapping"),
        ({"env_wrappers": gymnasium.wrappers.TimeLimit}, TypeError, "env_wrappers=.*TimeLimit.* must be a sequence"),
        ({"no_such": 1}, TypeError, "no_such"),
        ({"env_id": "rllm/NoSuch-v0"}, gymnasium.error.Error, "NoSuch"),
        ({"env_id": 3}, TypeError, "int"),
        ({"max_turns": 0}, ValueError, "max_turns"),
        ({"workers": "process", "max_turns": 0}, ValueError, "max_turns"),
        ({"workers": "asyncio"}, TypeError, "use workers='thread'"),
    ):
        with pytest.raises(error, match=text):
            TextVectorEnv(**{"num_envs": 2, "env_id": LAKE} | kwargs)


def test_all_environments_must_have_the_same_spaces(tmp_path):
    sizes = iter([10, 11])

    def make():
        env = Counting()
        env.observation_space = type(env.observation_space)(next(sizes))
        return env

    with pytest.raises(RuntimeError, match="environment 1 has the spaces"):
        TextVectorEnv(2, env_id=make)


# Wrappers, time limit, calls


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_the_step_limit_truncates(vector, kind):
    envs = vector(2, LAKE, workers=kind, max_episode_steps=2, max_turns=50)
    envs.reset(seed=0)
    assert not envs.step(["nothing"] * 2)[3].any()
    *_, terminated, truncated, infos = envs.step(["nothing"] * 2)
    assert truncated.all()
    assert not terminated.any()
    assert infos["stop_reason"].tolist() == ["", ""]  # not the environment's own limit
    assert envs.step(["nothing"] * 2)[4]["turn"].tolist() == [0, 0]


def shout(env):
    return gymnasium.wrappers.TransformObservation(env, str.upper, env.observation_space)


@pytest.mark.parametrize("kind", MOSTLY_THREADS)
def test_wrappers_are_applied_to_each_environment(vector, kind):
    envs = vector(2, Echo, workers=kind, env_wrappers=[shout, rllm_gym.MessageHistory])
    first, _ = envs.reset(options={"task": [0, 1]})
    assert first[1] == '[{"role": "user", "content": "TASK-1"}]'
    assert envs.single_observation_space.max_length == 10_000_000
    observations, *_ = envs.step(["hello", "you"])
    assert observations[0].endswith('{"role": "assistant", "content": "hello"}, {"role": "user", "content": "HELLO"}]')


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_gymnasiums_vector_wrappers_work(vector, mode):
    count = 3
    ours = RecordEpisodeStatistics(vector(count, LAKE, autoreset_mode=mode))
    theirs = RecordEpisodeStatistics(SyncVectorEnv([lambda: gymnasium.make(LAKE)] * count, autoreset_mode=mode))
    ours.reset(seed=3)
    theirs.reset(seed=3)
    random = np.random.default_rng(1)
    for _ in range(60):
        actions = [MOVES[int(i)] for i in random.integers(4, size=count)]
        mine, other = ours.step(actions), theirs.step(actions)
        assert ("episode" in mine[4]) == ("episode" in other[4])
        if "episode" in mine[4]:
            assert mine[4]["episode"]["r"].tolist() == other[4]["episode"]["r"].tolist()
            assert mine[4]["episode"]["l"].tolist() == other[4]["episode"]["l"].tolist()
    assert list(ours.length_queue) == list(theirs.length_queue) != []
    theirs.close()
    listed = DictInfoToList(vector(2, LAKE))
    _, infos = listed.reset(seed=0)
    assert [set(info) for info in infos] == [{*infos[0]}] * 2


def test_statistics_of_a_masked_reset_cover_only_the_reset_environments(vector):
    envs = RecordEpisodeStatistics(vector(2, autoreset_mode="Disabled", length=2))
    envs.reset(seed=0)
    envs.step(["done", "a"])
    envs.reset(options={"reset_mask": np.array([True, False])})
    *_, infos = envs.step(["a", "a"])
    assert infos["episode"]["l"].tolist() == [0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_methods_and_attributes_of_each_environment(vector, kind):
    envs = vector(3, workers=kind, render_mode="ansi", mark="*")
    assert envs.render_mode == "ansi"
    envs.reset(seed=0)
    envs.set_attr("mark", ["a", "b", "c"])
    assert envs.get_attr("mark") == ("a", "b", "c")
    shown, *_ = envs.step(["x"] * 3)
    assert [text[0] for text in shown] == ["a", "b", "c"]
    assert envs.render() == tuple(f"<{text}>" for text in shown)
    assert envs.call("show") == shown
    envs.set_attr("mark", "z")
    envs.step(["x", "fault", "x"])
    shown, *_ = envs.step(["x"] * 3)
    assert [text[0] for text in shown] == ["z"] * 3  # also the one that replaced another
    with pytest.raises(ValueError, match="Got `2` values for 3"):
        envs.set_attr("mark", ["a", "b"])
    with pytest.raises(Exception, match="no_such"):
        envs.get_attr("no_such")


# Asynchronous calls


def test_asynchronous_calls_must_be_in_order(vector):
    envs = vector(2)
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.reset_async(seed=0)
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async(["a"] * 2)
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.reset_wait(timeout=60)
    envs.step_async(["a"] * 2)
    for method, arguments in ((envs.step_async, [["a"] * 2]), (envs.reset, []), (envs.call, ["show"]), (envs.recv, [])):
        with pytest.raises(AlreadyPendingCallError):
            method(*arguments)
    assert envs.step_wait(timeout=60)[1].tolist() == [1, 1]
    envs.close()
    envs.close()
    assert envs.closed
    for method, arguments in ((envs.step, [["a"] * 2]), (envs.reset, []), (envs.recv, []), (envs.send, [["a"] * 2])):
        with pytest.raises(ClosedEnvironmentError):
            method(*arguments)


def test_asynchronous_environments_are_awaited(vector):
    replies = ["hello", "???", "bye", "", "more"]
    ours, threads = (vector(3, AsyncEcho, workers=kind, max_episode_steps=3) for kind in ("asyncio", "thread"))
    plain = vector(3, Echo, max_episode_steps=3)
    for seed in (1, 2):
        first = [envs.reset(seed=seed, options={"task": [0, 1, 2]})[0] for envs in (ours, threads, plain)]
        assert first[0] == first[1] == first[2]
        for turn in range(8):
            actions = [replies[(turn + place) % 5] for place in range(3)]
            mine, others, third = (envs.step(actions) for envs in (ours, threads, plain))
            assert_same(mine, others)
            assert_same(mine, third)
    *_, truncated, infos = ours.step(["fault", "a", "a"])
    assert truncated[0]
    assert infos["fault_kind"][0] == "test"


def test_a_method_that_blocks_an_asynchronous_environment_in_a_thread_blocks_no_other(vector):
    opened = threading.Event()

    class Gated(AsyncEcho):
        def number_of(self, number):
            if number == 0:
                opened.wait()
            return number

        def open(self):
            opened.set()

    envs = vector(2, Gated, workers="thread", deadlines={"step": 240.0})
    envs.reset(seed=0)
    blocked, opens = ("number_of", (0,), {}), ("open", (), {})
    executor = envs._executor
    executor.submit([EnvCommand(index, "call", arguments=call) for index, call in enumerate((blocked, opens))])
    executor.wait(2, 240.0)
    assert sorted(result.index for result in executor.take()) == [0, 1]


def test_a_wrapper_that_changes_steps_is_not_bypassed():
    with pytest.raises(TypeError, match="MessageHistory, which changes reset or step; use workers='thread'"):
        TextVectorEnv(1, env_id=AsyncEcho, workers="asyncio", env_wrappers=[rllm_gym.MessageHistory])
