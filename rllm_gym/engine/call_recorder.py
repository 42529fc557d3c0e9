"""Chat requests of a program as the steps of one trajectory, with the tokens that were sampled.

A program sends whole conversations. One that continues an earlier one, with the replies as they were returned, keeps
its token ids. One that rewrites its history, or that several tasks continue, becomes a branch: the replies that are
unchanged keep their ids in its prompt, and only the new reply is trained on there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rllm_gym.agents import BaseAgent
from rllm_gym.chat_server import ChatReply, ChatRequest, RequestError, reply_message
from rllm_gym.core import Episode, Step, StopReason, Trajectory
from rllm_gym.engine.agent_session import AgentSession
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.conversation_index import ConversationIndex, ConversationLine, FoundConversation, message_key
from rllm_gym.engine.token_budget import Truncated
from rllm_gym.engine.workflow_context import WorkflowContext
from rllm_gym.samplers.protocol import SamplingParams

_MAX_CONVERSATIONS = 256
"""Number of conversations, the latest ones, that a request may continue."""


class PassedMessages(BaseAgent):
    """Passes the messages that it is given to the model unchanged."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    def reset(self) -> None:
        self._messages = []

    @property
    def chat_completions(self) -> list[dict[str, Any]]:
        return self._messages

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **_: Any) -> None:
        self._messages = observation

    def update_from_model(self, response: str, **_: Any) -> str:
        return response


class CallRecorder:
    """The chat requests of one program in one episode.

    The engine's sampling parameters apply, whatever a request asks for: the log-probs of another temperature could not
    be trained on. Of a request, only ``max_tokens`` and ``stop`` count, within the engine's limits.

    Args:
        context: The running episode.
        role: The role of the program's replies.

    Attributes:
        cut: The first limit that prevented a reply, if there was one.
    """

    def __init__(self, context: WorkflowContext, role: str) -> None:
        self._context = context
        self._role = role
        self._conversations: ConversationIndex[AgentSession] = ConversationIndex(_MAX_CONVERSATIONS)
        self._replies: list[tuple[AgentSession, Step]] = []
        self._params: SamplingParams | None = None  # the engine's
        self.cut: StopReason | None = None

    @property
    def num_replies(self) -> int:
        """Number of replies so far."""
        return len(self._replies)

    async def respond(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a request.

        Raises:
            RequestError: The messages cannot be rendered, or a limit of the engine does not allow a reply.
            SamplerError: The sampler failed.
        """
        found = self._conversations.find(request.messages, request.tools)
        line = self._line_of(request, found)
        session = line.owner
        if request.tools:
            check_gets_tools(session.sampler.returns_tokens)
        session.sampler.params = _limited(self._params or session.sampler.params, request)
        try:
            reply = await session.generate(found.messages)
        except Truncated as cut:
            self.cut = self.cut or cut.stop_reason
            raise RequestError(f"the limit {cut.stop_reason.value} is reached", code="context_length_exceeded") from cut
        except AgentError as error:
            raise RequestError(str(error)) from error
        session.steps[-1].observation = request.messages[-1]["content"]  # not the whole conversation once more
        message = reply_message(reply.text, tools=bool(request.tools), name=f"{len(self._replies)}")
        self._conversations.add_reply(line, found, message, reply.text)
        self._replies.append((session, session.steps[-1]))
        sampled = 0 if reply.tokens is None else len(reply.tokens.ids)
        prompt = len(session.sampler.conversation.ids) - sampled
        finish_reason = "tool_calls" if message.get("tool_calls") else reply.finish_reason
        return ChatReply(message, finish_reason, prompt, sampled)

    def episode(self, *, reward: float, success: bool, stop_reason: StopReason, info: Mapping[str, Any]) -> Episode:
        """Return the episode: one trajectory with all replies, in the order in which they were given. The last one gets
        the reward.
        """
        if self._replies:
            self._replies[-1][1].info.update(info)
            self._replies[-1][0].add_reward(reward)
        episode = self._context.finish(success=success, stop_reason=stop_reason)
        branches: dict[tuple[str, int], int] = {}
        for session, step in self._replies:
            if step.tokens is not None:
                branch = branches.setdefault((session.name, step.tokens.branch), len(branches))
                step.tokens = replace(step.tokens, branch=branch)
            step.done = step is self._replies[-1][1]
        episode.trajectories = [
            Trajectory(
                name=f"{self._role}_0",
                task=self._context.task_row,
                steps=[step for _, step in self._replies],
                reward=reward,
                role=self._role,
                trainable=self._context.roles[self._role].trainable,
            )
        ]
        episode.reward = reward
        return episode

    def _line_of(self, request: ChatRequest, found: FoundConversation[AgentSession]) -> ConversationLine[AgentSession]:
        """Return the conversation that a request continues, or a new one."""
        if found.line is not None and found.continues and not found.line.owner.busy:
            return found.line
        session = self._context.agent(
            self._name(request), self._role, agent=PassedMessages(), tools=request.tools or None
        )
        self._params = self._params or session.sampler.params
        if found.line is not None:
            session.sampler.conversation.fork(found.line.owner.sampler.conversation)
        return ConversationLine(session)

    def _name(self, request: ChatRequest) -> str:
        """Name a conversation after its first messages: names determine seeds, and the order of requests depends on
        timing."""
        keys = [message_key(message) for message in request.messages]
        digest = hashlib.sha256(json.dumps([keys, request.tools]).encode(errors="surrogatepass")).hexdigest()[:16]
        numbers = (number for number in itertools.count() if f"{digest}_{number}" not in self._context.sessions)
        return f"{digest}_{next(numbers)}"


def check_gets_tools(returns_tokens: bool) -> None:
    """Check that a model sees the tools of a request: its chat template writes them into the prompt.

    Raises:
        RequestError: Its sampler gets messages.
    """
    if not returns_tokens:
        raise RequestError(
            "tools are not supported: this model gets messages, not the tokens of its chat template; use a sampler "
            "with token ids (at an endpoint of vLLM: --token-ids --tokenizer PATH)"
        )


def _limited(params: SamplingParams, request: ChatRequest) -> SamplingParams:
    """Return the engine's parameters, with what a request may change."""
    most = params.max_tokens if request.max_tokens is None else min(params.max_tokens, request.max_tokens)
    return replace(params, max_tokens=most, stop=(*params.stop, *request.stop))
