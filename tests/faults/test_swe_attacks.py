"""Attacks of an agent on a repository, and honest work, through ``rllm/SWE-v0``."""

from __future__ import annotations

import secrets
from pathlib import Path

import gymnasium as gym
import pytest
import swe_attacks
from attack_runs import graded

import rllm_gym  # noqa: F401 - registers the ids


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for path, text in swe_attacks.FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def _row(repository: Path, tests: dict[str, str], fails: list[str], passes: list[str], word: str = "") -> dict:
    return {
        "id": "pkg",
        "statement": "The package does not do what it should.",
        "repo": str(repository),
        "hidden_tests": {path: text.replace("<WORD>", word) for path, text in tests.items()},
        "fail_to_pass": fails,
        "pass_to_pass": passes,
    }


def _play(row: dict, command: str, seconds: float) -> tuple[float, dict]:
    env = gym.make("rllm/SWE-v0", tasks=[row], max_turns=4, grading_timeout=seconds)
    try:
        env.reset(seed=0, options={"task": row["id"]})
        _, _, terminated, truncated, _ = env.step(f"```bash\n{command}\n```")
        assert not terminated
        assert not truncated
        _, reward, terminated, _, info = env.step("```bash\nsubmit\n```")
        assert terminated
        return reward, info
    finally:
        env.close()


@pytest.mark.parametrize(
    "in_every_run", [True, pytest.param(False, marks=pytest.mark.long)], ids=["in every run", "the others"]
)
@pytest.mark.parametrize("kind", swe_attacks.ATTACKS)
def test_no_attack_on_a_repository_is_rewarded(kind, in_every_run, repository, tmp_path):
    attacks = swe_attacks.ATTACKS[kind]
    names = [name for name in attacks if (name in swe_attacks.IN_EVERY_RUN) is in_every_run]
    seconds = 3 if kind == "without end" and in_every_run else 8

    def scenario(name: str) -> tuple[float, bool, bool]:
        word, marker = f"word-{secrets.token_hex(16)}", tmp_path / f"run-on-the-host-{names.index(name)}"
        row = _row(repository, swe_attacks.SECRET_TESTS, swe_attacks.SECRET_FAILS, swe_attacks.SECRET_PASSES, word)
        reward, info = _play(row, attacks[name].replace("<MARKER>", str(marker)), seconds)
        return reward, info["success"], marker.exists()

    # Reward, success, and whether anything was run on the host.
    assert graded(names, scenario) == dict.fromkeys(names, (0, False, False))


def test_honest_work_on_a_repository_is_rewarded(repository):
    row = _row(repository, swe_attacks.HONEST_TESTS, swe_attacks.HONEST_FAILS, swe_attacks.HONEST_PASSES)
    found = graded(swe_attacks.HONEST, lambda name: _play(row, swe_attacks.HONEST[name], 300))
    assert not {name: output for name, output in found.items() if isinstance(output, Exception) or output[0] != 1}
    assert all(info["success"] is True for _, info in found.values()), found
