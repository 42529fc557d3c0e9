"""Fine-tuning trains only on replies, from files and from a demonstration policy, and stops by its rule."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echo_env import EchoEnv
from transformers import AutoTokenizer

from rllm_gym.agents import ChatAgent
from rllm_gym.chat import ChatRenderer
from rllm_gym.core import Episode, Step, StopReason, Task, Trajectory
from rllm_gym.engine import save_episodes
from trainers.config import ConfigError, DemonstrationConfig, EnvConfig, SftConfig
from trainers.config.mapping import from_mapping
from trainers.fine_tuning.demonstrations import (
    Demonstration,
    DemonstrationCollector,
    DemonstrationTurn,
    read_demonstrations,
    tokenize,
)
from trainers.fine_tuning.sft import sft
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model
from trainers.train_env import open_train_env


def say_the_letter(env: EchoEnv, rng: random.Random, noise: float = 0.0) -> str:
    """A demonstration policy."""
    return "abcd"[rng.randrange(4)] if rng.random() < noise else str(env.task.data["letter"])


def config(folder: Path, **sections: Any) -> SftConfig:
    options: dict[str, Any] = {
        "output": str(folder / "sft"),
        "steps": 40,
        "demonstrations_per_step": 8,
        "progress": False,
        "env": {"id": "echo_env:test/Echo-v0"},
        "model": {"tuning": "full"},
        "tiny": {"hidden_size": 32, "num_heads": 1, "num_layers": 1, "vocab_size": 300},
        "demonstrations": {"policy": "test_sft:say_the_letter"},
        "optimizer": {"lr": 0.01},
    }
    for name, value in sections.items():
        options[name] = {**(options.get(name) or {}), **value} if isinstance(value, dict) else value
    return from_mapping(SftConfig, options)


def test_demonstrations_train_the_format_and_the_rule_stops_the_run(tmp_path: Path) -> None:
    stop = {"metric": "greedy_success", "at_least": 0.9, "every": 10, "tasks": 10, "sampling": {"max_tokens": 3}}
    result = sft(config(tmp_path, steps=200, stop=stop))
    assert result.stopped
    assert result.steps < 200
    assert result.steps % 10 == 0
    assert result.validation["validation/greedy_success"] >= 0.9
    rows = read_metrics(result.output)
    assert rows[-1]["loss"] < rows[0]["loss"] / 3
    measured = [row["validation/greedy_success"] for row in rows if "validation/greedy_success" in row]
    assert all(rate < 0.9 for rate in measured[:-1]), "it went on after the rule was met"
    assert AutoTokenizer.from_pretrained(result.model).chat_template


def test_the_same_seed_gives_the_same_model_and_another_does_not(tmp_path: Path) -> None:
    weights = [
        (
            sft(config(tmp_path, steps=3, output=str(tmp_path / name), seed=seed)).model / "model.safetensors"
        ).read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert weights[0] == weights[1] != weights[2]


def test_demonstrations_are_rendered_like_episodes(tmp_path: Path) -> None:
    """The prompts of demonstrations equal, id for id, the prompts from which the engine samples."""
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "tiny"))
    train_env = replace(open_train_env(EnvConfig(id="echo_env:test/Echo-v0")), agent=lambda: ChatAgent("Be brief."))
    collector = DemonstrationCollector(train_env, say_the_letter, {})
    demonstration = collector.collect(train_env.train[3], seed=1)
    assert collector.collect(train_env.train[3], seed=1) == demonstration
    collector.close()
    renderer = ChatRenderer(tokenizer)
    (sequence,) = tokenize(demonstration, renderer)
    task = train_env.train[3]
    assert isinstance(task, Task)
    letter = task.data["letter"]
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"say {letter}"}]
    prompt = tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    reply = [*tokenizer.encode(letter, add_special_tokens=False), tokenizer.eos_token_id]
    assert list(sequence.ids[: len(prompt) + len(reply)]) == prompt + reply
    assert [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m] == reply * 2
    assert demonstration.success


def test_with_rewritten_history_each_turn_is_a_sequence(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "tiny"))
    first = DemonstrationTurn(({"role": "user", "content": "one"},), "a")
    second = DemonstrationTurn(({"role": "user", "content": "two"},), "b")
    sequences = tokenize(Demonstration((first, second)), ChatRenderer(tokenizer))
    texts = [tokenizer.decode(sequence.ids) for sequence in sequences]
    assert texts == ["<|user|>one<|end|><|assistant|>a<|end|>", "<|user|>two<|end|><|assistant|>b<|end|>"]
    assert [sum(sequence.mask) for sequence in sequences] == [2, 2]


def test_chats_and_saved_episodes_are_read_from_files(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a1"},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2"},
    ]
    chats.write_text(json.dumps({"messages": talk}) + "\n\n" + json.dumps({"messages": talk[:3]}) + "\n")
    long, short = read_demonstrations(chats)
    assert [turn.reply for turn in long.turns] == ["a1", "a2"]
    assert list(long.turns[1].messages) == talk[:4]
    assert len(short.turns) == 1

    steps = [Step(chat_completions=talk[:2], model_response="a1"), Step(chat_completions=talk[:4], model_response="a2")]
    episodes = [
        Episode(str(ok), "t", success=ok, stop_reason=StopReason.SUCCESS, trajectories=[Trajectory(steps=steps)])
        for ok in (True, False)
    ]
    save_episodes(tmp_path / "episodes.jsonl", episodes)
    good, bad = read_demonstrations(tmp_path / "episodes.jsonl")
    assert good.turns == bad.turns
    assert [(turn.reply, list(turn.messages)) for turn in good.turns] == [("a1", talk[:2]), ("a2", talk[:4])]
    assert (good.success, bad.success) == (True, False)


def test_training_from_a_file(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"say {c}"}, {"role": "assistant", "content": c}]} for c in "abcd"
    ]
    chats.write_text("\n".join(map(json.dumps, rows)))
    options = config(tmp_path)
    result = sft(replace(options, env=EnvConfig(), demonstrations=DemonstrationConfig(str(chats))))
    assert read_metrics(result.output)[-1]["loss"] < 0.5


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 1"),
        ('{"x": 1}', "neither an episode, nor a chat"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "first message is from the assistant"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [1]}]}',
            "tool_calls",
        ),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no assistant message"),
    ],
)
def test_invalid_rows_are_errors_that_name_them(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=named):
        read_demonstrations(tmp_path / "bad.jsonl")
    with pytest.raises(ConfigError, match="does not exist"):
        read_demonstrations(tmp_path / "none.jsonl")


def test_a_demonstration_policy_that_never_succeeds_is_an_error_with_only_success(tmp_path: Path) -> None:
    demonstrations = {"policy": "test_sft:never", "successful_only": True}
    with pytest.raises(ConfigError, match="solved 0 of"):
        sft(config(tmp_path, demonstrations=demonstrations))
    with pytest.raises(ConfigError, match="cannot be imported"):
        sft(config(tmp_path, demonstrations={"policy": "test_sft:nothing"}))


def never(env: EchoEnv, rng: random.Random) -> str:
    """A demonstration policy that never succeeds."""
    return "z"


SEEN: list[str] = []


def note_the_task(env: EchoEnv, rng: random.Random) -> str:
    """A demonstration policy that notes the tasks of its episodes."""
    SEEN.append(env.task.task_id)
    return str(env.task.data["letter"])


def test_a_pass_over_the_tasks_of_a_policy_leaves_out_those_that_are_held_out(tmp_path: Path) -> None:
    demonstrations = {"policy": "test_sft:note_the_task", "per_task": 2}
    SEEN.clear()
    validation = {"fraction": 0.2}
    sections = {"epochs": 2, "steps": None, "demonstrations": demonstrations, "validation": validation, "tiny": None}
    model = {"path": str(make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1))}
    result = sft(config(tmp_path, **sections, model=model))
    assert result.steps == 2 * 2 * 24 // 8
    assert result.validation["validation/loss"] > 0
    episodes = list(dict.fromkeys(SEEN))
    assert len(episodes) == 30
    held_out, trained = set(episodes[:6]), SEEN[SEEN.index(episodes[6]) :]
    assert held_out.isdisjoint(trained)
    assert len({trained.count(task) for task in trained}) == 1, "each task equally often"
