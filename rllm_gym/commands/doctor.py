"""``rllm-gym doctor``: report what is installed on this machine, what is missing for which purpose, and the fix."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import gymnasium
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rllm_gym import __version__
from rllm_gym.commands.extras import DEVELOPER_EXTRAS, Requirement, requirements
from rllm_gym.commands.terminal import visible
from rllm_gym.core import EnvironmentFault
from rllm_gym.envs import TABLE
from rllm_gym.envs.web.browser.errors import BrowserFault
from rllm_gym.envs.web.browser.executable import INSTALL, find_chromium
from rllm_gym.sandbox import probe
from rllm_gym.sandbox.tier import Tier

Status = Literal["ok", "note", "missing", "broken"]
_STYLES: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("•", "yellow"),
    "missing": ("–", "yellow"),
    "broken": ("✗", "bold red"),
}
_LOW_MEMORY_GIB = 4.0
_LOW_DISK_GIB = 2.0


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the report. ``fix`` is a command or an instruction; ``""`` if nothing is needed."""

    subject: str
    status: Status
    detail: str
    fix: str = ""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rllm-gym doctor",
        description="Check the installation: list what is installed and what is missing for which feature, and "
        "suggest fixes. The exit status is 0 if every installed component works, 1 if one is broken.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of findings")
    options = parser.parse_args(argv)
    findings = run_checks()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    return 1 if any(finding.status == "broken" for finding in findings) else 0


def run_checks() -> list[DoctorFinding]:
    """Run all checks, in the order of the report."""
    return [
        _python(),
        DoctorFinding("rllm-gym", "ok", f"{__version__} in {Path(__file__).resolve().parent.parent}"),
        _processors(),
        _memory(),
        _disk(),
        *_extras(),
        *_torch(),
        *_sandbox(),
        _node(),
        *_environments(),
    ]


def _print(findings: list[DoctorFinding]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for finding in findings:
        mark, style = _STYLES[finding.status]
        detail = Text(visible(finding.detail))
        if finding.fix:
            detail.append(f"\n→ {visible(finding.fix)}", style="cyan")
        table.add_row(Text(mark, style=style), finding.subject, detail)
    Console().print(table)


def _python() -> DoctorFinding:
    detail = f"{platform.python_version()} ({sys.executable}) on {platform.platform(terse=True)} {platform.machine()}"
    if sys.prefix == sys.base_prefix:
        return DoctorFinding("python", "note", detail, "use a virtual environment: python3 -m venv .venv")
    return DoctorFinding("python", "ok", detail)


def _processors() -> DoctorFinding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    threads = os.environ.get("OMP_NUM_THREADS", "")
    detail = f"{usable} available, load {load:.1f}, OMP_NUM_THREADS={threads or 'not set'}"
    if load > usable and threads != "1":
        return DoctorFinding(
            "processors",
            "note",
            f"{detail}: busy",
            "export OMP_NUM_THREADS=1 (otherwise torch is up to 10 times slower)",
        )
    return DoctorFinding("processors", "ok", detail)


def _memory() -> DoctorFinding:
    available = _available_memory_gib()
    if available is None:
        return DoctorFinding("memory", "note", "cannot be read on this system")
    detail = f"{available:.1f} GiB available"
    if available < _LOW_MEMORY_GIB:
        return DoctorFinding(
            "memory",
            "note",
            detail,
            f"training needs about {_LOW_MEMORY_GIB:.0f} GiB: free memory or use a smaller model",
        )
    return DoctorFinding("memory", "ok", detail)


def _available_memory_gib() -> float | None:
    """Return the smaller of the kernel's and the control group's available memory."""
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        available = min(available, limit - used)
    except (OSError, ValueError):
        pass  # no control group, or "max": no limit
    return available / 2**30


def _disk() -> DoctorFinding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    detail = f"{free:.0f} GiB free in {Path.cwd()}"
    if free < _LOW_DISK_GIB:
        return DoctorFinding("disk", "note", detail, "free disk space: runs and checkpoints are written here")
    return DoctorFinding("disk", "ok", detail)


def _extras() -> list[DoctorFinding]:
    groups: dict[str, list[Requirement]] = {}
    for requirement in requirements():
        if requirement.extra in DEVELOPER_EXTRAS:
            continue
        groups.setdefault(requirement.extra, []).append(requirement)
    if not groups:
        return [
            DoctorFinding("packages", "note", "rllm-gym is not installed as a package", "pip install -e '.[train]'")
        ]
    findings = []
    for extra, members in groups.items():
        absent = [member.name for member in members if member.installed is None]
        present = ", ".join(f"{member.name} {member.installed}" for member in members if member.installed)
        subject = f"extra {extra}" if extra else "base packages"
        if not absent:
            findings.append(DoctorFinding(subject, "ok", present))
        elif extra:
            fix = f"pip install 'rllm-gym[{extra}]'"
            findings.append(DoctorFinding(subject, "missing", f"not installed: {', '.join(absent)}", fix))
        else:
            fix = "pip install --upgrade rllm-gym"
            findings.append(DoctorFinding(subject, "broken", f"not installed: {', '.join(absent)}", fix))
    return findings


def _torch() -> list[DoctorFinding]:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return []  # reported with its extra
    except (ImportError, OSError) as error:
        return [DoctorFinding("torch", "broken", f"cannot be imported: {error}", "pip install --force-reinstall torch")]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    findings = [DoctorFinding("torch", "ok", f"{torch.__version__} ({build}), {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory = properties.total_memory / 2**30
            findings.append(DoctorFinding(f"GPU {index}", "ok", f"{properties.name}, {memory:.0f} GiB"))
    elif shutil.which("nvidia-smi"):
        findings.append(
            DoctorFinding("GPU", "broken", "NVIDIA GPU found, but torch cannot use it", "pip install torch==2.13.0")
        )
    else:
        findings.append(DoctorFinding("GPU", "note", "no GPU found; models run on the CPU"))
    return findings


def _sandbox() -> list[DoctorFinding]:
    """Report the isolation tier for model-written programs, why no higher one works, and whether Docker can be used."""
    findings: list[DoctorFinding] = []
    refused: list[probe.TierProbe] = []
    for tier in probe.AUTOMATIC:
        tried = probe.probe_tier(tier)
        if tried.works:
            break
        refused.append(tried)
    else:
        reason = " ".join(f"Tier {tried.tier.value}: {tried.reason}" for tried in refused)
        fix = "; ".join(f"tier {tried.tier.value}: {tried.fix}" for tried in refused)
        findings.append(DoctorFinding("sandbox", "missing", f"no isolation tier works. {reason}", fix))
    if not findings:
        detail = f"tier {tried.tier.value} ({tried.tier.name.lower()}), verified by running test programs"
        reason = "".join(f"; tier {higher.tier.value} is not available: {higher.reason}" for higher in refused)
        fix = "; ".join(higher.fix for higher in refused)
        findings.append(DoctorFinding("sandbox", "note" if refused else "ok", detail + reason, fix))
        if tried.tier is Tier.NAMESPACES and (shared := probe.shared_with_other_programs()):
            detail = (
                f"two programs side by side share the locks and watches on files of {', '.join(shared[:5])}"
                f"{', …' if len(shared) > 5 else ''}: the kernel refuses overlays of them"
            )
            fix = "Linux 5.11 or later, and a file system that is not itself an overlay over an overlay"
            findings.append(DoctorFinding("sandbox files", "note", detail, fix))
    docker = probe.probe_tier(Tier.DOCKER)
    detail = (
        "the Docker daemon is running" if docker.works else f"{docker.reason} Only tasks with an image need Docker."
    )
    findings.append(DoctorFinding("docker", "ok" if docker.works else "note", detail, docker.fix))
    return findings


def _node() -> DoctorFinding:
    """Check for Node.js, which MCP servers from npm need."""
    fix = "sudo apt-get install -y nodejs npm (for MCP servers from npm)"
    absent = [command for command in ("node", "npm") if shutil.which(command) is None]
    if absent:
        return DoctorFinding(
            "node", "note", f"{' and '.join(absent)} not found; needed only for MCP servers from npm", fix
        )
    try:
        result = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorFinding("node", "note", f"node --version failed: {error}", fix)
    return DoctorFinding("node", "ok", f"{result.stdout.strip()}, npm found")


def _browser() -> DoctorFinding:
    """Report the Chromium that the web environments would use."""
    try:
        found = find_chromium()
    except BrowserFault as fault:
        return DoctorFinding("browser", "missing", str(fault), INSTALL)
    if "headless" in found.name:
        return DoctorFinding("browser", "ok", str(found))
    return DoctorFinding(
        "browser", "note", f"{found}: full browser, about 5 times slower than the headless shell", INSTALL
    )


def _environments() -> list[DoctorFinding]:
    findings, working = [], 0
    for env_id in TABLE:
        try:
            env = gymnasium.make(env_id)
            try:
                env.reset(seed=0)
            finally:
                env.close()
            working += 1
        except (ModuleNotFoundError, EnvironmentFault) as error:  # the message names what is missing
            findings.append(DoctorFinding(env_id, "missing", f"cannot be created: {error}", "see the error message"))
        # Report any failure, and continue with the next environment.
        except Exception as error:
            detail = f"cannot be created: {type(error).__name__}: {error}"
            findings.append(
                DoctorFinding(env_id, "broken", detail, f"see the error message and `rllm-gym list {env_id}`")
            )
    return [DoctorFinding("environments", "ok", f"{working} of {len(TABLE)} can be created"), *findings]
