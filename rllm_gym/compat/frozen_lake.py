"""rLLM's FrozenLake: an environment made from rows of ``size``, ``p`` and ``seed``, and its agent.

New code should use ``rllm/FrozenLake-v0``, whose maps are split by content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.toy_text import frozen_lake
from gymnasium.utils import seeding

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.compat.environments import BaseEnv
from rllm_gym.compat.types import Step, Trajectory
from rllm_gym.core import TaskError

_MAX_SIZE = 64
_ATTEMPTS = 10_000
_DIRECTIONS = {"left": 1, "down": 2, "right": 3, "up": 4}

_GUIDE = """\
You are walking on a frozen lake and want to get from your cell to the goal.

FrozenLake Quick Guide
The map shows P, the cell you (the player) are on; G, the goal; _, frozen ground; O, a hole.
You win by standing on G, for a reward of 1. Falling into a hole ends the game with 0.
In every turn you move one cell Up, Down, Left or Right; there are no diagonal moves, and at the edge you stay where \
you are. The ground may be slippery: a move can then take you to the side of where you wanted to go, but rarely.
Plan a short path around the holes.
"""
_FORMAT = """
In every turn, think briefly about the current map and then give the one next move in triple backticks, such as \
```Up```. It must be one of Up, Down, Left, Right.
"""
_EXAMPLES = """
Examples of turns:

_   _   _   O
_   P   O   _
_   _   _   G
The goal is below and to the right; to the right of me is a hole, below me is frozen ground. ```Down```

_   O   _
G   _   P
_   _   O
The goal is in my row to the left, and the cell between us is frozen. ```Left```
"""


def is_valid(board: Sequence[Sequence[str]], max_size: int, max_steps: int = 5) -> bool:
    """Return whether a depth-first search finds a path from ``S`` to ``G`` around the holes.

    Args:
        board: Letters by row and column.
        max_size: Side of the square board.
        max_steps: Moves after which the search gives up a path, one before it.
    """
    start = next((row, column) for row in range(max_size) for column in range(max_size) if board[row][column] == "S")
    stack, seen = [(*start, 0)], set()
    while stack:
        row, column, moves = stack.pop()
        if moves > max_steps or (row, column) in seen:
            continue
        seen.add((row, column))
        for there in ((row + 1, column), (row, column + 1), (row - 1, column), (row, column - 1)):
            if not all(0 <= place < max_size for place in there):
                continue
            letter = board[there[0]][there[1]]
            if letter == "G":
                return True
            if letter != "H":
                stack.append((*there, moves + 1))
    return False


def generate_random_map(
    size: int = 8, p: float = 0.8, seed: int | None = 0, max_steps: int = 5
) -> tuple[list[str], tuple[int, int]]:
    """Return a random map that has a path, and the goal's row and column. The same seed gives rLLM's map.

    Args:
        size: Side of the map, 2 to 64.
        p: Probability that a cell is frozen.
        seed: Seed of the map.
        max_steps: See :func:`is_valid`.

    Raises:
        TaskError: An argument is out of range, or no map has a path.
    """
    if not 2 <= size <= _MAX_SIZE or not p >= 0:
        raise TaskError(f"a FrozenLake row has size={size!r}, p={p!r}; size must be 2 to {_MAX_SIZE}, and p 0 to 1")
    rng, _ = seeding.np_random(seed)
    p = min(1.0, p)
    for _ in range(_ATTEMPTS):
        board: list[list[str]] = rng.choice(["F", "H"], (size, size), p=[p, 1 - p]).tolist()
        start = goal = (0, 0)
        while start == goal:
            numbers = [int(rng.integers(0, size)) for _ in range(4)]
            start, goal = (numbers[0], numbers[1]), (numbers[2], numbers[3])
        board[start[0]][start[1]], board[goal[0]][goal[1]] = "S", "G"
        if is_valid(board, size, max_steps):
            return ["".join(row) for row in board], goal
    raise TaskError(f"no map of size={size}, p={p}, seed={seed} has a path of {max_steps} moves; increase p")


def get_goal_position(random_map: np.ndarray[Any, Any]) -> tuple[int, int] | None:
    """Return row and column of the goal in an array of bytes, or ``None``."""
    rows, columns = np.nonzero(random_map == b"G")
    return (int(rows[0]), int(columns[0])) if len(rows) else None


class FrozenLakeEnv(frozen_lake.FrozenLakeEnv, BaseEnv):
    """Walk to the goal. Actions are 1 (left), 2 (down), 3 (right), 4 (up), also as text; others leave the player there.

    Args:
        size, p, seed: The map, see :func:`generate_random_map`; ``seed`` is also that of the slipping.
        desc: A map in Gymnasium's notation instead.
        is_slippery: Whether a move goes to each side of its direction with a probability of 1/3.
        max_steps: Longest path of a map, see :func:`is_valid`.
    """

    MAP_LOOKUP: ClassVar = {b"P": 0, b"F": 1, b"H": 2, b"G": 3}
    GRID_LOOKUP: ClassVar = {0: " P \t", 1: " _ \t", 2: " O \t", 3: " G \t", 4: " X \t", 5: " √ \t"}
    ACTION_LOOKUP: ClassVar = {0: "None", 1: "Left", 2: "Down", 3: "Right", 4: "Up"}
    INVALID_ACTION = 0
    PENALTY_FOR_INVALID = -1
    desc: Any  # the map, an array of bytes

    def __init__(
        self,
        *,
        size: int = 8,
        p: float = 0.8,
        seed: int = 42,
        desc: Sequence[str] | None = None,
        is_slippery: bool = False,
        max_steps: int = 5,
    ) -> None:
        self.size, self.p, self.seed, self.max_steps = size, p, seed, max_steps
        rows = generate_random_map(size, p, seed, max_steps)[0] if desc is None else list(desc)
        super().__init__(desc=rows, is_slippery=is_slippery)
        self.goal_postion = get_goal_position(self.desc)  # rLLM's spelling
        self.ACTION_SPACE = gymnasium.spaces.Discrete(4, start=1)
        self.map_kwargs = {"size": size, "p": p}
        self.env_kwargs = {"is_slippery": is_slippery, "desc": desc, "seed": seed}

    def reset(self, task: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:  # type: ignore[override]
        """Start over, on the map of ``task`` if it is given."""
        now = {**self.map_kwargs, **self.env_kwargs, "max_steps": self.max_steps}
        if task:
            changed = {key: task[key] for key in now if key in task}
            now.update({"desc": None, **changed})
        self.__init__(**now)  # type: ignore[misc]
        super().reset(seed=self.seed)
        return self.render(), {}

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        action = action.action if isinstance(action, Action) else action
        move = int(action) if str(action) in ("1", "2", "3", "4") else self.INVALID_ACTION
        if self.success() or move == self.INVALID_ACTION:
            return self.render(), float(self.success()), self.finished(), {"action_is_effective": False}
        before = self.s
        _, reward, done, _, _ = super().step(move - 1)  # type: ignore[no-untyped-call]
        return self.render(), float(reward), bool(done), {"action_is_effective": bool(before != self.s)}

    def finished(self) -> bool:
        """Return whether the player is on the goal or in a hole."""
        return bytes(self.desc[self._get_player_position()]) in b"GH"

    def success(self) -> bool:
        """Return whether the player is on the goal."""
        return bytes(self.desc[self._get_player_position()]) == b"G"

    def _get_player_position(self) -> tuple[int, int]:
        return int(self.s) // self.ncol, int(self.s) % self.ncol

    def render(self, mode: str = "tiny_rgb_array") -> Any:
        """Return the map: ``"tiny_rgb_array"`` as text, ``"list"`` as rows of text, ``"state"`` as numbers; otherwise
        Gymnasium's rendering.
        """
        if mode in ("rgb_array", "ansi"):
            before, self.render_mode = self.render_mode, mode
            try:
                return super().render()  # type: ignore[no-untyped-call]
            finally:
                self.render_mode = before
        if mode not in ("tiny_rgb_array", "list", "state"):
            raise ValueError(f"mode={mode!r} is not one of tiny_rgb_array, list, state, rgb_array, ansi")
        state = np.vectorize({b"S": 1, **self.MAP_LOOKUP}.__getitem__)(self.desc)
        here = self._get_player_position()
        state[here] = {b"H": 4, b"G": 5}.get(bytes(self.desc[here]), 0)
        if mode == "state":
            return state
        rows = [[self.GRID_LOOKUP[cell] for cell in row] for row in state.tolist()]
        if mode == "list":
            return [" ".join(cell.strip() for cell in row) for row in rows]
        return "\n".join("".join(row) for row in rows)

    @staticmethod
    def from_dict(env_info: dict[str, Any]) -> FrozenLakeEnv:
        row = {key: env_info[key] for key in ("size", "p", "seed", "max_steps", "is_slippery") if key in env_info}
        if missing := {"size", "p", "seed"} - set(row):
            raise TaskError(f"a FrozenLake row needs {sorted(missing)}; its keys are {sorted(map(str, env_info))}")
        return FrozenLakeEnv(**row)


class FrozenLakeAgent(BaseAgent):
    """Reads the map and answers with a move in triple backticks.

    Args:
        max_steps: Number of steps that the prompt says are left.
        use_accumulate_thinking: Whether later prompts contain the reasoning of earlier replies.
        use_multistep_prompt: Whether the system prompt has examples.
        use_accumulate_history: Whether prompts contain all turns, or only the latest map.
    """

    SYSTEM_PROMPT: str = _GUIDE + _FORMAT
    MULTI_SHOT_SYSTEM_PROMPT: str = _GUIDE + _EXAMPLES + _FORMAT

    def __init__(
        self,
        max_steps: int | None = None,
        use_accumulate_thinking: bool = True,
        use_multistep_prompt: bool = False,
        use_accumulate_history: bool = True,
    ) -> None:
        self.max_steps = max_steps
        self.accumulate_thinking = use_accumulate_thinking
        self.multistep_prompt = use_multistep_prompt
        self.accumulate_history = use_accumulate_history
        self.reset()

    def reset(self) -> None:
        prompt = self.MULTI_SHOT_SYSTEM_PROMPT if self.multistep_prompt else self.SYSTEM_PROMPT
        self._trajectory = Trajectory()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}]
        self.step = 0
        self.current_observation: str | None = None

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        shown = str(observation)
        text = f"Current Observation ({self.step}): \n{shown}\nP is not at G yet. Give the next move."
        if self._trajectory.steps:
            step = self._trajectory.steps[-1]
            step.reward, step.done, step.info = reward, done, info
            if step.action is not None and step.observation == shown:
                text += (
                    "\nYour position did not change: the move was invalid, or led against the edge. Give exactly one "
                    "move in triple backticks, such as ```Up```."
                )
        if self.max_steps is not None and self.max_steps > self.step:
            text += f"\nThe maximum number of steps remaining is {self.max_steps - self.step}."
        self.messages.append({"role": "user", "content": text})
        self.current_observation = shown

    def update_from_model(self, response: str, **kwargs: Any) -> Action:
        if not self.accumulate_thinking:
            _, closed, answer = response.partition("</think>")
            response = answer if closed else response
        thought, action = self._parse_model_response(response)
        self.messages.append({"role": "assistant", "content": response})
        self._trajectory.steps.append(
            Step(
                chat_completions=self.chat_completions,
                thought=thought,
                action=action,
                model_response=response,
                observation=self.current_observation,
            )
        )
        self.step += 1
        return Action(action)

    def _parse_model_response(self, response: str) -> tuple[str, str]:
        """Return the text before the last block in triple backticks, and the number of the move in it."""
        blocks = list(re.finditer("```([^`]*)```", response))
        if not blocks:
            return response, "0"
        word = blocks[-1][1].strip().lower()
        move = word if word in ("1", "2", "3", "4") else str(_DIRECTIONS.get(word, FrozenLakeEnv.INVALID_ACTION))
        return response[: blocks[-1].start()].strip(), move

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        if self.accumulate_history or len(self.messages) <= 1:
            return self.messages
        return [self.messages[0], self.messages[-1]]

    @property
    def trajectory(self) -> Trajectory:
        return self._trajectory
