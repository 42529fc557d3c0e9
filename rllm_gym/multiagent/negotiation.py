"""Negotiation: two agents divide items without knowing their values for the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rllm_gym.core import InvalidAction, Task, TaskError, TaskSource
from rllm_gym.data import ProceduralTaskset, load_tasks
from rllm_gym.multiagent.division import Division, DivisionGenerator, row_to_division
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.parsing.blocks import last_block
from rllm_gym.parsing.boxed import strip_thinking

AGENTS = ("negotiator_0", "negotiator_1")
_COMMAND = re.compile(r"(propose|accept|leave)\b[\s:]*([^\n]{0,200})", re.IGNORECASE)
_COUNTS = re.compile(r"[0-9]{1,3}(?:[\s,;/|]{1,4}[0-9]{1,3}){0,15}")
_NAMED = re.compile(r"([a-z]{1,20})\s{0,3}[=:]\s{0,3}([0-9]{1,3})", re.IGNORECASE)
_TAGS = ("action", "answer", "move", "deal")


class Negotiation(TextGame):
    """Divide a few items between two agents with private values; talk, propose, accept.

    ## Description
    There are items of a few kinds, such as 3 books, 2 hats and 1 ball. Each agent has its own value for each kind and
    knows only its own; all items together are worth the same to both (10 points). They talk in turn until one accepts
    what the other has proposed, or leaves, or the turns are used up; without a deal both get nothing. The setting is
    that of Lewis et al., *Deal or No Deal?* (2017), https://arxiv.org/abs/1706.05125, section 2.

    ## Action space
    Any text. All of a reply after ``</think>`` is passed on to the other agent, as a quotation. A last fenced block or
    ``<action>``, ``<answer>``, ``<move>`` or ``<deal>`` tag in it is a command, as is a reply that consists of one:
    ``propose 2 1 0`` (what the speaker keeps, in the order of the kinds; the other gets the rest), also ``propose
    book=2 hat=1``; ``accept`` (the other's last proposal, unless the agent's own has replaced it); ``leave``. A reply
    without a block is talk. A block that is none of these changes nothing: the agent gets an error message and tries
    again, up to ``max_invalid`` times in a row; after that its turn passes.

    ## Observation space
    Text under ``"text"``. First the items, the agent's own values and the rules; then the other's messages and
    proposals.

    ## Starting state
    Items and values generated with the task; ``negotiator_0`` speaks first.

    ## Rewards
    At the end each agent's own points from the deal, as a fraction of what all items are worth to it: component
    ``payoff``, in [0, 1]; 0 without a deal. ``invalid_action_penalty`` is subtracted for each reply that cannot be
    parsed.

    ## Episode end
    Terminated by a deal (success of both) or by leaving (failure); truncated after ``max_turns`` turns of both.

    ## Information
    In addition to the keys of :class:`~rllm_gym.multiagent.TextGame`, all 0, ``False`` or ``""`` until a deal ends the
    game, so that nothing private is in them: ``agreement: str`` (what this agent gets, as counts), ``points: int`` (its
    own), ``joint_points: int`` (of both), ``best_joint_points: int`` (of the best division for both), ``pareto_optimal:
    bool`` (no division would be better for one and not worse for the other), ``nash_points: int`` (its points in the
    division with the largest product of both, Nash 1950). :meth:`oracle` proposes and accepts that division.

    ## Arguments
    Args:
        kinds: Number of kinds of items, 2 to 5.
        total: Value of all items together, for each agent; 4 or more.
        split: ``"train"`` (default), ``"validation"`` or ``"test"``: they share no problem, also not with the agents
            exchanged or the kinds in another order.
        task_seed: Another seed gives other problems of the same split.
        num_tasks: Number of problems to sample from.
        tasks: Custom problems: rows such as ``{"items": ["book", "hat"], "counts": [3, 2], "values": [[2, 2], [1,
            3]]}``, tasks, a task set, or a file of rows. Then kinds, total, task_seed and num_tasks may not be given.
        max_turns: Turns of both, 10 by default.
        max_cycles: Turns per agent, instead.
        max_message_chars: Maximum characters of a message.
        max_invalid: Number of replies in a row that cannot be parsed and cost nothing but turns.
        invalid_action_penalty: Subtracted from the reward for each of them.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {**TextGame.metadata, "name": "rllm_negotiation_v0"}

    def __init__(
        self,
        *,
        kinds: int = 3,
        total: int = 10,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int = 10_000,
        tasks: TaskSource | Iterable[Any] | str | None = None,
        max_turns: int | None = None,
        max_cycles: int | None = None,
        max_message_chars: int = 2_000,
        max_invalid: int = 2,
        invalid_action_penalty: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        source: TaskSource
        if tasks is None:
            split = "train" if split is None else split
            draw = DivisionGenerator(kinds, total, split)
            source = ProceduralTaskset(draw, name="negotiation", split=split, seed=task_seed, size=num_tasks)
        elif (kinds, total, task_seed, num_tasks) != (3, 10, 0, 10_000):
            raise TaskError("kinds, total, task_seed and num_tasks have no effect with tasks=; remove them")
        else:
            source = load_tasks(tasks, name="negotiation", split=split, convert=row_to_division)
        super().__init__(
            agents=AGENTS,
            tasks=source,
            max_turns=10 if max_turns is None and max_cycles is None else max_turns,
            max_cycles=max_cycles,
            max_message_chars=max_message_chars,
            max_invalid=max_invalid,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )
        self._division: Division | None = None
        self._proposal: tuple[int, tuple[int, ...]] | None = None  # the proposing agent, and what it would keep
        self._agreed: tuple[int, ...] | None = None  # what negotiator_0 gets
        self._log: list[tuple[str, str]] = []

    # Methods of TextGame

    @property
    def division(self) -> Division:
        """The division problem, including both agents' values.

        Raises:
            TaskError: No episode has begun.
        """
        if self._division is None:
            raise TaskError("no task yet: call reset() first")
        return self._division

    def _begin(self, task: Task) -> str:
        self._division = Division.of(task)
        self._proposal, self._agreed, self._log = None, None, []
        for agent in AGENTS:
            self._notify(agent, self._rules_for(agent))
        return AGENTS[0]

    def _act(self, agent: str, action: str) -> TurnResult:
        message = self._message_in(action)
        command, kept = self._command_in(action, agent)
        self._relay(agent, message)
        self._log.append((agent, message))
        other = _other(agent)
        if command == "accept":
            return self._deal(agent)
        if command == "leave":
            self._notify_all(f"{agent} leaves. There is no deal, and nobody gets anything.")
            return TurnResult(rewards={name: {"payoff": 0.0} for name in AGENTS}, terminated=True)
        if command == "propose":
            self._proposal = (AGENTS.index(agent), kept)
            rest = self.division.rest(kept)
            self._notify(
                other,
                f"{agent} proposes to keep {self.division.words(kept)}; you would get {self.division.words(rest)}.",
            )
        if self._turn + 1 == self.max_turns:
            self._notify_all("The turns are used up. There is no deal, and nobody gets anything.")
        return TurnResult(other, {name: {"payoff": 0.0} for name in AGENTS})

    def _forfeit(self, agent: str) -> TurnResult:
        self._notify(_other(agent), f"{agent} said nothing that could be passed on.")
        return TurnResult(_other(agent))

    def _deal(self, agent: str) -> TurnResult:
        assert self._proposal is not None
        proposer, kept = self._proposal
        self._agreed = kept if proposer == 0 else self.division.rest(kept)
        for index, name in enumerate(AGENTS):
            got = self._agreed if index == 0 else self.division.rest(self._agreed)
            self._notify(name, f"{agent} accepts. You get {self.division.words(got)}.")
        points = self.division.points(self._agreed)
        rewards = {name: {"payoff": points[i] / self.division.worth(i)} for i, name in enumerate(AGENTS)}
        return TurnResult(rewards=rewards, terminated=True, success=AGENTS)

    def _command_in(self, action: str, agent: str) -> tuple[str, tuple[int, ...]]:
        """Return the command in a reply and what the agent would keep; ``""`` for talk.

        Raises:
            InvalidAction: There is a block, but no command in it; or it cannot be carried out.
        """
        answer = strip_thinking(action) or ""
        block = last_block(answer, _TAGS)
        text = answer if block is None else block.content
        if block is not None and block.label not in _TAGS and block.label:
            text = f"{block.label} {text}"  # "```propose 2 1 0\n```": the line of the opening fence
        found = _COMMAND.fullmatch(text.strip().strip(".!"))
        if found is None:
            if block is None:
                return "", ()
            raise InvalidAction(
                f"Invalid action: the last block is {_shown(text)}, which is no command. {self._forms()}"
            )
        command, rest = found[1].lower(), found[2].strip()
        if command == "propose":
            return command, self._counts_in(rest)
        if rest:
            raise InvalidAction(
                f"Invalid action: {command!r} stands alone, but {_shown(rest)} follows. {self._forms()}"
            )
        if command == "accept" and (self._proposal is None or self._proposal[0] == AGENTS.index(agent)):
            raise InvalidAction(f"Invalid action: there is no proposal of {_other(agent)} to accept. {self._forms()}")
        return command, ()

    def _counts_in(self, text: str) -> tuple[int, ...]:
        division = self.division
        if _COUNTS.fullmatch(text):
            counts = tuple(int(number) for number in re.findall("[0-9]+", text))
        else:
            named = {name.lower(): int(count) for name, count in _NAMED.findall(text)}
            left_over = _NAMED.sub("", text).strip(" ,;")
            unknown = sorted(set(named) - set(division.items))
            if not named or left_over or unknown:
                raise InvalidAction(f"Invalid action: {_shown(text)} is no proposal. {self._forms()}")
            counts = tuple(named.get(item, 0) for item in division.items)
        if len(counts) != len(division.counts) or any(c > most for c, most in zip(counts, division.counts)):
            raise InvalidAction(
                f"Invalid action: {_shown(text)} cannot be kept; there are {division.words(division.counts)}. "
                f"{self._forms()}"
            )
        return counts

    def _add_info(self, agent: str, info: dict[str, Any]) -> None:
        index, agreed, division = AGENTS.index(agent), self._agreed, self.division
        mine: Sequence[int] = () if agreed is None else agreed if index == 0 else division.rest(agreed)
        points = (0, 0) if agreed is None else division.points(agreed)
        info["agreement"] = " ".join(map(str, mine))
        info["points"], info["joint_points"] = points[index], sum(points)
        info["best_joint_points"] = 0 if agreed is None else division.best_joint_points()
        info["pareto_optimal"] = agreed is not None and division.is_pareto_optimal(agreed)
        info["nash_points"] = 0 if agreed is None else division.points(division.nash())[index]

    def _render_text(self) -> str:
        division = self.division
        lines = [f"{division.words(division.counts)}"]
        lines += [f"{name} values: {division.prices(index)}" for index, name in enumerate(AGENTS)]
        lines += [f"{who}: {text}" for who, text in self._log]
        if self._agreed is not None:
            lines.append(
                f"Deal: {AGENTS[0]} gets {division.words(self._agreed)}; points {division.points(self._agreed)}."
            )
        return "\n".join(lines)

    def _env_state(self) -> dict[str, Any]:
        return {"proposal": self._proposal, "agreed": self._agreed, "log": [list(entry) for entry in self._log]}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._division = Division.of(self.task)
        proposal, agreed = state["proposal"], state["agreed"]
        self._proposal = None if proposal is None else (int(proposal[0]), tuple(map(int, proposal[1])))
        self._agreed = None if agreed is None else tuple(map(int, agreed))
        self._log = [(str(who), str(text)) for who, text in state["log"]]

    def _rules_for(self, agent: str) -> str:
        division, index, other = self.division, AGENTS.index(agent), _other(agent)
        return (
            f"You are {agent} and divide with {other}: {division.words(division.counts)}.\n"
            f"To you they are worth {division.prices(index)}; {division.worth(index)} points for everything. "
            f"What they are worth to {other} only {other} knows.\n"
            f"You talk in turn, {self.max_turns} turns in all. Without a deal both get nothing. "
            f"Your whole reply is told to {other}. {self._forms()}"
        )

    def _forms(self) -> str:
        kinds = " ".join("1" if count > 1 else "0" for count in self.division.counts)
        return (
            f"End a reply with ```propose {kinds}``` (what you would keep of {', '.join(self.division.items)}), "
            "```accept``` (the other's last proposal) or ```leave```, or only talk."
        )

    def oracle(self) -> str:
        """Return a reply that leads to the division with the largest product of points."""
        index, nash = AGENTS.index(self.agent_selection), self.division.nash()
        mine = nash if index == 0 else self.division.rest(nash)
        if self._proposal is not None and self._proposal == (1 - index, self.division.rest(mine)):
            return "accept"
        return f"propose {' '.join(map(str, mine))}"


def _other(agent: str) -> str:
    return AGENTS[1 - AGENTS.index(agent)]


def _shown(text: str) -> str:
    # ascii() also escapes lone surrogates and control characters: the observation stays printable text.
    text = text.strip()
    return ascii(text if len(text) <= 40 else text[:37] + "...")
