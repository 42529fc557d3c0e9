"""Conversations as what is trained on: episodes, chats for ``rllm-gym sft``, pairs for ``rllm-gym dpo``, replays."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from rllm_gym.core import Episode, Step, StopReason, Trajectory
from rllm_gym.engine.episodes_file import episode_to_json
from rllm_gym.serving.conversations import Conversation, OpenAIMessage, Reply


def prompt_name(conversation: Conversation) -> str:
    """Return a name that is the same for conversations with the same tools and messages before the first reply."""
    content = json.dumps([conversation.prompt, conversation.tools], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def stop_reason_of(conversation: Conversation, success_at: float) -> StopReason:
    """Return why a conversation ended: by its reward, or ``max_tokens`` if its last reply is cut; unknown (``""``)
    without a reward.
    """
    if conversation.reward is None:
        return StopReason.NONE
    if conversation.reward >= success_at:
        return StopReason.SUCCESS
    cut = conversation.replies[-1].call.finish_reason == "length"
    return StopReason.MAX_TOKENS if cut else StopReason.FAILURE


def episode_of(conversation: Conversation, success_at: float) -> Episode | None:
    """Return the episode of a conversation; ``None`` if a reply has calls and its text is unknown.

    Its tokens are those that were sampled, with their log-probs, if every call has them.
    """
    if any(reply.call.text is None for reply in conversation.replies):
        return None
    with_tokens = all(reply.call.tokens is not None for reply in conversation.replies)
    steps = [_step(reply, with_tokens=with_tokens) for reply in conversation.replies]
    reward = conversation.reward or 0.0
    steps[-1].reward, steps[-1].done = reward, True
    stop_reason = stop_reason_of(conversation, success_at)
    name = prompt_name(conversation)
    return Episode(
        episode_id=conversation.id,
        task_id=name,
        env_id="served",
        group_id=name,
        greedy=all(reply.call.info.get("temperature") == 0 for reply in conversation.replies),
        trajectories=[Trajectory(steps=steps, reward=reward)],
        reward=reward,
        success=stop_reason is StopReason.SUCCESS,
        stop_reason=stop_reason,
        info={"rated": conversation.reward is not None, "scrubbed": conversation.scrubbed},
    )


def _step(reply: Reply, *, with_tokens: bool) -> Step:
    call = reply.call
    messages = reply.sampled_messages
    info = {**call.info, "offered_tools": call.tools} if call.tools else dict(call.info)
    tokens = call.tokens if with_tokens else None
    return Step(messages[-1]["content"], messages, call.text or "", action=call.text or "", info=info, tokens=tokens)


def sft_rows(conversation: Conversation) -> Iterator[dict[str, Any]]:
    """Yield a chat per branch. Each reply has weight 1 in one of them; other messages of the assistant are context."""
    branches: defaultdict[int, list[Reply]] = defaultdict(list)
    for reply in conversation.replies:
        branches[reply.branch].append(reply)
    for replies in branches.values():
        yield {"messages": _weighted(replies), **_tools(replies[0]), **_about(conversation)}


def preference_rows(conversations: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
    """Yield a pair for each prompt of which two conversations have different rewards: the best one and the worst one.

    Conversations without a reward or with several branches are in no pair.
    """
    groups: defaultdict[str, list[Conversation]] = defaultdict(list)
    for conversation in conversations:
        if conversation.reward is not None and conversation.num_branches == 1:
            groups[prompt_name(conversation)].append(conversation)
    for group in groups.values():
        best, worst = max(group, key=_reward), min(group, key=_reward)
        if _reward(best) > _reward(worst):
            start = len(best.prompt)
            yield {
                "prompt": list(best.prompt),
                "chosen": _weighted(best.replies)[start:],
                "rejected": _weighted(worst.replies)[start:],
                **_tools(best.replies[0]),
            }


def replay_rows(conversations: Sequence[Conversation], success_at: float) -> Iterator[dict[str, Any]]:
    """Yield a row per prompt with the episodes of its conversations, for :class:`~rllm_gym.serving.LoggedEpisodes`.

    Conversations without a reward or without the tokens of every reply are in no row.
    """
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for conversation in conversations:
        episode = None if conversation.reward is None else episode_of(conversation, success_at)
        if episode is not None and all(step.tokens for step in episode.trajectories[0].steps):
            groups[episode.group_id].append(episode_to_json(episode))
    for name, episodes in groups.items():
        yield {"prompt": name, "logged": episodes}


def _weighted(replies: Sequence[Reply]) -> list[OpenAIMessage]:
    """Return the messages of a branch; those of the assistant that are not its replies have the weight 0."""
    last = replies[-1].call
    sampled = {len(reply.call.messages) for reply in replies}
    return [
        message if message["role"] != "assistant" or index in sampled else {**message, "weight": 0}
        for index, message in enumerate((*last.messages, last.reply))
    ]


def _tools(reply: Reply) -> dict[str, Any]:
    return {"tools": json.loads(reply.call.tools)} if reply.call.tools else {}


def _about(conversation: Conversation) -> dict[str, Any]:
    rated = {} if conversation.reward is None else {"reward": conversation.reward}
    return {"conversation_id": conversation.id, **rated}


def _reward(conversation: Conversation) -> float:
    assert conversation.reward is not None
    return conversation.reward
