"""TextArena's games as environments: one-player games by ``gym.make``, two-player games by ``pettingzoo.make``.

    gymnasium.make("rllm/TextArena-v0", env="Mastermind-v0")
    pettingzoo.make("aec", "rllm/TextArena-v0", env="TicTacToe-v0")

TextArena draws from Python's global random generator. Each game therefore runs in a separate worker process, with its
own seeds and a fixed hash seed: it does not affect this process or other games, and a reply on which a game hangs or
fails ends that worker but not the episode.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, Task, TaskError, TextEnv
from rllm_gym.core.per_process import PerProcess
from rllm_gym.data.procedural import ProceduralTaskset
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.parsing.boxed import strip_thinking
from rllm_gym.parsing.quoting import quoted
from rllm_gym.runtime import Actor, DeadlineExceeded, WorkerDied, WorkerError, WorkerPool

MEMORY_MB = 1024
"""Private memory in MB of one game above that of a new worker."""
BEGIN_SECONDS = 120.0
"""Deadline in seconds for setting up a game; some search for a solvable position."""
MOVE_SECONDS = 20.0
"""Deadline in seconds for one move."""
_INSTALL = "TextArena is not installed: pip install 'rllm-gym[textarena]'"
_UNREAD = "The game cannot read that reply. Write your move as the rules say."
_UNCLOSED = "Your reply ends inside <think>, so it has no move. Close it with </think>."
_MAX_TURNS = 100


class TextArenaEnv(TextEnv):
    """One game for one player of TextArena.

    ## Description
    Play a game: puzzles, cards, guessing, some thirty games with their variants.

    ## Action space
    Any text; the text after ``</think>`` is the move, in the game's own notation, mostly ``[in brackets]``. A move that
    the game rejects, or fails on, is an invalid action, and may be retried: TextArena itself ends the game at the
    second one.

    ## Observation space
    The game's messages, without the player's own reply; first its rules.

    ## Starting state
    The game that is generated from the task's seed, from SHA-256 of split, seed and index. What the game draws later
    depends on the seed of ``reset``. Splits share no seeds; where a game has few different starts (a number from 1 to
    20) two of them can be equal.

    ## Rewards
    The game's reward at its end, mostly from 0 to 1 by the player's progress. ``success`` is 1 or more.

    ## Episode end
    Terminates when the game does, including at its own limit of turns; truncates at ``max_turns``.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`.

    ## Arguments
    Args:
        env: Name of the game without a suffix for wrappers, such as ``"Mastermind-v0"`` or ``"Sudoku-v0-easy"``.
        config: The game's own settings, such as ``{"code_length": 3}``.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: Seed of the sequence of tasks.
        size: Number of tasks.
        max_turns: Replies before truncation; ``None`` for twice the game's own turns, or 100 where it has no limit.
        invalid_action_penalty: Subtracted from the reward for every invalid action.
        render_mode: ``"ansi"`` or ``None``.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[textarena]'``.
        ValueError: There is no such game, it is not for one player, it rejects the settings, or a requirement is
            missing (word lists of NLTK, an API key).

    ## Version history
    v0: first release.
    """

    def __init__(
        self,
        env: str = "Mastermind-v0",
        *,
        config: Mapping[str, Any] | None = None,
        split: str = "train",
        seed: int = 0,
        size: int = 1_000_000,
        max_turns: int | None = None,
        invalid_action_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self._game = RemoteGame(env, config, players=1)
        super().__init__(
            tasks=_tasks(self._game, split, seed, size),
            max_turns=_turns(self._game, 2) if max_turns is None else max_turns,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )

    def _begin(self, task: Task) -> str:
        position = self._game.begin(_seed_of(task, self._game), int(self.np_random.integers(2**31)))
        return _new_text(position)

    def _act(self, action: str) -> Outcome:
        move = strip_thinking(action)
        if move is None:
            raise InvalidAction(_UNCLOSED)
        position = self._game.move(move)
        if not position.done:
            return Outcome(_new_text(position))
        reward = position.rewards.get(0, 0.0)
        return Outcome(_new_text(position), {"game": reward}, terminated=True, success=reward >= 1.0)

    def _env_state(self) -> dict[str, Any]:
        return self._game.record()

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._game.restore(state)

    def close(self) -> None:
        """End the worker of the game."""
        self._game.close()


class TextArenaGame(TextGame):
    """One game for two players of TextArena, ``player_0`` and ``player_1``.

    Observations, seeds and invalid moves are as in :class:`TextArenaEnv`; the other player's messages are quoted. After
    ``max_invalid`` invalid moves in a row the player forfeits: -1, and 1 for the other.

    Args:
        env: Name of the game, such as ``"TicTacToe-v0"`` or ``"KuhnPoker-v0"``.
        config: The game's own settings.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: Seed of the sequence of tasks.
        size: Number of tasks.
        **arguments: As :class:`~rllm_gym.multiagent.TextGame`; ``max_turns`` is 200 where neither it nor ``max_cycles``
            is given and the game has no limit of its own.

    Raises: as :class:`TextArenaEnv`.
    """

    def __init__(
        self,
        env: str = "TicTacToe-v0",
        *,
        config: Mapping[str, Any] | None = None,
        split: str = "train",
        seed: int = 0,
        size: int = 1_000_000,
        **arguments: Any,
    ) -> None:
        self._game = RemoteGame(env, config, players=2)
        if arguments.get("max_turns") is None and arguments.get("max_cycles") is None:
            arguments["max_turns"] = 2 * _turns(self._game, 2)
        super().__init__(agents=("player_0", "player_1"), tasks=_tasks(self._game, split, seed, size), **arguments)
        self._last = ""

    def _begin(self, task: Task) -> str:
        position = self._game.begin(_seed_of(task, self._game), int(self.np_random.integers(2**31)))
        self._notify_of(position)
        return f"player_{position.player}"

    def _act(self, agent: str, action: str) -> TurnResult:
        position = self._game.move(self._message_in(action))
        self._notify_of(position)
        if not position.done:
            return TurnResult(f"player_{position.player}")
        rewards = {f"player_{player}": {"game": reward} for player, reward in position.rewards.items()}
        winners = [name for name, parts in rewards.items() if parts["game"] > 0]
        return TurnResult(rewards=rewards, terminated=True, success=winners)

    def _forfeit(self, agent: str) -> TurnResult:
        other = "player_1" if agent == "player_0" else "player_0"
        self._notify(other, f"{agent} made too many invalid moves: you win.")
        return TurnResult(
            rewards={agent: {"forfeit": -1.0}, other: {"forfeit": 1.0}}, terminated=True, success=(other,)
        )

    def _render_text(self) -> str:
        return self._last

    def _notify_of(self, position: GamePosition) -> None:
        for player, messages in position.messages.items():
            for sender, text in messages:
                notice = text if sender < 0 else f"player_{sender} says:\n{quoted(text)}"
                self._notify(f"player_{player}", notice)
                self._last = notice

    def _env_state(self) -> dict[str, Any]:
        return self._game.record() | {"last": self._last}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._game.restore(state)
        self._last = str(state["last"])

    def close(self) -> None:
        """End the worker of the game."""
        self._game.close()


# A game and its worker


@dataclass(frozen=True, slots=True)
class GamePosition:
    """The state of a game after a move.

    Attributes:
        player: The player to move.
        messages: What is new, by player: ``(sender, text)``, the sender -1 for the game itself.
        invalid: The last move was rejected, and nothing changed.
        done: The game is over.
        rewards: By player, once it is over.
    """

    player: int
    messages: dict[int, list[tuple[int, str]]]
    invalid: bool
    done: bool
    rewards: dict[int, float]


class RemoteGame:
    """Plays one game at a time, in a separate worker.

    Args:
        env: Name of the game.
        config: Its settings.
        players: Number of players.

    Raises: as :class:`TextArenaEnv`.
    """

    def __init__(self, env: str, config: Mapping[str, Any] | None, *, players: int) -> None:
        if importlib.util.find_spec("textarena") is None:
            raise ModuleNotFoundError(_INSTALL, name="textarena")
        try:
            self.config = json.dumps(dict(config or {}), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"config={config!r:.200} must be JSON types ({error})") from error
        self.env = env
        self.players = players
        self.turns: int | None = _pool().run(check_game, env, self.config, players, timeout=BEGIN_SECONDS)
        self._actor: Actor | None = None
        self._seeds = (0, 0)
        self._moves: list[str] = []

    def begin(self, seed: int, move_seed: int) -> GamePosition:
        """Start a game.

        Args:
            seed: Seed of the start position.
            move_seed: Seed of all later draws.

        Raises:
            EnvironmentFault: It could not be set up.
        """
        self._seeds, self._moves = (seed, move_seed), []
        return self._start()

    def move(self, action: str) -> GamePosition:
        """Make a move.

        Raises:
            InvalidAction: The game rejects the move, or its code fails or hangs on it; nothing has changed.
            EnvironmentFault: The game failed.
        """
        if self._actor is None:
            raise EnvironmentFault("the game was closed", kind="closed")
        try:
            position: GamePosition = self._actor.call("move", action, timeout=MOVE_SECONDS)
        except Exception as error:
            self._replay(error)
            raise InvalidAction(_UNREAD) from error
        self._moves.append(action)
        for reward in position.rewards.values():
            if not math.isfinite(reward):
                raise EnvironmentFault(f"{self.env} returned the reward {reward!r}", kind="invalid_result")
        if position.invalid and not position.done:
            raise InvalidAction(_new_text(position))
        return position

    def record(self) -> dict[str, Any]:
        """Return the game as its seeds and moves, JSON types."""
        return {"seeds": list(self._seeds), "moves": list(self._moves)}

    def restore(self, record: Mapping[str, Any]) -> None:
        """Replay the game of a :meth:`record`."""
        deal, later = record["seeds"]
        self._seeds, self._moves = (int(deal), int(later)), [str(move) for move in record["moves"]]
        self._replay(None)

    def close(self) -> None:
        """End the worker. Safe to call twice."""
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.kill()

    def _start(self) -> GamePosition:
        try:
            if self._actor is None or not self._actor.alive:
                self._actor = _pool().actor(GameSession, self.env, self.config, self.players, timeout=BEGIN_SECONDS)
            return self._actor.call("begin", *self._seeds, timeout=BEGIN_SECONDS)  # type: ignore[no-any-return]
        except Exception as error:
            self.close()
            raise EnvironmentFault(f"{self.env} could not be set up: {error}", kind="textarena") from error

    def _replay(self, cause: Exception | None) -> None:
        """Restore the position before the last move by replaying: games are determined by their seeds."""
        self._start()
        assert self._actor is not None
        try:
            for move in self._moves:
                self._actor.call("move", move, timeout=MOVE_SECONDS)
        except (DeadlineExceeded, WorkerDied, WorkerError) as error:
            self.close()
            raise EnvironmentFault(
                f"{self.env} failed ({cause or error}) and could not be replayed", kind="textarena"
            ) from error


@dataclass(frozen=True)
class _GameTaskGenerator:
    env: str
    config: str

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        deal = rng.getrandbits(31)
        return f"{self.env} {self.config} #{deal}", {"env": self.env, "config": self.config, "deal": deal}


def _tasks(game: RemoteGame, split: str, seed: int, size: int) -> ProceduralTaskset:
    return ProceduralTaskset(
        _GameTaskGenerator(game.env, game.config), name=f"textarena/{game.env}", split=split, seed=seed, size=size
    )


def _seed_of(task: Task, game: RemoteGame) -> int:
    """Return the seed of the start position in a task.

    Raises:
        TaskError: The task is of another game.
    """
    data = task.data
    if (data.get("env"), data.get("config")) != (game.env, game.config) or not isinstance(data.get("deal"), int):
        raise TaskError(f"task {task.task_id!r} is not an initial state of {game.env} with config={game.config}")
    return int(data["deal"])


def _turns(game: RemoteGame, factor: int) -> int:
    return _MAX_TURNS if game.turns is None else factor * game.turns


def _new_text(position: GamePosition) -> str:
    """Return what is new for the player to move."""
    return "\n\n".join(text for _, text in position.messages[position.player]) or "The game says nothing."


@PerProcess
def _pool() -> WorkerPool:
    return WorkerPool(
        "process",
        max_workers=1_000_000,  # no limit: one per environment
        memory_mb=MEMORY_MB,
        name="textarena",
        preload=("rllm_gym.integrations.textarena", "textarena"),
        hash_seed=0,  # some games iterate over sets
    )


# Code that runs in workers


def check_game(env: str, config: str, players: int) -> int | None:
    """Return the game's own limit of turns, ``None`` if it has none. Runs in a worker.

    Raises:
        ValueError: The game cannot be played with these arguments; the message says why.
    """
    registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    games = [name.removesuffix("-raw") for name in registry if name.endswith("-raw")]
    if env not in games:
        similar = difflib.get_close_matches(env, games, n=3)
        raise ValueError(
            f"TextArena has no game {env!r}; similar names: {', '.join(similar) or 'none'} (of {len(games)}: "
            "textarena.envs.registration.ENV_REGISTRY, names without -raw and -train)"
        )
    try:
        session = GameSession(env, config, players)
        session.begin(0, 0)
    except Exception as error:
        reason = " ".join(str(error).replace("*", " ").split())[:300]
        kind = type(error).__name__
        raise ValueError(f"{env} cannot be played by {players} with config={config}: {kind}: {reason}") from None
    return session.turns


class GameSession:
    """A game of TextArena, in a worker with its own global random generators."""

    def __init__(self, env: str, config: str, players: int) -> None:
        textarena = importlib.import_module("textarena")
        self._players = players
        with _quiet():
            # Without wrappers: they include the whole history in each observation.
            self._game = textarena.make(f"{env}-raw", **json.loads(config))
        self._echo = textarena.ObservationType.PLAYER_ACTION

    @property
    def turns(self) -> int | None:
        found = getattr(self._game.state, "max_turns", None)
        return int(found) if isinstance(found, int | float) and 0 < found < math.inf else None

    def begin(self, seed: int, move_seed: int) -> GamePosition:
        """Start a new game."""
        with _quiet():
            _reseed(seed)
            self._game.reset(num_players=self._players, seed=seed)
            _reseed(move_seed)
            # TextArena ends a game at the second invalid move; here the environment decides how many retries there are.
            self._game.state.error_allowance = 10**9
            return self._position(done=False, invalid=False)

    def move(self, action: str) -> GamePosition:
        """Make a move of the player whose turn it is."""
        with _quiet():
            done, _ = self._game.step(action)
            # It counts rejected moves in a row, and resets the count at a valid one.
            return self._position(done=bool(done), invalid=self._game.state.error_count > 0)

    def _position(self, *, done: bool, invalid: bool) -> GamePosition:
        state = self._game.state
        player, new_messages = self._game.get_observation()
        messages = {int(player): self._messages_for(int(player), new_messages)}
        rewards: dict[int, float] = {}
        if done:
            rewards = {int(who): float(reward) for who, reward in (state.rewards or {}).items()}
            for other, unheard in state.observations.items():
                if other != player:
                    messages[int(other)] = self._messages_for(int(other), unheard)
            for who, notice in messages.items():
                reason = state.game_info.get(who, {}).get("reason")
                if isinstance(reason, str) and reason:
                    notice.append((-1, reason))
        return GamePosition(int(player), messages, invalid, done, rewards)

    def _messages_for(self, player: int, messages: Sequence[tuple[int, str, Any]]) -> list[tuple[int, str]]:
        """Return the messages for a player, without its own replies."""
        return [
            (int(sender) if kind is self._echo else -1, str(text).strip())
            for sender, text, kind in messages
            if not (kind is self._echo and sender == player)
        ]


def _reseed(seed: int) -> None:
    random.seed(seed)
    importlib.import_module("numpy").random.seed(seed)


@contextlib.contextmanager
def _quiet() -> Any:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
