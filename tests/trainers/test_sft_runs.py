"""Fine-tuning runs on files: the loss, epochs, held-out data, weights of examples, and resuming."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from refused_options import not_raised
from termination import terminated_at

from rllm_gym.chat import ChatRenderer
from rllm_gym.core import Episode, Step, StopReason, Trajectory
from rllm_gym.engine import save_episodes
from trainers import commands
from trainers.config import ConfigError, ModelConfig, OptimizerConfig, SftConfig, validate_sft
from trainers.config.mapping import from_mapping
from trainers.fine_tuning.sft import sft, sft_step
from trainers.fine_tuning.sft_dataset import FileSftDataset
from trainers.fine_tuning.tokenized import LengthLimit
from trainers.learner import Learner
from trainers.model import Policy
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sft") / "tiny"
    return str(make_tiny_model(folder, vocab_size=300, hidden_size=32, num_heads=1, num_layers=1))


def chat(question: str, *answers: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}]
    for answer in answers:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **fields}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def options(base: str, folder: Path, rows: list[dict[str, Any]], **sections: Any) -> SftConfig:
    values: dict[str, Any] = {
        "output": str(folder / "run"),
        "demonstrations_per_step": 4,
        "progress": False,
        "model": {"path": base, "tuning": "full"},
        "demonstrations": {"file": write(folder / "rows.jsonl", rows)},
        "optimizer": {"lr": 3e-3, "warmup_steps": 0},
        "checkpoint": None,
    }
    for name, value in sections.items():
        values[name] = {**(values.get(name) or {}), **value} if isinstance(value, dict) else value
    if sections.get("demonstrations", {}).keys() == {"policy"}:
        del values["demonstrations"]["file"]
    return from_mapping(SftConfig, values)


ROWS = [chat(f"say {word}", word, word + word) for word in ("up", "down", "left", "right", "lake", "ice", "hole")]


@pytest.mark.parametrize("budget", [16384, 64, 1])
def test_the_loss_is_cross_entropy_over_the_labels(model: str, tmp_path: Path, budget: int) -> None:
    """Padded, packed or single: loss and gradient of transformers' own loss on the same labels, as one batch."""
    rows = [*ROWS, chat("a question that is a good deal longer than the others are", "yes", weight=2.5)]
    config = options(model, tmp_path, rows)
    dataset = FileSftDataset(config)
    policy = Policy(ModelConfig(path=model, tuning="full"))
    dataset.tokenize(ChatRenderer(policy.tokenizer), LengthLimit(config.length, None))
    chosen = dataset.next(len(rows))

    total, loss = 0.0, torch.zeros(())
    for (tokens,) in chosen:
        ids = torch.tensor(tokens.ids_T, dtype=torch.long)[None]
        labels = torch.where(torch.from_numpy(tokens.mask_T)[None], ids, -100)
        logits = policy.model(input_ids=ids).logits
        weight = float(tokens.weight_N[0])
        loss = loss + weight * torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum")
        total += weight * tokens.num_trained
    (loss / total).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for _, p in policy.parameters]).item()
    policy.model.zero_grad()

    learner = Learner(policy, OptimizerConfig(tokens_per_microbatch=budget, max_grad_norm=1e9), 10)
    update = sft_step(learner, 0, chosen)
    assert update.loss == pytest.approx(loss.item() / total, rel=1e-5)
    assert update.grad_norm == pytest.approx(norm, rel=1e-4)
    assert update.tokens == sum(tokens.num_trained for (tokens,) in chosen)


def test_epochs_contain_every_demonstration_equally_often(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plain = FileSftDataset.next

    def spy(self: FileSftDataset, number: int) -> Any:
        seen.extend(self._order.span(self.position, self.position + number))
        return plain(self, number)

    monkeypatch.setattr(FileSftDataset, "next", spy)
    result = sft(options(model, tmp_path, ROWS, epochs=3))
    assert sorted(seen) == sorted([*range(7)] * 3)
    assert seen[:7] != seen[7:14], "each pass has its own order"
    assert result.steps == math.ceil(21 / 4)
    assert sft(options(model, tmp_path, ROWS, epochs=3, steps=2, output=str(tmp_path / "two"))).steps == 2
    assert read_metrics(result.output)[-1]["loss"] < read_metrics(result.output)[0]["loss"]


def test_held_out_demonstrations_are_evaluated_and_not_trained_on(model: str, tmp_path: Path) -> None:
    rows = [chat(f"{number}: say {word}", word) for number in range(12) for word in ("up", "down")]
    result = sft(options(model, tmp_path, rows, steps=30, validation={"fraction": 0.25, "every": 10, "best": True}))
    measured = [row for row in read_metrics(result.output) if "validation/loss" in row]
    assert [row["step"] for row in measured] == [0, 10, 20, 30]
    assert measured[-1]["validation/loss"] < measured[0]["validation/loss"] / 2
    for row in measured:
        assert row["validation/perplexity"] == pytest.approx(math.exp(row["validation/loss"]))
    assert (result.output / "best_model" / "model.safetensors").is_file()
    assert not list(result.output.glob("*.partial"))

    # Another file for validation, equal to the training data: the two losses are almost equal.
    first = sft(
        options(
            model, tmp_path, ROWS, output=str(tmp_path / "same"), steps=1, demonstrations_per_step=7,
            validation={"file": write(tmp_path / "held_out.jsonl", ROWS)},
        )
    )  # fmt: skip
    start, after = read_metrics(first.output)
    assert start["validation/loss"] == pytest.approx(after["loss"], rel=1e-5)


def test_rejection_sampling_trains_on_the_best_episodes(model: str, tmp_path: Path) -> None:
    for step in range(2):
        episodes = []
        for number in range(6):
            for reply, reward in (("good", 1.0), ("bad", 0.0)):
                messages = [{"role": "user", "content": f"task {number}"}]
                steps = [Step(chat_completions=messages, model_response=reply)]
                episodes.append(
                    Episode(
                        f"{step}/{number}/{reply}", f"t{number}", group_id=f"t{number}@{step}", reward=reward,
                        success=reward > 0, stop_reason=StopReason.SUCCESS, trajectories=[Trajectory(steps=steps)],
                    )
                )  # fmt: skip
        save_episodes(tmp_path / "episodes" / f"train-{step}.jsonl", episodes)
    pattern = {"file": str(tmp_path / "episodes" / "*.jsonl")}
    kept = FileSftDataset(options(model, tmp_path, [], demonstrations=pattern | {"best": {}}))
    assert {turn.reply for item in kept._demonstrations for turn in item.turns} == {"good"}
    assert len(kept._demonstrations) == 6
    assert kept.notes == ["6 of 24 demonstrations are used for training"]
    both = FileSftDataset(options(model, tmp_path, [], demonstrations=pattern | {"best": {"per": "group"}}))
    assert len(both._demonstrations) == 12
    distinct = options(model, tmp_path, [], demonstrations=pattern | {"min_reward": 0.5, "distinct": True}, epochs=1)
    result = sft(distinct)
    assert sum(1 for _ in read_metrics(result.output)) == 2, "six different ones, four a step"


@pytest.mark.parametrize("stopped_at", [3, 6])
def test_a_resumed_run_equals_an_uninterrupted_one(model: str, tmp_path: Path, stopped_at: int) -> None:
    values: dict[str, Any] = {"steps": 6, "checkpoint": {"every": 2}, "validation": {"fraction": 0.2, "every": 2}}
    complete = sft(options(model, tmp_path, ROWS, **values))
    values["output"] = str(tmp_path / "again")
    with terminated_at(stopped_at):
        part = sft(options(model, tmp_path, ROWS, **values))
    assert part.interrupted == (stopped_at < 6)
    resumed = sft(options(model, tmp_path, ROWS, **values, resume=True))
    assert complete.model is not None
    assert resumed.model is not None
    assert (complete.model / "model.safetensors").read_bytes() == (resumed.model / "model.safetensors").read_bytes()
    rows = read_metrics(resumed.output)
    assert [row["step"] for row in rows] == list(range(7))
    assert [row.get("loss") for row in rows] == [row.get("loss") for row in read_metrics(complete.output)]
    with pytest.raises(ConfigError, match="the demonstrations differ from those of the checkpoint"):
        sft(options(model, tmp_path, ROWS[1:], **values, resume=True))


def test_a_torn_last_checkpoint_is_skipped(model: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"steps": 4, "checkpoint": {"every": 2}}
    complete = sft(options(model, tmp_path, ROWS, **values))
    (complete.output / "checkpoints" / "step-00000004" / "state.pt").write_bytes(b"torn")
    again = sft(options(model, tmp_path, ROWS, **values, resume=True))
    assert again.steps == 4
    assert [row["step"] for row in read_metrics(again.output)] == [1, 2, 3, 4]


def test_examples_that_are_too_long_are_an_error_or_reported(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*ROWS, chat("long " * 60, "a")]
    with pytest.raises(ConfigError, match=r"rows.jsonl, line 8 has \d+ tokens, but the limit is 100"):
        sft(options(model, tmp_path, rows, length={"max_length": 100}, steps=1))
    length = {"max_length": 100, "too_long": "drop"}
    sft(options(model, tmp_path, rows, length=length, epochs=1, progress=True, output=str(tmp_path / "b")))
    assert "1 of 8 examples have more than 100 tokens and were dropped" in capsys.readouterr().err
    length["max_length"] = 2
    with pytest.raises(ConfigError, match="every demonstration is longer than 2 tokens"):
        sft(options(model, tmp_path, rows, length=length, steps=1, output=str(tmp_path / "c")))


def test_the_command_takes_several_files(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / "a.jsonl", ROWS[:3]), write(tmp_path / "b.jsonl", ROWS[3:])]
    words = ["--model.path", model, "--epochs", "1", "--no-progress", "--output", str(tmp_path / "o")]
    assert commands.sft([*words, "--demonstrations.file", *files]) == 0
    assert f"model    {tmp_path}/o/model" in capsys.readouterr().out
    assert sum(row["optim/trained_tokens"] for row in read_metrics(tmp_path / "o")) > 0
    # The saved configuration of a run can be run again.
    again = ["--config", str(tmp_path / "o" / "config.yaml"), "--output", str(tmp_path / "p")]
    assert commands.sft(again) == 0
    with pytest.raises(commands.CommandError, match=r"no file matches"):
        commands.sft([*words, "--demonstrations.file", str(tmp_path / "*.parquet"), "--resume"])


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"demonstrations": {"policy": "m:f", "file": "x"}}, "file='x' is not an option here"),
    (
        {"demonstrations": {"per_task": 2}},
        "per_task=2 is not an option here; it is one only with",
    ),
    ({"demonstrations": {"best_per": "group"}}, r"did you mean demonstrations\.best\.per"),
    ({"demonstrations": {"best": 2}}, r"set its options, for example demonstrations\.best\.count"),
    ({"demonstrations": {"best": {"count": 0}}}, "best.count=0 must be above 0"),
    (
        {"demonstrations": {"policy": "m:f", "min_reward": 2}},
        "min_reward=2 is not an option here",
    ),
    (
        {"validation": {"fraction": 0.1, "file": "x"}},
        "fraction=0.1 is not an option here",
    ),
    ({"validation": {"fraction": 1.5}}, "must be between 0 and 1"),
    ({"validation": {"every": 0}}, "validation.every=0 must be above 0"),
    ({"length": {"max_length": 0}}, "length.max_length=0 must be above 0"),
    ({"model": {"reference": "cpu"}}, "model.reference='cpu' is not an option"),
]


def test_invalid_options_are_errors_that_name_them(model: str, tmp_path: Path) -> None:
    assert not not_raised(
        IMPOSSIBLE, lambda argument: validate_sft(options(model, tmp_path, ROWS, **argument)), ConfigError
    )
