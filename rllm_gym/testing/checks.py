"""The checks of the environment contract. The checks of every single call are in ``rllm_gym.testing.checked_env``."""

from __future__ import annotations

import inspect
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from rllm_gym.core import EnvironmentFault
from rllm_gym.testing.checked_env import MAX_TURNS, CheckedEnv, GymEnv, show, takes_env
from rllm_gym.testing.hostile import HOSTILE, unicode_text


class SkipCheck(Exception):
    """Raised if a check cannot be run; the message gives the reason."""


class Checks(CheckedEnv):
    """All checks, one per method. :meth:`checks` yields their names in order."""

    def checks(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "make", self.check_make
        yield "spaces", self.check_spaces
        yield "reset", self.check_reset
        yield "step", self.check_step
        yield "info", self.check_info
        yield "reward", self.check_reward
        yield "episode_end", self.check_episode_end
        yield "tasks", self.check_tasks
        yield "seeding", self.check_seeding
        yield "global_randomness", self.check_global_randomness
        yield "fuzz", self.check_fuzz
        yield "state", self.check_state
        yield "render", self.check_render
        yield "vector", self.check_vector
        yield "oracle", self.check_oracle
        yield "close", self.check_close
        yield "gymnasium", self.check_gymnasium
        yield "torch", self.check_torch

    def check_make(self) -> None:
        env = self.make()
        self.expect(isinstance(env, gymnasium.Env), f"it must be a gymnasium.Env; got {show(env)}")
        self.expect(
            env.unwrapped is not self.make().unwrapped, "the factory must create a new environment on every call"
        )

    def check_spaces(self) -> None:
        env = self.make()
        text: Any = env.observation_space
        if isinstance(text, gymnasium.spaces.Dict):
            text = text.spaces.get("text")
        for name, space in (("observation_space", text), ("action_space", env.action_space)):
            for sample in ("", "a b\n", "héllo 🙂", "\x00"):
                self.expect(
                    space is not None and sample in space,
                    f"{name} does not contain {sample!r}: use rllm_gym.Text; Gymnasium's Text contains few characters",
                )

    def check_reset(self) -> None:
        env = self.make()
        for seed in (None, self.seed, self.seed + 1):
            self.reset(env, seed=seed)
        self.reset(env)
        self.reset(env, seed=self.seed, options=None)
        self.reset(env, seed=self.seed, options={})
        chosen = {"task": 0}
        self.reset(env, options=chosen)
        self.expect(chosen == {"task": 0}, f"reset() modified its options argument: it is now {chosen}")

    def check_step(self) -> None:
        env = self.make()
        for episode in range(10):
            self.play(env, self.random(1, episode), seed=self.seed + episode)
        self.reset(env, seed=self.seed)
        try:
            env.unwrapped.step(3)  # type: ignore[arg-type]
        except Exception:
            return
        self.add_finding("step(3) was accepted; it must raise TypeError: an action is a str")

    def check_info(self) -> None:
        env = self.make()
        _, first = self.reset(env, seed=self.seed)
        earlier = [first]
        for turn in range(1, 6):
            *_, terminated, truncated, info = self.step(env, unicode_text(self.random(2, turn)), turn)
            for other in earlier:
                self.expect(other is not info, "two calls returned the same info dict: each call must return its own")
                shared = [
                    key
                    for key in info
                    if key in other and isinstance(info[key], dict | list | np.ndarray) and info[key] is other[key]
                ]
                self.expect(
                    not shared,
                    f"two calls returned the same object under {shared} of info: each call must return its own",
                )
            earlier.append(info)
            if terminated or truncated:
                break
        # A user may modify the returned info; the environment must not be affected.
        _, info = self.reset(env, seed=self.seed)
        info.clear()
        self.step(env, "", 1)

    def check_reward(self) -> None:
        env = self.make()
        for episode in range(5):
            log = self.play(env, self.random(3, episode), seed=self.seed + 100 + episode)
            for _, reward, *_, info in log[1:]:
                if info.get("invalid_action"):
                    self.expect(reward <= 0, f"an invalid action has the reward {reward!r}; it must be at most 0")
                    self.expect(not info.get("success"), "an invalid action solved the task")

    def check_episode_end(self) -> None:
        env = self.make()
        self._expect_refusal(env.unwrapped, "before the first reset()")
        for episode, action in enumerate(("", "no such action", "up")):
            self.reset(env, seed=self.seed + episode)
            over, turn = False, 0
            limit = getattr(env.unwrapped, "max_turns", MAX_TURNS)
            while not over and turn < limit:
                turn += 1
                *_, terminated, truncated, _ = self.step(env, action, turn)
                over = bool(terminated or truncated)
                if limit == 1:
                    self.expect(bool(terminated), "max_turns is 1 but the only step did not terminate")
            if not self.expect(
                over, f"the episode did not end after {limit} turns of {action!r}: max_turns has no effect"
            ):
                return
            self._expect_refusal(env.unwrapped, "after the end of the episode")

    def _expect_refusal(self, env: GymEnv, when: str) -> None:
        try:
            env.step("")
        except Exception:
            return
        self.add_finding(f"step() {when} was accepted; it must raise gymnasium.error.ResetNeeded")

    def check_tasks(self) -> None:
        env = self.make()
        _, info = self.reset(env, seed=self.seed, options={"task": 0})
        task_id = info.get("task_id")
        for how, choice in (("its index", 0), ("its id", task_id)):
            _, other = self.reset(env, seed=self.seed + 7, options={"task": choice})
            self.expect(
                other.get("task_id") == task_id,
                f"options={{'task': …}} with {how} selected the task {other.get('task_id')!r}, not {task_id!r}",
            )
        task = getattr(env.unwrapped, "task", None)
        if self.expect(task is not None, "env.unwrapped.task must be the Task of the episode"):
            _, other = self.reset(env, options={"task": task})
            self.expect(other.get("task_id") == task_id, "options={'task': Task} selected another task")
        for wrong in ({"task": "no such task"}, {"task": -1}, {"task": 10**12}, {"task": 1.5}, {"taks": 0}):
            try:
                env.reset(seed=self.seed, options=wrong)
            except Exception:
                continue
            self.add_finding(f"reset(options={wrong}) was accepted; it must raise TaskError")
        chosen = {self.reset(env, seed=self.seed + i)[1].get("task_id") for i in range(20)}
        self.expect(
            len(chosen) > 1 or len(getattr(env.unwrapped, "tasks", "")) == 1,
            f"20 different seeds all gave the task {next(iter(chosen))!r}: without options the seed selects the task",
        )
        self.reset(env, seed=self.seed)
        unseeded = {self.reset(env)[1].get("task_id") for _ in range(20)}
        self.expect(
            len(unseeded) > 1 or len(chosen) == 1,
            f"20 resets without a seed all selected the task {next(iter(unseeded))!r}: they must draw from np_random",
        )

    def check_seeding(self) -> None:
        first, second = self.make(), self.make()
        logs = []
        for episode in range(6):
            seed = self.seed + 1000 * episode
            log = self.play(first, self.random(4, episode), seed=seed)
            logs.append(log)
            self._expect_same(log, self.play(second, self.random(4, episode), seed=seed), "two environments")
            self._expect_same(log, self.play(first, self.random(4, episode), seed=seed), "two episodes")
        task = logs[0][0][1].get("task_id")
        chosen = [self.play(env, self.random(5), seed=self.seed, options={"task": task}) for env in (first, second)]
        self._expect_same(chosen[0], chosen[1], "two episodes of one task")

    def _expect_same(self, one: list[Any], other: list[Any], what: str) -> None:
        for turn, (a, b) in enumerate(zip(one, other)):
            if not equal(a, b):
                self.add_finding(
                    f"same seed, same actions, but {what} differ at turn {turn}: {show(a, 200)} and {show(b, 200)}"
                )
                return
        self.expect(
            len(one) == len(other),
            f"same seed, same actions, but {what} have {len(one) - 1} and {len(other) - 1} turns",
        )

    def check_global_randomness(self) -> None:
        self.reset(self.make(), seed=self.seed)  # modules that are imported on first use may draw random numbers
        kept = random.getstate(), np.random.get_state()  # noqa: NPY002  (the global generators must stay untouched)
        try:
            # Advance to states that no seed produces, so that re-seeding with an earlier seed is detected as well.
            random.random()
            np.random.random_sample()  # noqa: NPY002
            python, legacy = random.getstate(), _numpy_state()
            for episode in range(3):
                self.play(self.make(), self.random(6, episode), seed=self.seed + episode)
            self.expect(random.getstate() == python, "the global `random` was used or seeded; use self.np_random")
            self.expect(_numpy_state() == legacy, "the global `numpy.random` was used or seeded; use self.np_random")
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002

    def check_fuzz(self) -> None:
        source, env, turn, over = self.random(7), self.make(), 0, True
        bound = getattr(env.action_space, "max_length", 1_000_000)
        for number in range(self.fuzz):
            action = HOSTILE[number] if number < len(HOSTILE) else unicode_text(source)
            try:
                if over:
                    self.reset(env, seed=source.randrange(2**31))
                    turn = 0
                turn += 1
                *_, terminated, truncated, _ = self.step(env, action[:bound], turn)
                over = bool(terminated or truncated)
            except EnvironmentFault as fault:
                self.add_finding(
                    f"the action {ascii(action)[:80]} raised EnvironmentFault ({fault}): no action may cause a fault"
                )
                over = True
            except Exception as error:
                self.add_finding(f"step({ascii(action)[:80]}) raised {type(error).__name__}: {str(error)[:200]}")
                over = True

    def check_state(self) -> None:
        env = self.make()
        self.reset(env, seed=self.seed)
        base: Any = env.unwrapped
        if not hasattr(base, "get_state"):
            raise SkipCheck(f"{type(base).__name__} has no get_state()")
        try:
            saved = base.get_state()
        except NotImplementedError as reason:
            self.expect(str(reason) != "", "get_state() raises NotImplementedError without a reason")
            raise SkipCheck(str(reason)) from None
        self.expect(isinstance(saved, bytes), f"get_state() must return bytes; got {show(saved)}")
        self.expect(not saved.startswith(b"\x80"), "get_state() returned a pickle; loading one runs code: use JSON")
        try:
            self.make().unwrapped.set_state(b"nonsense")  # type: ignore[attr-defined]
        except ValueError:
            pass
        else:
            self.add_finding("set_state(b'nonsense') did not raise ValueError")
        # Once with the oracle's actions and once without, since an oracle may win before the state has changed; and
        # also from the middle of an episode, where there is more state to restore than at its start.
        for advised in (False, True) if self.oracle is not None and takes_env(self.oracle) else (False,):
            for turns_before in (0, 1):
                self._copy(advised, turns_before)

    def _copy(self, advised: bool, turns_before: int) -> None:
        base: Any = self.make().unwrapped
        self.reset(base, seed=self.seed)
        for turn in range(turns_before):
            if any(base.step(unicode_text(self.random(8, turn)))[2:4]):
                return
        saved = base.get_state()
        actions = [unicode_text(self.random(9, i)) for i in range(6)]

        def go_on(one: Any) -> list[Any]:
            log = []
            for turn, action in enumerate(actions):
                log.append(one.step(self.oracle(one) if advised and self.oracle and turn % 2 == 0 else action))
                if log[-1][2] or log[-1][3]:
                    break
            return log

        copy = base.fork()
        expected = go_on(base)
        forked = go_on(copy)
        self._envs.append(copy)
        self.expect(equal(expected, forked), "a fork() continues differently from the original, or shares its state")
        base.set_state(saved)
        self.expect(equal(expected, go_on(base)), "after set_state(get_state()) the same actions give other results")
        other: Any = self.make().unwrapped
        other.set_state(saved)
        self.expect(equal(expected, go_on(other)), "a state cannot be restored in a new environment")

    def check_render(self) -> None:
        modes = self.make().metadata.get("render_modes")
        if not self.expect(isinstance(modes, list), f"metadata['render_modes'] must be a list; got {show(modes)}"):
            return
        if not isinstance(self.target, str) and not _takes_render_mode(self.target):
            raise SkipCheck("the factory does not accept render_mode=")
        for mode in modes or ():
            env = self.make(render_mode=mode)
            self.reset(env, seed=self.seed)
            self._check_frame(mode, env.render())
            env.step("")
            self._check_frame(mode, env.render())

    def _check_frame(self, mode: str, frame: Any) -> None:
        if mode == "ansi":
            self.expect(isinstance(frame, str), f"render() in mode 'ansi' must return str; got {show(frame)}")
        elif mode == "rgb_array":
            sound = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape[2:] == (3,)
            self.expect(sound, f"render() in mode 'rgb_array' must return a uint8 image; got {show(frame)}")

    def check_vector(self) -> None:
        vector = gymnasium.vector.SyncVectorEnv([self.make, self.make])
        _, infos = vector.reset(seed=self.seed)
        self.expect("task_id" in infos, "the infos of a vector environment lack task_id")
        for _ in range(3):
            observations, rewards, *_ = vector.step(("", "x"))
            self.expect(
                len(observations) == 2 and len(rewards) == 2,
                "a vector environment of two environments must return two results",
            )
        vector.close()
        self._envs.clear()

    def check_oracle(self) -> None:
        if self.oracle is None:
            raise SkipCheck("no oracle was given")
        env, solved, episodes, failed = self.make(), 0, 20, ""
        for episode in range(episodes):
            observation, info = self.reset(env, seed=self.seed + episode)
            for turn in range(1, MAX_TURNS):
                action = self.act(env, observation, info)
                observation, _, terminated, truncated, info = self.step(env, action, turn)
                if terminated or truncated:
                    break
            if info.get("success"):
                solved += 1
            elif not failed:
                failed = f"; in task {info.get('task_id')!r}, {action!r:.200} was followed by {observation!r:.200}"
        self.expect(2 * solved >= episodes, f"the oracle solved only {solved} of {episodes} episodes{failed}")

    def check_close(self) -> None:
        env = self.make()
        self.reset(env, seed=self.seed)
        env.close()
        env.close()
        self.make().close()

    def check_gymnasium(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(self.make().unwrapped, skip_render_check=True, skip_close_check=True)
        self.report.warnings += sorted({f"gymnasium: {warning.message}" for warning in caught})

    def check_torch(self) -> None:
        if self.torch_before:
            raise SkipCheck("torch was imported before the check began; run it in a fresh process")
        self.expect("torch" not in sys.modules, "the environment imports torch; environments work without it")


def equal(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and are equal, also for arrays and NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def _numpy_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002  (the global generator is what must stay untouched)
    return name, np.asarray(keys).tobytes(), *rest


def _takes_render_mode(factory: Callable[..., GymEnv]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "render_mode" or p.kind is p.VAR_KEYWORD for p in parameters)
