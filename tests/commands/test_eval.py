"""`rllm-gym eval`: printed numbers equal those of the episodes, and an error is one clear line."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import gymnasium
import huggingface_hub
import pytest
from commands.command_line import assert_brief_error, only_result, rllm_gym, rllm_gym_process

from rllm_gym.engine import compute_pass_at_k, load_episodes

LAKE = "rllm/FrozenLake-v0"


@pytest.fixture
def replies(tmp_path: Path) -> Path:
    file = tmp_path / "replies.txt"
    file.write_text("right\ndown\n")
    return file


def test_pass_at_1_and_n_are_printed_with_intervals_and_agree_with_the_saved_episodes(
    tmp_path: Path, replies: Path
) -> None:
    output = tmp_path / "run" / "episodes.jsonl"
    command = (
        "eval",
        LAKE,
        "--model.path",
        f"scripted:{replies}",
        "--samples",
        "4",
        "--limit",
        "20",
        "-k",
        "slip_probability=0.2",
    )
    result = rllm_gym_process(*command, "--output", str(output), "--json")
    assert result.returncode == 0, result.stderr
    report = only_result(result.stdout)
    episodes = list(load_episodes(output))
    assert len(episodes) == report["episodes"] == 80
    for k, estimate in compute_pass_at_k(episodes, [1, 2, 4]).items():
        assert report["pass"][str(k)]["value"] == pytest.approx(estimate.value)
        assert report["pass"][str(k)]["low"] <= estimate.value <= report["pass"][str(k)]["high"]
    assert sum(report["stop_reasons"].values()) == 80
    assert {episode.task_id.split("/")[1] for episode in episodes} == {"test"}
    # Each episode of a task has its own dynamics, and the order is that of the tasks.
    assert len({episode.seed for episode in episodes}) == 80
    assert [episode.group_id for episode in episodes] == [str(index // 4) for index in range(80)]
    assert json.loads(output.with_suffix(".manifest.json").read_text())["config"]["samples"] == 4

    again = only_result(rllm_gym(*command, "--json").stdout)
    assert again["pass"] == report["pass"]

    shown = rllm_gym(*command).stdout
    for word in ("pass@1", "pass@4", "95% CI", "stop reasons", "faults: none"):
        assert word in shown


@pytest.mark.parametrize("env_id", ["rllm/MathMultiTurn-v0", "rllm/CodeMultiTurn-v0"])
def test_the_tasks_are_those_of_the_split(env_id: str, tmp_path: Path, replies: Path) -> None:
    """The test split by default, also where the constructor passes ``split`` on to its parent."""
    output = tmp_path / "episodes.jsonl"
    command = ("eval", env_id, "--model.path", f"scripted:{replies}", "--limit", "3", "--output", str(output))
    for options, split in (((), "test"), (("--split", "train"), "train"), (("-k", "split=validation"), "validation")):
        result = rllm_gym(*command, *options)
        assert result.returncode == 0, result.stderr
        env: Any = gymnasium.make(env_id, split=split)
        expected = [env.unwrapped.tasks[index].task_id for index in range(3)]
        env.close()
        assert [episode.task_id for episode in load_episodes(output)] == expected, split
        assert f"{split} split" in result.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    from trainers.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an adapter of the tiny model that changes its replies."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapter") / "solver"
    lora = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), lora).save_pretrained(folder)
    return folder


def test_a_model_from_a_folder_and_as_an_adapter(tiny: Path, adapter: Path) -> None:
    command = (
        "eval",
        LAKE,
        "--limit",
        "4",
        "--samples",
        "2",
        "--sampling.max-tokens",
        "8",
        "--system-prompt",
        "",
        "--json",
    )
    report = only_result(rllm_gym(*command, "--model.path", str(tiny)).stdout)
    assert report["episodes"] == 8
    assert report["sampled_tokens"] > 0
    assert report["tokens_per_second"] > 0

    result = rllm_gym(*command, "--model.path", str(adapter))
    assert result.returncode == 0, result.stderr
    assert only_result(result.stdout)["episodes"] == 8


def test_a_mistyped_model_is_reported_at_once_without_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Path
) -> None:
    """transformers and PEFT take it for an id on the hub, which they look up six times in half a minute."""
    look_ups = []

    def no_network(host: str, *arguments: Any, **options: Any) -> Any:
        look_ups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    output = str(tmp_path / "run")
    for command in (
        ["eval", LAKE, "--model.path", "mistyped"],
        ["train", "--env.id", LAKE, "--model.path", "mistyped", "--output", output],
        ["merge", "mistyped", "--output", f"{output}/merged"],
    ):
        assert_brief_error(rllm_gym(*command), "no such folder: 'mistyped'", "hub cannot be asked")
    assert len(look_ups) < 6  # one each, and one of huggingface_hub in each process
    result = rllm_gym("eval", LAKE, "--model.path", str(tiny), "--limit", "1", "--sampling.max-tokens", "2")
    assert result.returncode == 0, result.stderr


def test_the_help_has_one_percent_sign() -> None:
    assert "with 95%\nconfidence" in rllm_gym("eval", "--help").stdout


def test_if_every_episode_is_dropped_there_is_no_success_rate(tmp_path: Path, replies: Path) -> None:
    (tmp_path / "server_is_gone.py").write_text(
        "import gymnasium\n"
        "from rllm_gym.core import EnvironmentFault, Task, TextEnv\n"
        "from rllm_gym.data import Taskset\n"
        "class Broken(TextEnv):\n"
        "    def __init__(self, **kwargs):\n"
        "        super().__init__(tasks=Taskset.from_rows([Task('a', 'a'), Task('b', 'b')]), max_turns=2, **kwargs)\n"
        "    def _begin(self, task):\n"
        "        return task.content\n"
        "    def _act(self, action):\n"
        "        raise EnvironmentFault('the server is gone', kind='server_gone')\n"
        "gymnasium.register('test/Broken-v0', entry_point='server_is_gone:Broken')\n"
    )
    command = ("eval", "server_is_gone:test/Broken-v0", "--model.path", f"scripted:{replies}")
    assert "the environment has no splits" in rllm_gym(*command, cwd=tmp_path).stdout
    result = rllm_gym(*command, "--json", cwd=tmp_path)
    assert result.returncode != 0, "there is no success rate"
    assert "all 2 episodes were dropped; the first one: fault" in result.stderr
    report = only_result(result.stdout)
    assert report["split"] is None
    assert report["dropped"] == 2
    assert report["faults"]["server_gone"] >= 2
    assert report["pass"] == {}


def test_invalid_arguments_are_one_line_errors(replies: Path) -> None:
    cases = [
        (["--model.path", "/no/such/folder"], ["/no/such/folder"]),
        (["--model", "hub/model"], ["did you mean --model.path?"]),
        (
            [
                "--model.path",
                "x",
                "--agent-kwargs=x",
                "--otuput",
                "x",
                "--base-url",
                "http://x",
                "--n",
                "3",
            ],
            [
                "--agent-kwargs=x is not an option; did you mean --agent-kwarg?",
                "did you mean --url?",
                "did you mean --samples?",
                "--output?",
            ],
        ),
        (["--model.path", "x", "--limit", "none"], ["--limit", "'none' is not a positive integer", "--help"]),
        (["--model.path", "hub/model", "--dtype", "bfloat16"], ["did you mean --model.dtype?"]),
        (["--model.path", "scripted:/no/such/file"], ["/no/such/file"]),
        (["--model.path", "scripted:{replies}", "--sampling.temperature", "0", "--samples", "4"], ["temperature 0"]),
        (["--model.path", "scripted:{replies}", "--sampling.temperature", "-1"], ["temperature"]),
        (["--model.path", "scripted:{replies}", "--agent", "nowhere:Agent"], ["nowhere:Agent"]),
        (["--model.path", "scripted:{replies}", "--agent-kwarg", "colour=red"], ["colour"]),
        (["--model.path", "scripted:{replies}", "-k", "split=train", "--split", "test"], ["conflicts"]),
        (["--model.path", "scripted:{replies}", "-k", "slip_probability=2"], ["slip_probability"]),
        (["--model.path", ".", "--model.device", "cuda:99"], ["--model.device cuda:99", "auto"]),
        (["--model.path", "scripted:{replies}", "--output", "{replies}"], ["--output", "is not a directory"]),
        (["--model.path", "scripted:{replies}", "--price", "1", "x"], ["--price", "'x' is not a price"]),
        (["--model.path", "x", "--tasks", "8", "--seeds", "1"], ["did you mean --limit?", "did you mean --seed?"]),
        (
            ["--model.path", "x", "--env.kwargs.size", "8", "--env.max_turns=3", "--env.agent-kwargs.colour=red"],
            [
                "--env.kwargs.size is not an option; did you mean --kwarg NAME=VALUE",
                "--env.max-turns=3 is not an option; did you mean --max-turns?",
                "did you mean --agent-kwarg NAME=VALUE?",
            ],
        ),
    ]
    # Torch and transformers are imported here: they must not print anything either.
    assert_brief_error(rllm_gym_process("eval", LAKE, *cases[0][0]), *cases[0][1])
    for arguments, words in cases:
        filled = [argument.format(replies=replies) for argument in arguments]
        assert_brief_error(rllm_gym("eval", LAKE, *filled), *words)


WORKFLOWS = "rllm_gym.engine.workflows"


def test_a_workflow_is_evaluated_by_role(tmp_path: Path) -> None:
    replies = tmp_path / "one.txt"
    replies.write_text("\\boxed{1}\n")
    command = ("eval", "--model.path", f"scripted:{replies}", "--limit", "3", "--json")
    judged = ("rllm/Math-v0", "--agent", f"{WORKFLOWS}:SolverJudge", "--agent-kwarg", "solvers=2")
    result = rllm_gym(*command, *judged, "--output", str(tmp_path / "episodes.jsonl"))
    assert result.returncode == 0, result.stderr
    report, episodes = only_result(result.stdout), list(load_episodes(tmp_path / "episodes.jsonl"))
    assert report["mean_turns"] == 3
    assert report["workflow"]["judge_valid"] == 1.0
    for role, names in (("solver", {"solver_0", "solver_1"}), ("judge", {"judge_0"})):
        rewards = [item.reward for episode in episodes for item in episode.trajectories if item.role == role]
        assert {item.name for item in episodes[0].trajectories if item.role == role} == names
        assert report["reward_by_role"][role] == pytest.approx(sum(rewards) / len(rewards))

    result = rllm_gym(*command[:-1], "rllm/TicTacToe-v0", "--agent", f"{WORKFLOWS}:SelfPlay")
    assert result.returncode == 0, result.stderr
    for word in ("mean reward (player)", "player_success", "3 tasks"):
        assert word in result.stdout


def test_a_game_is_evaluated_against_an_opponent(tmp_path: Path) -> None:
    (tmp_path / "squares.txt").write_text("\n".join("519283746"))
    command = (
        "eval",
        "rllm/TicTacToe-v0",
        "--model.path",
        f"scripted:{tmp_path}/squares.txt",
        "--limit",
        "12",
        "--json",
    )
    easy, hard = (only_result(rllm_gym(*command, "-k", f"opponent={name}").stdout) for name in ("random", "oracle"))
    assert easy["faults"] == hard["faults"] == {}
    assert easy["split"] == "test"
    assert easy["mean_reward"]["value"] > hard["mean_reward"]["value"]
    assert_brief_error(rllm_gym(*command, "-k", "opponent=me"), "opponents random, oracle")


def test_each_role_can_use_its_own_adapter(tmp_path: Path, tiny: Path, adapter: Path) -> None:
    command = ("eval", "rllm/Math-v0", "--agent", f"{WORKFLOWS}:SolverJudge", "--agent-kwarg", "solvers=1")
    command += ("--limit", "2", "--sampling.temperature", "0", "--sampling.max-tokens", "6", "--json")
    text = {}
    for name, options in (("base", ()), ("adapted", ("--role", f"solver={adapter}"))):
        output = tmp_path / f"{name}.jsonl"
        result = rllm_gym(*command, "--model.path", str(tiny), *options, "--output", str(output))
        assert result.returncode == 0, result.stderr
        text[name] = [
            {item.role: item.steps[0].tokens.ids for item in episode.trajectories} for episode in load_episodes(output)
        ]
    assert all(one["solver"] != other["solver"] for one, other in zip(text["base"], text["adapted"], strict=True))

    result = rllm_gym(*command, "--model.path", str(adapter), "--role", f"judge={adapter}")
    assert_brief_error(result, "--role requires the base", str(adapter))
    result = rllm_gym(*command, "--model.path", str(tiny), "--role", f"judge={tiny}")
    assert_brief_error(result, "--role", "contains no readable adapter", str(tiny))


def test_options_that_a_workflow_does_not_support_are_one_line_errors(replies: Path) -> None:
    cases = [
        (["rllm/Math-v0", "--role", "judge=folder"], ["--role judge", "is a single agent"]),
        (["rllm/Math-v0", "--agent", f"{WORKFLOWS}:Nobody"], ["Nobody", "write module:name"]),
        (["rllm/Math-v0", "--agent", f"{WORKFLOWS}:SolverJudge", "--agent-kwarg", "size=1"], ["invalid", "size"]),
        (["rllm/Math-v0", "--agent", "json:loads"], ["invalid arguments"]),
        (["rllm/Math-v0", "--agent", "builtins:dict"], ["creates a dict", "rllm_gym.engine.Workflow"]),
        (["rllm/Math-v0", "--agent", f"{WORKFLOWS}:SolverJudge", "--role", "jugde=x"], ["roles", "solver, judge"]),
        (
            ["rllm/Math-v0", "--agent", f"{WORKFLOWS}:SolverJudge", "--role", "judge=x"],
            ["requires a local --model.path"],
        ),
        (["classic/tictactoe-v3"], ["game of several agents", "SelfPlay"]),
    ]
    for options, words in cases:
        assert_brief_error(rllm_gym("eval", *options, "--model.path", f"scripted:{replies}"), *words)
