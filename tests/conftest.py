"""Shared by all tests: where the real data lies, and what it means when something is missing."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

# One thread: on busy machines torch's default thread count makes small operations ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Started in the background by a shell, this process ignores Ctrl-C, and so would every program the tests start: those
# that show what Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout."""
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked ``gpu`` out where there is no GPU: a machine without one lacks nothing."""
    if not any(item.get_closest_marker("gpu") for item in items) or _has_gpu():
        return
    without = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if not item.get_closest_marker("gpu")]


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
    # An expected failure is reported as skipped too, and lacks nothing.
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
