"""A game between agents: self-play, play against other weights, or play with several roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine.handles import GameHandle
from rllm_gym.engine.play import Play
from rllm_gym.engine.speaker import Speaker, Truncated
from rllm_gym.engine.workflow import TaskOfSpec, choose
from rllm_gym.engine.workflows.acting import Agents, CastWorkflow

_SPENT = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH)


class SelfPlay(CastWorkflow):
    """Agents play a turn-based PettingZoo game to its end. Each agent's rewards are added to its own last step.

    With one role, all seats of the game have the same role: self-play. With several roles, each seat has one, in this
    order; for a frozen opponent, use ``roles=("player", "opponent")`` here and
    ``roles={"opponent": Role(weights=…, trainable=False)}`` for the engine. Agents are named after their seats. The
    reward of the episode is the mean over the seats of the first role, and the episode is a success if one of these
    seats won. A seat whose token budget is used up makes empty replies for the rest of the game, so that an agent
    cannot escape a lost game with long replies. Metrics: ``<role>_reward`` and ``<role>_success``, means over the seats
    of the role, and ``silenced``, the fraction of seats whose token budget was used up.

    Args:
        game: Id of an AEC environment, or a callable that returns one; ``None``: the engine's ``env``.
        roles: One role for all seats, or one per seat.
        rotate: Rotate the seats from group to group (without groups, from episode to episode), so that each role plays
            each seat. Only has an effect with several roles.
        agents: See :class:`CastWorkflow`.
        game_kwargs: Keyword arguments of the game.
    """

    def __init__(
        self,
        game: str | Callable[..., Any] | None = None,
        *,
        roles: Sequence[str] = ("player",),
        rotate: bool = True,
        agents: Agents | None = None,
        **game_kwargs: Any,
    ) -> None:
        if isinstance(roles, str) or not roles or len(set(roles)) != len(roles):
            raise ValueError(f"roles={roles!r} must be one or more different names")
        self.roles = tuple(roles)  # type: ignore[misc]
        self.game = game
        self.game_kwargs = game_kwargs
        self.rotate = rotate
        super().__init__(agents)

    async def run(self, task: TaskOfSpec, play: Play) -> Episode:
        game = await play.game(self.game, **self.game_kwargs)
        await game.reset()
        seats = self._seats(game, play)
        silenced: set[str] = set()
        while not game.over:
            seat = game.agent
            speaker = play.speakers.get(seat) or self.talker(play, seat, seats[seat], "")
            earned = await game.step(await self._move(speaker, game, silenced))
            speaker.info(game.infos.get(seat))
            for name, reward in earned.items():
                if name in play.speakers and (reward or name == seat):
                    play.speakers[name].reward(reward)
        play.metrics["silenced"] = len(silenced) / len(seats)
        return self._finish(game, seats, play)

    async def _move(self, speaker: Speaker, game: GameHandle, silenced: set[str]) -> Any:
        try:
            return (await speaker.say(game.observation, game.infos.get(speaker.name))).action
        except Truncated as cut:
            if cut.stop_reason not in _SPENT or not speaker.steps:
                raise
            silenced.add(speaker.name)
            return ""

    def _seats(self, game: GameHandle, play: Play) -> dict[str, str]:
        """Return the role of each seat."""
        seats = game.agents
        if len(self.roles) == 1:
            return dict.fromkeys(seats, self.roles[0])
        if len(seats) != len(self.roles):
            raise ValueError(
                f"{game.env_id} has the seats {list(seats)}; give one role for all of them or one for each, "
                f"not {self.roles}"
            )
        first = choose(len(seats), play.group_id or play.episode_id, "seat") if self.rotate else 0
        return {seat: self.roles[(number + first) % len(seats)] for number, seat in enumerate(seats)}

    def _finish(self, game: GameHandle, seats: dict[str, str], play: Play) -> Episode:
        won = {}
        for role in self.roles:
            mine = [seat for seat in seats if seats[seat] == role]
            won[role] = [bool(game.infos.get(seat, {}).get("success")) for seat in mine]
            play.metrics[f"{role}_reward"] = sum(game.rewards[seat] for seat in mine) / len(mine)
            play.metrics[f"{role}_success"] = sum(won[role]) / len(mine)
        reward = play.metrics[f"{self.roles[0]}_reward"]
        return play.finish(reward=reward, success=any(won[self.roles[0]]), stop_reason=game.stop_reason)
