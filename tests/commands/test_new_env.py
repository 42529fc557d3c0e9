"""``rllm-gym new-env``: the written environment works immediately, and no existing file is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from parsing.checks import assert_all_raise

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.main import main as rllm_gym
from rllm_gym.commands.new_env import check_name, main


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # -P and no PYTHONPATH: only what a user's own shell would see.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_the_template_passes_its_own_test_in_a_fresh_process(tmp_path, capsys):
    assert rllm_gym(["new-env", "WordChain", "--dir", str(tmp_path)]) == 0
    folder = tmp_path / "word_chain"
    assert str(folder) in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "test_word_chain.py", "word_chain.py"]
    for path in folder.iterdir():
        text = path.read_text()
        assert "new_game" not in text.lower()
        assert "NewGame" not in text
    for cwd in (folder, tmp_path):
        result = run(sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(folder), cwd=cwd)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "4 passed" in result.stdout
        assert "fulfils the contract" in result.stdout
        assert "0 failed, 0 skipped" in result.stdout  # no torch in this process either


def test_the_written_code_is_clean(tmp_path):
    main(["tidy_game", "--dir", str(tmp_path)])
    root = Path(__file__).resolve().parents[2]
    for arguments in (["check", "--isolated", "--line-length", "120"], ["format", "--check", "--line-length", "120"]):
        result = run(sys.executable, "-m", "ruff", *arguments, str(tmp_path / "tidy_game"), cwd=root)
        assert result.returncode == 0, result.stdout + result.stderr


def test_the_environment_is_made_with_the_module_prefix_and_played_from_the_command_line(tmp_path):
    main(["number_hunt", "--dir", str(tmp_path)])
    folder = tmp_path / "number_hunt"
    code = (
        "import gymnasium; env = gymnasium.make('number_hunt:NumberHunt-v0', split='test');"
        "print(env.reset(seed=0)[0]); print(env.step('```1```')[0])"
    )
    result = run(sys.executable, "-c", code, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "Find a number from 1 to" in result.stdout
    assert "higher" in result.stdout or "found" in result.stdout
    command = Path(sys.executable).with_name("rllm-gym")
    result = subprocess.run(
        [command, "play", "number_hunt:NumberHunt-v0"],
        cwd=folder,
        input="1\n2\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Find a number from 1 to" in result.stdout


def test_nothing_is_ever_overwritten(tmp_path, capsys):
    assert rllm_gym(["new-env", "mine", "--dir", str(tmp_path)]) == 0
    changed = tmp_path / "mine" / "mine.py"
    changed.write_text("my work")
    assert rllm_gym(["new-env", "mine", "--dir", str(tmp_path)]) == 2
    assert changed.read_text() == "my work"
    assert "already exists" in capsys.readouterr().err
    (tmp_path / "a_file").write_text("mine too")
    assert rllm_gym(["new-env", "a_file", "--dir", str(tmp_path)]) == 2
    assert (tmp_path / "a_file").read_text() == "mine too"


def test_a_name_that_cannot_be_a_module_is_refused_with_a_reason():
    names = [
        *("", "1st", "../up", "a/b", "a b", "a.b", "_x", "x_", "a__b", "ünder", "a\n", "--", "$(x)", "$HOME", "x" * 41),
        *("class", "match", "json", "numpy", "test_me", "rllm_gym"),
    ]
    assert_all_raise(CommandError, check_name, [(name, r"\A[^\n]+\Z") for name in names])


def test_a_missing_folder_is_an_error_that_names_it(tmp_path, capsys):
    assert rllm_gym(["new-env", "fine", "--dir", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
