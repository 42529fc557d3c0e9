"""A game as a single-agent environment: one part is played by the agent, the others by scripted players."""

from __future__ import annotations

import hashlib
import random
from typing import Any, ClassVar, Literal

import pettingzoo

from rllm_gym.core import Outcome, Task, TextEnv
from rllm_gym.multiagent.board_game import BoardGame
from rllm_gym.multiagent.connect_four_solver import TooManyPositions
from rllm_gym.multiagent.game import TextGame
from rllm_gym.multiagent.opponents import minimax_player, optimal_player, random_player

Opponent = Literal["random", "oracle"]
_MAX_MOVES = 1_000
"""Replies of the agent after which an episode is truncated, in games that do not end before."""


class SinglePlayerGame(TextEnv):
    """A game of ``rllm_gym.multiagent`` against scripted opponents, or with scripted partners.

    ## Description
    The agent plays one part of the game, and scripted players make the moves of all others.

    ## Action space
    That of the game. A reply that cannot be parsed may be corrected as the game allows it.

    ## Observation space
    The game's text for the agent's part: what is new since its last move.

    ## Rewards
    The game's rewards of this part since its last move, by component.

    ## Episode end
    That of the game, for this part; truncated at the game's own limits. The oracle of a board on which it would have to
    search too many positions looks four moves ahead instead.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``player: str``, the part. ``success`` is that of the
    part: in board games, winning.

    ## Arguments
    Args:
        game: Id of the game.
        opponent: ``"random"`` makes random legal moves (board games); ``"oracle"`` is optimal in board games, and
            the game's oracle in others. By default ``"random"`` in board games, ``"oracle"`` in others.
        player: The agent's part, such as ``"player_1"``; ``None`` chooses one for each task by its id. A part whose
            replies do not matter beside the oracle is none for an agent: that of the guide or of a debater.
        split: The game's split.
        render_mode: ``"ansi"`` or ``None``.
        **game_kwargs: Other arguments of the game.

    Raises:
        ValueError: The game has no such part, or no such opponent.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}  # type: ignore[misc]

    def __init__(
        self,
        game: str,
        *,
        opponent: Opponent | None = None,
        player: str | None = None,
        split: str | None = None,
        render_mode: str | None = None,
        **game_kwargs: Any,
    ) -> None:
        arguments = game_kwargs if split is None else {**game_kwargs, "split": split}
        self._game: TextGame = pettingzoo.make("aec", game, **arguments).unwrapped
        is_board = isinstance(self._game, BoardGame)
        self.opponent = opponent or ("random" if is_board else "oracle")
        known = ["random", "oracle"] if is_board else ["oracle"]
        if self.opponent not in known:
            raise ValueError(f"opponent={opponent!r}: {game} has the opponents {', '.join(known)}")
        self._parts = list(self._game.agents_beside_oracle)
        if not self._parts:
            raise ValueError(f"{game} with these arguments has no part for one agent: its partner wins alone")
        if player is not None and player not in self._parts:
            raise ValueError(f"player={player!r}: an agent alone can be {', '.join(self._parts)} in {game}")
        self._fixed_player = player
        self._player = ""
        part = player or self._parts[0]
        super().__init__(
            tasks=self._game.tasks,
            max_turns=_MAX_MOVES,
            max_observation_chars=self._game.observation_space(part)["text"].max_length,
            max_action_chars=self._game.action_space(part).max_length,
            render_mode=render_mode,
        )

    def _begin(self, task: Task) -> str:
        players = self._parts
        digest = int.from_bytes(hashlib.sha256(task.task_id.encode()).digest()[:8], "big")
        first = digest % len(players)
        seed = int(self.np_random.integers(2**31))
        self.max_turns = _MAX_MOVES
        for player in [self._fixed_player] if self._fixed_player else players[first:] + players[:first]:
            self._player = player
            self._game.reset(seed=seed, options={"task": task})
            self._play_others(random.Random(digest))  # so that all episodes of a task begin with the same position
            if not self._over():  # else the others have ended the game before its first move
                break
        return self._game.observe(self._player)["text"]

    def _act(self, action: str) -> Outcome:
        if not self._over():
            self._game.step(action)
            self._play_others(random.Random(int(self.np_random.integers(2**63))))
        if self._game.truncations[self._player]:  # by a limit of the game: this is the last turn
            self.max_turns = self._turn + 1
        info = self._game.infos[self._player]
        own = {key: info[key] for key in ("invalid_action", "stop_reason") if info[key]}
        return Outcome(
            self._game.observe(self._player)["text"],
            dict(info["reward_components"]),
            terminated=self._game.terminations[self._player],
            success=info["success"],
            info=own,
        )

    def _add_info(self, info: dict[str, Any]) -> None:
        info["player"] = self._player
        own = self._game.infos[self._player]
        for key in own.keys() - {*info, "active", "tools"}:
            info[key] = own[key]

    def _tools(self) -> str:
        return str(self._game.infos[self._player]["tools"])

    def _play_others(self, rng: random.Random) -> None:
        """Make the moves of the others until it is the agent's turn, or the game is over."""
        game = self._game
        while not self._over() and game.agent_selection != self._player:
            game.step(self._move(rng))

    def _over(self) -> bool:
        return self._game.terminations[self._player] or self._game.truncations[self._player]

    def _move(self, rng: random.Random) -> str:
        game = self._game
        info = game.infos[game.agent_selection]
        if self.opponent == "random":
            return random_player(info, rng)
        if not isinstance(game, BoardGame):
            return str(game.oracle())
        try:
            return optimal_player(info, rng)
        except TooManyPositions:
            return minimax_player(4)(info, rng)

    def render(self) -> str | None:
        """Return the whole game as text if ``render_mode`` is ``"ansi"``."""
        return self._game._render_text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        self._game.close()

    def _env_state(self) -> dict[str, Any]:
        return {"player": self._player, "game": self._game.get_state().decode()}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._player = str(state["player"])
        self._game.set_state(state["game"].encode())
