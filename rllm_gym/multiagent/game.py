"""The base class of games: a PettingZoo environment of agents that take turns, and observe and act in text.

It contains the bookkeeping that is the same for all games: choosing the task, the order of turns, pending observations,
rewards since an agent's last turn, the end, and the keys of ``info``. The other modules of this package
define the games; this one uses no model, no tokens and no I/O.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from pettingzoo import AECEnv

from rllm_gym.core import InvalidAction, SavedState, StopReason, Task, TaskError, TaskSource, Text, select_task
from rllm_gym.parsing.boxed import strip_thinking
from rllm_gym.parsing.quoting import MAX_ESCAPED_CHARS, quoted

Components = dict[str, float]


@dataclass(slots=True)
class TurnResult:
    """The result of one turn.

    Attributes:
        next: The next agent; may be the same again. Not used with ``terminated``.
        rewards: For each rewarded agent, its reward by component; their sum is its reward of this turn.
        terminated: The game has been decided, for all agents.
        truncated: It ends undecided, because one of the game's own limits is reached.
        success: The agents that reached their goal. Only meaningful with ``terminated``.
        invalid: The environment itself rejected the reply, counted it as a turn and explained it.
        stop_reason: Why it ended, if the environment reports it; ``""`` to derive it from the above.
    """

    next: str = ""
    rewards: Mapping[str, Components] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: Collection[str] = ()
    invalid: bool = False
    stop_reason: str = ""


class TextGame(SavedState, AECEnv):  # type: ignore[misc]
    """A PettingZoo environment of text.

    Subclasses implement :meth:`_begin`, :meth:`_act`, :meth:`_forfeit` and :meth:`_render_text`.

    ## Observation space
    ``{"text": str}``: everything that is new for this agent since it last acted, that is, text of the environment and
    messages of other agents. Each line of a message begins with ``"> "``, as no line of the environment does. The first
    observation suffices to act. Observing twice returns the same text.

    ## Action space
    The model's raw reply, any Unicode string; the game parses it. A reply that cannot be parsed is an ordinary turn of
    the game: an error message to that agent only, ``invalid_action`` in its info, no change of state. The agent may
    retry ``max_invalid`` times in a row; after that it forfeits, and each game defines what that means.

    ## Episode end
    A game that has been decided *terminates*, for all agents at once; reaching the limit of turns is *truncation*.

    ## Information
    For each agent: ``task_id: str``, ``turn: int`` (turns of all agents so far), ``active: bool`` (it is this agent's
    turn), ``invalid_action: bool`` (its own last action could not be parsed), ``success: bool``, ``stop_reason: str``
    (``""`` while the game goes on), ``reward_components: dict[str, float]`` (they sum to the reward since its last
    turn, which is what ``last()`` returns), ``tools: str`` (a JSON list of tool schemas).

    ## Error handling
    A failure of the environment raises :class:`~rllm_gym.core.EnvironmentFault` and never affects a reward.

    Args:
        agents: Their names, such as ``"player_0"``.
        tasks: The tasks to sample from.
        max_turns: Turns of all agents together before truncation; ``None``: the game's own rules end it.
        max_cycles: PettingZoo's name: turns *per agent*. Not with ``max_turns``.
        max_invalid: Number of replies in a row that cannot be parsed and cost nothing but turns.
        invalid_action_penalty: Subtracted from the agent's reward for every reply that cannot be parsed.
        max_observation_chars: Maximum characters of the environment's own text in an observation.
        max_action_chars: Maximum characters of a reply; longer ones are invalid.
        max_message_chars: Maximum characters of a message to other agents.
        messages_per_turn: Maximum number of messages for an agent between two of its turns.
        render_mode: ``"ansi"`` (:meth:`render` returns text), ``"human"`` (it prints it) or ``None``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "ansi"], "is_parallelizable": False}

    _state_key = "game"

    @property
    def agents_beside_oracle(self) -> Sequence[str]:
        """The agents whose own replies decide on their rewards if :meth:`oracle` replies for all others."""
        return self.possible_agents

    _pending_text: dict[str, list[str]]

    def __init__(
        self,
        *,
        agents: Sequence[str],
        tasks: TaskSource,
        max_turns: int | None = None,
        max_cycles: int | None = None,
        max_invalid: int = 2,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 100_000,
        max_message_chars: int = 10_000,
        messages_per_turn: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        for name, value, least in (
            ("max_turns", max_turns, 1),
            ("max_cycles", max_cycles, 1),
            ("max_invalid", max_invalid, 0),
            ("max_action_chars", max_action_chars, 1),
            ("max_message_chars", max_message_chars, 1),
        ):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
        if max_turns is not None and max_cycles is not None:
            raise ValueError(
                f"max_turns={max_turns} and max_cycles={max_cycles} set the same limit; pass only one of them"
            )
        if not (math.isfinite(invalid_action_penalty) and invalid_action_penalty >= 0):
            raise ValueError(f"invalid_action_penalty={invalid_action_penalty!r} must be a finite number, 0 or more")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r} is not one of {self.metadata['render_modes']} (or None)")
        if len(tasks) == 0:
            raise TaskError("the task set is empty; pass at least one task")
        self.possible_agents = list(agents)
        self.tasks = tasks
        self.max_turns = max_cycles * len(self.possible_agents) if max_cycles is not None else max_turns
        self.max_invalid = max_invalid
        self.invalid_action_penalty = invalid_action_penalty
        self.max_message_chars = max_message_chars
        self.render_mode = render_mode
        num_messages = len(self.possible_agents) if messages_per_turn is None else messages_per_turn
        longest = max_observation_chars + num_messages * (MAX_ESCAPED_CHARS * max_message_chars + 200)
        self._observation_spaces = {name: spaces.Dict({"text": Text(longest)}) for name in self.possible_agents}
        self._action_spaces = {name: Text(max_action_chars) for name in self.possible_agents}
        self._max_action_chars = max_action_chars
        self._task: Task | None = None
        self._np_random: np.random.Generator | None = None
        self._clear([])

    # Implemented by subclasses

    @abstractmethod
    def _begin(self, task: Task) -> str:
        """Set the game up for ``task``, :meth:`_notify` every agent what it needs to know, return the first agent."""

    @abstractmethod
    def _act(self, agent: str, action: str) -> TurnResult:
        """Parse and carry out one reply.

        Raises:
            InvalidAction: The reply cannot be parsed; no state has changed and no agent was notified.
            EnvironmentFault: The environment failed.
        """

    @abstractmethod
    def _forfeit(self, agent: str) -> TurnResult:
        """Handle that ``agent`` has exceeded the number of replies in a row that cannot be parsed."""

    @abstractmethod
    def _render_text(self) -> str:
        """Return the whole game as text for people, secrets included."""

    def _tools(self, agent: str) -> str:
        """Return the tools offered to an agent, as a JSON list of OpenAI tool schemas."""
        return "[]"

    def _add_info(self, agent: str, info: dict[str, Any]) -> None:
        """Add this game's own keys to an agent's info. They must not be secret from that agent."""

    # Used by subclasses

    @property
    def task(self) -> Task:
        """The task of the current episode."""
        if self._task is None:
            raise ResetNeeded("no task yet: call reset() first")
        return self._task

    @property
    def np_random(self) -> np.random.Generator:
        """The game's one source of randomness, seeded by ``reset(seed=…)``."""
        if self._np_random is None:
            self._np_random, _ = seeding.np_random()
        return self._np_random

    @np_random.setter
    def np_random(self, generator: np.random.Generator) -> None:
        self._np_random = generator

    @property
    def turn(self) -> int:
        """Number of turns so far, of all agents together."""
        return self._turn

    @property
    def rewards_by_component(self) -> dict[str, Components]:
        """Each agent's rewards of the last turn alone, whichever agent's turn it was."""
        return self._turn_rewards

    def _notify(self, agent: str, text: str) -> None:
        """Add text of the environment to one agent's observation. Include agents' words only through ``quoted``."""
        self._pending_text[agent].append(text)

    def _notify_all(self, text: str, *, exclude: str = "") -> None:
        for agent in self.possible_agents:
            if agent != exclude:
                self._notify(agent, text)

    def _relay(self, sender: str, message: str, to: Collection[str] | None = None) -> None:
        """Pass a message of one agent to others (all others by default), quoted."""
        text = f"{sender} says:\n{quoted(message)}" if message else f"{sender} says nothing."
        for agent in self.possible_agents if to is None else to:
            if agent != sender:
                self._notify(agent, text)

    def _message_in(self, action: str) -> str:
        """Return the message in a reply: all of it after the last closed ``</think>``.

        Raises:
            InvalidAction: It is too long, or ends inside ``<think>``.
        """
        message = strip_thinking(action)
        if message is None:
            raise InvalidAction(
                "Your reply ends inside <think>, so it says nothing to anybody. Close it with </think>."
            )
        message = message.strip()
        if len(message) > self.max_message_chars:
            raise InvalidAction(
                f"Your message has {len(message)} characters; at most {self.max_message_chars} are passed on. "
                "Say it shorter."
            )
        return message

    # PettingZoo's interface

    def observation_space(self, agent: str) -> spaces.Dict:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Text:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Start an episode.

        Args:
            seed: Seeds ``np_random``. It also selects the task, unless ``options`` names one; then it affects the game
                alone.
            options: ``{"task": index | task_id | Task}`` or nothing.

        Raises:
            TaskError: There is no such task, or an option is unknown.
            EnvironmentFault: The environment could not be set up.
        """
        if seed is not None:
            self._np_random, _ = seeding.np_random(seed)
        self._clear([])  # until the setup has succeeded
        self._task = self._choose_task(options)
        first = self._begin(self._task)
        pending_text = self._pending_text
        self._clear(self.possible_agents)
        self._pending_text = pending_text
        self.agent_selection = first
        self._write_infos()

    def observe(self, agent: str) -> dict[str, str]:
        """Return what is new for an agent since it last acted.

        Raises:
            gymnasium.error.ResetNeeded: No episode has begun.
            KeyError: There is no such agent.
        """
        if self._task is None:
            raise ResetNeeded("no episode yet: call reset() before observe()")
        return {"text": "\n".join(self._pending_text[agent])}

    def step(self, action: str | None) -> None:
        """Pass the reply of ``agent_selection`` to the game; ``None`` for an agent whose game is over.

        Raises:
            TypeError: ``action`` is not a string.
            gymnasium.error.ResetNeeded: The episode is over or was never started.
            EnvironmentFault: The environment failed; after this or any other of its errors, the episode is over.
        """
        if not self.agents:
            raise ResetNeeded("the episode is over or was never started: call reset() before step()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise TypeError(f"the action of {agent} must be a str (the model's raw reply); got {type(action).__name__}")
        self._pending_text[agent] = []
        self._cumulative_rewards[agent] = 0.0
        self._total_rewards[agent] = {}
        try:
            turn = self._take_turn(agent, action)
        except BaseException:  # the state of the environment is unknown
            self._clear([])
            raise
        self._turn += 1
        self._apply_turn(agent, turn)

    def render(self) -> str | None:
        """Return (``"ansi"``) or print (``"human"``) the game as text for people."""
        if self.render_mode is None:
            return None
        if self._task is None:
            raise ResetNeeded("no episode yet: call reset() before render()")
        if self.render_mode == "ansi":
            return self._render_text()
        print(self._render_text())
        return None

    def close(self) -> None:
        """Free the game's resources."""

    # Saving and restoring state, see SavedState

    def _episode_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _EPISODE_STATE}

    def _restore_episode(self, saved: dict[str, Any]) -> None:
        for attribute, kind in _EPISODE_STATE.items():
            if not isinstance(saved[attribute], kind):
                raise TypeError(f"{attribute} is {saved[attribute]!r}")
            setattr(self, attribute, saved[attribute])
        if set(self._pending_text) != set(self.possible_agents) or not set(self.agents) <= set(self.possible_agents):
            raise ValueError(f"the state has the agents {sorted(self._pending_text)}, not {self.possible_agents}")

    def _end_episode(self) -> None:
        self._clear([])

    def _clear(self, agents: Sequence[str]) -> None:
        """Reset the bookkeeping for an episode of these agents; no agents: no episode."""
        self.agents = list(agents)
        self.agent_selection = ""
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self._skip_agent_selection: str | None = None
        self._turn = 0
        self._refusals = 0
        everyone = self.possible_agents
        self._pending_text = {agent: [] for agent in everyone}
        self._total_rewards: dict[str, Components] = {agent: {} for agent in everyone}
        self._turn_rewards: dict[str, Components] = {agent: {} for agent in everyone}
        self._invalid = dict.fromkeys(everyone, False)
        self._stop_reasons = dict.fromkeys(everyone, "")

    def _take_turn(self, agent: str, action: str) -> TurnResult:
        try:
            if len(action) > self._max_action_chars:
                raise InvalidAction(
                    f"The reply has {len(action)} characters; at most {self._max_action_chars} are read."
                )
            turn = self._act(agent, action)
        except InvalidAction as error:
            self._invalid[agent] = True
            self._refusals += 1
            self._notify(agent, str(error))
            forfeits = self._refusals > self.max_invalid
            turn = self._forfeit(agent) if forfeits else TurnResult(agent)
            if self.invalid_action_penalty:
                own = dict(turn.rewards.get(agent, {})) | {"invalid_action": -self.invalid_action_penalty}
                turn.rewards = {**turn.rewards, agent: own}
            if forfeits:
                self._refusals = 0
                if turn.terminated and agent not in turn.success:
                    self._stop_reasons[agent] = StopReason.INVALID_ACTION.value
        else:
            self._invalid[agent] = turn.invalid
            self._refusals = 0
        return turn

    def _apply_turn(self, agent: str, result: TurnResult) -> None:
        """Update rewards, the end and the next agent, after ``agent``'s turn."""
        spent = result.truncated or (self.max_turns is not None and self._turn >= self.max_turns)
        truncated = spent and not result.terminated
        for name in self.agents:
            components = {part: float(value) for part, value in result.rewards.get(name, {}).items()}
            self._turn_rewards[name] = components
            earned = self._total_rewards[name]
            for part, value in components.items():
                earned[part] = earned.get(part, 0.0) + value
            self.rewards[name] = float(sum(components.values()))
            self._cumulative_rewards[name] += self.rewards[name]
            self.terminations[name], self.truncations[name] = result.terminated, truncated
            if result.stop_reason and (result.terminated or result.truncated):
                self._stop_reasons[name] = result.stop_reason
            elif truncated:
                self._stop_reasons[name] = StopReason.MAX_TURNS.value
            elif result.terminated and name in result.success:
                self._stop_reasons[name] = StopReason.SUCCESS.value
            elif result.terminated and not self._stop_reasons[name]:
                self._stop_reasons[name] = StopReason.FAILURE.value
        if result.terminated or truncated:
            self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        else:
            self.agent_selection = result.next
        self._write_infos()

    def _write_infos(self) -> None:
        for agent in self.agents:
            over = self.terminations[agent] or self.truncations[agent]
            info = {
                "task_id": self.task.task_id,
                "turn": self._turn,
                "active": agent == self.agent_selection and not over,
                "invalid_action": self._invalid[agent],
                "success": self._stop_reasons[agent] == StopReason.SUCCESS.value,
                "stop_reason": self._stop_reasons[agent],
                "reward_components": dict(self._total_rewards[agent]),
                "tools": self._tools(agent),
            }
            self._add_info(agent, info)
            self.infos[agent] = info

    def _clear_rewards(self) -> None:
        # PettingZoo's own method would make them integers.
        for agent in self.rewards:
            self.rewards[agent] = 0.0

    def _choose_task(self, options: Mapping[str, Any] | None) -> Task:
        # PettingZoo's api_test and parallel_api_test reset with {"options": 1}, and expect no effect.
        unknown = sorted(set(options or ()) - {"task", "options"})
        if unknown:
            raise TaskError(f"unknown reset option(s) {unknown}; the only option is 'task'")
        return select_task(self.tasks, (options or {}).get("task"), self.np_random)


# The fields that get_state() saves, and the required type of each.
_EPISODE_STATE: dict[str, Any] = {
    "agents": list,
    "agent_selection": str,
    "terminations": dict,
    "truncations": dict,
    "rewards": dict,
    "_cumulative_rewards": dict,
    "infos": dict,
    "_skip_agent_selection": str | None,
    "_turn": int,
    "_refusals": int,
    "_pending_text": dict,
    "_total_rewards": dict,
    "_turn_rewards": dict,
    "_invalid": dict,
    "_stop_reasons": dict,
}
