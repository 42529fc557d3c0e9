"""Two processes that fine-tune together are one run: same losses, same model, one log."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from trainers.run.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]

BOTH = """
import json, sys
from pathlib import Path
from trainers import DpoConfig, SftConfig
from trainers.config import DemonstrationConfig, HeldOutConfig, ModelConfig
from trainers.config import OptimizerConfig, PreferenceConfig, TinyConfig
from trainers.fine_tuning.dpo import dpo
from trainers.fine_tuning.sft import sft

folder = Path(sys.argv[1])
adam = OptimizerConfig(lr=1e-3, warmup_steps=0)
held_out = HeldOutConfig(fraction=0.25, every=2)
tiny = TinyConfig(enabled=True, vocab_size=300, hidden_size=32, num_heads=1, num_layers=1)
base = sft(
    SftConfig(
        str(folder / "sft"), steps=3, tiny=tiny, optimizer=adam, validation=held_out, progress=False,
        demonstrations=DemonstrationConfig("chats.jsonl"), demonstrations_per_step=5,
    )
)
dpo(
    DpoConfig(
        str(folder / "dpo"), steps=3, pairs_per_step=3, optimizer=adam, validation=held_out, progress=False,
        model=ModelConfig(str(base.model), tuning="full"), preferences=PreferenceConfig("pairs.jsonl"),
    )
)
"""


def test_two_processes_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [{"prompt": f"{n}: say it", "completion": "yes " * (1 + n % 5)} for n in range(16)]
    pairs = [{"prompt": f"{n}: say it", "chosen": "yes " * (1 + n % 3), "rejected": "no"} for n in range(16)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "both.py").write_text(BOTH)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        here.setattr(sys, "argv", ["both.py", "one"])
        runpy.run_path("both.py")
    ended = subprocess.run(
        [sys.executable, *torchrun, "both.py", "two"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for kind in ("sft", "dpo"):
        alone, together = read_metrics(tmp_path / "one" / kind), read_metrics(tmp_path / "two" / kind)
        assert [row["step"] for row in together] == [0, 1, 2, 3]
        for row, other in zip(alone, together, strict=True):
            numbers = [key for key in row if key in ("loss", "entropy", "grad_norm", "trained_tokens")]
            numbers += [key for key in row if key.startswith(("validation/", "rewards/", "logps/"))]
            for key in numbers:
                assert other[key] == pytest.approx(row[key], rel=1e-4, abs=1e-5), (kind, row["step"], key)
        weights = [load_file(tmp_path / name / kind / "model" / "model.safetensors") for name in ("one", "two")]
        for key in weights[0]:
            # Adam divides by the size of a gradient: where that is next to nothing, its last bits are all there is.
            assert_close(weights[0][key], weights[1][key], rtol=1e-4, atol=2e-4)
