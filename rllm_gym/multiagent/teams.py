"""A team in one single-agent environment: all roles see the task and speak in turn, and the last one acts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium

from rllm_gym.core import Task, Text, TextEnv
from rllm_gym.multiagent.game import Components, TextGame, TurnResult
from rllm_gym.multiagent.parallel import ParallelGame
from rllm_gym.parsing.boxed import strip_thinking
from rllm_gym.parsing.quoting import fenced, visible

Share = Literal["shared", "own"] | float
_ROLE = re.compile("[a-z]+")
_INSTRUCTIONS = {
    "proposer": "Propose a solution.",
    "critic": "Check what has been proposed and say what is wrong with it, if anything is.",
    "finaliser": "Weigh what the others said and answer in the form that the task asks for.",
    "planner": "Make a plan; the next one carries it out.",
    "worker": "Carry out the plan, in the form that the task asks for.",
    "solver": "Solve the task, in the form that it asks for.",
    "judge": "Compare what the others found and give the right answer in the form that the task asks for.",
}
_RENDERED_CHARS = 4_000


class Team(TextGame):
    """A single-agent environment played by several agents. Made by :func:`team`.

    ## Description
    All agents see the task. They speak in the order of ``roles``, each receiving the others' messages since it last
    spoke; the reply of the last one is the action in the environment. If the environment continues, so does the team,
    from the first role again (``speak="always"``) or with the last one alone (``speak="once"``: planner and worker).

    ## Action space
    Any text. A role's text after ``</think>`` is passed on to the others, as a quotation; a message that is too long is
    not passed on, and the turn is over. The reply of the last role goes to the environment unchanged, thoughts
    included, and is passed on in the same way, cut where it is too long.

    ## Observation space
    Text under ``"text"``. The environment's text is unchanged between two lines of tildes, longer than any that it
    contains; messages are quoted line by line with ``"> "``.

    ## Rewards
    ``reward="shared"``: every agent gets the environment's reward, by component. Else a mapping from role: a number is
    the share of the environment's reward; ``"own"`` is what the environment would have given for this agent's message
    as the action (component ``own``; computed on a copy, so the environment must support copying). In an episode of
    many turns only the improvement over the best earlier message of the agent is rewarded: repeating a winning message
    that no role acts on gives nothing more.

    ## Episode end
    That of the environment: terminated or truncated, with its stop reason, for all agents at once.

    ## Information
    The keys of :class:`~rllm_gym.multiagent.TextGame`; the last role also gets the environment's ``tools``.

    ## Arguments
    Args:
        env_id: The environment, such as ``"rllm/Math-v0"``; any registered :class:`~rllm_gym.core.TextEnv`.
        roles: At least one name of lower-case letters; a role may occur several times. ``("solver", "solver",
            "judge")`` gives ``solver_0``, ``solver_1`` and ``judge_0``.
        reward: ``"shared"``, or the reward of each role.
        speak: Whether all roles speak before every action, or only before the first.
        independent: Roles whose members do not receive each other's messages, such as solvers that a judge compares.
        instructions: Instructions by role; there are defaults for the usual roles.
        max_message_chars: Maximum characters of a message to the others.
        max_cycles: Turns per agent before truncation, instead of the environment's limit.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.
        **env_kwargs: Arguments of the environment.

    Raises:
        ValueError: An argument is invalid; the message lists valid values.
    """

    metadata: ClassVar[dict[str, Any]] = {**TextGame.metadata, "name": "rllm_team_v0"}

    def __init__(
        self,
        env_id: str,
        *,
        roles: Sequence[str] = ("proposer", "critic", "finaliser"),
        reward: Literal["shared"] | Mapping[str, Share] = "shared",
        speak: Literal["always", "once"] = "always",
        independent: Collection[str] = (),
        instructions: Mapping[str, str] | None = None,
        max_message_chars: int = 10_000,
        max_cycles: int | None = None,
        render_mode: str | None = None,
        **env_kwargs: Any,
    ) -> None:
        names = agent_names(roles)
        if speak not in ("always", "once"):
            raise ValueError(f"speak={speak!r} is not 'always' or 'once'")
        for what, value in (("independent", independent), ("instructions", instructions or {})):
            if unknown := sorted(set(value) - set(roles)):
                raise ValueError(f"{what} names {unknown}, but the roles are {sorted(set(roles))}")
        self._shares = _shares(reward, roles)
        self._env = gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
        base = self._env.unwrapped
        if not isinstance(base, TextEnv) or not isinstance(base.observation_space, Text):
            self._env.close()
            raise ValueError(f"{env_id!r} has observations that are not text, so a team cannot use it")
        self._base = base
        # A role that speaks once and then listens receives all further answers.
        answers = 2 if speak == "always" else base.max_turns + 1
        super().__init__(
            agents=names,
            tasks=base.tasks,
            max_cycles=max_cycles,
            max_invalid=0,
            max_observation_chars=answers * (2 * base.observation_space.max_length + 1_000)
            + _instructions_length(instructions),
            messages_per_turn=len(names) + answers,
            max_action_chars=base.action_space.max_length,  # type: ignore[attr-defined]
            max_message_chars=max_message_chars,
            render_mode=render_mode,
        )
        self.env_id, self.speak = env_id, speak
        self.independent = frozenset(independent)
        self.instructions = _INSTRUCTIONS | dict(instructions or {})
        self._env_tools = "[]"
        self._started = False
        self._log: list[tuple[str, str]] = []
        self._rewarded: dict[str, float] = {}  # the highest value of a message of an agent

    # Methods of TextGame

    def _begin(self, task: Task) -> str:
        observation, info = self._env.reset(seed=int(self.np_random.integers(2**31)), options={"task": task})
        self._started = True
        if "own" in self._shares.values():
            self._base.get_state()  # raises an explanation if the environment cannot be copied
        self._env_tools = info["tools"]
        self._log = [("task", observation)]
        self._rewarded = {}
        for agent in self.possible_agents:
            self._notify(agent, f"{self._introduction(agent)}\nThe task:\n{fenced(observation)}")
        return self.possible_agents[0]

    def _act(self, agent: str, action: str) -> TurnResult:
        if agent == self._acting:
            return self._to_environment(agent, action)
        message = self._message_in(action)
        self._relay(agent, message, self._recipients(agent))
        self._log.append((agent, message))
        return TurnResult(self._after(agent), self._own_reward(agent, action))

    def _forfeit(self, agent: str) -> TurnResult:
        if agent == self._acting:  # a reply longer than the environment accepts: the environment reports it itself
            return self._to_environment(agent, "")
        for other in self._recipients(agent):
            self._notify(other, f"{agent} said nothing that could be passed on.")
        self._log.append((agent, ""))
        return TurnResult(self._after(agent))

    def _to_environment(self, agent: str, action: str) -> TurnResult:
        answer, reward, terminated, truncated, info = self._env.step(action)
        text = (strip_thinking(action) or "").strip()
        self._relay(agent, text[: self.max_message_chars])
        if len(text) > self.max_message_chars:
            self._notify_all(
                f"({len(text) - self.max_message_chars} more characters of it are left out.)", exclude=agent
            )
        self._notify_all(f"The environment answers:\n{fenced(answer)}")
        self._log += [(agent, text), ("environment", answer)]
        components = info["reward_components"]
        if not math.isclose(math.fsum(components.values()), reward, rel_tol=1e-9, abs_tol=1e-12):
            components = {"environment": reward}  # a wrapper of the environment has changed it
        rewards = {name: self._share(name, components) for name in self.possible_agents}
        return TurnResult(
            agent if self.speak == "once" else self.possible_agents[0],
            rewards,
            terminated=terminated,
            truncated=truncated,
            success=self.possible_agents if info["success"] else (),
            invalid=info["invalid_action"],
            stop_reason=info["stop_reason"],
        )

    def _share(self, agent: str, components: Components) -> Components:
        share = self._shares[_role(agent)]
        if share == "shared":
            return dict(components)
        if share == "own":
            return {"own": sum(components.values())} if agent == self._acting else {}
        return {name: float(share) * value for name, value in components.items()}

    def _own_reward(self, agent: str, action: str) -> dict[str, Components]:
        """Return the environment's reward for this reply, beyond that of an earlier one."""
        if self._shares[_role(agent)] != "own":
            return {}
        copy = self._base.fork()
        try:
            _, reward, *_ = copy.step(action)
        finally:
            copy.close()
        paid = self._rewarded.get(agent, 0.0)
        self._rewarded[agent] = max(paid, reward)
        return {agent: {"own": max(0.0, reward - paid) if reward > 0 else reward}}

    def _tools(self, agent: str) -> str:
        return self._env_tools if agent == self._acting else "[]"

    def _render_text(self) -> str:
        return "\n".join(f"{who}:\n{_indented(text)}" for who, text in self._log)

    def _env_state(self) -> dict[str, Any]:
        return {
            "env": self._base.get_state().decode(),
            "tools": self._env_tools,
            "log": [list(entry) for entry in self._log],
            "paid": self._rewarded,
        }

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        if not self._started:  # the wrappers of an environment need a reset first
            self._env.reset(seed=0, options={"task": self.task})
            self._started = True
        self._base.set_state(state["env"].encode())
        self._env_tools = str(state["tools"])
        self._log = [(str(who), str(text)) for who, text in state["log"]]
        self._rewarded = {str(who): float(value) for who, value in state["paid"].items()}

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    @property
    def _acting(self) -> str:
        return self.possible_agents[-1]

    def _after(self, agent: str) -> str:
        return self.possible_agents[self.possible_agents.index(agent) + 1]

    def _recipients(self, agent: str) -> list[str]:
        alone = _role(agent) in self.independent
        return [name for name in self.possible_agents if name != agent and not (alone and _role(name) == _role(agent))]

    def _introduction(self, agent: str) -> str:
        last = agent == self._acting
        duty = self.instructions.get(
            _role(agent), "Answer in the form that the task asks for." if last else "Say what helps the others."
        )
        if len(self.possible_agents) == 1:
            return f"You are {agent}. {duty}"
        acts = "your reply is" if last else f"the reply of {self._acting} is"
        order = ", ".join(self.possible_agents)
        return f"You are {agent} of a team that speaks in this order: {order}. Only {acts} the answer. {duty}"


def team(
    env_id: str,
    roles: Sequence[str] = ("proposer", "critic", "finaliser"),
    *,
    reward: Literal["shared"] | Mapping[str, Share] = "shared",
    **arguments: Any,
) -> Team:
    """Create a team of roles in a single-agent environment, as a PettingZoo AEC environment.

    >>> duo = team("rllm/Math-v0", roles=("solver", "solver", "judge"), families="counting", reward={
    ...     "solver": "own", "judge": "shared"})
    >>> duo.reset(seed=0)
    >>> duo.agent_selection
    'solver_0'

    Args:
        env_id: The environment, such as ``"rllm/Math-v0"``.
        roles: The roles in the order of their turns; the last one's reply is the action.
        reward: ``"shared"``, or for each role ``"shared"``, ``"own"`` or a number; see :class:`Team`.
        **arguments: Further arguments of :class:`Team`, and those of the environment.

    Raises:
        ValueError: An argument is invalid.
    """
    return Team(env_id, roles=roles, reward=reward, **arguments)


def team_parallel(env_id: str, roles: Sequence[str] = ("proposer", "critic", "finaliser"), **arguments: Any) -> Any:
    """Create a :func:`team` behind PettingZoo's parallel interface: each step is the turn of one role."""
    return ParallelGame(team(env_id, roles, **arguments))


def agent_names(roles: Sequence[str]) -> list[str]:
    """Return one name per agent: ``solver_0``, ``solver_1``, ``judge_0`` for ``("solver", "solver", "judge")``.

    Raises:
        ValueError: There is no role, or a name is not of lower-case letters.
    """
    if isinstance(roles, str) or not roles:
        raise ValueError(f"roles={roles!r} must be a sequence of at least one name, such as ('solver', 'judge')")
    seen: dict[str, int] = {}
    names = []
    for role in roles:
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise ValueError(f"the role {role!r} must consist of lowercase letters a to z, as PettingZoo requires")
        names.append(f"{role}_{seen.get(role, 0)}")
        seen[role] = seen.get(role, 0) + 1
    return names


def _shares(reward: Literal["shared"] | Mapping[str, Share], roles: Sequence[str]) -> dict[str, Share]:
    if reward == "shared":
        return dict.fromkeys(roles, "shared")
    if not isinstance(reward, Mapping) or set(reward) != set(roles):
        raise ValueError(f"reward={reward!r} must be 'shared' or a mapping of the roles {sorted(set(roles))}")
    for role, share in reward.items():
        if share not in ("shared", "own") and (isinstance(share, bool | str) or not abs(float(share)) < float("inf")):
            raise ValueError(f"reward[{role!r}]={share!r} must be 'shared', 'own' or a finite number")
    return dict(reward)


def _role(agent: str) -> str:
    return agent.rpartition("_")[0]


def _instructions_length(instructions: Mapping[str, str] | None) -> int:
    return max((len(text) for text in (instructions or {}).values()), default=0)


def _indented(text: str) -> str:
    text = visible(text)
    if len(text) > _RENDERED_CHARS:
        text = f"{text[:_RENDERED_CHARS]}… ({len(text)} characters)"
    return "\n".join(f"  {line}" for line in text.splitlines()) or "  (nothing)"
