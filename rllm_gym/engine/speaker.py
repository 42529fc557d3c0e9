"""One agent in a workflow: hears, replies, is rewarded, and keeps the record of its own words."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.core import RllmGymError, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine.crew import AgentFailed
from rllm_gym.engine.voice import Voice
from rllm_gym.samplers.protocol import Completion, Request

if TYPE_CHECKING:
    from rllm_gym.engine.play import Play


class Truncated(RllmGymError):
    """A limit of the engine does not let an agent speak. Not caught, it ends the episode with this reason.

    Attributes:
        stop_reason: ``MAX_TURNS``, ``MAX_TOKENS``, ``CONTEXT_LENGTH`` or ``PROMPT_TOO_LONG``.
        agent: Its name.
    """

    def __init__(self, stop_reason: StopReason, agent: str) -> None:
        super().__init__(stop_reason, agent)
        self.stop_reason = stop_reason
        self.agent = agent

    def __str__(self) -> str:
        return f"{self.agent} cannot speak: {self.stop_reason.value}"


class TokensLeft:
    """What all agents of an episode together may still say. Replies under way have their tokens set aside.

    Args:
        tokens: Tokens of all replies; ``None`` for no limit.
        turns: Replies; ``None`` for no limit.
    """

    def __init__(self, tokens: int | None, turns: int | None) -> None:
        self._tokens = tokens
        self._turns = turns
        self.spoken = False  # whether anything was ever sampled

    def check(self, agent: str) -> None:
        """
        Raises:
            Truncated: There are no tokens left, or no turns.
        """
        if self._turns is not None and self._turns < 1:
            raise Truncated(StopReason.MAX_TURNS, agent)
        if self._tokens is not None and self._tokens < 1:
            raise Truncated(StopReason.MAX_TOKENS, agent)

    def take(self, request: Request, agent: str) -> Request:
        """The request with no more tokens than are left; set aside until :meth:`settle`.

        Raises:
            Truncated: There are none, or no more turns.
        """
        self.check(agent)
        if self._turns is not None:
            self._turns -= 1
        if self._tokens is not None:
            if request.params.max_tokens > self._tokens:
                request = replace(request, params=replace(request.params, max_tokens=self._tokens))
            self._tokens -= request.params.max_tokens
        return request

    def settle(self, request: Request, used: int) -> None:
        """A reply came, or did not: what it did not use is free again."""
        if self._tokens is not None:
            self._tokens += request.params.max_tokens - used


@dataclass(frozen=True, slots=True)
class Reply:
    """What an agent said.

    Attributes:
        text: As the model wrote it.
        action: What the agent made of it; the text itself where it makes nothing of it.
        tokens: Its tokens; ``None`` where the sampler gives none.
        finish_reason: ``"stop"`` or ``"length"``.
    """

    text: str
    action: Any
    tokens: TurnTokens | None
    finish_reason: str


class Speaker:
    """One agent of an episode. Made by ``play.agent(…)``.

    Attributes:
        name: Unique in the episode.
        role: What it is there for.
        steps: Its steps so far.
        speaking: A reply is under way.
    """

    def __init__(
        self,
        play: Play,
        name: str,
        role: str,
        agent: BaseAgent,
        tools: Sequence[Mapping[str, Any]] | str | None,
        voice: Voice,
    ) -> None:
        self.name = name
        self.role = role
        self.steps: list[Step] = []
        self.rewarded = False
        self.rewarded_last = True  # nothing was said yet that nobody answered
        self.agent = agent
        self.voice = voice
        self._play = play
        self._tools = tools if tools is None or isinstance(tools, str) else json.dumps(list(tools))
        self.speaking = False
        self._begun = False
        self._unanswered: StopReason | None = None  # why it could not answer what it heard last

    @property
    def weights(self) -> str:
        """The name of the weights that draw its replies; ``""`` for the policy's own."""
        return self.voice.weights

    async def say(self, text: Any, info: Mapping[str, Any] | None = None) -> Reply:
        """One reply to what is new for this agent.

        Args:
            text: What it hears: all that is new since its last reply.
            info: For agents that read the info of their environment.

        Raises:
            Truncated: A limit does not let it speak.
            SamplerError: The sampler cannot serve. Do not catch it: nothing can be said any more.
            RuntimeError: It is speaking already, or the episode is over.
            AgentFailed: The agent's own code raised.
        """
        if self.speaking:
            raise RuntimeError(f"{self.name} is speaking already: one agent says one thing at a time")
        self.speaking = True
        try:
            await self._play.enter()
            self._play.tokens.check(self.name)
            self.hear(text, info)
            return await self._speak(text)
        except Truncated as cut:
            self._unanswered = cut.stop_reason
            await self._play.cut(cut)
            raise
        finally:
            self.speaking = False

    def hear(self, text: Any, info: Mapping[str, Any] | None = None, *, done: bool = False) -> None:
        """Let the agent know of something without asking for a reply.

        Args:
            text: What is new for it.
            info: For agents that read the info of their environment.
            done: No reply follows in this episode.
        """
        if not self._begun:
            self._begun = True
            self._ask("reset", self.agent.reset)
            self._ask("receive_task", self.agent.receive_task, self._play.task_row)
        reward = self.steps[-1].reward if self.steps else 0.0
        self._ask("update_from_env", self.agent.update_from_env, text, reward, done, dict(info or {}))

    def reward(self, value: float) -> None:
        """Add to the reward of its last step.

        Raises:
            ValueError: It has not said anything yet, or the value is no finite number.
        """
        number = finite(f"reward of {self.name}", value)
        self._last("a reward").reward += number
        self.rewarded = self.rewarded_last = True

    def info(self, entries: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the info of its last step.

        Raises:
            ValueError: It has not said anything yet.
        """
        self._last("info").info.update(entries or {}, **more)

    def trajectory(self) -> Trajectory:
        """Its steps as they stand."""
        if self.steps:
            self.steps[-1].done = True
        return Trajectory(
            name=self.name,
            task=self._play.task_row,
            steps=list(self.steps),
            reward=float(sum(step.reward for step in self.steps)),
            role=self.role,
            trainable=self._play.roles[self.role].trainable,
        )

    # ------------------------------------------------------------------------------------------------------

    async def _speak(self, heard: Any) -> Reply:
        tools = self._tools if self.agent.uses_tools else None
        try:
            request = self.voice.request(lambda: self.agent.chat_completions, tools, len(self.steps))
        except AgentFailed as error:
            if self._unanswered is None:
                raise
            # Many templates take no two messages of one role in a row: it is still the limit that silences it.
            raise Truncated(self._unanswered, self.name) from error
        if isinstance(request, StopReason):
            raise self._truncated(request)
        completion = await self._reply(self._play.tokens.take(request, self.name))
        if completion.finish_reason == "context_length":
            raise self._truncated(StopReason.PROMPT_TOO_LONG)
        self._play.tokens.spoken = True
        action = self._ask("update_from_model", self.agent.update_from_model, completion.text)
        action = action.action if isinstance(action, Action) else action
        state = self._ask("get_current_state", self.agent.get_current_state)
        thought = state.thought if state is not None and isinstance(state.thought, str) else ""
        step = Step(heard, list(self.voice.shown), completion.text, thought, action)
        step.tokens = self.voice.append(completion)
        self.steps.append(step)
        self.rewarded_last = False
        self._unanswered = None
        return Reply(completion.text, action, step.tokens, completion.finish_reason)

    async def _reply(self, request: Request) -> Completion:
        used = 0
        try:
            completion = await self.voice.reply(request)
            used = len(completion.ids)
        except Exception as error:
            # Whatever the sampler raises is no error of the workflow, which could do nothing about it.
            self._play.break_off(error)
            raise
        finally:
            self._play.tokens.settle(request, used)
        return completion

    def _truncated(self, reason: StopReason) -> Truncated:
        # The episode's first prompt was too long only if nobody has spoken.
        if reason is StopReason.PROMPT_TOO_LONG and self._play.tokens.spoken:
            reason = StopReason.CONTEXT_LENGTH
        return Truncated(reason, self.name)

    def _last(self, what: str) -> Step:
        if not self.steps:
            raise ValueError(f"{self.name} has not said anything yet, so there is no step for {what}")
        return self.steps[-1]

    def _ask(self, what: str, method: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        except Exception as error:
            raise AgentFailed(f"{self.name}: {type(self.agent).__name__}.{what} raised {_shown(error)}") from error
        finally:
            self._play.seconds["agent"] += time.perf_counter() - began


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def finite(what: str, value: Any) -> float:
    """
    Raises:
        ValueError: It is no finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{what}={value!r} must be a finite number")
    return number
