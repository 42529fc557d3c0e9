"""Options and fixtures of all tests: the folder of real data, ``--require=all`` and ``--part=K/N``."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

# One thread: on busy machines torch's default thread count makes small operations ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Started in the background by a shell, this process ignores Ctrl-C, and so would every program that the tests start:
# tests of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis"):  # not in every environment of tests/integrations
    from hypothesis import HealthCheck, settings

    # Hypothesis measures both in wall-clock time, which a busy machine stretches.
    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    # The same examples in every run, so that a check of a change does not fail on a rare example that is not its fault;
    # `make test-long` searches for those (--hypothesis-profile=random).
    settings.register_profile("suite", settings.get_profile("random"), derandomize=True)
    settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data sets beside the checkout; skip the test where it does not exist."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} does not exist")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        choices=["all"],
        default=None,
        help="all: a test that skips because something is missing fails instead (make test REQUIRE=all)",
    )
    parser.addoption(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="K/N",
        help="run only every N-th selected test, beginning with the K-th: N runs with K = 1..N are all of them",
    )


def _part(text: str) -> tuple[int, int]:
    """Return ``(K, N)`` of ``"K/N"``.

    Raises:
        ArgumentTypeError: It is not two integers with 1 <= K <= N.
    """
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"--part={text} is not K/N with whole numbers 1 <= K <= N, for example 2/5")
    return int(number), int(parts)


@pytest.hookimpl(trylast=True)  # after pytest's own, which applies -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked ``gpu`` where there is no GPU, and those of other parts (``--part``)."""
    gpu = any(item.get_closest_marker("gpu") for item in items) and not _has_gpu()
    runnable = [item for item in items if not (gpu and item.get_closest_marker("gpu"))]
    number, parts = config.getoption("--part")
    # Neighboring tests are often cases of one test, so they are spread evenly over the parts. Those that share a vLLM
    # server, which takes most of a minute to start, are in one part.
    groups: dict[object, list[pytest.Item]] = {}
    for item in runnable:
        groups.setdefault("vLLM" if "vllm_shared" in getattr(item, "fixturenames", ()) else item, []).append(item)
    chosen = {item for group in list(groups.values())[number - 1 :: parts] for item in group}
    selected = [item for item in runnable if item in chosen]
    if len(selected) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = selected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(collector.config, report)
    return report


def _fail_if_skipped(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is also reported as skipped, but lacks nothing.
    if config.getoption("--require") != "all" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"REQUIRE=all, and this was skipped: {reason.removeprefix('Skipped: ')}"


def _has_gpu() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())
