"""Two players at one frozen lake with different views, so that they must communicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from rllm_gym.core import Task
from rllm_gym.envs.frozen_lake import FrozenLakeEnv
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.parsing.moves import Move, parse_move

DuoView = Literal["guide", "halves"]
_NAMES: dict[str, tuple[str, str]] = {"guide": ("guide_0", "walker_0"), "halves": ("player_0", "player_1")}
UNKNOWN = "?"


class LakeDuo(TextGame):
    """Cross a frozen lake together: one player sees it, the other walks.

    ## Description
    The lake is that of ``rllm/FrozenLake-v0``. With ``view="guide"`` (default) ``guide_0`` sees the whole board and
    cannot move; ``walker_0`` moves and sees only what happened to it. They take turns: the guide speaks, the walker
    moves. With ``view="halves"`` both, ``player_0`` and ``player_1``, see one half of the board (left and right), send
    each other messages and move in turn. Without messages no player can do better than by moving blindly.

    ## Action space
    Any text. All of a reply after ``</think>`` is passed on to the other player, as a quotation. The reply of a player
    who walks is also a move: the last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed, or else
    the entire reply, as in ``rllm/FrozenLake-v0``. A reply without a move uses up the move, and is not passed on.

    ## Observation space
    Text under ``"text"``. First the rules and what the player sees; then the other player's message and what happened;
    a player who sees a board is shown it again.

    ## Starting state
    A lake generated from the seed, the same for the same task.

    ## Rewards
    1 for both when the goal is reached (component ``goal``); ``invalid_action_penalty`` is subtracted from the reward
    of the player whose reply could not be parsed.

    ## Episode end
    Terminated at the goal (success of both) or in a hole; truncated when the moves are used up.

    ## Information
    In addition to the keys of :class:`~rllm_gym.multiagent.TextGame`: ``moves_left: int``. :meth:`oracle` returns a
    reply that leads to the goal, message included.

    ## Arguments
    Args:
        view: ``"guide"`` or ``"halves"``.
        rules: Whether observations contain rules and answer format, or only the board and the other player's message.
        split: ``"train"`` (default), ``"validation"`` or ``"test"``. For given maps: keep those of the split.
        max_message_chars: Maximum characters of a message; a longer one is not passed on, and the turn is over.
        max_cycles: Rounds before truncation, instead of the limit given by the moves.
        max_turns: Turns of both before truncation, likewise.
        invalid_action_penalty: Subtracted from the reward for a reply that cannot be parsed.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.
        **lake: Arguments of :class:`~rllm_gym.envs.frozen_lake.FrozenLakeEnv`: ``size``, ``slip_probability``,
            ``difficulty``, ``min_path``, ``max_path``, ``task_seed``, ``num_tasks``, ``tasks`` …; ``moves``
            is its ``max_turns``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {**TextGame.metadata, "name": "rllm_lake_duo_v0"}

    @property
    def agents_beside_oracle(self) -> Sequence[str]:
        # The oracle sees the whole board: it reaches the goal whatever another says.
        return ["walker_0"] if self.view == "guide" else []

    def __init__(
        self,
        *,
        view: DuoView = "guide",
        rules: bool = True,
        split: str | None = None,
        moves: int | None = None,
        max_message_chars: int = 1_000,
        max_cycles: int | None = None,
        max_turns: int | None = None,
        invalid_action_penalty: float = 0.0,
        render_mode: str | None = None,
        **lake: Any,
    ) -> None:
        if view not in _NAMES:
            raise ValueError(f"view={view!r} is not 'guide' or 'halves'")
        if lake.get("coordinates"):
            raise ValueError("coordinates=True is not supported with two players: each of them sees a different board")
        self._lake = FrozenLakeEnv(max_turns=moves, split=split, rules=False, render_mode="ansi", **lake)
        super().__init__(
            agents=_NAMES[view],
            tasks=self._lake.tasks,
            max_turns=max_turns,
            max_cycles=max_cycles,
            max_invalid=0,
            invalid_action_penalty=invalid_action_penalty,
            max_message_chars=max_message_chars,
            messages_per_turn=1,
            render_mode=render_mode,
        )
        if UNKNOWN in (self._lake.symbols.player, self._lake.symbols.frozen, self._lake.symbols.hole):
            raise ValueError(f"symbols must not contain {UNKNOWN!r}, which marks the half that a player does not see")
        self.view: DuoView = view
        self.rules = rules
        self._board = ""
        self._lake_turns = 0

    # Methods of TextGame

    def _begin(self, task: Task) -> str:
        seed = int(self.np_random.integers(2**31))
        self._board, _ = self._lake.reset(seed=seed, options={"task": task})
        self._lake_turns = 0
        for agent in self.possible_agents:
            if self.rules:
                self._notify(agent, self._rules_for(agent))
            if seen := self._seen(agent):
                self._notify(agent, seen)
        return self.possible_agents[0]

    def _act(self, agent: str, action: str) -> TurnResult:
        message = self._message_in(action)
        if not self._walks(agent):
            self._relay(agent, message)
            return TurnResult(self._other(agent))
        return self._walk(agent, parse_move(action), message)

    def _forfeit(self, agent: str) -> TurnResult:
        # The turn is over, and with it a walker's move.
        if not self._walks(agent):
            self._notify(self._other(agent), f"{agent} said nothing that could be passed on.")
            return TurnResult(self._other(agent))
        return self._walk(agent, None, None)

    def _walks(self, agent: str) -> bool:
        """Return whether this agent's next reply moves: not the guide's, nor the first one with ``view="halves"``."""
        return agent != "guide_0" and self._turn > 0

    def _walk(self, agent: str, move: Move | None, message: str | None) -> TurnResult:
        before = self._player()
        answer, reward, terminated, truncated, info = self._lake.step("" if move is None else move.word)
        self._lake_turns += 1
        other = self._other(agent)
        if message is not None:
            self._relay(agent, message)
        if terminated:
            self._notify_all("The goal is reached." if info["success"] else "You both fell into a hole.")
        else:
            self._board = answer if move is not None else self._board
            self._report(agent, move, before)
            if truncated:
                self._notify_all("No moves are left.")
        rewards = {name: {"goal": reward} for name in self.possible_agents}
        success = self.possible_agents if info["success"] else ()
        return TurnResult(other, rewards, terminated=terminated, truncated=truncated, success=success)

    def _report(self, agent: str, move: Move | None, before: int) -> None:
        """Tell both what happened, and show the next player the board, if it sees one."""
        other = self._other(agent)
        if self.rules:
            happened = self._happened(move, before)
            self._notify(agent, f"You {happened}")
            self._notify(other, f"{agent} {happened}")
        if seen := self._seen(other):
            self._notify(other, seen)

    def _happened(self, move: Move | None, before: int) -> str:
        if move is None:
            return "made no move."
        after, width = self._player(), self._width()
        if after == before:
            return f"moved {move.word} against the edge and stayed."
        went = {-1: Move.LEFT, 1: Move.RIGHT, -width: Move.UP, width: Move.DOWN}[after - before]
        return f"{'moved' if went is move else 'slipped'} {went.word}."

    def _add_info(self, agent: str, info: dict[str, Any]) -> None:
        info["moves_left"] = self._lake.max_turns - self._lake_turns

    def _render_text(self) -> str:
        return str(self._lake.render())

    def _env_state(self) -> dict[str, Any]:
        return {"lake": self._lake.get_state().decode(), "board": self._board, "moves": self._lake_turns}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._lake.set_state(state["lake"].encode())
        self._board, self._lake_turns = str(state["board"]), int(state["moves"])

    # Observations of the players

    def _other(self, agent: str) -> str:
        first, second = self.possible_agents
        return second if agent == first else first

    def _width(self) -> int:
        return self._board.index("\n") // 2 + 1 if "\n" in self._board else (len(self._board) + 1) // 2

    def _player(self) -> int:
        """The cell of the player: cell i of the board is character 2 i."""
        return self._board.index(self._lake.symbols.player) // 2

    def _seen(self, agent: str) -> str:
        """Return the board as this player sees it, ``""`` for the walker, who sees none."""
        if self.view == "guide":
            return self._board if agent == "guide_0" else ""
        lines, player = [], self._lake.symbols.player
        middle = (self._width() + 1) // 2
        for line in self._board.split("\n"):
            cells = [
                cell if (column < middle) == (agent == "player_0") or cell == player else UNKNOWN
                for column, cell in enumerate(line.split(" "))
            ]
            lines.append(" ".join(cells))
        return "\n".join(lines)

    def _rules_for(self, agent: str) -> str:
        signs, other = self._lake.symbols, self._other(agent)
        legend = f"player {signs.player}, goal {signs.goal}, ice {signs.frozen}, holes {signs.hole}"
        text = (
            f"You are {agent}; {other} is with you. One player walks on a frozen lake to a goal; holes end the game. "
        )
        if self._lake.slip_probability:
            text += f"With probability {self._lake.slip_probability:g} a move slips sideways. "
        text += f"You win or lose together; there are {self._lake.max_turns} moves in all. "
        answer = "Answer with one move: ```up```, ```down```, ```left``` or ```right```."
        notice = f"Your whole reply is told to {other}."
        if agent == "guide_0":
            return f"{text}You see the lake ({legend}); {other}, who walks, does not.\n{notice}"
        if agent == "walker_0":
            return f"{text}You walk and cannot see the lake; {other} sees it.\n{answer} {notice}"
        text += f"You see one half of the lake ({legend}; {UNKNOWN} is what only {other} sees). You move in turn.\n"
        if agent == self.possible_agents[0]:
            return f"{text}Your first answer only tells {other} something. Then: {answer} {notice}"
        return f"{text}{answer} {notice}"

    # For people, tests and baselines

    def oracle(self) -> str:
        """Return the reply of a player who sees everything; an action the game accepts.

        Raises:
            gymnasium.error.ResetNeeded: The episode is over or was never started.
        """
        return self._lake.oracle().action
