"""Demonstrations for supervised fine-tuning, as turns of text and as token sequences: from files, or from a policy.

A turn is the model's input and the reply to train on. Episodes with known token ids are trained on with exactly
these ids; other turns are tokenized with the renderer that is later used for sampling, so that the formats are
identical.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import gymnasium

from rllm_gym.agents import Action
from rllm_gym.chat import ChatRenderer, Message, TokenPrefix
from rllm_gym.core import SCHEMA_VERSION, Step, StopReason, TokenSequence, Trajectory, TurnTokens
from rllm_gym.data.conversion import known_format
from rllm_gym.engine import EpisodeSpec
from rllm_gym.engine.episodes_file import episode_from_json
from trainers.config import ConfigError, FilePaths
from trainers.fine_tuning.row_files import rows_of_files
from trainers.train_env import TrainEnv

DemonstrationPolicy = Callable[..., str]
"""``policy(env, rng, **kwargs)`` returns the reply to train on in the current state of the unwrapped environment."""

Strings = Literal["chat", "raw"]


@dataclass(frozen=True, slots=True)
class DemonstrationTurn:
    """One reply to train on.

    Attributes:
        messages: The input messages, in OpenAI's format.
        reply: The reply to train on.
        tools: JSON of the offered tools.
        message: The reply as a message of the conversation, if it is more than its text (tool calls).
        tokens: The token ids it was sampled with, if known.
        weight: Weight of its tokens in the loss; with 0 it is only context.
        raw_prompt: Instead of ``messages``: a text without a chat template.
    """

    messages: tuple[Mapping[str, Any], ...]
    reply: str
    tools: str = "[]"
    message: Message | None = None
    tokens: TurnTokens | None = None
    weight: float = 1.0
    raw_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The turns of one episode or chat, in order.

    Attributes:
        turns: Inputs and replies.
        success: Whether the episode solved its task.
        task: Key of the task of an episode, or the first prompt of a chat. Empty for the episodes of a policy.
        group: Key of an episode's group within a run.
        reward: Reward of the episode; ``None`` for a chat.
        where: The file and row it was read from.
    """

    turns: tuple[DemonstrationTurn, ...]
    success: bool = True
    task: str = ""
    group: str = ""
    reward: float | None = None
    where: str = ""

    @property
    def texts(self) -> list[str]:
        """Every text of the demonstration once, to train a tokenizer on."""
        last = self.turns[-1]
        shown = [last.raw_prompt] if last.raw_prompt is not None else [_text_of(message) for message in last.messages]
        return [*shown, last.reply]


class DemonstrationCollector:
    """Generates demonstrations: a policy acts in the environment through the agent. Call :meth:`close`.

    Args:
        env: Environment and agent.
        policy: Returns each reply.
        policy_kwargs: Additional keyword arguments of the policy.
    """

    def __init__(self, env: TrainEnv, policy: DemonstrationPolicy, policy_kwargs: Mapping[str, Any]) -> None:
        if env.agent is None:
            raise ConfigError(
                "demonstrations.policy requires an environment with a single agent, but this one has a workflow"
            )
        self._make_agent = env.agent
        self._policy = policy
        self._policy_kwargs = dict(policy_kwargs)
        make = env.env
        kwargs = dict(env.train_kwargs)
        self._env: Any = gymnasium.make(make, **kwargs) if isinstance(make, str) else make(**kwargs)

    def collect(self, task: Any, seed: int) -> Demonstration:
        """Run one episode on a task. Deterministic for the same arguments."""
        agent = self._make_agent()
        agent.reset()
        rng = random.Random(seed)
        reset: dict[str, Any] = (
            {"seed": task.seed} if isinstance(task, EpisodeSpec) else {"seed": seed, "options": {"task": task}}
        )
        observation, info = self._env.reset(**reset)
        tools = str(info.get("tools", "[]")) if agent.uses_tools else "[]"
        agent.update_from_env(observation, 0.0, False, info)
        turns: list[DemonstrationTurn] = []
        done = False
        while not done:
            messages = tuple(dict(message) for message in agent.chat_completions)
            reply = self._policy(self._env.unwrapped, rng, **self._policy_kwargs)
            turns.append(DemonstrationTurn(messages, reply, tools))
            action = agent.update_from_model(reply)
            action = action.action if isinstance(action, Action) else action
            observation, reward, terminated, truncated, info = self._env.step(action)
            done = terminated or truncated
            agent.update_from_env(observation, reward, done, info)
        return Demonstration(tuple(turns), bool(info.get("success", True)))

    def close(self) -> None:
        self._env.close()


# Reading files


_RENAME = {
    "ShareGPT": '; it is a row of ShareGPT: rename "conversations" to "messages", "from" and "value" to "role" and '
    '"content", and the roles human and gpt to user and assistant',
    "Alpaca": '; it is a row of Alpaca: join "instruction" and "input" to "prompt", and name the output "completion"',
}


def read_demonstrations(
    files: FilePaths | Path, *, strings: Strings = "chat", option: str = "demonstrations.file"
) -> list[Demonstration]:
    """Read demonstrations from rows: saved episodes, chats with ``messages`` (and ``tools``), prompts with
    ``completion``.

    A row may have a ``weight``, and so may an assistant message (0 makes it context). Episodes with an environment
    fault or an agent error are excluded.

    Args:
        files: See :func:`~trainers.fine_tuning.row_files.rows_of_files`.
        strings: Whether a prompt and a completion that are strings are a user message and its reply, or plain text.
        option: The option with the files, for error messages.

    Raises:
        ConfigError: A row has none of these formats (the message names the line), or there is nothing to train on.
    """
    demonstrations: list[Demonstration] = []
    for where, row in rows_of_files(str(files) if isinstance(files, Path) else files, option):
        try:
            demonstrations += _from_row(row, where, strings)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{where}: neither an episode, nor a chat with messages, nor a prompt with a completion "
                f"({type(error).__name__}: {error}){_RENAME.get(known_format(row), '')}"
            ) from error
    if not demonstrations:
        raise ConfigError(f"{option}={files!r} contains no assistant message to train on")
    if strings == "raw" and all(turn.raw_prompt is None for item in demonstrations for turn in item.turns):
        raise ConfigError("strings=raw has no effect: no row has a prompt and a completion that are strings")
    return demonstrations


def _from_row(row: Mapping[str, Any], where: str, strings: Strings) -> Iterator[Demonstration]:
    if "trajectories" in row:
        yield from demonstrations_of_episode(row, where)
        return
    weight = _weight(row, "the row")
    if row.get("messages") is not None:  # Parquet has a column for every field of any row
        turns = chat_turns(row["messages"], tools_of(row))
    else:
        turns = completion_turns(row["prompt"], row["completion"], tools_of(row), strings)
    turns = tuple(replace(turn, weight=turn.weight * weight) for turn in turns)
    if any(turn.weight for turn in turns):
        yield Demonstration(turns, task=prompt_of(turns[0]), where=where)


def demonstrations_of_episode(row: Mapping[str, Any], where: str) -> Iterator[Demonstration]:
    """Yield one demonstration per agent of a saved episode; none after an environment fault or an agent error.

    Raises:
        ValueError: The episode has a different schema version.
    """
    if row.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version={row.get('schema_version')!r} is not supported; it must be {SCHEMA_VERSION}")
    episode = episode_from_json(dict(row))
    if not episode.trainable and episode.stop_reason is not StopReason.NONE:
        return
    for trajectory in episode.trajectories:
        turns = tuple(
            DemonstrationTurn(tuple(step.chat_completions), step.model_response, tools, tokens=step.tokens)
            for step in trajectory.steps
            for tools in [str(step.info.get("offered_tools", "[]"))]  # of a served agent
        )
        if turns and trajectory.trainable:  # frozen opponents are not trained on
            yield Demonstration(
                turns,
                episode.success,
                task=f"{episode.task_id}/{trajectory.name}",
                group=f"{episode.group_id}/{trajectory.name}",
                reward=episode.reward,
                where=where,
            )


def chat_turns(
    messages: Sequence[Mapping[str, Any]], tools: str = "[]", *, start: int = 0
) -> tuple[DemonstrationTurn, ...]:
    """Return a turn for every assistant message from index ``start`` on; messages after the last one are ignored.

    Raises:
        ValueError: The first message is an assistant message.
    """
    shown = tuple(_with_text_arguments(message) for message in messages)
    turns = []
    for index, row in enumerate(shown):
        message = Message.from_openai(row)
        if message.role != "assistant" or index < start:
            continue
        if index == 0:
            raise ValueError("the first message is from the assistant; there is no message that it replies to")
        turns.append(
            DemonstrationTurn(
                shown[:index], message.text, tools, message=message, weight=_weight(row, f"message {index}")
            )
        )
    return tuple(turns)


def completion_turns(prompt: Any, completion: Any, tools: str, strings: Strings) -> tuple[DemonstrationTurn, ...]:
    """Return the turns of a completion: strings, or messages that continue a prompt of messages.

    Raises:
        ValueError: The prompt is empty, or ends with an assistant message.
    """
    if not prompt:
        raise ValueError("the prompt is empty")
    if isinstance(prompt, str) and isinstance(completion, str) and strings == "raw":
        return (DemonstrationTurn((), completion, raw_prompt=prompt),)
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else list(completion)
    if before[-1].get("role") == "assistant":
        raise ValueError("the prompt ends with an assistant message; it must end with a message to reply to")
    return chat_turns([*before, *after], tools, start=len(before))


def tools_of(row: Mapping[str, Any]) -> str:
    """Return the tools of a row, as JSON."""
    tools = row.get("tools") or "[]"
    return tools if isinstance(tools, str) else json.dumps(tools)


def prompt_of(turn: DemonstrationTurn) -> str:
    """Return the prompt as a key: rows with the same prompt belong to the same task."""
    return turn.raw_prompt if turn.raw_prompt is not None else json.dumps(turn.messages, sort_keys=True, default=str)


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the arguments of tool calls to strings, as in OpenAI's format; data sets often contain objects."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        if not isinstance(call, Mapping):
            raise ValueError(f"tool_calls contains {call!r:.40}; a call must be an object with a function")
        function = dict(call.get("function", call))
        if not isinstance(function.get("arguments", "{}"), str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({"type": "function", "id": call.get("id") or "", "function": function})
    return {**message, "tool_calls": calls}


def _weight(row: Mapping[str, Any], what: str) -> float:
    weight = row.get("weight")
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of {what} is {weight!r}; it must be a number, 0 or more")
    return float(weight)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


# Tokenization


def tokenize(
    demonstration: Demonstration, renderer: ChatRenderer, *, train_on: Literal["all", "last"] = "all"
) -> list[TokenSequence]:
    """Tokenize a demonstration to one sequence per branch; the replies, each with its end-of-turn token, are marked.

    Episodes sampled with the same tokenizer keep their ids. Only replies are marked: not the messages of system,
    user or tools, nor the tokens that the chat template adds between messages.

    Args:
        demonstration: The turns.
        renderer: Tokenizes turns without ids.
        train_on: Mark every reply, or only that of the last turn.
    """
    turns = demonstration.turns
    steps = [Step(tokens=turn.tokens) for turn in turns] if can_keep_ids(demonstration, renderer) else []
    prefix: TokenPrefix | None = None
    for turn in turns[len(steps) :]:
        if turn.raw_prompt is not None:
            steps.append(Step(tokens=_raw_tokens(turn, renderer.tokenizer)))
            continue
        asked = renderer.extend(prefix, turn.messages, turn.tools)
        prefix = renderer.append_written(asked, turn.message or Message("assistant", turn.reply))
        span = prefix.sampled[-1]
        ids = prefix.ids[span.start : span.end]
        if turn.tokens is not None and turn.tokens.finish_reason == "length":  # a truncated reply has no end of turn
            ids = ids[:-1]
            prefix = renderer.append_sampled(asked, ids, turn.reply)
        steps.append(Step(tokens=TurnTokens(asked.context_ids, ids, (0.0,) * len(ids), branch=asked.branch)))
    marked = {index for index, turn in enumerate(turns) if turn.weight}
    if train_on == "last":
        marked &= {len(turns) - 1}
    return [_unmark(sequence, marked) for sequence in Trajectory(steps=steps).branches()]


def can_keep_ids(demonstration: Demonstration, renderer: ChatRenderer) -> bool:
    """Return whether every turn has token ids with the same meaning in this tokenizer. Ids of another model family
    differ, and its texts have to be tokenized again."""
    tokenizer = renderer.tokenizer
    pieces = [(turn, turn.tokens) for turn in demonstration.turns if turn.tokens is not None]
    if len(pieces) < len(demonstration.turns):
        return False
    return all(_decodes_the_same(turn, tokens, tokenizer) for turn, tokens in pieces) and _same_special_tokens(
        pieces, renderer
    )


def _decodes_the_same(turn: DemonstrationTurn, tokens: TurnTokens, tokenizer: Any) -> bool:
    if max((*tokens.context_ids, *tokens.ids), default=0) >= len(tokenizer):
        return False
    reply = _comparable_text(turn.reply)
    if reply not in (_decoded(tokenizer, tokens.ids, skip=True), _decoded(tokenizer, tokens.ids, skip=False)):
        return False
    asked = _comparable_text(_text_of(turn.messages[-1])) if turn.messages else ""
    return asked in _decoded(tokenizer, tokens.context_ids, skip=False)


def _same_special_tokens(pieces: Sequence[tuple[DemonstrationTurn, TurnTokens]], renderer: ChatRenderer) -> bool:
    """Return whether the special tokens in the ids are those of the chat template; models of one family may share
    all other tokens.
    """
    tokenizer = renderer.tokenizer
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = {renderer.end_of_turn_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    if any(tokens.ids and tokens.ids[-1] in special - ends for _, tokens in pieces):
        return False
    try:
        known = ends.union(renderer.extend(None, pieces[-1][0].messages).ids)
    except ValueError:
        return True  # this renderer could not tokenize the conversation again anyway
    return all(special.intersection(tokens.context_ids) <= known for _, tokens in pieces)


def _decoded(tokenizer: Any, ids: Sequence[int], *, skip: bool) -> str:
    return _comparable_text(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def _comparable_text(text: str) -> str:
    """Normalize what tokenizers and templates may change in a round trip: white space, the Unicode form of accents,
    invalid characters."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(unicodedata.normalize("NFC", text).replace("\ufffd", "").split())


def _raw_tokens(turn: DemonstrationTurn, tokenizer: Any) -> TurnTokens:
    prompt = tokenizer.encode(turn.raw_prompt)
    if tokenizer.eos_token_id is not None and prompt[-1:] == [tokenizer.eos_token_id]:
        prompt = prompt[:-1]  # some tokenizers append it to every text
    ids = tokenizer.encode(turn.reply, add_special_tokens=False)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return TurnTokens(tuple(prompt), tuple(ids), (0.0,) * len(ids))


def _unmark(sequence: TokenSequence, marked: set[int]) -> TokenSequence:
    """Unmark all turns except those in ``marked``."""
    if marked.issuperset(turn for turn in sequence.turns if turn >= 0):
        return sequence
    mask = tuple(int(turn in marked) for turn in sequence.turns)
    return replace(sequence, mask=mask)
