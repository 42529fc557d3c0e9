"""The FrozenLake text environment. Maps, optimal play and rendering are in the other modules of this package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium.error import ResetNeeded

from rllm_gym.core import Outcome, Task, TaskError, TaskSource, TextEnv
from rllm_gym.envs.frozen_lake import rendering
from rllm_gym.envs.frozen_lake.lake import Lake, OptimalValues, optimal_values
from rllm_gym.envs.frozen_lake.map_generation import (
    LakeRules,
    Placement,
    check_winnable,
    default_max_turns,
    difficulty_bounds,
    generated_tasks,
    lake_of,
    tasks_from_maps,
)
from rllm_gym.parsing.moves import Move, parse_move

LakeView = Literal["grid", "neighbours", "window"]

_MAX_CHECKED = 20_000
_MOVED = tuple(f"You moved {move.word}" for move in Move)
_SLIPPED = tuple(f"You slipped {move.word}" for move in Move)


@dataclass(frozen=True, slots=True)
class Advice:
    """What optimal play does in the current position.

    Attributes:
        action: The optimal move as a word; an action that the environment accepts.
        success: Probability of reaching the goal in the remaining turns, under optimal play.
        regret: For each move, the loss in success probability compared with the optimal move, which has 0.
        distance: Fewest moves to the goal without slipping, -1 if there is no path.
    """

    action: str
    success: float
    regret: dict[str, float]
    distance: int


class FrozenLakeEnv(TextEnv):
    """Cross a frozen lake to the goal without falling into a hole. Solvable maps, one move per turn.

    ## Description
    The board shows the player ``P``, frozen cells ``_``, holes ``O`` and the goal ``G``. Every map has a path from
    the start to the goal that fits into the episode (breadth-first search, no depth limit). On slippery ice, optimal
    play reaches the goal in time with a probability above one half. Maps are drawn from (split, task_seed, index)
    only. No two splits share a map, or two maps that differ only in the start cell.

    ## Action space
    Any text. The environment reads the last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag, or the
    entire reply if there is none: ``up``, ``down``, ``left``, ``right`` (or north, south, west, east), an arrow
    ``↑ ↓ ← →``, or Gymnasium's numbers 0 left, 1 down, 2 right, 3 up. ``<think>`` sections are ignored. Anything else
    is an invalid action: the player does not move, the turn is used up, and the observation contains an error message.

    ## Observation space
    Text. The first observation states the rules, the answer format and the board. Later observations describe what
    happened and show the board again. ``view="grid"`` shows all rows; ``"neighbours"`` adds a line that names the four
    neighbouring cells; ``"window"`` shows only a square around the player (``#`` is outside the lake), and after a
    move only the rows of that square.

    ## Starting state
    The player starts on the start cell, drawn at random (or the top-left corner). The goal is drawn at random too (or
    is the bottom-right corner).

    ## Rewards
    1 for reaching the goal (component ``goal``), otherwise 0; minus ``invalid_action_penalty`` for an invalid action
    (component ``invalid_action``).

    ## Episode end
    Terminated at the goal (success) or in a hole (failure); truncated after ``max_turns`` turns.

    ## Information
    In addition to the keys of :class:`~rllm_gym.core.TextEnv`: ``regret: float``, the success probability that the
    last action lost compared with optimal play (0 at reset), and ``distance: int``, the fewest moves to the goal
    without slipping (-1 in a hole). :meth:`oracle` returns the optimal action. The model sees none of this.

    ## Arguments
    Args:
        size: Side of the square map, 2 to 10.
        p_frozen: Probability that a cell is frozen. If several are given, one is drawn for every map.
        slip_probability: Probability that a move goes to one of its two perpendicular directions instead.
        start: ``"random"`` or ``"corner"`` (top left).
        goal: ``"random"`` or ``"corner"`` (bottom right).
        difficulty: ``"easy"``, ``"medium"`` or ``"hard"`` by the length of the shortest path (on 4 × 4: 2-3, 4-5, 6
            and more moves), or a pair (fewest, most); ``None`` uses ``min_path`` and ``max_path``.
        min_path: Fewest moves of the shortest path; default 2, because maps with one move are too easy to learn from.
        max_path: Most moves of the shortest path; unlimited by default.
        max_turns: Turns before truncation; by default two and a half times the side, more on slippery ice. Maps that
            cannot be won in time are not drawn, and are rejected if they are given.
        view: ``"grid"``, ``"neighbours"`` or ``"window"``.
        window_size: Side of the window, odd, 3 or more.
        coordinates: Whether rows and columns are numbered, from 0 at the top left. Not available with the window.
        symbols: Four or five characters (player, frozen, hole, goal, edge) or a mapping of some of these names.
        rules: Whether the first observation states the rules and the answer format, and later ones what happened.
            If false, every observation is the board only, and the agent's system prompt has to explain the rest.
        split: ``"train"`` (default), ``"validation"`` or ``"test"``. For given maps: keep those of the split.
        task_seed: A different seed gives a different sequence of maps of the same split.
        num_tasks: Number of maps to draw from.
        tasks: User-provided maps: rows such as ``{"map": ["SFF", "FHF", "FFG"]}``, bare maps, tasks, a task set,
            or a ``.jsonl`` or ``.parquet`` file of rows. Then p_frozen, start, goal, difficulty, min_path, max_path,
            task_seed and num_tasks may not be given; a size other than 4 must be the size of the maps.
        invalid_action_penalty: Subtracted from the reward for an invalid action.
        render_mode: ``"ansi"`` (the player in brackets), ``"rgb_array"`` or ``None``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # type: ignore[misc]
    discrete_actions: ClassVar[tuple[str, ...]] = tuple(f"```{move.word}```" for move in Move)
    """The four moves, for policies that choose one of a few actions."""

    def __init__(
        self,
        *,
        size: int = 4,
        p_frozen: float | Sequence[float] = 0.8,
        slip_probability: float = 0.0,
        start: Placement = "random",
        goal: Placement = "random",
        difficulty: str | Sequence[int] | None = None,
        min_path: int | None = None,
        max_path: int | None = None,
        max_turns: int | None = None,
        view: LakeView = "grid",
        window_size: int = 5,
        coordinates: bool = False,
        symbols: rendering.Symbols | Mapping[str, str] | str | None = None,
        rules: bool = True,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int = 10_000,
        tasks: TaskSource | Iterable[Any] | str | None = None,
        invalid_action_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if not 0 <= slip_probability <= 1:
            raise ValueError(f"slip_probability={slip_probability!r} must be between 0 and 1")
        if view not in ("grid", "neighbours", "window"):
            raise ValueError(f"view={view!r} is not 'grid', 'neighbours' or 'window'")
        if window_size < 3 or window_size % 2 == 0:
            raise ValueError(f"window_size={window_size!r} must be odd and at least 3, so that it has a center")
        if coordinates and view == "window":
            raise ValueError("coordinates=True cannot be combined with view='window', which moves with the player")
        source: TaskSource
        if tasks is None:
            lake_rules = _lake_rules(
                size, p_frozen, slip_probability, start, goal, difficulty, min_path, max_path, max_turns
            )
            max_turns = lake_rules.max_turns
            _check_counts(num_tasks=num_tasks)
            source = generated_tasks(lake_rules, split=split, seed=task_seed, size=num_tasks)
        else:
            map_arguments = (p_frozen, start, goal, difficulty, min_path, max_path, task_seed, num_tasks)
            if map_arguments != (0.8, "random", "random", None, None, None, 0, 10_000):
                raise ValueError(
                    "tasks= provides its own maps and cannot be combined with p_frozen, start, goal, difficulty, "
                    "min_path, max_path, task_seed or num_tasks"
                )
            source = tasks_from_maps(tasks, split=split)
            max_turns = _turns_for(source, None if size == 4 else size, slip_probability, max_turns)
        super().__init__(
            tasks=source,
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )
        self.slip_probability = float(slip_probability)
        self.view: LakeView = view
        self.window_size = window_size
        self.coordinates = coordinates
        self.symbols = rendering.Symbols.of(symbols)
        self.rules = rules
        self._lake: Lake | None = None
        self._optimal_values: OptimalValues | None = None
        self._player = 0
        self._regret = 0.0
        self._chance = 0.0
        self._bare = ""

    # TextEnv interface

    def _begin(self, task: Task) -> str:
        lake = lake_of(task)
        check_winnable(lake, self.slip_probability, self.max_turns, f"task {task.task_id!r}")
        self._place_player(lake, lake.start)
        shown = self._grid_text()
        return f"{self._rules_text()}\n{shown}" if self.rules else shown

    def _act(self, action: str) -> Outcome:
        lake, future = self._lake_and_values()
        player, left, chance = self._player, self.max_turns - self._turn - 1, self._chance
        # If the action turns out to be invalid, a turn is lost: that is the regret of an invalid action.
        self._chance = future.success(player, left)
        self._regret = max(0.0, chance - self._chance)
        move = parse_move(action)
        if self.slip_probability:
            direction = self._slip(move)
            value = future.after_move(player, left + 1, move)
            cell = lake.after[player][direction]
            self._chance = future.success(cell, left)
        else:
            direction = move
            cell = lake.after[player][direction]
            self._chance = value = future.success(cell, left)
        self._player = cell
        self._regret = max(0.0, chance - value)
        letter = lake.cells[cell]
        if letter == "G":
            return Outcome("You reached the goal.", {"goal": 1.0}, terminated=True, success=True)
        happened = _MOVED[direction] if direction is move else _SLIPPED[direction]
        if letter == "H":
            return Outcome(f"{happened} into a hole.", {"goal": 0.0}, terminated=True)
        shown = self._grid_text()
        if self.rules and self.view != "window":
            shown = f"{happened}{' against the edge and stayed.' if cell == player else '.'}\n{shown}"
        return Outcome(shown, {"goal": 0.0})

    def _add_info(self, info: dict[str, Any]) -> None:
        lake, _ = self._lake_and_values()
        info["regret"] = self._regret
        info["distance"] = lake.distances[self._player]

    def _env_state(self) -> dict[str, Any]:
        self._lake_and_values()
        return {"player": self._player, "regret": self._regret}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._place_player(lake_of(self.task), int(state["player"]))
        self._regret = float(state["regret"])

    def render(self) -> str | np.ndarray | None:
        """Return the board with the player in brackets (``"ansi"``) or an image (``"rgb_array"``)."""
        if self.render_mode is None:
            return None
        lake, _ = self._lake_and_values()
        if self.render_mode == "ansi":
            return rendering.marked_board(lake, self._player, self.symbols)
        return rendering.picture(lake, self._player)

    # For users, tests and baselines

    def oracle(self) -> Advice:
        """Return optimal play from the current position, computed from the whole map and the remaining turns.

        Raises:
            gymnasium.error.ResetNeeded: The episode is over or has not started.
        """
        lake, future = self._lake_and_values()
        left = self.max_turns - self._turn
        if self._done:
            raise ResetNeeded("the episode is over: there is no optimal action; call reset() first")
        best = future.success(self._player, left)
        regret = {move.word: max(0.0, best - future.after_move(self._player, left, move)) for move in Move}
        return Advice(future.best_move(self._player, left).word, best, regret, lake.distances[self._player])

    # Helpers

    def _lake_and_values(self) -> tuple[Lake, OptimalValues]:
        if self._lake is None or self._optimal_values is None:
            raise ResetNeeded("there is no map yet: call reset() first")
        return self._lake, self._optimal_values

    def _place_player(self, lake: Lake, player: int) -> None:
        if not 0 <= player < len(lake.cells):
            raise ValueError(f"the saved player position {player} is outside the map of {len(lake.cells)} cells")
        self._lake, self._player, self._regret = lake, player, 0.0
        self._optimal_values = optimal_values(lake, self.slip_probability, self.max_turns)
        self._bare = rendering.bare_board(lake, self.symbols)
        self._chance = self._optimal_values.success(player, self.max_turns - self._turn)

    def _slip(self, move: Move) -> Move:
        draw = self.np_random.random()
        if draw >= self.slip_probability:
            return move
        return Move((move + (1 if draw < self.slip_probability / 2 else 3)) % 4)

    def _grid_text(self) -> str:
        assert self._lake is not None
        if self.view == "window":
            return rendering.window(self._lake, self._player, self.symbols, self.window_size)
        shown = rendering.board(self._bare, self._player, self.symbols)
        if self.coordinates:
            shown = rendering.with_coordinates(shown)
        return f"{shown}\n{rendering.neighbours(self._lake, self._player)}" if self.view == "neighbours" else shown

    def _rules_text(self) -> str:
        signs = self.symbols
        text = f"Go from {signs.player} to goal {signs.goal} over ice {signs.frozen}; holes {signs.hole} end the game. "
        if self.view == "window":
            text += f"{signs.edge} is outside the lake. "
        if self.slip_probability:
            text += f"With probability {self.slip_probability:g} you slip sideways. "
        return f"{text}{self.max_turns} turns.\nAnswer with one move: ```up```, ```down```, ```left``` or ```right```."


def _check_counts(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


def _pair(difficulty: Sequence[int]) -> tuple[int, int]:
    if not isinstance(difficulty, Sequence) or [type(bound) for bound in difficulty] != [int, int]:
        raise ValueError(f"difficulty={difficulty!r} must be a name or a pair of path lengths such as (3, 6)")
    return difficulty[0], difficulty[1]


def _turns_for(source: TaskSource, size: int | None, slip_probability: float, max_turns: int | None) -> int:
    """Return the episode length on given maps; check their size and that each map can be won in that many turns."""
    if len(source) > _MAX_CHECKED:
        if max_turns is None:
            raise ValueError(
                f"max_turns is required: there are {len(source)} maps, too many to derive it from all of them"
            )
        return max_turns  # each map is checked when an episode on it begins
    lakes = [lake_of(task) for task in source]
    for task, lake in zip(source, lakes):
        if size is not None and (lake.height, lake.width) != (size, size):
            raise TaskError(
                f"task {task.task_id!r} has {lake.height} x {lake.width} cells, but size={size}; omit size, or use an "
                "environment id without a size"
            )
    if max_turns is None:
        sides = [default_max_turns(max(lake.width, lake.height), slip_probability) for lake in lakes]
        max_turns = max([1, *sides, *(2 * lake.path_length for lake in lakes)])
    for task, lake in zip(source, lakes):
        check_winnable(lake, slip_probability, max_turns, f"task {task.task_id!r}")
    return max_turns


def _lake_rules(
    size: int,
    p_frozen: float | Sequence[float],
    slip_probability: float,
    start: Placement,
    goal: Placement,
    difficulty: str | Sequence[int] | None,
    min_path: int | None,
    max_path: int | None,
    max_turns: int | None,
) -> LakeRules:
    _check_counts(size=size, max_turns=max_turns, min_path=min_path, max_path=max_path)
    if isinstance(p_frozen, str):
        raise ValueError(f"p_frozen={p_frozen!r} must be a number > 0 and <= 1, or a sequence of them")
    if max_turns is None:
        max_turns = default_max_turns(size, slip_probability)
    low, high = max(1, min(2, size - 1, max_turns)), size * size - 1
    if difficulty is not None:
        if min_path is not None or max_path is not None:
            raise ValueError("difficulty cannot be combined with min_path and max_path")
        if isinstance(difficulty, str):
            low, high = difficulty_bounds(size, difficulty)
        else:
            low, high = _pair(difficulty)
    chances = (p_frozen,) if isinstance(p_frozen, int | float) else tuple(p_frozen)
    return LakeRules(
        size=size,
        p_frozen=tuple(float(chance) for chance in chances),
        start=start,
        goal=goal,
        min_path=low if min_path is None else min_path,
        max_path=high if max_path is None else max_path,
        slip_probability=float(slip_probability),
        max_turns=max_turns,
    )
