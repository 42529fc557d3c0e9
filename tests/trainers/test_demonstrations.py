"""Training data of fine-tuning: only replies, in every template; an episode's own ids; rows of every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine import save_episodes
from tests.chat.for_every import for_every
from tests.chat.templates import make_tokenizer
from trainers.config import BestConfig, ConfigError, DemonstrationConfig, LengthConfig
from trainers.fine_tuning.demonstrations import (
    Demonstration,
    DemonstrationTurn,
    can_keep_ids,
    chat_turns,
    read_demonstrations,
    tokenize,
)
from trainers.fine_tuning.sft_dataset import select
from trainers.fine_tuning.tokenized import LengthLimit, TokenizedSequence, cut, split_held_out

FAMILIES = ["qwen2.5", "qwen3", "llama3"]
RENDERERS = {family: ChatRenderer(make_tokenizer(family)) for family in FAMILIES}
TOOLS = json.dumps([{"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}])

# Only the assistant uses digits, so that its replies are distinguishable from other text.
reply_text = st.text("0123456789", min_size=1, max_size=6)
other_text = st.lists(
    st.sampled_from(["up", " the", "\n", "<|im_end|>", "<think>", "é", "<|eot_id|>"]), max_size=5
).map("".join)


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(other_text)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(other_text)})
        for _ in range(draw(st.integers(0, 2))):
            messages.append({"role": "assistant", "content": draw(reply_text)})
            messages.append({"role": "tool", "content": draw(other_text)})
        messages.append({"role": "assistant", "content": draw(reply_text)})
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(other_text)})  # no reply follows
    return messages


@settings(max_examples=60, deadline=None)
@given(messages=chats(), train_on=st.sampled_from(["all", "last"]), tools=st.sampled_from(["[]", TOOLS]))
@for_every("family", FAMILIES)
def test_only_replies_are_trained_on(family: str, messages: list[dict[str, Any]], train_on: Any, tools: str) -> None:
    """TRL #4975 trained on tool tokens; #5144 made masks longer than ids."""
    renderer, tokenizer = RENDERERS[family], make_tokenizer(family)
    demonstration = Demonstration(chat_turns(messages, tools if family != "llama3" else "[]"))
    (sequence,) = tokenize(demonstration, renderer, train_on=train_on)
    assert len(sequence.mask) == len(sequence.ids)
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    wanted = replies if train_on == "all" else replies[-1:]
    end = tokenizer.decode([renderer.end_of_turn_id])
    trained = [index for index, marked in zip(sequence.ids, sequence.mask, strict=True) if marked]
    assert tokenizer.decode(trained) == "".join(reply + end for reply in wanted)
    rest = tokenizer.decode([index for index, marked in zip(sequence.ids, sequence.mask, strict=True) if not marked])
    untrained_digits = "".join(char for char in rest if char.isdigit())
    assert untrained_digits == ("" if train_on == "all" else "".join(replies[:-1]))


def test_tool_calls_are_trained_on_and_their_results_are_not() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": {"where": "up"}}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "you moved", "tool_call_id": "1"},
        {"role": "assistant", "content": "done"},
    ]
    (sequence,) = tokenize(Demonstration(chat_turns(messages, TOOLS)), RENDERERS["qwen2.5"])
    tokenizer = make_tokenizer("qwen2.5")
    trained = tokenizer.decode([i for i, marked in zip(sequence.ids, sequence.mask, strict=True) if marked])
    assert trained == (
        '<tool_call>\n{"name": "move", "arguments": {"where": "up"}}\n</tool_call><|im_end|>done<|im_end|>'
    )
    assert "you moved" in tokenizer.decode(sequence.ids)


def sampled_episode(family: str, *, finish: str = "stop") -> tuple[Episode, tuple[int, ...]]:
    """Two turns whose replies a model tokenized differently from any encoder."""
    renderer, tokenizer = RENDERERS[family], make_tokenizer(family)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go up"}]
    steps, prefix = [], None
    for number in range(2):
        prefix = renderer.extend(prefix, messages)
        odd = [index for letter in "lake" for index in tokenizer.encode(letter, add_special_tokens=False)]
        ids = (*odd, renderer.end_of_turn_id) if finish == "stop" or number == 0 else tuple(odd)
        tokens = TurnTokens(prefix.context_ids, ids, (-1.0,) * len(ids), finish_reason=finish if number else "stop")
        steps.append(Step(chat_completions=list(messages), model_response="lake", tokens=tokens))
        prefix = renderer.append_sampled(prefix, ids, "lake")
        messages = [*messages, {"role": "assistant", "content": "lake"}, {"role": "user", "content": "again"}]
    episode = Episode("e", "t", success=True, stop_reason=StopReason.SUCCESS, trajectories=[Trajectory(steps=steps)])
    assert prefix is not None
    return episode, prefix.ids


def test_an_episode_with_its_own_tokenizer_is_trained_on_with_its_ids(tmp_path: Path) -> None:
    episode, ids = sampled_episode("qwen2.5")
    save_episodes(tmp_path / "e.jsonl", [episode])
    (demonstration,) = read_demonstrations(tmp_path / "e.jsonl")
    (sequence,) = tokenize(demonstration, RENDERERS["qwen2.5"])
    assert sequence.ids == ids
    encoded = make_tokenizer("qwen2.5").encode("lake", add_special_tokens=False)
    assert len(encoded) < 4, "the test shows nothing: the tokenizer spells it so too"

    # Another model's ids have another meaning; its text can be used.
    assert not can_keep_ids(demonstration, RENDERERS["llama3"])
    (sequence,) = tokenize(demonstration, RENDERERS["llama3"])
    trained = [i for i, marked in zip(sequence.ids, sequence.mask, strict=True) if marked]
    assert make_tokenizer("llama3").decode(trained) == "lake<|eot_id|>lake<|eot_id|>"


def test_a_truncated_reply_gets_no_end_token(tmp_path: Path) -> None:
    episode, _ = sampled_episode("qwen2.5", finish="length")
    save_episodes(tmp_path / "e.jsonl", [episode])
    (demonstration,) = read_demonstrations(tmp_path / "e.jsonl")
    for family, end in (("qwen2.5", "<|im_end|>"), ("llama3", "<|eot_id|>")):
        (sequence,) = tokenize(demonstration, RENDERERS[family])
        trained = [i for i, marked in zip(sequence.ids, sequence.mask, strict=True) if marked]
        assert make_tokenizer(family).decode(trained) == f"lake{end}lake"


def test_rows_of_every_format(tmp_path: Path) -> None:
    call = {"function": {"name": "move", "arguments": {"a": 1}}}
    rows: list[dict[str, Any]] = [
        {"prompt": "q", "completion": "a"},
        {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "q"}]},
                {"role": "assistant", "content": "a"},
            ]
        },
        {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\u2028", "weight": 2}],
            "weight": 3,
        },
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}], "tools": [call]},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "weight": 0},
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "b.jsonl").write_text("\ufeff" + "\n".join(lines[:3]))
    (tmp_path / "c.jsonl").write_text("\n".join(lines[3:]) + "\n")
    read = read_demonstrations(str(tmp_path / "*.jsonl"))
    assert [item.turns[0].reply for item in read] == ["a", "a", "a", "a\u2028", ""]
    assert [item.turns[0].weight for item in read] == [1, 1, 1, 6, 1]
    assert len({item.task for item in read[:2]}) == 1, "the same prompt is the same task, however it is written"
    assert read[4].turns[0].message is not None
    assert read[4].turns[0].message.tool_calls[0].arguments == '{"a": 1}'
    again = read_demonstrations((str(tmp_path / "c.jsonl"), str(tmp_path / "b.jsonl")))
    assert [item.where for item in again] == [item.where for item in [*read[3:], *read[:3]]]

    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([{**rows[0], "messages": None}, {"messages": rows[3]["messages"]}])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert [item.turns[0].reply for item in read_demonstrations(tmp_path / "rows.parquet")] == ["a", "a\u2028"]


def test_strings_can_be_kept_as_strings(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "the lake", "completion": " is up"}))
    (demonstration,) = read_demonstrations(tmp_path / "rows.jsonl", strings="raw")
    (sequence,) = tokenize(demonstration, RENDERERS["qwen2.5"])
    assert make_tokenizer("qwen2.5").decode(sequence.ids) == "the lake is up<|im_end|>"
    assert make_tokenizer("qwen2.5").decode([i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]) == (
        " is up<|im_end|>"
    )
    (tmp_path / "chat.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
    )
    with pytest.raises(ConfigError, match="raw has no effect"):
        read_demonstrations(tmp_path / "chat.jsonl", strings="raw")


def test_episodes_without_replies_are_skipped(tmp_path: Path) -> None:
    steps = [Step(chat_completions=[{"role": "user", "content": "q"}], model_response="a")]
    reasons = [StopReason.SUCCESS, StopReason.FAULT, StopReason.AGENT_ERROR, StopReason.MAX_TURNS]
    save_episodes(
        tmp_path / "e.jsonl",
        [
            Episode(str(n), "t", stop_reason=why, trajectories=[Trajectory(steps=steps)])
            for n, why in enumerate(reasons)
        ],
    )
    assert len(read_demonstrations(tmp_path / "e.jsonl")) == 2


def episode_of(task: str, reward: float, *, group: str = "", success: bool = True) -> Demonstration:
    turn = DemonstrationTurn(({"role": "user", "content": task},), f"{reward}")
    return Demonstration((turn,), success, task=task, group=group, reward=reward)


def test_the_best_of_each_task_are_chosen() -> None:
    episodes = [
        episode_of("a", 0.5, group="a@1"),
        episode_of("a", 1.0, group="a@1", success=False),
        episode_of("a", 1.0, group="a@2"),
        episode_of("b", 0.0, group="b@1"),
        episode_of("b", 0.0, group="b@1", success=False),
    ]

    def chosen(**options: Any) -> list[int]:
        return [episodes.index(item) for item in select(episodes, DemonstrationConfig(file="x", **options))]

    assert chosen(best=BestConfig()) == [1, 3]
    assert chosen(best=BestConfig(2)) == [1, 2, 3, 4]
    assert chosen(best=BestConfig(per="group")) == [1, 2, 3]
    assert chosen(best=BestConfig(), successful_only=True) == [2, 3]
    assert chosen(min_reward=0.5) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"demonstrations\.min_reward=2\.0"):
        chosen(min_reward=2.0)
    chat = Demonstration(chat_turns([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]))
    assert select([chat, *episodes], DemonstrationConfig(file="x", best=BestConfig()))[0] is chat
    for options in ({"best": BestConfig()}, {"min_reward": 0.0}, {"successful_only": True}):
        with pytest.raises(ConfigError, match="has no effect: the files contain no episodes"):
            select([chat], DemonstrationConfig(file="x", **options))


def test_held_out_tasks_are_not_in_the_training_split() -> None:
    keys = [f"task {number // 3}" for number in range(60)]
    back = split_held_out(keys, 0.25, seed=1)
    assert len(back) == 5
    assert back == split_held_out(keys[::-1], 0.25, seed=1), "the order of the files decides nothing"
    assert back != split_held_out(keys, 0.25, seed=2)
    with pytest.raises(ConfigError, match="leaves none to train on"):
        split_held_out(["one", "one"], 0.5, seed=0)


@settings(max_examples=30, deadline=None)
@given(messages=chats(), length=st.integers(1, 80))
@for_every("keep_start", [True, False])
def test_truncation_keeps_the_configured_end(keep_start: bool, messages: list[dict[str, Any]], length: int) -> None:
    (sequence,) = tokenize(Demonstration(chat_turns(messages)), RENDERERS["qwen3"])
    shorter = cut(sequence, length, keep_start=keep_start)
    size = min(length, len(sequence))
    assert shorter.ids == (sequence.ids[:size] if keep_start else sequence.ids[len(sequence) - size :])
    assert shorter.mask[1:] == (sequence.mask[1:size] if keep_start else sequence.mask[len(sequence) - size + 1 :])
    assert shorter.mask[0] == 0


def test_examples_that_are_too_long_are_counted() -> None:
    demonstration = Demonstration(
        chat_turns([{"role": "user", "content": "up " * 50}, {"role": "assistant", "content": "1"}])
    )
    sequences = tokenize(demonstration, RENDERERS["qwen3"])
    with pytest.raises(ConfigError, match=r"line 3 has \d+ tokens, but the limit is 20"):
        LengthLimit(LengthConfig(max_length=20), None).fit(sequences, "line 3")
    drop = LengthLimit(LengthConfig(too_long="drop"), 20)
    assert drop.fit(sequences, "") is None
    assert drop.note() == "1 of 1 examples have more than 20 tokens and were dropped"
    left = LengthLimit(LengthConfig(max_length=20, too_long="cut_left"), 4096)
    (kept,) = left.fit(sequences, "") or []
    assert len(kept) == 20
    assert sum(kept.mask) == sum(sequences[0].mask)
    right = LengthLimit(LengthConfig(max_length=20, too_long="cut_right"), None)
    assert right.fit(sequences, "") is None, "no reply is left of it"
    fine = LengthLimit(LengthConfig(max_length=4000), None)
    assert fine.fit(sequences, "") == sequences
    assert fine.note() == ""


@settings(max_examples=30, deadline=None)
@given(messages=chats())
def test_arrays_contain_the_content_of_the_sequence(messages: list[dict[str, Any]]) -> None:
    turns = chat_turns(messages)
    (sequence,) = tokenize(Demonstration(turns), RENDERERS["qwen2.5"])
    weights = [float(number + 1) for number in range(len(turns))]
    row = TokenizedSequence.of(sequence, weights).row()
    assert (row.sequence.ids, row.sequence.mask) == (sequence.ids, sequence.mask)
    assert row.targets["weight"].tolist() == [weights[turn] for turn in sequence.turns if turn >= 0]
