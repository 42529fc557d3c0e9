"""What supervised fine-tuning imitates, as turns of text and as token sequences: from files, or from a policy at play.

A turn is what the model is shown and what it should reply. An episode whose token ids are known is imitated id for id;
other turns become tokens with the renderer that serves the model later, so that the formats are identical.
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
from rllm_gym.engine.episodes_file import episode_from_json
from trainers.config import ConfigError, Files
from trainers.fine_tuning.row_files import rows_of_files
from trainers.rollouts import World

DemonstrationPolicy = Callable[..., str]
"""``policy(env, rng, **kwargs)``: the reply to imitate in the present state of the unwrapped environment."""

Strings = Literal["chat", "raw"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply to imitate.

    Attributes:
        messages: The messages the model is given, OpenAI form.
        reply: What it should say.
        tools: JSON of the tools it is offered.
        message: The reply as the conversation goes on with it, where that is more than the text (tool calls).
        tokens: The ids it was sampled with, where they are known.
        weight: How much it counts; at 0 it is context alone.
        raw_prompt: In place of ``messages``: a text without a chat template.
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
        turns: What the model is shown and what it replies.
        success: The episode solved its task.
        task: Names the task of an episode; of a chat, what it begins with. Empty where a policy plays.
        group: Names the group of an episode within a run.
        reward: Of the episode; ``None`` for a chat.
        where: The row it was read from.
    """

    turns: tuple[Turn, ...]
    success: bool = True
    task: str = ""
    group: str = ""
    reward: float | None = None
    where: str = ""

    @property
    def texts(self) -> list[str]:
        """Every text in it once: what a tokenizer may learn from."""
        last = self.turns[-1]
        shown = [last.raw_prompt] if last.raw_prompt is not None else [_text_of(message) for message in last.messages]
        return [*shown, last.reply]


class Player:
    """Makes demonstrations: a policy acts in the real environment, through the real agent. Close it.

    Args:
        world: Environment and agent.
        policy: Gives each reply.
        policy_kwargs: Further keyword arguments of the policy.
    """

    def __init__(self, world: World, policy: DemonstrationPolicy, policy_kwargs: Mapping[str, Any]) -> None:
        if world.agent is None:
            raise ConfigError("a policy plays one environment as one agent, and this world has a workflow")
        self._make_agent = world.agent
        self._policy = policy
        self._policy_kwargs = dict(policy_kwargs)
        make = world.env
        kwargs = dict(world.train_kwargs)
        self._env: Any = gymnasium.make(make, **kwargs) if isinstance(make, str) else make(**kwargs)

    def play(self, task: Any, seed: int) -> Demonstration:
        """One episode on a task; the same arguments give the same one."""
        agent = self._make_agent()
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


# From files ---------------------------------------------------------------------------------------------------


def read_demonstrations(
    files: Files | Path, *, strings: Strings = "chat", option: str = "demonstrations.file"
) -> list[Demonstration]:
    """Demonstrations from rows: saved episodes, chats with ``messages`` (and ``tools``), prompts with ``completion``.

    A row may have a ``weight``, and so may an assistant's message (0 makes it context). Episodes that tell nothing
    about the model, because the world or the agent broke, are left out.

    Args:
        files: See :func:`~trainers.fine_tuning.row_files.rows_of_files`.
        strings: What a prompt and a completion that are plain strings are: a user's message and its reply, or text.
        option: Where the files were named, for messages.

    Raises:
        ConfigError: A row is none of these; names the line. Or there is nothing to imitate.
    """
    demonstrations: list[Demonstration] = []
    for where, row in rows_of_files(str(files) if isinstance(files, Path) else files, option):
        try:
            demonstrations += _from_row(row, where, strings)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{where}: neither an episode nor a chat with messages, nor a prompt with a completion "
                f"({type(error).__name__}: {error})"
            ) from error
    if not demonstrations:
        raise ConfigError(f"{option}={files!r} holds no assistant message to imitate")
    if strings == "raw" and all(turn.raw_prompt is None for each in demonstrations for turn in each.turns):
        raise ConfigError("strings=raw does nothing: no row has a prompt and a completion that are strings")
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
    """One demonstration per agent of a saved episode; none where the world or the agent broke.

    Raises:
        ValueError: It was written under another schema.
    """
    if row.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {row.get('schema_version')!r}; this version reads {SCHEMA_VERSION}")
    episode = episode_from_json(dict(row))
    if not episode.trainable and episode.stop_reason is not StopReason.NONE:
        return
    for trajectory in episode.trajectories:
        turns = tuple(
            Turn(tuple(step.chat_completions), step.model_response, tokens=step.tokens) for step in trajectory.steps
        )
        if turns and trajectory.trainable:  # a frozen opponent is nobody to imitate
            yield Demonstration(
                turns,
                episode.success,
                task=f"{episode.task_id}/{trajectory.name}",
                group=f"{episode.group_id}/{trajectory.name}",
                reward=episode.reward,
                where=where,
            )


def chat_turns(messages: Sequence[Mapping[str, Any]], tools: str = "[]", *, start: int = 0) -> tuple[Turn, ...]:
    """A turn for every assistant message from number ``start`` on; messages after the last one are not needed.

    Raises:
        ValueError: The first message is the assistant's.
    """
    shown = tuple(_with_text_arguments(message) for message in messages)
    turns = []
    for index, row in enumerate(shown):
        message = Message.from_openai(row)
        if message.role != "assistant" or index < start:
            continue
        if index == 0:
            raise ValueError("the first message is the assistant's: there is nothing it replies to")
        turns.append(Turn(shown[:index], message.text, tools, message=message, weight=_weight(row, f"message {index}")))
    return tuple(turns)


def completion_turns(prompt: Any, completion: Any, tools: str, strings: Strings) -> tuple[Turn, ...]:
    """The turns of a completion: strings, or messages that go on from a prompt of messages.

    Raises:
        ValueError: The prompt is empty, or ends with a reply.
    """
    if not prompt:
        raise ValueError("the prompt is empty: there is nothing to reply to")
    if isinstance(prompt, str) and isinstance(completion, str) and strings == "raw":
        return (Turn((), completion, raw_prompt=prompt),)
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else list(completion)
    if before[-1].get("role") == "assistant":
        raise ValueError("the prompt ends with an assistant message: there is nothing to reply to")
    return chat_turns([*before, *after], tools, start=len(before))


def tools_of(row: Mapping[str, Any]) -> str:
    """The tools a row offers, as JSON."""
    tools = row.get("tools") or "[]"
    return tools if isinstance(tools, str) else json.dumps(tools)


def prompt_of(turn: Turn) -> str:
    """What a conversation begins with: rows with the same are about the same task."""
    return turn.raw_prompt if turn.raw_prompt is not None else json.dumps(turn.messages, sort_keys=True, default=str)


def _with_text_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tool calls with arguments as OpenAI sends them, as text; data sets often hold objects."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        if not isinstance(call, Mapping):
            raise ValueError(f"tool_calls holds {call!r:.40}; a call is an object with a function")
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
        raise ValueError(f"the weight of {what} is {weight!r}; it is a number, 0 or more")
    return float(weight)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


# To tokens ----------------------------------------------------------------------------------------------------


def tokenize(
    demonstration: Demonstration, renderer: ChatRenderer, *, train_on: Literal["all", "last"] = "all"
) -> list[TokenSequence]:
    """One sequence per branch of the conversation; the replies, each with the token that ends a turn, are marked.

    An episode that this tokenizer's model sampled keeps its own ids. Nothing but replies is ever marked: neither what
    the system, the user or a tool said, nor what the chat template writes between messages.

    Args:
        demonstration: The turns.
        renderer: Renders what has no ids.
        train_on: Mark every reply, or only that of the last turn.
    """
    turns = demonstration.turns
    steps = [Step(tokens=turn.tokens) for turn in turns] if keeps_ids(demonstration, renderer) else []
    prefix: TokenPrefix | None = None
    for turn in turns[len(steps) :]:
        if turn.raw_prompt is not None:
            steps.append(Step(tokens=_raw_tokens(turn, renderer.tokenizer)))
            continue
        asked = renderer.extend(prefix, turn.messages, turn.tools)
        prefix = renderer.append_written(asked, turn.message or Message("assistant", turn.reply))
        span = prefix.sampled[-1]
        ids = prefix.ids[span.start : span.end]
        if turn.tokens is not None and turn.tokens.finish_reason == "length":  # nobody ended this reply
            ids = ids[:-1]
            prefix = renderer.append_sampled(asked, ids, turn.reply)
        steps.append(Step(tokens=TurnTokens(asked.context_ids, ids, (0.0,) * len(ids), branch=asked.branch)))
    marked = {index for index, turn in enumerate(turns) if turn.weight}
    if train_on == "last":
        marked &= {len(turns) - 1}
    return [_unmark(sequence, marked) for sequence in Trajectory(steps=steps).branches()]


def keeps_ids(demonstration: Demonstration, renderer: ChatRenderer) -> bool:
    """Whether every turn has token ids, and this tokenizer reads the same in them: a model of another family sampled
    with other ids, and its texts have to be encoded anew."""
    tokenizer = renderer.tokenizer
    pieces = [(turn, turn.tokens) for turn in demonstration.turns if turn.tokens is not None]
    if len(pieces) < len(demonstration.turns):
        return False
    return all(_reads_the_same(turn, tokens, tokenizer) for turn, tokens in pieces) and _steers_the_same(
        pieces, renderer
    )


def _reads_the_same(turn: Turn, tokens: TurnTokens, tokenizer: Any) -> bool:
    if max((*tokens.context_ids, *tokens.ids), default=0) >= len(tokenizer):
        return False
    reply = _letters(turn.reply)
    if reply not in (_decoded(tokenizer, tokens.ids, skip=True), _decoded(tokenizer, tokens.ids, skip=False)):
        return False
    asked = _letters(_text_of(turn.messages[-1])) if turn.messages else ""
    return asked in _decoded(tokenizer, tokens.context_ids, skip=False)


def _steers_the_same(pieces: Sequence[tuple[Turn, TurnTokens]], renderer: ChatRenderer) -> bool:
    """Models of one family may share all tokens but the special ones: those in the ids are those of the template."""
    tokenizer = renderer.tokenizer
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = {renderer.end_of_turn_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    if any(tokens.ids and tokens.ids[-1] in special - ends for _, tokens in pieces):
        return False
    try:
        known = ends.union(renderer.extend(None, pieces[-1][0].messages).ids)
    except ValueError:
        return True  # this renderer could not write the conversation anew anyway
    return all(special.intersection(tokens.context_ids) <= known for _, tokens in pieces)


def _decoded(tokenizer: Any, ids: Sequence[int], *, skip: bool) -> str:
    return _letters(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def _letters(text: str) -> str:
    """A text without what tokenizers and templates may change on its way there and back: white space, the form of its
    accents, characters that are none."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(unicodedata.normalize("NFC", text).replace("\ufffd", "").split())


def _raw_tokens(turn: Turn, tokenizer: Any) -> TurnTokens:
    prompt = tokenizer.encode(turn.raw_prompt)
    if tokenizer.eos_token_id is not None and prompt[-1:] == [tokenizer.eos_token_id]:
        prompt = prompt[:-1]  # some tokenizers end every text
    ids = tokenizer.encode(turn.reply, add_special_tokens=False)
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return TurnTokens(tuple(prompt), tuple(ids), (0.0,) * len(ids))


def _unmark(sequence: TokenSequence, marked: set[int]) -> TokenSequence:
    """Only the turns in ``marked`` are learnt."""
    if marked.issuperset(turn for turn in sequence.turns if turn >= 0):
        return sequence
    mask = tuple(int(turn in marked) for turn in sequence.turns)
    return replace(sequence, mask=mask)
