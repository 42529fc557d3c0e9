"""What supervised fine-tuning imitates, as turns of text and as token sequences: from files, or from a policy at play.

A turn is what the model is shown and what it should reply. Turns become tokens with the renderer that serves the
model later, so that the formats are identical.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from rllm_gym.agents import Action
from rllm_gym.chat import ChatRenderer, TokenPrefix
from rllm_gym.core import Step, TokenSequence, Trajectory, TurnTokens
from rllm_gym.engine.episodes_file import episode_from_json
from trainers.config import ConfigError
from trainers.rollouts import World

DemonstrationPolicy = Callable[..., str]
"""``policy(env, rng, **kwargs)``: the reply to imitate in the present state of the unwrapped environment."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply to imitate.

    Attributes:
        messages: The messages the model is given, OpenAI form.
        reply: What it should say.
        tools: JSON of the tools it is offered.
    """

    messages: tuple[Mapping[str, Any], ...]
    reply: str
    tools: str = "[]"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The turns of one episode or chat, in order."""

    turns: tuple[Turn, ...]
    success: bool = True

    @property
    def texts(self) -> list[str]:
        """Every text in it once: what a tokenizer may learn from."""
        last = self.turns[-1]
        return [str(message.get("content") or "") for message in last.messages] + [last.reply]


class Player:
    """Makes demonstrations: a policy acts in the real environment, through the real agent. Close it.

    Args:
        world: Environment and agent.
        policy: Gives each reply.
        policy_kwargs: Further keyword arguments of the policy.
    """

    def __init__(self, world: World, policy: DemonstrationPolicy, policy_kwargs: Mapping[str, Any]) -> None:
        self._world = world
        self._policy = policy
        self._policy_kwargs = dict(policy_kwargs)
        make = world.env
        kwargs = dict(world.train_kwargs)
        self._env: Any = gymnasium.make(make, **kwargs) if isinstance(make, str) else make(**kwargs)

    def play(self, task: Any, seed: int) -> Demonstration:
        """One episode on a task; the same arguments give the same one."""
        agent = self._world.agent()
        agent.reset()
        rng = random.Random(seed)
        observation, info = self._env.reset(seed=seed, options={"task": task})
        tools = str(info.get("tools", "[]")) if agent.uses_tools else "[]"
        agent.update_from_env(observation, 0.0, False, info)
        turns: list[Turn] = []
        done = False
        while not done:
            messages = tuple(dict(message) for message in agent.chat_completions)
            reply = self._policy(self._env.unwrapped, rng, **self._policy_kwargs)
            turns.append(Turn(messages, reply, tools))
            action = agent.update_from_model(reply)
            action = action.action if isinstance(action, Action) else action
            observation, reward, terminated, truncated, info = self._env.step(action)
            done = terminated or truncated
            agent.update_from_env(observation, reward, done, info)
        return Demonstration(tuple(turns), bool(info.get("success", True)))

    def close(self) -> None:
        self._env.close()


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Demonstrations from JSONL: saved episodes, or chats with ``messages`` (and ``tools``) in each row.

    Raises:
        ConfigError: A row is neither; names the line.
    """
    if not path.is_file():
        raise ConfigError(f"demonstrations.file={str(path)!r} does not exist")
    demonstrations = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            demonstrations += list(_from_chat(row) if "messages" in row else _from_episode(row))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}, line {number}: neither an episode nor a chat with messages ({type(error).__name__}: {error})"
            ) from error
    if not demonstrations:
        raise ConfigError(f"demonstrations.file={str(path)!r} holds no assistant message to imitate")
    return demonstrations


def tokenize(demonstration: Demonstration, renderer: ChatRenderer, end_of_turn: int) -> list[TokenSequence]:
    """One sequence per branch of the conversation; the replies, each ended by ``end_of_turn``, are marked."""
    prefix: TokenPrefix | None = None
    steps = []
    for turn in demonstration.turns:
        asked = renderer.extend(prefix, turn.messages, turn.tools)
        ids = (*renderer.tokenizer.encode(turn.reply, add_special_tokens=False), end_of_turn)
        steps.append(Step(tokens=TurnTokens(asked.context_ids, ids, (0.0,) * len(ids), branch=asked.branch)))
        prefix = renderer.append_sampled(asked, ids, turn.reply)
    return Trajectory(steps=steps).branches()


def _from_chat(row: Mapping[str, Any]) -> Iterator[Demonstration]:
    messages: Sequence[Mapping[str, Any]] = row["messages"]
    tools = row.get("tools") or "[]"
    tools = tools if isinstance(tools, str) else json.dumps(tools)
    turns = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if message.get("tool_calls"):
            raise ValueError(
                "an assistant message with tool_calls; write the calls into its content as the model would"
            )
        if index == 0:
            raise ValueError("the first message is the assistant's: there is nothing it replies to")
        turns.append(Turn(tuple(messages[:index]), str(message["content"]), tools))
    if turns:
        yield Demonstration(tuple(turns))


def _from_episode(row: dict[str, Any]) -> Iterator[Demonstration]:
    episode = episode_from_json(row)
    for trajectory in episode.trajectories:
        turns = tuple(Turn(tuple(step.chat_completions), step.model_response) for step in trajectory.steps)
        if turns:
            yield Demonstration(turns, episode.success)
