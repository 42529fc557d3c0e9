"""One agent in a workflow: receives messages, replies, gets rewards, and records its steps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_gym.agents import Action, BaseAgent
from rllm_gym.core import Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.attempt_state import AttemptState
from rllm_gym.engine.conversation_sampler import ConversationSampler
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.samplers.protocol import Completion, SamplingRequest


@dataclass(frozen=True, slots=True)
class AgentReply:
    """A reply of an agent.

    Attributes:
        text: The text that the model wrote.
        action: The action that the agent derived from it; by default the text itself.
        tokens: Its tokens; ``None`` if the sampler returns none.
        finish_reason: ``"stop"`` or ``"length"``.
    """

    text: str
    action: Any
    tokens: TurnTokens | None
    finish_reason: str


class AgentSession:
    """One agent of an episode, created by ``context.agent(…)``.

    Attributes:
        name: Unique in the episode.
        role: Its role.
        steps: Its steps so far.
        busy: Whether a reply is being generated.
    """

    def __init__(
        self,
        state: AttemptState,
        name: str,
        role: str,
        agent: BaseAgent,
        tools: Sequence[Mapping[str, Any]] | str | None,
        sampler: ConversationSampler,
        *,
        trainable: bool,
    ) -> None:
        self.name = name
        self.role = role
        self.steps: list[Step] = []
        self.rewarded = False
        self.rewarded_last = True  # there is no reply without a reward yet
        self.agent = agent
        self.sampler = sampler
        self._state = state
        self._trainable = trainable
        self._tools = tools if tools is None or isinstance(tools, str) else json.dumps(list(tools))
        self.busy = False
        self._started = False
        self._pending_observation: StopReason | None = None  # why it could not reply to the last message

    @property
    def weights(self) -> str:
        """The name of the weights that sample its replies; ``""`` for the weights of the policy."""
        return self.sampler.weights

    async def generate(self, text: Any, info: Mapping[str, Any] | None = None) -> AgentReply:
        """Generate one reply to a new message.

        Args:
            text: The message: all that is new for this agent since its last reply.
            info: Info, for agents that read the info of their environment.

        Raises:
            Truncated: A limit prevents the agent from replying.
            SamplerError: The sampler failed. Do not catch it: no further reply is possible.
            RuntimeError: Another reply of this agent is pending, or the episode is over.
            AgentError: The agent's own code raised an exception.
        """
        if self.busy:
            raise RuntimeError(f"{self.name} is already generating a reply: an agent generates one reply at a time")
        self.busy = True
        try:
            await self._state.check_running()
            self.observe(text, info)
            self._state.token_budget.check(self.name)
            return await self._generate(text)
        except Truncated as cut:
            self._pending_observation = cut.stop_reason
            await self._state.refuse_truncated(cut)
            raise
        finally:
            self.busy = False

    def observe(self, text: Any, info: Mapping[str, Any] | None = None, *, done: bool = False) -> None:
        """Pass a message to the agent without requesting a reply.

        Args:
            text: The message.
            info: Info, for agents that read the info of their environment.
            done: Whether no reply follows in this episode.
        """
        if not self._started:
            self._started = True
            self._call_agent("reset", self.agent.reset)
            self._call_agent("receive_task", self.agent.receive_task, self._state.task_row)
        reward = self.steps[-1].reward if self.steps else 0.0
        self._call_agent("update_from_env", self.agent.update_from_env, text, reward, done, dict(info or {}))

    def add_reward(self, value: float) -> None:
        """Add to the reward of the agent's last step.

        Raises:
            ValueError: The agent has no step yet, or the value is not a finite number.
        """
        number = check_finite(f"reward of {self.name}", value)
        self._last("a reward").reward += number
        self.rewarded = self.rewarded_last = True

    def add_info(self, entries: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Add to the info of the agent's last step.

        Raises:
            ValueError: The agent has no step yet.
        """
        self._last("info").info.update(entries or {}, **more)

    def trajectory(self, *, truncated: bool = False) -> Trajectory:
        """Return the steps so far as a trajectory, of an episode that a limit may have truncated."""
        if self.steps:
            self.steps[-1].done = True
        final = self.sampler.final_ids(lambda: self.agent.chat_completions, len(self.steps)) if truncated else ()
        return Trajectory(
            name=self.name,
            task=self._state.task_row,
            steps=list(self.steps),
            reward=float(sum(step.reward for step in self.steps)),
            role=self.role,
            trainable=self._trainable,
            final_ids=final,
        )

    # Private methods

    async def _generate(self, observation: Any) -> AgentReply:
        tools = self._tools if self.agent.uses_tools else None
        try:
            request = self.sampler.request(lambda: self.agent.chat_completions, tools, len(self.steps))
        except AgentError as error:
            if self._pending_observation is None:
                raise
            # Many templates reject two consecutive messages of one role. The limit is still the reason to report.
            raise Truncated(self._pending_observation, self.name) from error
        if isinstance(request, StopReason):
            raise self._truncated(request)
        completion = await self._sample(self._state.token_budget.reserve(request, self.name))
        if completion.finish_reason == "context_length":
            raise self._truncated(StopReason.PROMPT_TOO_LONG)
        self._state.token_budget.any_sampled = True
        action = self._call_agent("update_from_model", self.agent.update_from_model, completion.text)
        action = action.action if isinstance(action, Action) else action
        state = self._call_agent("get_current_state", self.agent.get_current_state)
        thought = state.thought if state is not None and isinstance(state.thought, str) else ""
        step = Step(observation, list(self.sampler.messages), completion.text, thought, action)
        step.tokens = self.sampler.append(completion)
        self.steps.append(step)
        self.rewarded_last = False
        self._pending_observation = None
        return AgentReply(completion.text, action, step.tokens, completion.finish_reason)

    async def _sample(self, request: SamplingRequest) -> Completion:
        used = 0
        try:
            completion = await self.sampler.reply(request)
            used = len(completion.ids)
        except Exception as error:
            # An exception of the sampler is not an error of the workflow, which could not handle it.
            self._state.abort(error)
            raise
        finally:
            self._state.token_budget.commit(request, used)
        return completion

    def _truncated(self, reason: StopReason) -> Truncated:
        # PROMPT_TOO_LONG is only for the first prompt of the episode, before any reply.
        if reason is StopReason.PROMPT_TOO_LONG and self._state.token_budget.any_sampled:
            reason = StopReason.CONTEXT_LENGTH
        return Truncated(reason, self.name)

    def _last(self, what: str) -> Step:
        if not self.steps:
            raise ValueError(f"{self.name} has no step yet: generate a reply before adding {what}")
        return self.steps[-1]

    def _call_agent(self, what: str, method: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        except Exception as error:
            raise AgentError(
                f"{self.name}: {type(self.agent).__name__}.{what} raised {_format_error(error)}"
            ) from error
        finally:
            self._state.seconds["agent"] += time.perf_counter() - began


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def check_finite(what: str, value: Any) -> float:
    """Convert ``value`` to a finite float.

    Raises:
        ValueError: It is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{what}={value!r} must be a finite number")
    return number
