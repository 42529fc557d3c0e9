"""`rllm-gym import-logs`: logs of any kind and quality become episodes, chats and pairs that sft and dpo read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands.command_line import assert_brief_error, rllm_gym

from rllm_gym.core import Episode
from rllm_gym.engine import load_episodes
from trainers.config import PreferenceConfig
from trainers.fine_tuning.demonstrations import read_demonstrations
from trainers.fine_tuning.preferences import read_preferences

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALLS = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Ada"}'}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str, question: str, written: str, /, **fields: Any) -> dict[str, Any]:
    """Return a line of `rllm-gym serve-agent` whose ids are those of the characters."""
    ids = [ord(letter) for letter in written]
    return {
        "id": f"chatcmpl-{name}",
        "conversation_id": name,
        "messages": [user(question)],
        "tools": [],
        "reply": assistant(written),
        "text": written,
        "finish_reason": "stop",
        "prompt_ids": [ord(letter) for letter in question],
        "ids": ids,
        "logprobs": [-0.5] * len(ids),
        "temperature": 1.0,
        "stop": [],
        **fields,
    }


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def imported(folder: Path, *words: str) -> list[Episode]:
    output = folder / "episodes.jsonl"
    result = rllm_gym("import-logs", "--output", str(output), str(folder / "log.jsonl"), *words)
    assert result.returncode == 0, result.stderr
    return list(load_episodes(output))


BAD: list[tuple[Any, str]] = [
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ("7", "not a JSON object but a int"),
    ('{"a": ' + "9" * 10_000 + "}", "is not JSON"),
    ({}, "messages=null must be a list"),
    ({"messages": [user("a")]}, "there is no reply"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, assistant("b")]}, "reads only texts"),
    ({"messages": [user("a")], "choices": []}, "at least one choice"),
    ({"request": {"messages": [user("a")]}, "response": {"choices": [{"message": user("b")}]}}, "must be assistant"),
    (call("x", "a", "b", ids=[-1]), "ids must be a list of token ids"),
    (call("x", "a", "b", ids=[True]), "ids must be a list of token ids"),
    (call("x", "a", "b", ids=[2**40]), "ids must be a list of token ids"),
    (call("x", "a", "b", logprobs=[]), "each id needs a log-prob"),
    (call("x", "a", "b", logprobs=[1.0]), "numbers, 0 or less"),
    (call("x", "a", "b", logprobs=[float("nan")]), "numbers, 0 or less"),
    (call("x", "a", "b", stop=7), "must be a list of texts"),
    (call("x", "a", "b", weight_version=1e9), "must be a whole number"),
    (call("x", "a", "b", text=None), "text=None must be a text"),
    (call("x" * 201, "a", "b"), "must be a text of 1 to 200"),
    (call("x", "a", "b", tools={"a": 1}), "must be a list"),
]


def test_lines_that_cannot_be_used_are_named_and_left_out(tmp_path: Path) -> None:
    log, output = tmp_path / "log.jsonl", str(tmp_path / "out.jsonl")
    for start in range(0, len(BAD), 10):
        part = BAD[start : start + 10]
        write(log, call("good", "a", "b"), *(row for row, _ in part))
        result = rllm_gym("import-logs", str(log), "--output", output)
        assert result.returncode == 0, result.stderr
        lines = result.stderr.splitlines()
        assert len(lines) == len(part)
        for number, (line, (_, message)) in enumerate(zip(lines, part, strict=True), start=2):
            assert f"log.jsonl, line {number}: left out: " in line
            assert message in line
        assert "1 episodes" in result.stdout
    write(log, *["{"] * 500)
    result = rllm_gym("import-logs", str(log), "--output", output)
    assert "500 lines were left out" in result.stderr
    assert result.stderr.count("\n") == 12
    assert "there is no call" in result.stderr


def test_feedback_rates_and_filters_conversations_and_copies_count_once(tmp_path: Path) -> None:
    lines = [call(f"c{index}", "2 + 2?", reply) for index, reply in enumerate(("4", "5", "4", "6", "4"))]
    lines[3] |= {"finish_reason": "length"}
    write(tmp_path / "log.jsonl", *lines)
    feedback = [
        {"conversation_id": "c0", "reward": "down"},
        {"conversation_id": "c0", "reward": "up"},
        {"id": "resp_c1", "reward": 0.25},
        {"conversation_id": "c2", "reward": False},
        {"conversation_id": "c3", "reward": 0},
        {"conversation_id": "elsewhere", "reward": 1},
        {"conversation_id": "c4", "reward": "great"},
        {"reward": 1},
    ]
    words = ("--feedback", str(write(tmp_path / "feedback.jsonl", *feedback)), "--success-at", "0.5")
    again = str(tmp_path / "log.jsonl")  # the same calls in a second log
    episodes = imported(tmp_path, again, *words)
    assert [(episode.episode_id, episode.reward, episode.stop_reason) for episode in episodes] == [
        ("c0", 0.5, "success"),  # the mean of 1 and of 0, for the same content in c2; c4 is not rated
        ("c1", 0.25, "failure"),
        ("c3", 0.0, "max_tokens"),
    ]
    assert len({episode.group_id for episode in episodes}) == 1
    (sequence,) = episodes[0].trajectories[0].branches()
    assert (sequence.ids, sequence.logprobs) == (tuple(map(ord, "2 + 2?4")), (0.0,) * 6 + (-0.5,))
    assert sum(sequence.rewards) == 0.5
    for more, kept in (
        (("--min-reward", "0.25"), ["c0", "c1"]),
        (("--max-reward", "0.25"), ["c1", "c3"]),
        (("--stop-reason", "failure", "max_tokens"), ["c1", "c3"]),
    ):
        assert [episode.episode_id for episode in imported(tmp_path, *words, *more)] == kept
    output = str(tmp_path / "episodes.jsonl")
    shown = rllm_gym("import-logs", str(tmp_path / "log.jsonl"), "--output", output, *words)
    assert "1 lines are about conversations that are in no log" in shown.stderr
    assert 'line 7: left out: reward=\'great\' must be a number, true, false, "up" or "down"' in shown.stderr
    assert "line 8: left out: it has no conversation_id" in shown.stderr
    assert "left out: 1 without a reward, 1 copies of others" in shown.stdout


def test_functions_rate_with_the_columns_of_the_feedback_and_a_failure_is_no_reward(tmp_path: Path) -> None:
    write(
        tmp_path / "log.jsonl", *(call(name, "2 + 2?", reply) for name, reply in (("a", "4"), ("b", "5"), ("c", "6")))
    )
    checks = [{"conversation_id": name, "answer": "4"} for name in "ab"]
    words = ("--feedback", str(write(tmp_path / "checks.jsonl", *checks)))
    words += ("--reward", "serving.own_functions:correct")
    assert [(episode.episode_id, episode.reward) for episode in imported(tmp_path, *words)] == [("a", 1.0), ("b", 0.0)]
    result = rllm_gym("import-logs", str(tmp_path / "log.jsonl"), "--output", str(tmp_path / "x"), *words)
    assert "no reward: " in result.stderr
    assert "'answer', which is no column of row 'c'" in result.stderr


def test_what_is_scrubbed_leaves_no_trace_and_no_tokens(tmp_path: Path) -> None:
    hidden = call("Ada-1", "I am Ada", "Hi Ada", model="m")
    called = call("tool", "where", "x", tools=TOOLS, reply={"role": "assistant", "content": None, "tool_calls": CALLS})
    stopped = call("stop", "who", "It is ", stop=["Ada"])
    schema = {"type": "object", "properties": {"id": {"description": "the id of Ada", "type": "string"}, "Ada": {}}}
    described = [{"type": "function", "function": {"name": "find", "parameters": schema}}]
    named = [{**CALLS[0], "id": name, "function": {"name": "find", "arguments": "{}"}} for name in ("Ada-7", "Ada-8")]
    results = [{"role": "tool", "tool_call_id": item["id"], "content": "x"} for item in reversed(named)]
    past = [user("find"), {"role": "assistant", "content": None, "tool_calls": named}, *results]
    ids = call("ids", "", "found", messages=past, tools=described, prompt_ids=[1], model="/home/Ada")
    write(tmp_path / "log.jsonl", hidden, call("plain", "hello", "hi"), called, stopped, ids)
    episodes = imported(tmp_path, "--scrub", "serving.own_functions:hide_names")
    text = (tmp_path / "episodes.jsonl").read_text()
    assert "Ada" not in text
    assert str([ord(letter) for letter in "Ada"])[1:-1].replace(" ", "") not in text
    steps = {episode.episode_id: episode.trajectories[0].steps[0] for episode in episodes}
    assert {name: step.tokens is not None for name, step in steps.items()} == {
        "NAME-1": False,
        "plain": True,
        "tool": False,
        "stop": False,
        "ids": False,
    }
    _, asked, *answered = steps["ids"].chat_completions
    assert [item["id"] for item in asked["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in answered] == ["call_1", "call_0"]
    assert [message["role"] for message in answered] == ["tool", "tool"]
    schema = json.loads(steps["ids"].info["offered_tools"])[0]["function"]["parameters"]
    assert schema["properties"] == {"id": {"description": "the id of NAME", "type": "string"}, "NAME": {}}
    assert (steps["NAME-1"].model_response, steps["NAME-1"].observation) == ("Hi NAME", "I am NAME")
    assert steps["tool"].info["offered_tools"] == json.dumps(TOOLS)
    with pytest.raises(ValueError, match="no token ids"):
        episodes[0].trajectories[0].branches()
    failing = rllm_gym(
        "import-logs",
        str(tmp_path / "log.jsonl"),
        "--output",
        str(tmp_path / "x"),
        "--scrub",
        "serving.own_functions:fails",
    )
    assert_brief_error(failing, "--scrub failed", "RuntimeError: no", "nothing was written")


def test_messages_of_other_logs_become_chats_and_pairs_with_their_tool_calls(tmp_path: Path) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": CALLS}
    result = {"role": "tool", "tool_call_id": "1", "content": "a cat"}
    request = {"model": "other", "messages": [user("what is there?")], "tools": TOOLS, "tool_choice": "required"}
    first = {
        "request": request,
        "response": {"id": "r1", "choices": [{"message": asked, "finish_reason": "tool_calls"}]},
    }
    more = {**request, "messages": [*request["messages"], asked, result]}
    second = {"request": more, "response": {"id": "r2", "choices": [{"message": assistant("a cat")}]}}
    edited = {**request, "messages": [*more["messages"], assistant("a cat"), user("sure?")]}
    edited["messages"][2] = {**result, "content": "a dog"}
    third = {"request": edited, "response": {"id": "r3", "choices": [{"message": assistant("yes")}]}}
    other = {**request, "id": "r4", "choices": [{"message": assistant("a dog")}]}
    chat = {"messages": [user("hi"), assistant("ho"), user("and?"), assistant("off")], "id": "r5"}
    log = write(tmp_path / "log.jsonl", first, second, third, other, chat)
    feedback = write(
        tmp_path / "f.jsonl", {"id": "r3", "reward": 1}, {"id": "r4", "reward": 0}, {"id": "r5", "reward": 1}
    )

    chats = tmp_path / "chats.jsonl"
    assert "4 chats" in rllm_gym("import-logs", str(log), "--as", "sft", "--output", str(chats)).stdout
    replies = [
        [(turn.message.text or turn.message.tool_calls[0].name, turn.weight) for turn in item.turns if turn.message]
        for item in read_demonstrations(str(chats))
    ]
    assert replies == [
        [("look", 1.0), ("a cat", 1.0)],
        [("look", 0.0), ("a cat", 0.0), ("yes", 1.0)],  # the rewritten history is a branch
        [("a dog", 1.0)],
        [("ho", 1.0), ("off", 1.0)],
    ]
    episodes = imported(tmp_path)
    assert [episode.episode_id for episode in episodes] == ["r4", f"{log}:5"]
    assert [step.tokens for step in episodes[1].trajectories[0].steps] == [None, None]

    write(log, first, second, other)
    pairs = tmp_path / "pairs.jsonl"
    write(feedback, {"id": "r2", "reward": 1}, {"id": "r4", "reward": 0})
    words = ("--as", "preferences", "--feedback", str(feedback), "--output", str(pairs))
    assert "1 pairs" in rllm_gym("import-logs", str(log), *words).stdout
    (pair,) = read_preferences(str(pairs), PreferenceConfig()).pairs
    assert ([turn.reply for turn in pair.chosen.turns], pair.rejected.turns[0].reply) == (["", "a cat"], "a dog")
    assert json.loads(pair.chosen.turns[0].tools) == TOOLS


def test_no_conversation_is_lost_to_another_with_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    choices = [{"message": assistant(text)} for text in ("b", "c", "d")]
    taken = call(f"{tmp_path}/log.jsonl:2", "a", "client")  # a client may choose any name
    write(tmp_path / "log.jsonl", taken, {"messages": [user("a")], "choices": choices})
    other = write(tmp_path / "other" / "log.jsonl", {}, {"messages": [user("a"), assistant("e")]})
    link = tmp_path / "again.jsonl"
    link.symlink_to(other)
    episodes = imported(tmp_path, str(other), str(link))
    assert [episode.trajectories[0].steps[0].model_response for episode in episodes] == ["client", "b", "c", "d", "e"]
    assert len({episode.episode_id for episode in episodes}) == 5


def test_a_reply_that_was_sampled_twice_is_replayed_twice(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *(call(f"c{index}", "2 + 2?", reply) for index, reply in enumerate("4454")))
    rated = [{"conversation_id": f"c{index}", "reward": index != 2} for index in range(4)]
    words = ("--feedback", str(write(tmp_path / "f.jsonl", *rated)), "--as", "replay", "--output")
    result = rllm_gym("import-logs", str(log), str(log), *words, str(tmp_path / "replay.jsonl"))
    assert "1 prompts" in result.stdout, result.stderr
    (row,) = map(json.loads, (tmp_path / "replay.jsonl").read_text().splitlines())
    assert [item["reward"] for item in row["logged"]] == [1.0, 1.0, 0.0, 1.0]  # the second log has the same calls


def test_options_without_an_effect_and_empty_results_are_errors(tmp_path: Path) -> None:
    log, output = str(write(tmp_path / "log.jsonl", call("a", "b", "c"))), str(tmp_path / "out.jsonl")
    empty = str(write(tmp_path / "empty.jsonl", {"conversation_id": "a", "reward": 0}))
    for words, message in (
        (("--min-reward", "1"), "need rewards"),
        (("--as", "preferences"), "need rewards"),
        (("--reward-weights", "1"), "no effect without --reward"),
        (("--reward", "nowhere:f"), "cannot be imported"),
        (("--scrub", "json:nothing"), "--scrub='json:nothing' cannot be imported"),
        (("--feedback", empty, "--min-reward", "1"), "no episodes remain: 1 filtered"),
        (("--feedback", empty, "--as", "preferences"), "no pairs remain (no two conversations"),
        (("--output", log), "is one of the files to read"),
        (("--feedback", "nowhere.jsonl"), "nowhere.jsonl"),
    ):
        assert_brief_error(rllm_gym("import-logs", log, "--output", output, *words), message)
    assert not Path(output).exists()
