"""A game between agents: self-play, play against other weights, or play with several roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rllm_gym.core import Episode, StopReason
from rllm_gym.engine.agent_session import AgentSession
from rllm_gym.engine.handles import GameHandle
from rllm_gym.engine.roles import hash_choice
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.engine.workflow import WorkflowTask
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.engine.workflows.base import Agents, RoleWorkflow

_BUDGET_REASONS = (StopReason.MAX_TOKENS, StopReason.CONTEXT_LENGTH)


class SelfPlay(RoleWorkflow):
    """Agents play a turn-based PettingZoo game to its end. Each agent's rewards are added to its own last step.

    With one role, all players of the game have the same role: self-play. With several roles, each player has one, in
    this order; for a frozen opponent, use ``roles=("player", "opponent")`` here and
    ``roles={"opponent": Role(weights=…, trainable=False)}`` for the engine. Agents have the names of the players. The
    reward of the episode is the mean over the players of the first role, and the episode is a success if one of these
    players won. A player whose token budget is used up makes empty replies for the rest of the game, so that an agent
    cannot escape a lost game with long replies. Metrics: ``<role>_reward`` and ``<role>_success``, means over the
    players of the role, and ``silenced``, the fraction of players whose token budget was used up.

    Args:
        game: Id of an AEC environment, or a callable that returns one; ``None``: the engine's ``env``.
        roles: One role for all players, or one per player.
        rotate: Rotate the roles from group to group (without groups, from episode to episode), so that each role
            takes the part of each player. Only has an effect with several roles.
        agents: See :class:`RoleWorkflow`.
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

    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode:
        game = await context.game(self.game, **self.game_kwargs)
        await game.reset()
        roles_by_player = self._roles_by_player(game, context)
        silenced: set[str] = set()
        while not game.done:
            player = game.agent
            session = context.sessions.get(player) or self.chat_agent(context, player, roles_by_player[player], "")
            earned = await game.step(await self._move(session, game, silenced))
            session.add_info(game.infos.get(player))
            for name, reward in earned.items():
                if name in context.sessions and (reward or name == player):
                    context.sessions[name].add_reward(reward)
        context.metrics["silenced"] = len(silenced) / len(roles_by_player)
        return self._finish(game, roles_by_player, context)

    async def _move(self, session: AgentSession, game: GameHandle, silenced: set[str]) -> Any:
        try:
            return (await session.generate(game.observation, game.infos.get(session.name))).action
        except Truncated as cut:
            if cut.stop_reason not in _BUDGET_REASONS or not session.steps:
                raise
            silenced.add(session.name)
            return ""

    def _roles_by_player(self, game: GameHandle, context: WorkflowContext) -> dict[str, str]:
        """Return the role of each player."""
        players = game.agents
        if len(self.roles) == 1:
            return dict.fromkeys(players, self.roles[0])
        if len(players) != len(self.roles):
            raise ValueError(
                f"{game.env_id} has the players {list(players)}; roles must name one role for all of "
                f"them, or one per player; got {self.roles}"
            )
        first = hash_choice(len(players), context.group_id or context.episode_id, "seat") if self.rotate else 0
        return {player: self.roles[(number + first) % len(players)] for number, player in enumerate(players)}

    def _finish(self, game: GameHandle, roles_by_player: dict[str, str], context: WorkflowContext) -> Episode:
        won = {}
        for role in self.roles:
            mine = [player for player in roles_by_player if roles_by_player[player] == role]
            won[role] = [bool(game.infos.get(player, {}).get("success")) for player in mine]
            context.metrics[f"{role}_reward"] = sum(game.rewards[player] for player in mine) / len(mine)
            context.metrics[f"{role}_success"] = sum(won[role]) / len(mine)
        reward = context.metrics[f"{self.roles[0]}_reward"]
        return context.finish(reward=reward, success=any(won[self.roles[0]]), stop_reason=game.stop_reason)
