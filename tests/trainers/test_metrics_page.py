"""docs/metrics.md defines every metric that a run writes, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from echo_config import echo_config
from echo_env import EchoEnv
from echo_workflow import EchoTeam

from rllm_gym.core import EnvironmentFault, Episode, Outcome
from rllm_gym.engine import WorkflowContext
from trainers.config import DpoConfig, SftConfig
from trainers.config.mapping import from_mapping
from trainers.fine_tuning.dpo import dpo
from trainers.fine_tuning.sft import sft
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.train_env import open_train_env

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
WRITTEN_ON_A_GPU = {"memory/gpu_peak"}


class FaultyEnv(EchoEnv):
    """Has a fault in some of its episodes, and a grader that marks suspicious ones."""

    def _add_info(self, info: dict[str, Any]) -> None:
        super()._add_info(info)
        info["suspicious"] = []

    def _act(self, action: str) -> Outcome:
        if self.task.data["letter"] == "a":
            raise EnvironmentFault("broken", kind="test")
        return super()._act(action)


class MeasuredTeam(EchoTeam):
    """Sets a metric of its own."""

    async def run(self, task: object, context: WorkflowContext) -> Episode:
        context.metrics["agreement"] = 1.0
        return await super().run(task, context)


def documented() -> dict[str, re.Pattern[str]]:
    """Each metric of the page's tables, and the keys that it stands for."""
    names = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(names) == len(set(names)), "a metric is defined twice"
    return {name: re.compile("[^/]+".join(map(re.escape, re.split(r"<\w+>", name)))) for name in names}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The metrics of four runs which use everything that has metrics."""
    folder = tmp_path_factory.mktemp("metrics")
    model = {"path": str(folder / "tiny"), "tuning": "lora", "lora": {"rank": 4}}
    ppo = echo_config(
        folder,
        output=str(folder / "ppo"),
        steps=2,
        algorithm={"name": "ppo", "group_size": 2, "groups_per_step": 6},
        optimizer={"warmup_steps": 0},
        entropy={"bonus": 0.01, "target": 0.5},
        asynchrony={"steps_ahead": 1},
        validation={"every": 1, "greedy": True},
    )
    train(ppo, env=open_train_env(ppo.env, env=FaultyEnv))
    team = echo_config(
        folder,
        output=str(folder / "team"),
        steps=2,
        env={"agent": "test_metrics_page:MeasuredTeam"},
        model=model,
        roles={"solver": {"adapter": "own"}, "judge": {"adapter": "own"}},
        algorithm={"kl": 0.01, "group_size": 4, "groups_per_step": 2},
        entropy={"bonus": 0.01},
        validation={"every": 1, "samples": 1},
    )
    train(team)
    files = {name: folder / f"{name}.jsonl" for name in ("messages", "pairs")}
    rows = [
        {"user": {"role": "user", "content": f"say {n}"}, "good": {"role": "assistant", "content": f"yes {n}"},
         "bad": {"role": "assistant", "content": f"no {n}"}}
        for n in range(12)
    ]  # fmt: skip
    files["messages"].write_text("".join(json.dumps({"messages": [row["user"], row["good"]]}) + "\n" for row in rows))
    files["pairs"].write_text(
        "".join(
            json.dumps({"prompt": [row["user"]], "chosen": [row["good"]], "rejected": [row["bad"]]}) + "\n"
            for row in rows
        )
    )
    common: dict[str, Any] = {"model": model, "progress": False, "validation": {"fraction": 0.25, "every": 1}}
    sft(from_mapping(SftConfig, {
        **common, "output": str(folder / "sft"), "demonstrations": {"file": str(files["messages"])}, "steps": 2,
    }))  # fmt: skip
    dpo(from_mapping(DpoConfig, {
        **common, "output": str(folder / "dpo"), "preferences": {"file": str(files["pairs"])}, "steps": 2,
    }))  # fmt: skip
    return {key for name in ("ppo", "team", "sft", "dpo") for row in read_metrics(folder / name) for key in row}


def test_every_metric_of_a_run_is_defined(written: set[str]) -> None:
    patterns = documented().values()
    assert sorted(key for key in written if not any(pattern.fullmatch(key) for pattern in patterns)) == []


def test_every_defined_metric_is_written(written: set[str]) -> None:
    missing = {name for name, pattern in documented().items() if not any(map(pattern.fullmatch, written))}
    assert missing - WRITTEN_ON_A_GPU == set()


def test_every_metric_has_a_definition_and_a_unit() -> None:
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            _, name, definition, *_ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            assert definition, f"{name} is not defined"
