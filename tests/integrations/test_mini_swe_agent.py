"""mini-swe-agent, unmodified, works on the built-in repositories and is trained on: its commands run in the sandbox."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minisweagent", reason="mini-swe-agent is not installed")
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.core import StopReason, Task
from rllm_gym.engine import AgentWorkflowEngine, load_episodes
from rllm_gym.engine.workflows import AgentProgram
from rllm_gym.envs.swe.repositories import gold_patch, swe_tasks
from rllm_gym.envs.swe.rows import read_task
from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, ScriptedSampler, TorchSampler
from tests.chat.templates import make_tokenizer
from trainers.config import TrainConfig
from trainers.config.mapping import from_mapping
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

torch.set_num_threads(1)

COMMAND = [
    *("env", "MSWEA_CONFIGURED=true", "MSWEA_COST_TRACKING=ignore_errors", "MSWEA_GLOBAL_CONFIG_DIR={folder}"),
    *(str(Path(sys.executable).with_name("mini")), "--task", "{observation}", "--model", "openai/any", "--yolo"),
    *("--output", "{folder}/trajectory.json", "--config", "mini.yaml", "--config", "agent.agent_class=default"),
    *("--environment-class", "rllm_gym.integrations.mini_swe_agent.SandboxEnvironment"),
]
TIMEOUT = 1_800.0
LOOK = "ls; echo pager: $PAGER; exit 3"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FORGE = """cat <<'END' > conftest.py
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    (yield).get_result().outcome = "passed"
END"""


def small_tasks() -> list[Task]:
    """Return tasks whose solution changes lines of one file, after its first one."""
    return [task for task in swe_tasks(split="train", size=40) if solution(task)]


def solution(task: Task) -> str:
    """Return a command with the reference solution, as mini-swe-agent's prompt shows such commands; "" for others."""
    (path, text), *more = gold_patch(task).items()
    before = (read_task(task, {}).checkout(None).path / path).read_text().splitlines()
    changed = [
        each for each in difflib.SequenceMatcher(a=before, b=text.splitlines()).get_opcodes() if each[0] == "replace"
    ]
    if more or len(changed) != 1 or not changed[0][1]:
        return ""
    _, first, last, begin, end = changed[0]
    lines = "\n".join(text.splitlines()[begin:end])
    return f"sed -i -e '{first}r /dev/stdin' -e '{first + 1},{last}d' {path} <<'END'\n{lines}\nEND"


def reply(command: str) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"I run a command.\n<tool_call>\n{call}\n</tool_call>"


def turn(request: SamplingRequest) -> int:
    return sum(message["role"] == "assistant" for message in request.messages)


def test_its_work_is_graded_by_the_environment_and_its_tokens_are_those_that_were_sampled() -> None:
    solved, untouched, forged, unfinished = tasks = small_tasks()[:4]
    scripts = {
        solved.content: [LOOK, solution(solved), SUBMIT],
        untouched.content: [LOOK, "true", f"git diff > patch.txt; {SUBMIT} && cat patch.txt"],
        forged.content: [LOOK, FORGE, SUBMIT],
        unfinished.content: [LOOK, solution(unfinished), "git status", "git diff"],
    }

    def play(request: SamplingRequest) -> str:
        prompt = next(message["content"] for message in request.messages if message["role"] == "user")
        (script,) = (script for statement, script in scripts.items() if statement.strip() in prompt)
        return reply(script[turn(request)])

    tokenizer = make_tokenizer("qwen2.5")
    engine = AgentWorkflowEngine(
        AgentProgram(COMMAND, timeout=TIMEOUT),
        env="rllm/SWE-v0",
        env_kwargs={"max_turns": 4},
        sampler=ScriptedSampler(play, tokenizer),
        sampling_params=SamplingParams(max_tokens=4096),
        n_parallel=2,
    )
    episodes = engine.run_sync([task.task_id for task in tasks])
    assert [(episode.fault, episode.metrics) for episode in episodes] == [(None, {"program_failed": 0.0})] * 4
    assert [(episode.reward, episode.stop_reason) for episode in episodes] == [
        (1.0, StopReason.SUCCESS),
        (0.0, StopReason.FAILURE),
        (0.0, StopReason.FAILURE),
        (0.0, StopReason.MAX_TURNS),  # it did not submit: the environment's own rule
    ]
    assert "conftest.py" in str(episodes[2].trajectories[0].steps[-1].info["dropped_changes"])
    for task, episode in zip(tasks, episodes, strict=True):
        (trajectory,) = episode.trajectories
        assert len(trajectory.branches()) == 1
        assert [tokenizer.decode(step.tokens.ids) for step in trajectory.steps] == [
            reply(command) + tokenizer.eos_token for command in scripts[task.content]
        ]
        first, second, *_ = (tokenizer.decode(step.tokens.context_ids) for step in trajectory.steps)
        assert task.content.strip() in first
        assert '"returncode": 3' in second
        assert "pager: cat" in second
    third = tokenizer.decode(episodes[1].trajectories[0].steps[2].tokens.context_ids)
    assert "There was no output" not in third, "that is no output of the command"


class ScriptedModel(TorchSampler):
    """Replies by a script, with the log-probs of the model: no model that could write them is small enough here."""

    def use(self, scripts: Sequence[Sequence[str]]) -> None:
        self._scripts = cycle(scripts)
        self._of: dict[str, Sequence[str]] = {}

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        return [self._reply(request) for request in requests]

    def _reply(self, request: SamplingRequest) -> Completion:
        if request.conversation not in self._of:
            self._of[request.conversation] = next(self._scripts)
        text = reply(self._of[request.conversation][turn(request)])
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        with torch.no_grad():
            logits = self.model(torch.tensor([[*request.ids, *ids]])).logits[0, len(request.ids) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        return Completion(tuple(ids), tuple(logprobs.tolist()), text)


def test_grpo_trains_on_its_episodes(tmp_path: Path) -> None:
    task = small_tasks()[0]
    commands = [solution(task), "true"]
    model = make_tiny_model(
        tmp_path / "tiny",
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        corpus=map(reply, commands),
        max_position_embeddings=16_384,
    )
    config: dict[str, Any] = {
        "output": str(tmp_path / "run"),
        "steps": 1,
        "progress": False,
        "env": {
            "id": "rllm/SWE-v0",
            "kwargs": {"tasks": [task.to_json()]},
            "agent": "rllm_gym.engine.workflows:AgentProgram",
            "agent_kwargs": {"command": COMMAND, "timeout": TIMEOUT},
        },
        "model": {"path": str(model), "tuning": "full"},
        "sampling": {"max_tokens": 4096},
        "algorithm": {"group_size": 2, "groups_per_step": 1},
        "optimizer": {"lr": 0.003, "warmup_steps": 0},
        "validation": None,
        "save_episodes_every": 1,
    }
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    sampler = ScriptedModel(loaded, AutoTokenizer.from_pretrained(model))
    sampler.use([[command, SUBMIT] for command in commands])
    train(from_mapping(TrainConfig, config), sampler=sampler)
    (row,) = read_metrics(tmp_path / "run")
    assert (row["reward/mean"], row["workflow/program_failed"]) == (0.5, 0.0)
    assert row["sampling/logprob_difference/max"] == pytest.approx(0.0, abs=1e-3)
    episodes = load_episodes(tmp_path / "run" / "episodes" / "train-000001.jsonl")
    steps = [step for episode in episodes for step in episode.trajectories[0].steps]
    assert row["optim/trained_tokens"] == sum(len(step.tokens.ids) for step in steps)
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "run" / "model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)
