"""check_text_env detects violations: environments with one violation each, every one of which must be reported."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, TextEnv
from rllm_gym.data import Taskset
from rllm_gym.testing import ContractViolation, Report, check_text_env

TASKS = Taskset.from_rows([{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(9)])


class CorrectEnv(TextEnv):
    """Asks for a sum; correct. The environments with violations are derived from it."""

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        super().__init__(tasks=TASKS, max_turns=max_turns, render_mode=render_mode)
        self.die = 0

    def _begin(self, task):
        self.die = int(self.np_random.integers(6))
        return task.content

    def _act(self, action):
        if not action.isascii() or not action.isdigit():
            raise InvalidAction("Answer with a number.")
        self.die = int(self.np_random.integers(6))
        right = action == self.task.data["answer"]
        return Outcome(
            f"{'Right' if right else 'Wrong'}. The die shows {self.die}.", {"right": float(right)}, right, right
        )

    def _env_state(self):
        return {"die": self.die}

    def _restore_env_state(self, state):
        self.die = int(state["die"])


def answer(env: Any) -> str:
    return env.task.data["answer"]


BrokenEnvs = dict[str, tuple[str, Callable[..., Any]]]
BROKEN_ENVS: BrokenEnvs = {}


def broken_env(check: str):
    """Register an environment class (or a factory) whose violation the named check must detect."""

    def register(factory):
        BROKEN_ENVS[factory.__name__] = (check, factory)
        return factory

    return register


def broken(name: str, check: str, **attributes: Any) -> None:
    """Register a :class:`CorrectEnv` with these methods or attributes instead of its own."""
    BROKEN_ENVS[name] = (check, type(name, (CorrectEnv,), attributes))


def changed(name: str, check: str, change: Callable[..., Any], method: str = "step") -> None:
    """Register an environment whose step() or reset() returns ``change(env, *result)``."""
    correct = getattr(CorrectEnv, method)
    broken(name, check, **{method: lambda env, *args, **kwargs: change(env, *correct(env, *args, **kwargs))})


def before(name: str, check: str, spoil: Callable[..., Any], method: str = "_act") -> None:
    """Register an environment that calls ``spoil(env, argument)`` before it does what is right."""
    correct = getattr(CorrectEnv, method)
    broken(name, check, **{method: lambda env, argument: (spoil(env, argument), correct(env, argument))[1]})


def with_info(**spoiled: Any) -> Callable[..., Any]:
    return lambda env, o, r, te, tr, info: (o, r, te, tr, {**info, **spoiled})


# make, spaces, reset


@broken_env("make")
def no_environment():
    return object()


@broken_env("make")
def cannot_be_made():
    raise RuntimeError("no such file")


_ONLY_ONE = CorrectEnv()


@broken_env("make")
def always_the_same():
    return _ONLY_ONE


@broken_env("spaces")
class GymnasiumsOwnText(CorrectEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Text(max_length=1000)


changed("OnlyAnObservation", "reset", lambda env, o, info: o, "reset")
changed("NoTools", "reset", lambda env, o, info: (o, {k: v for k, v in info.items() if k != "tools"}), "reset")
changed("RemembersTheLastEpisode", "reset", lambda env, o, info: (o, {**info, "turn": 1}), "reset")
broken("ToolsThatAreNoJson", "reset", _tools=lambda env: "calculator")
broken("EmptyObservation", "reset", _begin=lambda env, task: "")


@broken_env("reset")
class WritesIntoTheOptions(CorrectEnv):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if options:
            options["task"] = None
        return result


# step

changed("NumberAsObservation", "step", lambda env, o, r, te, tr, info: (3, r, te, tr, info))
changed("LoneSurrogate", "step", lambda env, o, r, te, tr, info: (o + "\ud800", r, te, tr, info))
changed("FourTuple", "step", lambda env, o, r, te, tr, info: (o, r, te or tr, info))
changed("NumpyBool", "step", lambda env, o, r, te, tr, info: (o, r, np.bool_(te), tr, info))
changed("SaysNothingAboutMistakes", "step", lambda env, o, r, te, tr, info: ("", r, te, tr, info))
changed("TooLong", "step", lambda env, o, r, te, tr, info: (o * 100_000, r, te, tr, info))
broken("TakesAnything", "step", step=lambda env, action: CorrectEnv.step(env, str(action)))
broken("RepeatsItsInput", "step", _act=lambda env, action: Outcome(f"You said {action[:1000]}", {"right": 0.0}))


# info

changed(
    "NoTaskId",
    "info",
    lambda env, o, r, te, tr, info: (o, r, te, tr, {k: v for k, v in info.items() if k != "task_id"}),
)
changed("NumpyTurn", "info", lambda env, o, r, te, tr, info: (o, r, te, tr, {**info, "turn": np.int64(info["turn"])}))
changed(
    "NoneThenText",
    "info",
    lambda env, o, r, te, tr, info: (o, r, te, tr, {**info, "note": "late" if te or tr else None}),
)
changed(
    "ComesAndGoes", "info", lambda env, o, r, te, tr, info: (o, r, te, tr, {**info, "last": True} if te or tr else info)
)
changed("CountsWrongly", "info", with_info(turn=1))
changed(
    "FreeStopReason",
    "info",
    lambda env, o, r, te, tr, info: (o, r, te, tr, {**info, "stop_reason": "done" if te or tr else ""}),
)
changed("StopsEarly", "info", with_info(stop_reason="max_turns"))
changed("SuccessWithoutEnd", "info", with_info(success=True))


@broken_env("info")
class SameDict(CorrectEnv):
    def __init__(self):
        super().__init__()
        self.info: dict[str, Any] = {}

    def step(self, action):
        *rest, info = super().step(action)
        self.info.update(info)
        return *rest, self.info


@broken_env("info")
class SharesALog(CorrectEnv):
    def __init__(self):
        super().__init__()
        self.log: list[int] = []

    def _add_info(self, info):
        info["log"] = self.log


@broken_env("info")
class ReadsItsOwnInfo(CorrectEnv):
    def reset(self, **kwargs):
        observation, self.mine = super().reset(**kwargs)
        return observation, self.mine

    def step(self, action):
        assert self.mine["task_id"]
        return super().step(action)


# reward

changed("NotANumber", "reward", lambda env, o, r, te, tr, info: (o, float("nan"), te, tr, info))
changed("WholeNumber", "reward", lambda env, o, r, te, tr, info: (o, int(r), te, tr, info))
changed("BoolReward", "reward", lambda env, o, r, te, tr, info: (o, bool(r), te, tr, info))
changed("HiddenBonus", "reward", lambda env, o, r, te, tr, info: (o, r + 0.1, te, tr, info))
changed("WholeComponents", "reward", with_info(reward_components={"right": 0}))


@broken_env("reward")
class RewardsInvalidActions(CorrectEnv):
    def _act(self, action):
        try:
            return super()._act(action)
        except InvalidAction as error:
            return Outcome(str(error), {"effort": 0.1})

    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "invalid_action": "effort" in info["reward_components"]}


# End of an episode

changed("BothAtOnce", "episode_end", lambda env, o, r, te, tr, info: (o, r, te, te or tr, info))
changed(
    "NeverEnds",
    "episode_end",
    lambda env, o, r, te, tr, info: (o, r, False, False, {**info, "stop_reason": "", "success": False}),
)


@broken_env("episode_end")
class TruncatesASingleTurn(CorrectEnv):
    def __init__(self):
        super().__init__(max_turns=1)

    def step(self, action):
        o, r, *_, info = super().step(action)
        return o, r, False, True, {**info, "success": False, "stop_reason": "max_turns"}


@broken_env("episode_end")
class GoesOnAfterTheEnd(CorrectEnv):
    def step(self, action):
        self._done = False
        return super().step(action) if self._task else ("", 0.0, False, False, {})


@broken_env("episode_end")
class IgnoresMaxTurns(CorrectEnv):
    def __init__(self):
        super().__init__(max_turns=50)
        self.max_turns = 50

    def reset(self, **kwargs):
        self.max_turns = 3
        result = super().reset(**kwargs)
        self.max_turns = 50
        return result

    def step(self, action):
        self.max_turns = 60
        result = super().step(action)
        self.max_turns = 50
        return result


@broken_env("episode_end")
class TruncatesOneTurnEarly(CorrectEnv):
    def reset(self, **kwargs):
        self.max_turns = 2
        result = super().reset(**kwargs)
        self.max_turns = 3
        return result

    def step(self, action):
        self.max_turns = 2
        try:
            return super().step(action)
        finally:
            self.max_turns = 3


# Tasks and seeds

broken("IgnoresTheTask", "tasks", reset=lambda env, *, seed=None, options=None: CorrectEnv.reset(env, seed=seed))
broken(
    "AlwaysTheFirstTask",
    "tasks",
    reset=lambda env, *, seed=None, options=None: CorrectEnv.reset(env, seed=seed, options=options or {"task": 0}),
)
broken(
    "UsesAFixedSeedWithoutASeed",
    "tasks",
    reset=lambda env, *, seed=None, options=None: CorrectEnv.reset(env, seed=seed or 0, options=options),
)
broken("ReadsTheClock", "seeding", _add_info=lambda env, info: info.update(time=time.perf_counter()))
_EPISODES = itertools.count()
broken("CountsEpisodes", "seeding", _begin=lambda env, task: f"{task.content} This is episode {next(_EPISODES)}.")
before("UsesTheGlobalRandom", "global_randomness", lambda env, action: random.random())
broken(
    "SeedsNumpy",
    "global_randomness",
    reset=lambda env, *, seed=None, options=None: (
        np.random.seed(seed),  # noqa: NPY002
        CorrectEnv.reset(env, seed=seed, options=options),
    )[1],
)


@broken_env("tasks")
class TakesAnyTask(CorrectEnv):
    def reset(self, *, seed=None, options=None):
        try:
            return super().reset(seed=seed, options=options)
        except ValueError:
            return super().reset(seed=seed)


@broken_env("seeding")
class UsesItsOwnRandomNumbers(CorrectEnv):
    def _act(self, action):
        outcome = super()._act(action)
        outcome.observation += str(random.Random().random())
        return outcome


@broken_env("global_randomness")
class SeedsWhenItIsMade(CorrectEnv):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        random.seed(0)


# Hostile replies

before("RaisesOnSurrogates", "fuzz", lambda env, action: action.encode())


@broken_env("fuzz")
class RaisesOnLongNumbers(CorrectEnv):
    def _act(self, action):
        if action.isdigit():
            int(action)  # Python refuses more than 4,300 digits
        return super()._act(action)


@broken_env("fuzz")
class RaisesFaultsOnReplies(CorrectEnv):
    def _act(self, action):
        if "{" in action:
            raise EnvironmentFault("cannot parse")
        return super()._act(action)


# State


@broken_env("state")
class Pickles(CorrectEnv):
    def get_state(self):
        return pickle.dumps(super().get_state())

    def set_state(self, state):
        super().set_state(pickle.loads(state))  # noqa: S301


@broken_env("state")
class ForgetsTheRandomState(CorrectEnv):
    def set_state(self, state):
        before = self.np_random
        super().set_state(state)
        self.np_random = before


@broken_env("state")
class ForgetsWhatTheOracleNeverReaches(CorrectEnv):
    """The oracle wins at once; the omitted state matters only for longer episodes."""

    def _begin(self, task):
        self.asked = 0
        return super()._begin(task)

    def _add_info(self, info):
        info["asked"] = self.asked

    def step(self, action):
        self.asked += 1
        return super().step(action)


# render, close, gymnasium, torch

broken("ForksItself", "state", fork=lambda env: env)
broken("DrawsNothing", "render", render=lambda env: None)
broken("GreyPicture", "render", metadata={"render_modes": ["rgb_array"]}, render=lambda env: np.zeros((4, 4)))
broken("CannotBeSolved", "oracle", _act=lambda env, action: Outcome("Wrong.", {"right": 0.0}))


@broken_env("close")
class ClosesOnce(CorrectEnv):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@broken_env("gymnasium")
class KeepsItsOwnGenerator(CorrectEnv):
    mine = np.random.default_rng(0)

    @property
    def np_random(self):
        return self.mine

    @np_random.setter
    def np_random(self, generator):
        self.mine = generator

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.mine = np.random.default_rng(seed)
        return super().reset(options=options)


# Tests


def test_a_correct_environment_passes_every_check_and_skipped_ones_have_a_reason():
    report = check_text_env(CorrectEnv, oracle=answer)
    report.raise_for_failures()
    assert set(report.skipped) <= {"torch"}
    assert len(report.passed) + len(report.skipped) == 18
    assert report.raise_for_failures() is report
    assert "fulfils the contract" in str(report)


def test_every_broken_environment_is_detected():
    missed = []
    for name, (check, factory) in BROKEN_ENVS.items():
        report = check_text_env(factory, oracle=answer, fuzz=100)
        try:
            report.raise_for_failures()
        except ContractViolation as error:
            reported = str(error)
        else:
            reported = ""
        found = {finding.check for finding in report.findings}
        if report.ok or check not in found or check in report.passed or check not in reported:
            missed.append((name, check, str(report), reported))
    assert missed == []


def test_an_environment_that_hangs_is_reported_and_does_not_block_the_checker():
    """The first check hangs: all work of the others would have to be done within the short deadline."""
    let_go = threading.Event()

    class Hangs(CorrectEnv):
        def __init__(self) -> None:
            let_go.wait()
            super().__init__()

    report = check_text_env(Hangs, deadline=0.5)
    let_go.set()
    assert [(finding.check, "took longer than 0.5 s" in finding.message) for finding in report.findings] == [
        ("make", True)
    ]


def test_torch_imports_are_detected_or_the_check_is_skipped(monkeypatch):
    class NeedsTorch(CorrectEnv):
        def _begin(self, task):
            sys.modules.setdefault("torch", types.ModuleType("torch"))
            return super()._begin(task)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    report = check_text_env(NeedsTorch)
    assert [finding.check for finding in report.findings] == ["torch"]
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert "torch" in check_text_env(CorrectEnv).skipped
    monkeypatch.delitem(sys.modules, "torch")


def test_checks_that_do_not_apply_are_skipped_with_a_reason():
    class Closed(CorrectEnv):
        def _env_state(self):
            raise NotImplementedError("the server cannot be copied")

    report = check_text_env(lambda: Closed())
    report.raise_for_failures()
    assert report.skipped["state"] == "the server cannot be copied"
    assert "render_mode" in report.skipped["render"]
    assert "oracle" in report.skipped["oracle"]
    assert "skip  state: the server cannot be copied" in str(report)


def test_an_oracle_can_use_only_what_the_model_sees():
    def reads(observation: str, info: dict[str, Any]) -> str:
        assert "task_id" in info
        return str(2 * int(observation.split()[2])) if observation.startswith("What") else "0"

    assert check_text_env(CorrectEnv, oracle=reads).ok
    report = check_text_env(CorrectEnv, oracle=lambda observation, info: "0", seed=3)
    assert [finding.check for finding in report.findings] == ["oracle"]
    assert "of 20 episodes; in task '" in report.findings[0].message
    assert "'0' was followed by" in report.findings[0].message


def test_a_single_turn_environment_passes():
    assert check_text_env(lambda: CorrectEnv(max_turns=1), oracle=answer).ok


def test_ids_and_factories_are_accepted_and_instances_are_not():
    assert check_text_env("rllm/FrozenLake-v0", oracle=lambda env: env.oracle().action).ok
    unknown = check_text_env("rllm/NoSuchLake-v0")
    assert [finding.check for finding in unknown.findings] == ["make"]
    with pytest.raises(TypeError, match="lambda"):
        check_text_env(CorrectEnv())


def test_the_checker_does_not_change_global_state():
    state, legacy = random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    threads = threading.active_count()
    check_text_env(CorrectEnv, oracle=answer)
    assert random.getstate() == state
    assert np.random.get_state()[1].tobytes() == legacy  # noqa: NPY002
    for thread in threading.enumerate():
        if thread.name.startswith("check-text-env"):
            thread.join(timeout=120)
    assert threading.active_count() <= threads


def test_a_report_prints_all_findings():
    report = Report("mine", passed=["make"], warnings=["gymnasium: odd"], skipped={"torch": "was there"})
    assert str(report).splitlines() == [
        "mine: fulfils the contract (1 checks passed, 0 failed, 1 skipped)",
        "  warn  gymnasium: odd",
        "  skip  torch: was there",
        "  ok    make",
    ]
