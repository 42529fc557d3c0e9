"""The `rllm-gym` command itself: help for new users, and one clear line for errors."""

from __future__ import annotations

import json
import subprocess
import sys

from commands.command_line import assert_brief_error, rllm_gym, rllm_gym_process

from rllm_gym.commands.extras import advice_for_missing, requirements
from rllm_gym.commands.main import COMMANDS


def test_without_arguments_the_commands_are_listed_with_descriptions() -> None:
    result = rllm_gym_process()
    assert result.returncode == 0
    for name in ("list", "play", "eval", "train", "sft", "report", "doctor", "new-env"):
        assert f"\n  {name} " in result.stdout


def test_the_package_can_be_run_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "rllm_gym", "lst"], capture_output=True, text=True, timeout=240)
    assert_brief_error(result, "unknown command 'lst'", "list")


def test_the_help_of_every_command_contains_an_example() -> None:
    for name in [*COMMANDS, "train", "sft"]:
        result = rllm_gym(name, "--help")
        assert result.returncode == 0, result.stderr
        assert f"usage: rllm-gym {name}" in result.stdout
        assert name == "doctor" or f"rllm-gym {name} " in result.stdout.split("usage:", 1)[1].split("\n", 1)[1], name


def test_help_needs_no_torch_and_is_quick() -> None:
    code = (
        "import sys, rllm_gym.commands.main as m; m.main(['--help']); m.main(['list']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=240)


def test_an_unknown_command_lists_the_available_ones() -> None:
    assert_brief_error(rllm_gym("lst"), "'lst'", "list", "play")


def test_a_missing_extra_is_named_with_the_install_command() -> None:
    assert advice_for_missing("torch") == "pip install 'rllm-gym[train]'"
    assert advice_for_missing("torch.nn") == "pip install 'rllm-gym[train]'"
    assert advice_for_missing("no_such_package_at_all") is None
    assert {requirement.extra for requirement in requirements()} >= {"", "train", "dev"}


def test_where_torch_is_not_installed_the_extra_is_named() -> None:
    commands = (["train"], ["sft"], ["eval", "rllm/FrozenLake-v0", "--model.path", "some/model"])
    # An import hook simulates a machine without torch; everything else is real.
    code = (
        "import contextlib, io, json, sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'peft'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from rllm_gym.commands.main import main\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "        try:\n"
        "            status = main(command)\n"
        "        except SystemExit as end:\n"
        "            status = end.code\n"
        "    print(json.dumps([status, said.getvalue()]))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    ends = [json.loads(line) for line in process.stdout.splitlines()]
    train, sft, evaluate = (subprocess.CompletedProcess(code, status, "", output) for status, output in ends)
    for result in (train, sft):
        # Invalid options are reported before torch is needed; either way it is one line.
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
    assert_brief_error(evaluate, "pip install 'rllm-gym[train]'")


def test_a_closed_output_pipe_is_not_an_error() -> None:
    script = f"{sys.executable} -m rllm_gym list --json | head -c 10"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, timeout=240)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr
