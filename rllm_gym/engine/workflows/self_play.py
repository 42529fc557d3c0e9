"""A game between agents: against itself, against other weights, or several roles together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rllm_gym.core import Episode
from rllm_gym.engine.handles import GameHandle
from rllm_gym.engine.play import Play
from rllm_gym.engine.workflow import TaskOfSpec, choose
from rllm_gym.engine.workflows.acting import Agents, CastWorkflow


class SelfPlay(CastWorkflow):
    """Agents play a PettingZoo game in turns to its end; each is rewarded on its own last step by what it earns.

    With one role all seats are played alike: self-play. With several, each seat has one, in their order; a frozen
    opponent is ``roles=("player", "opponent")`` here and ``roles={"opponent": Role(weights=…, trainable=False)}``
    for the engine. Agents have the names of their seats. The episode's reward is the mean of the first role's seats,
    and it is a success if one of these won. Metrics: ``<role>_reward`` and ``<role>_success``, means over the
    role's seats.

    Args:
        game: Id of an AEC environment, or something callable; ``None``: the engine's ``env``.
        roles: One role for all seats, or one for each.
        rotate: Change seats from group to group (from episode to episode without groups), so that each role plays
            each seat; only with several roles.
        agents: See :class:`CastWorkflow`.
        game_kwargs: Arguments of the game.
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
        while not game.over:
            seat = game.agent
            speaker = play.speakers.get(seat) or self.talker(play, seat, seats[seat], "")
            reply = await speaker.say(game.observation, game.infos.get(seat))
            earned = await game.step(reply.action)
            speaker.info(game.infos.get(seat))
            for name, reward in earned.items():
                if name in play.speakers and (reward or name == seat):
                    play.speakers[name].reward(reward)
        return self._finish(game, seats, play)

    def _seats(self, game: GameHandle, play: Play) -> dict[str, str]:
        """The role of each seat."""
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
