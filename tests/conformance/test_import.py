"""``import rllm_gym`` takes less than half a second and imports no heavy library."""

from __future__ import annotations

import statistics
import subprocess
import sys

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "pandas",
    "pyarrow",
    "sympy",
    "math_verify",
    "PIL",
    "peft",
    "trainers",
    "mpmath",
)
SERVERS_AND_SITES = ("mcp", "pydantic", "rllm_gym.envs.web.sites.shop")
GAMES = tuple(
    f"rllm_gym.multiagent.{game}" for game in ("tic_tac_toe", "connect_four", "debate", "lake_duo", "negotiation")
)
MODULES = (
    *("rllm_gym.data", "rllm_gym.envs.frozen_lake", "rllm_gym.testing", "rllm_gym.grading"),
    *("rllm_gym.envs.mcp.domains", "rllm_gym.envs.web.sites"),
    *("rllm_gym.chat", "rllm_gym.samplers", "rllm_gym.agents", "rllm_gym.engine", "rllm_gym.compat"),
)


def fresh_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_takes_less_than_half_a_second():
    # Processor time, so that a busy machine does not count; the median, so that a cold disk does not either.
    code = "import time; begin = time.process_time(); import rllm_gym; print(time.process_time() - begin)"
    seconds = [float(fresh_python(code)) for _ in range(3)]
    assert statistics.median(seconds) < 0.5, seconds


def test_import_loads_no_heavy_library_and_no_environment_that_is_not_used():
    code = f"""
import importlib, sys
import rllm_gym
assert not [name for name in sys.modules if name.startswith({GAMES})]
for module in {MODULES}:
    importlib.import_module(module)
    print(module, [name for name in {(*HEAVY, *SERVERS_AND_SITES)} if name in sys.modules])
assert len(rllm_gym.envs.web.sites.TEMPLATES) >= 40
"""
    assert [line for line in fresh_python(code).splitlines() if not line.endswith(" []")] == []


def test_import_does_not_change_the_process():
    code = """
import random, sys, signal, threading, warnings
state, handlers, filters = random.getstate(), signal.getsignal(signal.SIGINT), list(warnings.filters)
import rllm_gym
assert random.getstate() == state
assert signal.getsignal(signal.SIGINT) is handlers
assert threading.active_count() == 1
assert "multiprocessing.resource_tracker" not in sys.modules
"""
    fresh_python(code)


def test_importing_twice_registers_once():
    code = """
import importlib, gymnasium, rllm_gym
from rllm_gym import envs, multiagent
importlib.reload(envs)
importlib.reload(multiagent)
print(sum(name.startswith("rllm/") for name in gymnasium.registry) == len({**envs.ALL, **multiagent.GAMES}))
"""
    assert fresh_python(code).strip() == "True"
