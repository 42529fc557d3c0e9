"""An adapter that runs a workflow written for rLLM in this package's engine, and finds the tokens of its steps."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rllm_gym import core
from rllm_gym.agents import Action
from rllm_gym.compat.agents import row_of
from rllm_gym.compat.engine import sampling_params_of
from rllm_gym.compat.rollout import CURRENT_WORKFLOW, ModelOutput, RolloutEngine, output_of
from rllm_gym.compat.types import Episode, Step
from rllm_gym.compat.workflows import TerminationEvent, TerminationReason, Workflow
from rllm_gym.core import StopReason, TurnTokens
from rllm_gym.engine import AgentSession, Truncated, WorkflowContext
from rllm_gym.engine import Workflow as NewWorkflow
from rllm_gym.engine.agent_session import check_finite
from rllm_gym.engine.call_recorder import PassedMessages
from rllm_gym.samplers.protocol import Completion, SamplingParams

_log = logging.getLogger(__name__)

_REASONS = {
    StopReason.PROMPT_TOO_LONG: TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    StopReason.CONTEXT_LENGTH: TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED,
    StopReason.MAX_TOKENS: TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED,
    StopReason.MAX_TURNS: TerminationReason.MAX_TURNS_EXCEEDED,
}
_STOP_REASONS = {
    TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED: StopReason.CONTEXT_LENGTH,
    TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED: StopReason.MAX_TOKENS,
    TerminationReason.MAX_TURNS_EXCEEDED: StopReason.MAX_TURNS,
    TerminationReason.TIMEOUT: StopReason.TIMEOUT,
}


class LegacyWorkflowAdapter(NewWorkflow):
    """Runs a workflow written for rLLM in :class:`rllm_gym.engine.AgentWorkflowEngine` and in trainers.

    Each of its trajectories becomes a trajectory whose role is its name, and whose name is numbered (``solver_0``,
    ``solver_1``). A step is matched to the reply that it contains (``model_output``, or the text), and gets that
    reply's tokens. A trajectory with a step that matches no reply is not trainable.

    The workflow receives task rows unchanged. A task that is given by index or id, as trainers do, is a task of the
    engine's environment: the workflow receives its row with the first observation as ``"question"``.

    Args:
        workflow_cls: A subclass of :class:`rllm_gym.compat.Workflow`.
        workflow_args: Its arguments, except ``rollout_engine``.
        rollout_engine: The object that the workflow calls; its replies always come from the workflow context.
        retry_limit: How often a task is tried if the workflow raises an exception.
        arguments: Arguments of ``run`` in addition to task and uid.
        roles: The names of the trajectories it creates, for trainers that need the roles. All of them use the weights
            and parameters of the first role, because the role of a reply is not known when it is requested.
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    def __init__(
        self,
        workflow_cls: type[Workflow],
        workflow_args: Mapping[str, Any] | None = None,
        *,
        rollout_engine: RolloutEngine | None = None,
        retry_limit: int = 1,
        arguments: Mapping[str, Any] | None = None,
        roles: Sequence[str] | None = None,
    ) -> None:
        if roles is not None:
            self.roles = tuple(roles)  # type: ignore[misc]
        values = {"rollout_engine": rollout_engine or RolloutEngine(), "executor": None, **(workflow_args or {})}
        self.make: Callable[[], Workflow] = lambda: workflow_cls(**values)
        self.retry_limit = retry_limit
        self.arguments = dict(arguments or {})
        self.episodes: dict[str, Episode] = {}
        """The episodes in rLLM's format, by ``uid``. A reader removes the ones it reads."""
        self.keep_episodes = False

    async def run(self, task: Any, context: WorkflowContext) -> core.Episode:
        row = await _row(task, context)
        for left in reversed(range(self.retry_limit)):
            replies = _ReplyRecorder(context, self.roles[0])
            episode = await self._run_once(row, context.episode_id, replies)
            if episode.termination_reason is not TerminationReason.ERROR or not left:
                break
        claims = _claim(episode, replies)
        if self.keep_episodes:
            self.episodes[context.episode_id] = episode
        if episode.termination_reason is TerminationReason.ERROR:
            error = episode.info.get("error") or {}
            raise RuntimeError(f"{error.get('error_type', 'error')}: {error.get('error_message', 'unknown')}")
        return _core_episode(episode, claims, context)

    async def _run_once(self, row: Any, uid: str, replies: _ReplyRecorder) -> Episode:
        workflow = self.make()
        workflow.uid, workflow.task = uid, row
        token = CURRENT_WORKFLOW.set(replies)
        try:
            return await workflow.run_with_termination_handling(task=row, uid=uid, **self.arguments)
        finally:
            CURRENT_WORKFLOW.reset(token)


@dataclass(slots=True)
class _SampledReply:
    """A sampled reply, which at most one step can claim."""

    session: AgentSession
    step: core.Step
    position: int  # index of the step among the steps of its agent
    prompt_ids: tuple[int, ...]
    output: ModelOutput
    claimed: bool = False


class _ReplyRecorder:
    """All replies of one attempt of an rLLM workflow. A conversation that continues keeps its agent."""

    def __init__(self, context: WorkflowContext, role: str) -> None:
        self._context = context
        self._role = role
        self._base: dict[str, SamplingParams] = {}
        self.sampled: list[_SampledReply] = []

    async def respond(self, messages: Sequence[Mapping[str, Any]], overrides: dict[str, Any]) -> ModelOutput:
        tools = overrides.pop("tools", None)
        shown = [dict(message) for message in messages]
        session = self._session(shown, tools)
        session.sampler.params = _with_overrides(self._base[session.name], overrides, greedy=self._context.greedy)
        try:
            reply = await session.generate(shown)
        except Truncated as cut:
            raise TerminationEvent(_REASONS[cut.stop_reason]) from cut
        sampled = () if reply.tokens is None else reply.tokens.ids
        ids = session.sampler.conversation.ids
        prompt_ids = ids[: len(ids) - len(sampled)]
        logprobs = () if reply.tokens is None else reply.tokens.logprobs
        version = 0 if reply.tokens is None else reply.tokens.weight_version
        completion = Completion(sampled, logprobs, reply.text, reply.finish_reason, version)
        output = output_of(completion, prompt_ids, len(self.sampled))
        self.sampled.append(_SampledReply(session, session.steps[-1], len(session.steps) - 1, prompt_ids, output))
        return replace(output)

    async def call(self, function: Callable[[], Any]) -> Any:
        return await self._context.call(function)

    def claim(self, step: Any) -> _SampledReply | None:
        """Return the reply that an rLLM step contains; each reply is returned once."""
        number = getattr(step.model_output, "number", -1) if hasattr(step, "model_output") else -1
        if 0 <= number < len(self.sampled):
            found: _SampledReply | None = self.sampled[number]
        else:
            found = next((reply for reply in self.sampled if not reply.claimed and _is_reply_of(step, reply)), None)
        if found is None or found.claimed:
            return None
        found.claimed = True
        return found

    def _session(self, messages: list[dict[str, Any]], tools: Any) -> AgentSession:
        latest: dict[str, _SampledReply] = {reply.session.name: reply for reply in self.sampled}
        for reply in latest.values():
            if not reply.session.busy and _goes_on(messages, reply) and tools is None:
                return reply.session
        name = self._name(messages)
        agent_session = self._context.agent(name, self._role, agent=PassedMessages(), tools=tools)
        self._base[name] = agent_session.sampler.params
        return agent_session

    def _name(self, messages: list[dict[str, Any]]) -> str:
        """Name an agent after its first messages: names determine seeds, and the request order depends on timing."""
        digest = hashlib.sha256(json.dumps(messages, sort_keys=True, default=repr).encode()).hexdigest()[:16]
        numbers = (number for number in itertools.count() if f"{digest}_{number}" not in self._context.sessions)
        return f"{digest}_{next(numbers)}"


def _goes_on(messages: list[dict[str, Any]], reply: _SampledReply) -> bool:
    before = reply.step.chat_completions
    if len(messages) <= len(before) or messages[: len(before)] != before:
        return False
    message = messages[len(before)]
    return message.get("role") == "assistant" and message.get("content") in (reply.output.text, reply.output.content)


def _is_reply_of(step: Any, reply: _SampledReply) -> bool:
    texts = (reply.output.text, reply.output.content)
    shown = list(step.chat_completions)
    if shown and shown[-1].get("role") == "assistant":
        last = shown.pop()
        message = last.get("content")
    else:
        message = step.model_response
    return message in texts and (not step.chat_completions or _same(shown, reply.step.chat_completions))


def _same(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    return [(m.get("role"), m.get("content")) for m in one] == [(m.get("role"), m.get("content")) for m in other]


def _with_overrides(params: SamplingParams, overrides: Mapping[str, Any], *, greedy: bool) -> SamplingParams:
    if not overrides:
        return params
    requested = sampling_params_of(dict(overrides), params.max_tokens)
    names = [name for name in ("temperature", "top_p", "top_k") if name in overrides and not greedy]
    changes: dict[str, Any] = {name: getattr(requested, name) for name in [*names, "max_tokens"]}
    return replace(params, **changes, stop=requested.stop or params.stop)


async def _row(task: Any, context: WorkflowContext) -> Any:
    if isinstance(task, core.Task):
        return row_of(task.to_json())
    if not isinstance(task, int | str):
        return task
    env = await context.env()
    observation, _ = await env.reset()
    return {**row_of(context.task_row), "question": observation}


Claims = list[list[_SampledReply | None]]
"""For each step of each trajectory, the reply that it contains."""


def _claim(episode: Episode, replies: _ReplyRecorder) -> Claims:
    """Find the reply of each step, and copy its tokens to rLLM's steps."""
    claims: Claims = []
    for trajectory in episode.trajectories:
        claims.append([replies.claim(step) for step in trajectory.steps])
        for step, reply in zip(trajectory.steps, claims[-1], strict=True):
            if reply is None or not isinstance(step, Step):
                continue
            output = reply.output
            step.model_response = step.model_response or output.text
            step.prompt_ids, step.response_ids = list(output.prompt_ids), list(output.completion_ids)
            step.logprobs, step.weight_version = list(output.logprobs), output.weight_version
    return claims


def _core_episode(episode: Episode, claims: Claims, context: WorkflowContext) -> core.Episode:
    context.metrics.update(episode.metrics)
    rewards = [_reward(trajectory) for trajectory in episode.trajectories]
    ends = _STOP_REASONS.get(episode.termination_reason)
    stop_reason = ends or (StopReason.SUCCESS if episode.is_correct else StopReason.FAILURE)
    result = context.finish(reward=float(sum(rewards)), success=bool(episode.is_correct), stop_reason=stop_reason)
    result.trajectories = []
    numbers: Counter[str] = Counter()
    for trajectory, held, reward in zip(episode.trajectories, claims, rewards, strict=True):
        result.trajectories.append(_core_trajectory(trajectory, held, reward, numbers[trajectory.name], context))
        numbers[trajectory.name] += 1
    return result


def _core_trajectory(
    old: Any, held: list[_SampledReply | None], reward: float, number: int, context: WorkflowContext
) -> core.Trajectory:
    steps = []
    branch, before = -1, None
    for step, reply in zip(old.steps, held, strict=True):
        action = step.action.action if isinstance(step.action, Action) else step.action
        core_step = core.Step(action=action, reward=float(step.reward or 0.0), info=dict(step.info or {}))
        if reply is not None:
            sampled_step = reply.step
            goes_on = before is not None and _next_in_branch(before, reply)
            branch += not goes_on
            core_step = replace(
                core_step, chat_completions=sampled_step.chat_completions, model_response=sampled_step.model_response
            )
            core_step.tokens = _tokens_in(sampled_step.tokens, branch, None if goes_on else reply.prompt_ids)
        steps.append(core_step)
        before = reply
    if steps:
        # Add the difference between the trajectory's reward and the sum of its steps' rewards to the last step.
        steps[-1].reward += reward - sum(step.reward for step in steps)
        steps[-1].done = True
    unmatched = sum(reply is None for reply in held)
    if unmatched:
        _log.warning(
            "episode %s: %d of %d steps of trajectory %r contain no reply of the engine, so it is not "
            "trainable: set model_output on each step",
            context.episode_id,
            unmatched,
            len(steps),
            old.name,
        )
    roles = {old.name, *(reply.session.role for reply in held if reply is not None)} & context.roles.keys()
    return core.Trajectory(
        name=f"{old.name}_{number}",
        task=context.task_row,
        steps=steps,
        reward=reward,
        role=old.name,
        trainable=not unmatched and all(context.roles[role].trainable for role in roles),
    )


def _next_in_branch(before: _SampledReply, reply: _SampledReply) -> bool:
    one, other = before.step.tokens, reply.step.tokens
    if one is None or other is None or before.session is not reply.session:
        return False
    return before.position + 1 == reply.position and one.branch == other.branch


def _tokens_in(tokens: TurnTokens | None, branch: int, prompt: tuple[int, ...] | None) -> TurnTokens | None:
    """Return the tokens with another branch number; with a prompt, as the first turn of the branch."""
    if tokens is None:
        return None
    return replace(tokens, branch=branch, context_ids=tokens.context_ids if prompt is None else prompt)


def _reward(trajectory: Any) -> float:
    reward = trajectory.reward
    if reward is None:
        reward = sum(step.reward or 0.0 for step in trajectory.steps)
    return check_finite(f"the reward of {trajectory.name!r}", reward)
