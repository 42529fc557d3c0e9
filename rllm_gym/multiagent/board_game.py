"""The base class of two-player board games: turns, legality and results. Subclasses define the board."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from rllm_gym.core import InvalidAction, Task, TaskError, TaskSource
from rllm_gym.multiagent.board import MARKS, Board, best_moves
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.parsing.choices import parse_choice

PLAYERS = ("player_0", "player_1")


class BoardGame(TextGame):
    """Two players, ``player_0`` with ``X`` (who begins) and ``player_1`` with ``O``, one move per turn.

    Subclasses define the board, and the text that asks for a move.
    """

    choice: ClassVar[str]
    """The noun for a move: ``"a square"``."""

    def __init__(self, *, tasks: TaskSource, illegal: Literal["retry", "lose"] = "retry", **arguments: Any) -> None:
        if illegal not in ("retry", "lose"):
            raise ValueError(f"illegal={illegal!r} is not 'retry' or 'lose'")
        if illegal == "lose":
            if "max_invalid" in arguments:
                raise ValueError("illegal='lose' implies max_invalid=0; do not pass max_invalid")
            arguments["max_invalid"] = 0
        super().__init__(agents=PLAYERS, tasks=tasks, max_message_chars=1, **arguments)
        self._board: Board | None = None
        self._last = 0

    @abstractmethod
    def _parse(self, text: str) -> Board:
        """Return the position in the content of a task.

        Raises:
            TaskError: It is not a position.
        """

    @abstractmethod
    def _choices(self) -> tuple[str, ...]:
        """Return all possible moves on this board, legal now or not."""

    @abstractmethod
    def _illegal(self, move: int) -> str:
        """Return why this move is not legal now, as a sentence."""

    @abstractmethod
    def _rules(self) -> str:
        """Return the rules in a few lines, without the player to move."""

    @property
    def board(self) -> Board:
        """The position.

        Raises:
            TaskError: No episode has begun.
        """
        if self._board is None:
            raise TaskError("no position yet: call reset() first")
        return self._board

    # Methods of TextGame

    def _begin(self, task: Task) -> str:
        board = self._parse(task.content)
        if board.is_over:
            raise TaskError(f"task {task.task_id!r}: the game is already over: {board.text()}")
        self._board, self._last = board, 0
        for agent, mark in zip(PLAYERS, MARKS):
            self._notify(agent, f"You are {agent} and play {mark}. {self._rules()}\n{board.shown()}")
        first = PLAYERS[board.to_move]
        self._notify(first, "It is your move.")
        return first

    def _act(self, agent: str, action: str) -> TurnResult:
        board = self.board
        move = int(parse_choice(action, self._choices(), self.choice))
        legal = board.moves()
        if move not in legal:
            raise InvalidAction(f"Illegal move: {self._illegal(move)} Legal moves: {_words(legal)}.")
        self._board, self._last = after, _ = board.after(move), move
        other = _other(agent)
        if not after.is_over:
            self._notify(other, f"{agent} played {move}.\n{after.shown()}\nIt is your move.")
            return TurnResult(other, {agent: {"result": 0.0}})
        winner = after.winner
        end = "The game is drawn." if winner is None else f"{PLAYERS[winner]} wins."
        for name in PLAYERS:
            self._notify(name, f"{agent} played {move}.\n{after.shown()}\n{end}")
        return self._end(None if winner is None else PLAYERS[winner])

    def _forfeit(self, agent: str) -> TurnResult:
        self._notify_all(f"{agent} made no legal move and loses the game.")
        return self._end(_other(agent))

    def _end(self, winner: str | None) -> TurnResult:
        results = {name: 0.0 if winner is None else 1.0 if name == winner else -1.0 for name in PLAYERS}
        rewards = {name: {"result": result} for name, result in results.items()}
        return TurnResult(rewards=rewards, terminated=True, success=() if winner is None else (winner,))

    def _add_info(self, agent: str, info: dict[str, Any]) -> None:
        info["position"] = self.board.text()
        info["legal_moves"] = _words(self.board.moves()) if info["active"] else ""

    def _render_text(self) -> str:
        board = self.board
        played = f"{PLAYERS[1 - board.to_move]} played {self._last}.\n" if self._last else ""
        if not board.is_over:
            return f"{played}{board.shown()}\n{PLAYERS[board.to_move]} ({MARKS[board.to_move]}) to move."
        return f"{played}{board.shown()}\n{'Drawn.' if board.winner is None else f'{PLAYERS[board.winner]} wins.'}"

    def _env_state(self) -> dict[str, Any]:
        return {"board": self.board.text(), "last": self._last}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._board, self._last = self._parse(state["board"]), int(state["last"])

    # For people, tests and baselines

    def oracle(self) -> str:
        """Return an optimal move now: the first of :func:`~rllm_gym.multiagent.board.best_moves`.

        Raises:
            TaskError: The game is over, or no episode has begun.
        """
        if self.board.is_over:
            raise TaskError(f"the game is over, so there is no move: {self.board.text()}")
        return str(best_moves(self.board)[0])


def _other(agent: str) -> str:
    return PLAYERS[1 - PLAYERS.index(agent)]


def _words(moves: tuple[int, ...]) -> str:
    return " ".join(map(str, moves))
