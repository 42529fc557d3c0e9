"""``send`` and ``recv``: order of results, waiting, deadlines, and isolation of faults."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from vector_environments import LONG, AsyncEcho, Counting, Gate, Unresettable

from rllm_gym.core import EnvironmentFault
from rllm_gym.vector import VectorTimeout
from tests.errors import raised

KINDS = ["thread", "process"]


def play(envs, policy, turns, *, min_envs=1, seed=0):
    """Step each environment ``turns`` times in order of completion; return the results of each in its own order."""
    envs.async_reset(seed=seed)
    seen = {index: [] for index in range(envs.num_envs)}
    under_way = envs.num_envs
    while under_way:
        received = envs.recv(min(min_envs, under_way), timeout=60)
        for place, index in enumerate(received.env_ids.tolist()):
            seen[index].append((received.observations[place], *(values[place].item() for values in received[1:4])))
        going_on = [index for index in received.env_ids.tolist() if len(seen[index]) <= turns]
        if going_on:
            envs.send([policy(index, len(seen[index])) for index in going_on], going_on)
        under_way += len(going_on) - len(received.env_ids)
    return seen


# Asynchronous order


@pytest.mark.parametrize("kind", [*KINDS, "asyncio"])
def test_a_slow_environment_blocks_no_other(vector, kind, tmp_path):
    envs = vector(4, AsyncEcho if kind == "asyncio" else Counting, workers=kind)
    envs.reset(seed=0)
    slow = Gate(tmp_path / "gate")
    envs.send([slow.action, "a", "a", "a"])
    turns = np.zeros(4, int)
    with slow:
        while turns.sum() < 30:
            received = envs.recv(timeout=60)
            assert len(received.observations) == len(received.rewards) == len(received.env_ids)
            turns[received.env_ids] += 1
            envs.send(["a"] * len(received.env_ids), received.env_ids)
        assert turns[0] == 0
    while turns[0] == 0:
        turns[envs.recv(timeout=60).env_ids] += 1


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_same_seeds_give_the_same_episodes_in_every_completion_order(vector, mode):
    random = np.random.default_rng(0)
    delays = random.uniform(0, 0.01, size=(4, 20))

    def policy(index, turn):
        return "fault" if (index, turn) == (1, 7) else f"sleep {delays[index, turn]:.4f}"

    def hasty(index, turn):
        return "fault" if (index, turn) == (1, 7) else "now"

    first = play(vector(4, autoreset_mode=mode), policy, 15)
    kind = "process" if mode == "NextStep" else "thread"
    assert first == play(vector(4, autoreset_mode=mode, workers=kind), hasty, 15, min_envs=3)
    assert first != play(vector(4, autoreset_mode=mode), policy, 15, seed=1)
    lockstep = vector(4, autoreset_mode=mode)
    seen = {index: [(text, 0.0, False, False)] for index, text in enumerate(lockstep.reset(seed=0)[0])}
    for turn in range(1, 16):
        texts, *values, _ = lockstep.step([hasty(index, turn) for index in range(4)])
        for index in range(4):
            seen[index].append((texts[index], *(value[index].item() for value in values)))
    assert seen == first


def test_recv_returns_a_steps_values_of_those_that_answered(vector):
    envs = vector(4)
    envs.async_reset([2, 0], seed=[7, 8])
    observations, rewards, terminated, truncated, infos = envs.recv(2, timeout=60)
    order = infos["env_id"].tolist()
    assert sorted(order) == [0, 2]
    expected = {2: 7, 0: 8}
    for place, index in enumerate(order):
        single = Counting()
        assert observations[place] == single.reset(seed=expected[index])[0]
    assert rewards.tolist() == [0, 0]
    assert not (terminated | truncated).any()
    assert infos["count"].shape == infos["_count"].shape == (2,)
    envs.async_reset([1, 3], seed=10)  # an integer counts from the environment's own index
    received = envs.recv(2, timeout=60)
    single = Counting()
    assert received.observations[received.env_ids.tolist().index(3)] == single.reset(seed=13)[0]
    envs.send(np.array(["x", "y"]), np.array([3, 1]))
    received = envs.recv(2, timeout=60)
    assert dict(zip(received.env_ids.tolist(), received.infos["echo"])) == {3: "x", 1: "y"}


def test_the_end_of_an_episode_is_as_in_step(vector):
    envs = vector(1)
    envs.async_reset(seed=0)
    envs.recv()
    envs.send(["done"])
    assert envs.recv().terminations.tolist() == [True]
    envs.send(["not looked at"])
    received = envs.recv()
    assert received.rewards.tolist() == [0]
    assert not received.terminations[0]
    assert received.observations[0].endswith("/0")
    same = vector(1, autoreset_mode="SameStep")
    same.async_reset(seed=0)
    same.recv()
    same.send(["done"])
    received = same.recv()
    assert received.infos["final_obs"][0].endswith("/1")
    assert received.observations[0].endswith("/0")
    disabled = vector(1, autoreset_mode="Disabled")
    disabled.async_reset(seed=0)
    disabled.recv()
    disabled.send(["done"])
    disabled.recv()
    with pytest.raises(ResetNeeded, match="environment 0"):
        disabled.send(["a"])
    disabled.async_reset([0], options={"task": ["mine"]})
    assert disabled.recv().infos["task"].tolist() == ["mine"]


def test_invalid_calls_raise_and_change_nothing(vector):
    envs = vector(3)
    with pytest.raises(ResetNeeded):
        envs.send(["a"] * 3)
    envs.async_reset(seed=0)
    with pytest.raises(AlreadyPendingCallError, match="recv"):
        envs.step(["a"] * 3)
    with pytest.raises(AlreadyPendingCallError, match="environments 0, 1, 2"):
        envs.async_reset()
    envs.recv(3, timeout=60)
    with pytest.raises(NoAsyncCallError, match="0 of 3"):
        envs.recv()
    for ids in ([0, 0], [3], [-1]):
        with pytest.raises(ValueError, match="env_ids"):
            envs.send(["a"] * len(ids), ids)
    for ids in (np.array([False, True, True]), [0.5], ["1"], 1):
        with pytest.raises(TypeError, match="env_ids"):
            envs.send(["a"], ids)
    with pytest.raises(ValueError, match="got 1 actions for 2"):
        envs.send(["a"], [0, 1])
    for least in (0, 1.5, True, None):
        with pytest.raises(ValueError, match=f"min_envs={least}"):
            envs.recv(least)
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout="):
            envs.recv(1, seconds)
    envs.send(["a"], [1])
    with pytest.raises(NoAsyncCallError, match="1 of 3"):
        envs.recv(2)
    assert envs.recv(1, timeout=60).env_ids.tolist() == [1]
    assert envs.step(["a"] * 3)[1].tolist() == [1, 2, 1]


# Deadlines


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_that_times_out_loses_no_result(vector, kind, tmp_path):
    envs = vector(4, workers=kind)
    envs.reset(seed=0)
    one, other = Gate(tmp_path / "one"), Gate(tmp_path / "other")
    envs.step_async(["a", one.action, "a", other.action])
    with one, other:
        for _ in range(2):
            wait_for_all_but(envs, "environments 1, 3 did not finish step within")
        with pytest.raises(TimeoutError):
            envs.step_wait(timeout=0.1)
    assert envs.step_wait(timeout=60)[1].tolist() == [1, 1, 1, 1]
    gate = Gate(tmp_path / "gate")
    envs.send(["b", gate.action, "b"], [0, 1, 2])
    with gate:
        output = ""
        while "environment 1 did not" not in output:  # the two others have answered at the end
            with pytest.raises(VectorTimeout) as caught:
                envs.recv(3, timeout=0.1)
            output = str(caught.value)
    received = envs.recv(3, timeout=60)
    assert sorted(received.env_ids) == [0, 1, 2]
    assert received.rewards.tolist() == [2, 2, 2]


def wait_for_all_but(envs, those):
    """Wait for a step until only ``those`` are pending, according to the error message of the wait."""
    output = ""
    while those not in output:
        with pytest.raises(VectorTimeout) as caught:
            envs.step_wait(timeout=0)
        output = str(caught.value)


class Slow(Counting):
    """Its steps may take an hour, if the model so chooses."""

    max_step_s = 3_600.0


class Clock:
    """The clock of this process, which advances only on request, so that deadlines pass when the test advances it."""

    def __init__(self, monkeypatch):
        self.now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_that_hangs_is_replaced_and_the_others_continue(vector, kind, monkeypatch, tmp_path):
    clock = Clock(monkeypatch)
    envs = vector(3, workers=kind, deadlines={"step": 0.5})
    first, _ = envs.reset(seed=0)
    hang = Gate(tmp_path / "gate")
    envs.step_async(["a", hang.action, "a"])
    with hang:
        wait_for_all_but(envs, "environment 1 did not")
        clock.now += 0.6
        observations, rewards, terminated, truncated, infos = envs.step_wait()
    assert rewards.tolist() == [1, 0, 1]
    assert not terminated.any()
    assert truncated.tolist() == [False, True, False]
    assert observations[1] == first[1]
    assert infos["fault"].tolist() == ["", "step did not finish within 0.5 s", ""]
    assert infos["fault_kind"].tolist() == ["", "step_deadline", ""]
    assert infos["_fault"].tolist() == [False, True, False]
    assert infos["count"].tolist() == [1, 0, 1]
    observations, rewards, *_, infos = envs.step(["a"] * 3)
    assert [text.partition("/")[2] for text in observations] == ["2", "0", "2"]
    assert "fault" not in infos
    assert envs.step(["a"] * 3)[1].tolist() == [3, 1, 3]
    assert dict(envs.stats.faults) == {"step_deadline": 1}
    assert envs.stats.replaced == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_a_model_makes_long_is_no_fault(vector, kind, monkeypatch, tmp_path):
    """Else a model could discard every episode that it is about to lose, by a long command."""
    clock = Clock(monkeypatch)
    envs = vector(2, env_id=Slow, workers=kind, deadlines={"step": 0.5})
    envs.reset(seed=0)
    hang = Gate(tmp_path / "gate")
    envs.step_async(["a", hang.action])
    with hang:
        wait_for_all_but(envs, "environment 1 did not")
        clock.now += 3_000
        wait_for_all_but(envs, "environment 1 did not")
    assert envs.step_wait()[1].tolist() == [1, 1]
    assert not envs.stats.faults


def test_an_environment_that_becomes_slow_does_not_block_the_queue(vector, tmp_path):
    envs = vector(16)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(["a"] * 16)  # all are fast: one thread serves them
    one, other = Gate(tmp_path / "one"), Gate(tmp_path / "other")
    envs.send([one.action, other.action] + ["a"] * 14)
    with one, other:
        received = envs.recv(14)  # if one of them waited for the two, this would not return
    assert not {0, 1} & set(received.env_ids.tolist())
    assert set(envs.recv(2, timeout=60).env_ids.tolist()) == {0, 1}


# Faults


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_affects_only_its_environment(vector, kind):
    for mode in ("NextStep", "SameStep", "Disabled"):
        assert_a_fault_affects_only_its_environment(vector, kind, mode)


def assert_a_fault_affects_only_its_environment(vector, kind, mode):
    envs = vector(6, workers=kind, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.step(["a"] * 6)
    actions = ["a", "fault", "bug", "garbage", "nan", "exit" if kind == "process" else "bug"]
    observations, rewards, terminated, truncated, infos = envs.step(actions)
    last = "worker_died" if kind == "process" else "exception"
    kinds = ["", "test", "exception", "invalid_result", "invalid_result", last]
    assert rewards.tolist() == [2, 0, 0, 0, 0, 0]
    assert not terminated.any()
    assert truncated.tolist() == [False] + [True] * 5
    final = infos["final_info"] if mode == "SameStep" else infos
    assert final["fault_kind"].tolist() == kinds
    assert final["fault"][1] == "the environment failed"
    assert "a bug" in final["fault"][2]
    assert "vector_environments.py" in final["fault"][2]
    if mode == "SameStep":
        assert infos["final_obs"][0] is None
        assert infos["final_obs"][1].endswith("/1")
    elif mode == "NextStep":
        observations, rewards, _, truncated, infos = envs.step(["a"] * 6)
        assert rewards.tolist() == [3, 0, 0, 0, 0, 0]
        assert not truncated.any()
    else:
        with pytest.raises(ResetNeeded, match="environments 1, 2, 3, 4, 5"):
            envs.step(["a"] * 6)
        observations, infos = envs.reset(options={"reset_mask": truncated})
    assert [text.partition("/")[2] for text in observations[1:]] == ["0"] * 5
    assert envs.step(["a"] * 6)[1].tolist()[1:] == [1] * 5
    assert sum(envs.stats.faults.values()) == 5
    assert dict(envs.stats.faults) == {name: kinds.count(name) for name in kinds if name}


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_fault_the_same_seed_gives_the_same_episode(vector, kind):
    def run():
        envs = vector(2, workers=kind)
        envs.reset(seed=4)
        shown = []
        for turn in range(12):
            shown.append(envs.step(["fault" if turn in (2, 6) else "a", "a"])[0])
        return shown

    assert run() == run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_reset_is_retried_on_a_new_environment(vector, kind, tmp_path):
    envs = vector(2, Unresettable, workers=kind, file=str(tmp_path / "tries"), times=2, only="b")
    plain = vector(2)
    assert envs.reset(seed=0, options={"task": ["a", "b"]})[0] == plain.reset(seed=0)[0]
    assert not envs.stats.faults
    assert envs.stats.replaced == 2


def test_an_episode_that_cannot_start_is_truncated_at_its_first_step(vector, tmp_path):
    for mode in ("NextStep", "SameStep", "Disabled"):
        assert_it_is_truncated_at_its_first_step(vector, tmp_path / mode, mode)


def assert_it_is_truncated_at_its_first_step(vector, tries, mode):
    envs = vector(2, Unresettable, autoreset_mode=mode, file=str(tries), times=3, only="b")
    observations, infos = envs.reset(seed=0, options={"task": ["a", "b"]})
    assert observations[1] == ""
    assert infos["fault"].tolist() == ["", "no luck"]
    observations, rewards, _, truncated, infos = envs.step(["a", "a"])
    assert truncated.tolist() == [False, True]
    assert rewards.tolist() == [1, 0]
    assert (infos["final_info"] if mode == "SameStep" else infos)["fault"][1] == "no luck"
    if mode == "NextStep":
        observations, *_ = envs.step(["a", "a"])
    elif mode == "Disabled":
        observations, _ = envs.reset(options={"reset_mask": truncated})
    assert observations[1].endswith("/0")
    assert envs.step(["a", "a"])[1][1] == 1
    assert dict(envs.stats.faults) == {"unlucky": 1}


def test_an_environment_that_never_starts_ends_every_episode_and_reset_raises_without_any(vector, tmp_path):
    envs = vector(2, Unresettable, file=str(tmp_path / "tries"), times=10**6, only="b")
    envs.reset(seed=0, options={"task": ["a", "b"]})
    received = []
    for _ in range(3):
        envs.async_reset([1], options={"task": "b"})
        received.append(envs.recv(timeout=60))
    assert [item.truncations.tolist() for item in received] == [[True]] * 3
    assert received[0].infos["fault"].tolist() == ["no luck"]
    with pytest.raises(EnvironmentFault, match="no luck"):
        envs.reset(options={"task": "b"})


def test_a_killed_process_is_replaced(vector, tmp_path):
    envs = vector(3, workers="process")
    envs.reset(seed=0)
    pids = envs.call("process_id")
    os.kill(pids[1], signal.SIGKILL)
    _, rewards, _, truncated, infos = envs.step(["a"] * 3)
    assert rewards.tolist() == [1, 0, 1]
    assert truncated.tolist() == [False, True, False]
    assert "SIGKILL" in infos["fault"][1]
    gate = Gate(tmp_path / "gate")
    envs.step_async(["a", "a", gate.action])
    with gate:
        os.kill(pids[2], signal.SIGKILL)
        _, rewards, _, truncated, infos = envs.step_wait(timeout=60)
    assert rewards.tolist() == [2, 0, 0]
    assert infos["fault_kind"][2] == "worker_died"


class ReportsItsProcess(Counting):
    """``info["pid"]`` is the process of the environment; an episode with a fault has none."""

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info | {"pid": os.getpid()}

    def step(self, action):
        *result, info = super().step(action)
        return *result, info | {"pid": os.getpid()}


@pytest.mark.parametrize(("episodes", "share"), [(150, 0.05), pytest.param(10_000, 0.01, marks=pytest.mark.long)])
def test_with_workers_killed_every_episode_ends_or_is_a_fault(vector, episodes, share):
    count, length, seed = 16, 3, 3
    envs = vector(count, ReportsItsProcess, workers="process", length=length)
    random = np.random.default_rng(seed)
    ended = [[] for _ in range(count)]  # the outcome of every episode of an environment
    killed = []
    envs.async_reset(seed=seed)
    while sum(map(len, ended)) < episodes:
        received = envs.recv(timeout=60)
        for place, index in enumerate(received.env_ids.tolist()):
            if received.terminations[place]:
                ended[index].append(received.observations[place])
            elif received.truncations[place]:
                assert received.infos["fault_kind"][place] == "worker_died"
                ended[index].append("fault")
            pid = int(received.infos["pid"][place]) if "pid" in received.infos else 0
            # Each episode is length steps and a reset.
            if pid and random.random() < share / (length + 1):
                os.kill(pid, signal.SIGKILL)
                killed.append(index)
        envs.send(["a"] * len(received.env_ids), received.env_ids)
    faults = sum(outcomes.count("fault") for outcomes in ended)
    # A worker that dies between two episodes affects neither: the reset is repeated on a new environment.
    assert 0 < faults <= len(killed)
    assert faults <= sum(envs.stats.faults.values()) <= len(killed)
    undisturbed = set(range(count)) - set(killed)
    assert undisturbed or episodes > 1000
    for index in undisturbed:
        single = Counting(length)
        single.reset(seed=seed + index)
        for text in ended[index]:
            assert text == f"{single.draw}/{length}"
            single.reset()


def test_one_thread_sends_and_another_receives(vector):
    envs = vector(4, length=1000)
    envs.async_reset(seed=0)
    sent, answered = queue.SimpleQueue(), queue.SimpleQueue()
    counts = []

    def receive():
        under_way = 0
        while (count := sent.get(timeout=60)) is not None:
            under_way += count
            while under_way > 0:  # less than 0 if results came before the message that announces them
                received = envs.recv(timeout=60)
                under_way -= len(received.env_ids)
                counts.extend(received.infos["count"].tolist())
                answered.put(received.env_ids)

    thread = threading.Thread(target=receive)
    thread.start()
    sent.put(4)
    for _ in range(100):
        ids = answered.get(timeout=60)
        envs.send(["a"] * len(ids), ids)
        sent.put(len(ids))
    sent.put(None)
    thread.join(60)
    assert not thread.is_alive()
    assert max(counts) > 10


def test_two_threads_do_not_wait_for_the_same_results(vector):
    answer, first = threading.Event(), queue.SimpleQueue()

    class Patient(Counting):
        def step(self, action):
            assert answer.wait(60)
            return super().step(action)

    envs = vector(1, Patient)
    envs.reset(seed=0)
    envs.send(["a"])
    thread = threading.Thread(target=lambda: first.put(envs.recv(timeout=60)))
    thread.start()
    refused = ""
    while not refused:
        try:
            envs.recv(timeout=0)
        except AlreadyPendingCallError as error:
            refused = str(error)
        except VectorTimeout:
            continue  # the other one has not begun
    assert "another thread" in refused
    answer.set()
    assert first.get(timeout=60).env_ids.tolist() == [0]
    thread.join(60)


class FailsAtReset(Counting):
    def reset(self, *, seed=None, options=None):
        if (options or {}).get("task") == "fail":
            raise EnvironmentFault("no luck", kind="unlucky")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("kind", KINDS)
def test_more_results_than_asked_for_are_returned_while_nothing_is_in_progress(vector, kind):
    envs = vector(3, FailsAtReset, workers=kind, autoreset_mode="Disabled")
    envs.reset(seed=0, options={"task": ["fail", "fail", ""]})
    envs.send(["a", "a"], [0, 1])
    received = envs.recv(timeout=60)
    assert sorted(received.env_ids) == [0, 1]
    assert set(received.infos["fault_kind"]) == {"unlucky"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_of_months_is_accepted(vector, kind):
    envs = vector(2, workers=kind, deadlines={"step": 3e6, "reset": 3e6})
    envs.reset(seed=0)
    assert envs.step(["sleep 0.1"] * 2)[1].tolist() == [1, 1]
    envs.send(["a"] * 2)
    assert len(envs.recv(2, timeout=3e6).env_ids) == 2


def test_a_late_step_is_ended_while_a_reset_that_began_before_continues(vector, tmp_path):
    class SlowReset(Counting):
        def reset(self, *, seed=None, options=None):
            if (options or {}).get("task"):
                (tmp_path / "gate").read_text()
            return super().reset(seed=seed, options=options)

    gate = Gate(tmp_path / "gate")
    envs = vector(2, SlowReset, workers="process", deadlines={"step": 1.0, "reset": 600.0})
    envs.reset(seed=0)
    envs.async_reset([0], options={"task": "slow"})
    envs.send(["sleep 600"], [1])
    with gate:
        taken = []
        while not taken:
            # Both are asked for: the first one is waited for in order.
            with pytest.raises(VectorTimeout) as caught:
                envs.recv(2, timeout=0.2)
            taken = (
                ["environment 0 did not" in str(caught.value)] if "1" not in str(caught.value).split("did")[0] else []
            )
    received = envs.recv(2, timeout=60)
    kinds = dict(zip(received.env_ids.tolist(), received.infos["fault_kind"].tolist()))
    assert kinds == {0: "", 1: "step_deadline"}


class WaitsAtReset(Counting):
    def reset(self, *, seed=None, options=None):
        if options:
            Path(options["task"]).read_text()
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["recv", "step", "reset", "call"])
def test_closing_ends_a_call_that_waits_in_another_thread(vector, kind, name, tmp_path):
    """The environment never ends by itself: if ``close`` waited for it, neither would return."""
    envs = vector(1, WaitsAtReset, workers=kind, deadlines={"close": 1.0})
    envs.reset(seed=0)
    gate = Gate(tmp_path / "gate")
    if name == "recv":
        envs.send([gate.action])
    call = {
        "recv": envs.recv,
        "step": partial(envs.step, [gate.action]),
        "reset": partial(envs.reset, options={"task": str(gate.path)}),
        "call": partial(envs.call, "step", gate.action),
    }[name]
    with ThreadPoolExecutor(2) as threads:
        ended = threads.submit(raised, call)
        with gate:
            threads.submit(envs.close, timeout=0.01).result(LONG)
            assert isinstance(ended.result(LONG), ClosedEnvironmentError)
