"""Checks that a game fulfils the API contract: ``print(check_text_game("rllm/TicTacToe-v0"))``."""

from __future__ import annotations

import copy
import io
import json
import math
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from random import Random
from typing import Any

import pettingzoo
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Dict

from rllm_gym.core import EnvironmentFault, StopReason
from rllm_gym.multiagent import ParallelGame, TextGame
from rllm_gym.testing.hostile import HOSTILE, unicode_text
from rllm_gym.testing.report import Finding, Report

GamePolicy = Callable[[TextGame, str, Random], str]
"""Called with the game, the agent to move and a random generator; returns an action."""

MAX_TURNS = 400
_FORKED_TURNS = 60
_INFO_TYPES = {
    "task_id": str,
    "turn": int,
    "active": bool,
    "invalid_action": bool,
    "success": bool,
    "stop_reason": str,
    "reward_components": dict,
    "tools": str,
}
_ENDS = {reason.value for reason in StopReason if reason}
_FENCE = re.compile("~{3,}")


def check_text_game(
    env_id_or_factory: str | Callable[..., TextGame],
    *,
    policy: GamePolicy | None = None,
    fuzz: int = 100,
    seed: int = 0,
) -> Report:
    """Check that a game fulfils the contract of :class:`~rllm_gym.multiagent.TextGame`, including PettingZoo's API.

    Args:
        env_id_or_factory: A PettingZoo id, or a function (or class) that creates a new game.
        policy: Makes sensible moves, so that the checks reach late positions; arbitrary text is mixed in.
        fuzz: Number of arbitrary Unicode actions to try.
        seed: Seed of all random choices of the checker.

    Returns:
        The report. A faulty game does not raise an exception.
    """
    subject = (
        env_id_or_factory if isinstance(env_id_or_factory, str) else getattr(env_id_or_factory, "__qualname__", "")
    )
    checker = _GameChecker(env_id_or_factory, policy, fuzz, seed, Report(str(subject)))
    for name in ("spaces", "episodes", "tasks", "seeding", "fuzz", "state", "parallel", "forgery", "pettingzoo"):
        checker.check, before = name, len(checker.report.findings)
        try:
            getattr(checker, f"check_{name}")()
        except NotImplementedError as reason:
            checker.report.skipped[name] = str(reason)
        except Exception as error:
            checker.add_finding(f"raised {type(error).__name__}: {str(error)[:500]}")
        finally:
            checker.close_all()
        if len(checker.report.findings) == before and name not in checker.report.skipped:
            checker.report.passed.append(name)
    return checker.report


class _GameChecker:
    def __init__(
        self, target: str | Callable[..., TextGame], policy: GamePolicy | None, fuzz: int, seed: int, report: Report
    ) -> None:
        self.target, self.policy, self.fuzz, self.seed, self.report = target, policy, fuzz, seed, report
        self.check = ""
        self._games: list[TextGame] = []
        self._info_types: dict[str, type] = {}

    def add_finding(self, message: str) -> None:
        finding = Finding(self.check, message)
        if finding not in self.report.findings:
            self.report.findings.append(finding)

    def expect(self, truth: bool, message: str) -> None:
        if not truth:
            self.add_finding(message)

    def make(self, **kwargs: Any) -> TextGame:
        game = pettingzoo.make("aec", self.target, **kwargs) if isinstance(self.target, str) else self.target(**kwargs)
        self._games.append(game)
        return game

    def close_all(self) -> None:
        games, self._games = self._games, []
        for game in games:
            game.close()

    # Checks

    def check_spaces(self) -> None:
        game = self.make()
        for agent in game.possible_agents:
            self.expect(bool(re.fullmatch("[a-z]+_[0-9]+", agent)), f"the name of agent {agent!r} is not like player_0")
            space, actions = game.observation_space(agent), game.action_space(agent)
            self.expect(
                isinstance(space, Dict) and set(space.spaces) == {"text"},
                f"observation_space({agent!r}) is {space}; it must be a Dict with the key 'text'",
            )
            self.expect(space is game.observation_space(agent), "observation_space() returns a new space on every call")
            self.expect(actions is game.action_space(agent), "action_space() returns a new space on every call")
            for sample in ("", "a b\n", "héllo 🙂", "\x00"):
                self.expect(sample in actions, f"action_space({agent!r}) does not contain {sample!r}")

    def check_episodes(self) -> None:
        game = self.make()
        self._expect_refusal(game, "before the first reset()")
        for episode in range(4):
            self.play(game, self.random("episodes", episode), seed=self.seed + episode)
            self.expect(not game.agents, "agents is not empty after the end")
            self._expect_refusal(game, "after the end")
        game.reset(seed=self.seed)
        try:
            game.step(3)  # type: ignore[arg-type]
        except TypeError:
            return
        self.add_finding("step(3) must raise TypeError: an action is a str")

    def _expect_refusal(self, game: TextGame, when: str) -> None:
        try:
            game.step("")
        except ResetNeeded:
            return
        self.add_finding(f"step() {when} must raise gymnasium.error.ResetNeeded")

    def check_tasks(self) -> None:
        game = self.make()
        game.reset(seed=self.seed, options={"task": 0})
        first = game.task
        for chosen in (0, first.task_id, first):
            game.reset(seed=self.seed + 7, options={"task": chosen})
            self.expect(game.task == first, f"options={{'task': {chosen!r}}} selected the task {game.task.task_id!r}")
        for wrong in ({"task": "no such task"}, {"task": -1}, {"task": 1.5}, {"taks": 0}):
            try:
                game.reset(seed=self.seed, options=wrong)
            except Exception:
                continue
            self.add_finding(f"reset(options={wrong}) was accepted; it must raise TaskError")

    def check_seeding(self) -> None:
        for episode in range(3):
            one, other = (
                self.play(self.make(), self.random("seeding", episode), seed=self.seed + episode) for _ in range(2)
            )
            self.expect(one == other, f"same seed and actions, but two episodes of seed {self.seed + episode} differ")

    def check_fuzz(self) -> None:
        game, source = self.make(), self.random("fuzz")
        game.reset(seed=self.seed)
        for number in range(self.fuzz):
            if not game.agents:
                game.reset(seed=source.randrange(2**31))
            agent = game.agent_selection
            action: str | None = HOSTILE[number] if number < len(HOSTILE) else unicode_text(source)
            if game.terminations[agent] or game.truncations[agent]:
                action = None
            try:
                game.step(action)
                self.inspect(game)
            except EnvironmentFault as fault:
                self.add_finding(
                    f"the action {ascii(action)[:80]} raised EnvironmentFault ({fault}): no action may cause a fault"
                )
            except Exception as error:
                self.add_finding(f"step({ascii(action)[:80]}) raised {type(error).__name__}: {str(error)[:200]}")
                game.reset(seed=self.seed)

    def check_state(self) -> None:
        game, source = self.make(), self.random("state")
        for episode in range(2):
            game.reset(seed=self.seed + episode)
            for _ in range(_FORKED_TURNS):
                if not game.agents:
                    break
                saved, copy = game.get_state(), game.fork()
                self._games.append(copy)
                self.expect(copy.get_state() == saved, "the state of a fork() differs from the original")
                action = self.act(game, source)
                game.step(action)
                copy.step(action)
                self.expect(
                    self.visible_state(copy) == self.visible_state(game),
                    "a fork() continues differently with the same action",
                )
                copy.set_state(saved)
                self.expect(copy.get_state() == saved, "set_state() does not restore the state of get_state()")
        for corrupt in (b"", b"{}", b"[]", b"\xff", json.dumps({"schema": 1, "game": type(game).__name__}).encode()):
            try:
                game.set_state(corrupt)
            except ValueError:
                continue
            self.add_finding(f"set_state({corrupt!r}) was accepted; it must raise ValueError")

    def check_parallel(self) -> None:
        game, source = self.make(), self.random("parallel")
        parallel = ParallelGame(self.make())
        game.reset(seed=self.seed)
        observations, infos = parallel.reset(seed=self.seed)
        for _ in range(MAX_TURNS):
            agents = list(game.agents)
            self.expect(parallel.agents == agents, "the parallel environment has other agents")
            self.expect(
                set(observations) == set(infos) == set(agents),
                "the parallel environment lacks agents",
            )
            active = game.agent_selection
            self.expect(
                [a for a in agents if infos[a]["active"]] == [active],
                "info['active'] must mark the agent to move",
            )
            action = self.act(game, source)
            game.step(action)
            idle = {agent: unicode_text(source) for agent in agents if agent != active}
            observations, rewards, ends, cuts, infos = parallel.step({active: action, **idle})
            reported = {agent: game.observe(agent) for agent in agents}
            self.expect(
                observations == reported,
                "the observations of the parallel environment differ: actions of idle agents have an effect",
            )
            self.expect(
                (rewards, ends, cuts) == (game.rewards, game.terminations, game.truncations),
                "rewards, terminations or truncations of the parallel environment differ",
            )
            for agent in agents:
                parts = math.fsum(infos[agent]["reward_components"].values())
                self.expect(
                    math.isclose(parts, rewards[agent], abs_tol=1e-9),
                    "reward_components of the parallel environment are not those of this step",
                )
            if not parallel.agents:
                return
        self.add_finding(f"the game did not end within {MAX_TURNS} turns")

    def check_forgery(self) -> None:
        """Check that the text of an agent is always quoted in the observations of the other agents."""
        game, source = self.make(), self.random("forgery")
        ends = ("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")
        marks = {agent: f"Zq{agent}Forged" for agent in game.possible_agents}
        for episode in range(2):
            game.reset(seed=self.seed + episode)
            for turn in range(MAX_TURNS):
                if not game.agents:
                    break
                agent, action = game.agent_selection, self.act(game, source)
                if action is not None and turn % 2 == episode % 2:
                    mark = marks[agent]
                    lines = (mark, f"> {mark}", f"{mark} says:", "~~~", mark, "~~~~~~", mark, action)
                    action = ends[turn % len(ends)].join(lines)
                game.step(action)
                for observer in game.possible_agents:
                    outside = _outside_of_quotations(game.observe(observer)["text"])
                    for sender, mark in marks.items():
                        self.expect(
                            observer == sender or mark not in outside,
                            f"the text of {sender} is not quoted in the observation of {observer}",
                        )

    def check_pettingzoo(self) -> None:
        from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test

        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            api_test(self.make(), num_cycles=30)
            seed_test(self.make, num_cycles=30)
            render_test(self.make)
            parallel_api_test(ParallelGame(self.make()), num_cycles=60)
            parallel_seed_test(lambda: ParallelGame(self.make()), num_cycles=30)

    # Running a game

    def random(self, *salt: object) -> Random:
        return Random(f"{self.seed}/{salt}")

    def act(self, game: TextGame, source: Random) -> str | None:
        """Return an action for the agent to move: usually the policy's, otherwise arbitrary text."""
        agent = game.agent_selection
        if game.terminations[agent] or game.truncations[agent]:
            return None
        if self.policy is not None and source.random() < 0.8:
            return self.policy(game, agent, source)
        return unicode_text(source)

    def play(self, game: TextGame, source: Random, *, seed: int) -> list[Any]:
        """Run and check an episode. Return a list of everything that was observed."""
        game.reset(seed=seed)
        for agent in game.possible_agents:
            text = game.observe(agent)["text"]
            if agent == game.agent_selection:
                self.expect(text.strip() != "", "the first observation is empty; it must suffice to act")
        log = [self.inspect(game)]
        earned = dict.fromkeys(game.possible_agents, 0.0)
        for _ in range(MAX_TURNS):
            if not game.agents:
                return log
            agent = game.agent_selection
            info = game.last()[1]
            self.expect(
                math.isclose(info, earned[agent], abs_tol=1e-9),
                f"last() returns the reward {info} for {agent}; the sum since its last step is {earned[agent]}",
            )
            earned[agent] = 0.0
            game.step(self.act(game, source))
            for name, reward in game.rewards.items():
                earned[name] += reward
            log.append(self.inspect(game))
        self.add_finding(f"the game did not end within {MAX_TURNS} turns")
        return log

    def visible_state(self, game: TextGame) -> Any:
        observations = {agent: game.observe(agent) for agent in game.possible_agents}
        return copy.deepcopy(
            (
                observations,
                game.agents,
                game.agent_selection,
                game.rewards,
                game.terminations,
                game.truncations,
                game.infos,
            )
        )

    def inspect(self, game: TextGame) -> Any:
        """Check everything that is visible in the current position, and return it."""
        for agent in game.agents:
            text: Any = game.observe(agent)
            self.expect(text in game.observation_space(agent), f"the observation of {agent} is not in its space")
            self.expect(text == game.observe(agent), "two calls of observe() return different observations")
            try:
                text["text"].encode()
            except UnicodeEncodeError:
                self.add_finding(f"the observation of {agent} contains a lone surrogate, which no tokenizer accepts")
            self._inspect_info(game, agent)
        if game.agents:
            self.expect(
                game.agent_selection in game.agents, f"agent_selection {game.agent_selection!r} is not in agents"
            )
        return self.visible_state(game)

    def _inspect_info(self, game: TextGame, agent: str) -> None:
        info, reward = game.infos[agent], game.rewards[agent]
        for key, kind in _INFO_TYPES.items():
            self.expect(type(info.get(key)) is kind, f"info[{key!r}] is {info.get(key)!r}, not {kind.__name__}")
        for key, value in info.items():
            first = self._info_types.setdefault(key, type(value))
            self.expect(type(value) is first, f"info[{key!r}] was {first.__name__} and is {type(value).__name__}")
        self.expect(set(info) == set(self._info_types), f"the keys of info change: {sorted(info)}")
        self.expect(type(reward) is float and math.isfinite(reward), f"the reward {reward!r} must be a finite float")
        over = game.terminations[agent] or game.truncations[agent]
        stop = info["stop_reason"]
        self.expect(
            not (game.terminations[agent] and game.truncations[agent]), "terminated and truncated are both true"
        )
        self.expect(stop in _ENDS if over else stop == "", f"stop_reason is {stop!r}, over is {over}")
        self.expect(info["success"] == (stop == "success"), f"success is {info['success']}, stop_reason is {stop!r}")
        self.expect(info["active"] == (agent == game.agent_selection and not over), "info['active'] is wrong")
        total = math.fsum(info["reward_components"].values())
        expected = game._cumulative_rewards[agent]
        self.expect(math.isclose(total, expected, abs_tol=1e-9), f"reward {expected}, but components {total}")


def _outside_of_quotations(text: str) -> str:
    """Return the text of the environment itself: no lines with ``>``, nothing between fences."""
    lines, fence = [], ""
    for line in text.split("\n"):
        if fence:
            fence = "" if line == fence else fence
        elif _FENCE.fullmatch(line):
            fence = line
        elif not line.startswith(">"):
            lines.append(line)
    return "\n".join(lines)
