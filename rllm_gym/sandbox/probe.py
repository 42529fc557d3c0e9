"""Finds out which tiers work on this machine by running a program in a real sandbox and checking what it could do.

Neither installed binaries nor kernel settings decide the result; they are inspected only afterwards, to explain why a
tier failed and how to fix it. Results are cached for the life of the process, except for Docker.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rllm_gym.core import RllmGymError
from rllm_gym.core.per_process import PerProcess
from rllm_gym.sandbox.docker import require_engine
from rllm_gym.sandbox.errors import SandboxUnavailable
from rllm_gym.sandbox.inside import landlock, probe_inside
from rllm_gym.sandbox.program import Limits, Program, ProgramResult
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.scheduler import WorkerScheduler, submit_program
from rllm_gym.sandbox.session_process import SessionProcess
from rllm_gym.sandbox.tier import SANDBOXES, Tier

AUTOMATIC = (Tier.NAMESPACES, Tier.LANDLOCK)
"""The tiers that ``sandbox="auto"`` tries, strongest first."""

_ENVIRONMENT = {"PATH", "HOME", "LANG", "TMPDIR", "USER", "LOGNAME", "TZ", "PWD", "MALLOC_ARENA_MAX"}
_ENVIRONMENT_PREFIXES = ("PYTHON", "LC_", "OMP_", "OPENBLAS_", "MKL_")
_LIMITS = Limits(cpu_s=10, wall_s=60, memory_mb=256, processes=8, scratch_mb=16)
# Each program holds the excess for a moment, because a limit may be enforced by monitoring.
_EXCESSES = {
    "use twice its memory limit": """
held = bytearray(1 << 29)
held[::4096] = bytes(1 << 17)
""",
    "run three times its limit of processes": """
for _ in range(24):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
""",
    "write twice its scratch limit": """
for number in range(4):
    with open(str(number), "wb") as file:
        file.write(bytes(1 << 23))
""",
}


@dataclass(frozen=True, slots=True)
class TierProbe:
    """The result for one tier. ``reason`` and ``fix`` are ``""`` if it works."""

    tier: Tier
    works: bool
    reason: str = ""
    fix: str = ""


_findings: dict[Tier, TierProbe] = {}
_lock = PerProcess(threading.Lock)


def choose(sandbox: str | Tier) -> Tier:
    """Return the tier for a user's ``sandbox`` value.

    Args:
        sandbox: ``"auto"``: the strongest of :data:`AUTOMATIC` that works here, never a weaker one. Or one of
            :data:`~rllm_gym.sandbox.tier.SANDBOXES`. A :class:`Tier` is returned as it is, without a test.

    Raises:
        SandboxUnavailable: The requested tier does not work here; the message gives the reason and a solution.
        ValueError: An unknown value.
    """
    if isinstance(sandbox, Tier):
        return sandbox
    if sandbox == "auto":
        findings = []
        for tier in AUTOMATIC:
            findings.append(probe_tier(tier))
            if findings[-1].works:
                return tier
        raise SandboxUnavailable(
            "no sandbox works on this machine.\n"
            + "".join(f"  tier {f.tier.value}: {f.reason} To fix this: {f.fix}\n" for f in findings)
            + "sandbox='unsafe' runs programs without isolation: use it only for programs that you would run yourself."
        )
    if sandbox not in SANDBOXES:
        raise ValueError(f"sandbox={sandbox!r} must be one of 'auto', {', '.join(map(repr, SANDBOXES))}")
    finding = probe_tier(SANDBOXES[sandbox])
    if not finding.works:
        raise SandboxUnavailable(f"sandbox={sandbox!r} does not work here: {finding.reason} To fix this: {finding.fix}")
    return finding.tier


def probe_tier(tier: Tier) -> TierProbe:
    """Return whether a tier works here, by running programs in it. Cached for the process.

    Docker is checked each time: its engine may start or end at any moment, and answers quickly.
    """
    if tier is Tier.DOCKER:
        return _probe(tier)
    with _lock():
        if tier not in _findings:
            _findings[tier] = _probe(tier)
        return _findings[tier]


def shared_with_other_programs() -> list[str]:
    """Return the directories whose files two programs of tier A share, locks and watches included.

    There are none unless the kernel refuses overlays of them. Device files are not among them: only root can close
    those.

    Raises:
        SandboxFault: A session of tier A does not start here.
    """
    process = SessionProcess(Tier.NAMESPACES, Runtime.default())
    try:
        process.wait_until_ready()
        return [path for path in process.shared if not path.startswith("/dev/")]
    finally:
        process.close()


def _probe(tier: Tier) -> TierProbe:
    if tier is Tier.UNSAFE:
        return TierProbe(tier, True)
    try:
        if tier is Tier.DOCKER:
            require_engine()  # the container engine provides the isolation
            return TierProbe(tier, True)
        could = _escapes(tier)
    except (RllmGymError, OSError) as error:
        message = " ".join(str(error).split())
        reason, hint = _explain(tier, message)
        return TierProbe(tier, False, reason, hint)
    if could:
        reason = f"a program in it could {', '.join(could)}."
        return TierProbe(tier, False, reason, "report this with the output of 'rllm-gym doctor --json'.")
    return TierProbe(tier, True)


def _escapes(tier: Tier) -> list[str]:
    """Run everything that must fail in a sandbox of that tier; return what did not fail."""
    with (
        tempfile.TemporaryDirectory(prefix="rllm-gym-probe-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as witness,
        contextlib.closing(WorkerScheduler(tier, 1, f"rllm-gym probe of {tier.value}")) as scheduler,
    ):
        try:
            # The mode of the folder gives no protection, as for a dataset or a configuration file.
            os.chmod(folder, 0o777)
            file, unix_path = Path(folder, "file"), Path(folder, "socket")
            file.write_text("of the host")
            unix.bind(str(unix_path))
            os.chmod(unix_path, 0o777)
            unix.listen()
            arguments = (str(file), str(unix_path), str(tcp.getsockname()[1]), str(witness.pid))
            probing = Program(Path(probe_inside.__file__).read_text(), args=arguments, limits=_LIMITS)
            could = _printed(submit_program(scheduler, probing).result())
            if witness.poll() is not None:
                could.append("end a process outside")
            for excess, source in _EXCESSES.items():
                program = f"import os, time\n{source}\ntime.sleep(3)"
                if submit_program(scheduler, Program(program, limits=_LIMITS)).result().exit_code == 0:
                    could.append(excess)
        finally:
            witness.kill()
    return could


def _printed(result: ProgramResult) -> list[str]:
    try:
        printed = json.loads(result.stdout)
    except ValueError:
        end = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SandboxUnavailable(
            f"the probe program ended with {result.ended.value}, exit code {result.exit_code}, "
            f"signal {result.signal}: {' '.join(end) or 'no output'}"
        ) from None
    strange = [
        name
        for name in printed["environment"]
        if name not in _ENVIRONMENT and not name.startswith(_ENVIRONMENT_PREFIXES)
    ]
    return [*printed["could"], *(f"see the environment variable {name}" for name in strange)]


def _explain(tier: Tier, message: str) -> tuple[str, str]:
    """Return a reason and a solution, one sentence each, from the error and kernel and container settings."""
    reason = _sentence(message)
    if tier is Tier.DOCKER:
        return reason, "start a Docker engine that this user may use: 'docker run --rm hello-world' should work."
    if tier is Tier.LANDLOCK:
        if landlock.abi() == 0:
            return (
                "the kernel has no Landlock, or it is not enabled, or a seccomp profile refuses it.",
                "Linux 5.13 or later with 'landlock' in the boot parameter lsm=; in Docker, version 23 or later.",
            )
        return reason, "see docs/sandbox.md."
    if shutil.which("bwrap") is None:
        return "bwrap is not installed.", "apt-get install bubblewrap (or your system's package of that name)."
    refusal = _bubblewrap_error()
    if not refusal:
        return reason, "see docs/sandbox.md: bubblewrap itself works here."
    for hinders, what, hint in _OBSTACLES:
        if hinders():
            return f"{_sentence(refusal)} {what}", f"{hint}, or use tier B."
    return _sentence(refusal), "see docs/sandbox.md, or use tier B."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _bubblewrap_error() -> str:
    """Return why bubblewrap cannot create the namespaces that tier A needs; ``""`` if it can."""
    namespaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    if os.geteuid() != 0:
        namespaces.append("--unshare-user")
    command = ["bwrap", *namespaces, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}"
    if ended.returncode == 0:
        return ""
    return " ".join(ended.stderr.split()) or f"bwrap ended with code {ended.returncode}"


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""  # this kernel does not have the setting


def _in_a_container() -> bool:
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    return "KUBERNETES_SERVICE_HOST" in os.environ


def _under_a_filter() -> bool:
    """Return whether a seccomp filter is active on this process, as set by container engines."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    return "\nSeccomp:\t2" in status


_UNCONFINED = (
    "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)
_OBSTACLES: tuple[tuple[Callable[[], bool], str, str], ...] = (
    (
        lambda: (_in_a_container() or _under_a_filter()) and os.geteuid() == 0,
        "This is a container that may not create namespaces.",
        f"{_UNCONFINED} --cap-add SYS_ADMIN --cap-add NET_ADMIN, or without the two as an ordinary user (--user)",
    ),
    (
        lambda: _in_a_container() or _under_a_filter(),
        "This is a container that may not create namespaces.",
        _UNCONFINED,
    ),
    (
        lambda: os.geteuid() != 0 and _setting("kernel/apparmor_restrict_unprivileged_userns") == "1",
        "AppArmor restricts user namespaces (Ubuntu 23.10 and later).",
        "an AppArmor profile for bwrap with 'userns,' in it (docs/sandbox.md has one), or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        lambda: os.geteuid() != 0 and _setting("kernel/unprivileged_userns_clone") == "0",
        "The kernel allows user namespaces only for root.",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        lambda: _setting("user/max_user_namespaces") == "0",
        "The kernel allows no user namespaces.",
        "sysctl user.max_user_namespaces=10000",
    ),
)
"""Known obstacles for bubblewrap: the symptom, the cause and the solution."""
