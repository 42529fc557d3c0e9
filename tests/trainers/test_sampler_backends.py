"""Sampler backends by name: one written outside the package, as the documentation shows it, trains from the command
line.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from echo_config import echo_config

from rllm_gym.samplers import SamplingParams, SamplingRequest
from trainers.config import ConfigError, TrainConfig, validate
from trainers.config.mapping import from_mapping
from trainers.config_loading import load_yaml, read_command_line, write_yaml
from trainers.model import Policy
from trainers.rollouts.sampler_factory import make_sampler, weights_for
from trainers.run.metrics import read_metrics
from trainers.sampler_backends import SAMPLER_BACKENDS, SamplerBackend, SamplerOptions

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "samplers.md"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module of the documentation, which can be imported."""
    (code,) = re.findall(r"^```python\n(# plain_sampler.py\n.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "plain_sampler.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plain_sampler", raising=False)
    return tmp_path


@pytest.mark.long
def test_a_backend_of_the_documentation_is_trained_from_the_command_line(outside: Path) -> None:
    """Each step samples with the weights of the step before: the learning rate is high, the difference is rounding."""
    config = echo_config(outside, steps=3, model={"tuning": "lora", "lora": {"rank": 4}}, optimizer={"lr": 0.05})
    write_yaml(outside / "echo.yaml", config)
    command = [sys.executable, "-m", "rllm_gym", "train", "--config", str(outside / "echo.yaml")]
    done = subprocess.run(
        [*command, "--sampler.backend", "plain_sampler:PLAIN", "--sampler.threads", "2"],
        cwd=outside,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in read_metrics(outside / "run") if row["step"]]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert min(row["optim/trained_tokens"] for row in rows) > 0
    assert max(row["sampling/logprob_difference/max"] for row in rows) < 1e-4
    entropies = [row["policy/entropy"] for row in rows]
    assert max(entropies) - min(entropies) > 1e-3, "the weights did not change"
    stored = load_yaml(TrainConfig, outside / "run" / "config.yaml").sampler  # what --resume reads
    assert (stored.backend, stored.threads) == ("plain_sampler:PLAIN", 2)


def test_its_replies_and_versions_are_those_of_the_built_in_sampler(outside: Path) -> None:
    from plain_sampler import PlainOptions  # type: ignore[import-not-found]

    config = echo_config(outside, sampler={"backend": "plain_sampler:PLAIN", "threads": 8})
    assert config.sampler == PlainOptions(backend="plain_sampler:PLAIN", threads=8)
    policy = Policy(config.model)
    requests = [SamplingRequest((5, 6, 7), SamplingParams(temperature=0.0, max_tokens=4), seed=seed) for seed in (1, 2)]

    async def scenario(config: TrainConfig) -> Any:
        sampler = make_sampler(policy, config)
        try:
            before = await sampler.sample(requests)
            (update,) = weights_for(policy, config)
            assert await sampler.sync_weights(update) == sampler.weight_version == 1
            return before + await sampler.sample(requests)
        finally:
            await sampler.close()

    ours = asyncio.run(scenario(config))
    theirs = asyncio.run(scenario(replace(config, sampler=SamplerOptions())))
    for own, reference in zip(ours, theirs, strict=True):
        assert replace(own, logprobs=()) == replace(reference, logprobs=())
        assert own.logprobs == pytest.approx(reference.logprobs, abs=1e-5)


def test_the_help_shows_the_options_of_the_chosen_backend(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for backend, option in (
        ("plain_sampler:PLAIN", "--sampler.threads"),
        ("vllm", "--sampler.engine-args"),
        ("openai", "--sampler.url"),
    ):
        with pytest.raises(SystemExit):
            read_command_line(TrainConfig, ["--sampler.backend", backend, "--help"], program="train", description="")
        shown = capsys.readouterr().out
        assert option in shown
        assert all(name in shown for name in SAMPLER_BACKENDS), "the help names every backend"


@dataclass(frozen=True)
class NoDefault(SamplerOptions):
    size: int = 0


def unusable(*args: Any) -> Any:
    raise AssertionError("no run starts here")


FULL_ONLY = SamplerBackend("full-only", SamplerOptions, unusable)
ADAPTERS = SamplerBackend("adapters", SamplerOptions, unusable, updates=("lora",))
OPTIONS_WITHOUT_DECORATOR = SamplerBackend("undecorated", type("Plain", (SamplerOptions,), {}), unusable)
LORA = {"path": "x", "tuning": "lora"}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"sampler": {"backend": "trl"}},
            "'trl' is not one of torch, vllm, vllm-server, openai; name a SamplerBackend",
        ),
        ({"sampler": {"backend": "trl"}}, "as my_module:MY_BACKEND"),
        ({"sampler": {"backend": 3}}, "sampler.backend=3"),
        ({"sampler": {"backend": "absent_module:X"}}, "cannot be imported"),
        ({"sampler": {"backend": f"{__name__}:LORA"}}, "has type dict, not trainers.sampler_backends.SamplerBackend"),
        ({"sampler": {"backend": f"{__name__}:OPTIONS_WITHOUT_DECORATOR"}}, "is not a dataclass: decorate it"),
        ({"sampler": {"backend": f"{__name__}:FULL_ONLY"}, "deterministic": True}, "use sampler.backend=torch"),
        ({"sampler": {"backend": f"{__name__}:ADAPTERS"}, "model": {**LORA, "tuning": "full"}}, "only load LoRA"),
        ({"sampler": {"backend": f"{__name__}:ADAPTERS"}, "model": {**LORA, "tuning": "qlora"}}, "only load LoRA"),
    ],
)
def test_what_a_backend_cannot_do_is_an_error_before_the_run(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        validate(from_mapping(TrainConfig, {"env": {"id": "x"}, "model": LORA, **sections}))


def test_adapters_that_a_backend_does_not_load_are_synced_merged(tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora": {"rank": 2}}
    policy = Policy(echo_config(tmp_path, model=lora).model)
    merging = {"backend": "vllm", "engine_args": {"enable_lora": False}}
    for sampler, expected in (
        ({"backend": "torch"}, ("lora", False)),
        ({"backend": "vllm"}, ("lora", True)),
        (merging, ("full", True)),
        ({"backend": f"{__name__}:FULL_ONLY"}, ("full", False)),
    ):
        config = from_mapping(TrainConfig, {"env": {"id": "x"}, "model": {"path": "x", **lora}, "sampler": sampler})
        validate(config)
        (update,) = weights_for(policy, config)
        assert (update.kind, update.probe is not None) == expected
