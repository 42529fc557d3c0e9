"""The first mistakes of users of other trainers: each error names the thing, its value and the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands.command_line import assert_brief_error, rllm_gym

from trainers.tiny_model import make_tiny_model

ROWS = {
    "sharegpt": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    "alpaca": {"instruction": "Add.", "input": "1 1", "output": "2"},
}
REWARD = ["--reward", "envs.own_rewards:letters"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["train", "--env.id", "rllm/Math-v0"],
            ["model.path='/nope'", "no such folder", "check the path", "an id such as"],
        ),
        (["eval", "rllm/Math-v0"], ["--model.path /nope", "no such folder", "check the path"]),
        (
            ["train", "--env.id", "rllm/Math-v0", "--env.kwargs.famlies", "x"],
            [
                "env.kwargs={'famlies': 'x'}",
                "no argument 'famlies'",
                "did you mean 'families'?",
                "The arguments are tasks,",
            ],
        ),
        (["eval", "rllm/Math-v0", "-k", "famlies=x"], ["no argument 'famlies'", "did you mean 'families'?"]),
        (["train", "--env.id", "rllm/Mth-v0"], ["env.id='rllm/Mth-v0'", "did you mean 'rllm/Math-v0'?"]),
        (["train", "--env.id", "rllm/Dataset-v0"], ["the argument 'dataset' and 'reward' is missing"]),
        (["train", "--dataset", "{alpaca}"], ["--dataset and --reward belong together"]),
        (["train", *REWARD], ["--dataset rows.jsonl --reward my_module:function"]),
        (["train", "--dataset", "{alpaca}", *REWARD], ["line 1", "Alpaca", 'join instruction and input to "prompt"']),
        (["train", "--dataset", "{sharegpt}", *REWARD], ["line 1", "ShareGPT", "role/content"]),
        (["train", "--dataset", "/nope.jsonl", *REWARD], ["no task file '/nope.jsonl'"]),
        (["sft", "--demonstrations.file", "{sharegpt}"], ["line 1", 'rename "conversations" to "messages"']),
        (["sft", "--demonstrations.file", "{alpaca}"], ["line 1", 'name the output "completion"']),
        (["dpo", "--preferences.file", "{alpaca}"], ["line 1", "a row of Alpaca has one answer", "rllm-gym sft"]),
    ],
)
def test_the_error_names_the_fix(command: list[str], words: list[str], tmp_path: Path) -> None:
    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    model = "/nope"
    if command[0] in ("sft", "dpo"):  # the model is loaded first
        make_tiny_model(tmp_path / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
        model = str(tmp_path / "tiny")
    filled = [word.format(**{name: tmp_path / f"{name}.jsonl" for name in ROWS}) for word in command]
    output = ["--output", str(tmp_path / "run")]
    assert_brief_error(rllm_gym(*filled, "--model.path", model, *output), *words)
