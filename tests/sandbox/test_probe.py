"""Which tier is chosen: the strongest that works when tried, with a reason and a fix for those that do not."""

from __future__ import annotations

import json
import os

import pytest

from rllm_gym.sandbox import SandboxUnavailable
from rllm_gym.sandbox.probe import choose, probe_tier
from rllm_gym.sandbox.tier import Tier
from tests.sandbox.users import RunPython, needs

IN_A_CONTAINER = """
import ctypes, errno, os
from rllm_gym.sandbox.inside import seccomp

# What Docker does to a container by default: its capabilities, and its profile as far as namespaces go.
libc = ctypes.CDLL(None, use_errno=True)
DEFAULT = 0xA80425FB
if os.geteuid() == 0:
    for capability in range(64):
        if not DEFAULT >> capability & 1:
            libc.prctl(24, capability, 0, 0, 0)
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(DEFAULT, DEFAULT, 0, 0, 0, 0)) == 0
refused = ["unshare", "setns", "mount", "umount2", "pivot_root", "fsopen", "fsmount", "move_mount", "open_tree",
           "mount_setattr", "open_by_handle_at", "bpf", "perf_event_open", "userfaultfd", "keyctl", "kcmp"]
new_namespaces = (errno.EPERM, [(0, seccomp._CLONE_NEW, (0,), False)])
profile = {name: errno.EPERM for name in refused} | {"clone3": errno.ENOSYS} | EXTRA
libc.prctl(38, 1, 0, 0, 0)
seccomp.install(seccomp._assemble(profile, {"clone": new_namespaces}, os.uname().machine))
"""
CHOOSE = """
import json
from rllm_gym.sandbox import Limits, Program, SandboxPool
from rllm_gym.sandbox.probe import probe_tier
from rllm_gym.sandbox.tier import Tier
a = probe_tier(Tier.NAMESPACES)
with SandboxPool("auto") as pool:
    ended = pool.run_sync(Program("import os, numpy\\nprint(os.getuid() != 0, numpy.ones(2).sum())")).stdout.decode()
    forks = "import os, time\\nfor _ in range(99):\\n    if os.fork() == 0:\\n        time.sleep(900)\\ntime.sleep(900)"
    bomb = pool.run_sync(Program(forks, limits=Limits(processes=8, wall_s=100)))
    held = "held = bytearray(1 << 29)\\nheld[::4096] = bytes(1 << 17)\\nimport time\\ntime.sleep(1000)"
    memory = pool.run_sync(Program(held, limits=Limits(memory_mb=128, wall_s=100)))
print(json.dumps([pool.tier.value, a.works, a.reason, a.fix, ended, bomb.exit_code, memory.ended.value]))
"""


def test_an_ordinary_container_gets_tier_b(each_user: RunPython) -> None:
    needs(Tier.LANDLOCK)
    ended = each_user(IN_A_CONTAINER.replace("EXTRA", "{}") + CHOOSE)
    assert ended.returncode == 0, ended.stderr
    tier, a_works, reason, fix, output, bomb, memory = json.loads(ended.stdout)
    assert (tier, a_works) == ("B", False)
    assert "namespace" in reason
    assert "bwrap" in reason or "bubblewrap" in reason
    assert "--security-opt" in fix
    assert output == "True 2.0\n"
    assert bomb != 0
    assert memory == "memory limit"


def test_without_a_working_tier_the_reason_and_fix_are_reported(each_user: RunPython) -> None:
    refused = '{"landlock_create_ruleset": errno.EPERM}'
    source = (
        'from rllm_gym.sandbox.inside import seccomp\nseccomp._NUMBERS["landlock_create_ruleset"] = (444, 444)\n'
        + IN_A_CONTAINER.replace("EXTRA", refused)
        + "from rllm_gym.sandbox import SandboxPool\nSandboxPool()"
    )
    ended = each_user(source)
    assert ended.returncode == 1
    for output in ("SandboxUnavailable", "tier A:", "tier B:", "To fix this:", "Landlock", "sandbox='unsafe'"):
        assert output in ended.stderr


def test_without_bubblewrap_the_package_to_install_is_named(each_user: RunPython) -> None:
    source = "from rllm_gym.sandbox.probe import choose\nchoose('namespaces')"
    if os.path.exists("/usr/local/bin/bwrap") or os.path.exists("/usr/bin/bwrap"):
        source = "import shutil\nshutil.which = lambda *a, **k: None\n" + source
    ended = each_user(source)
    assert ended.returncode == 1
    assert "apt-get install bubblewrap" in ended.stderr


def test_the_strongest_working_tier_is_chosen() -> None:
    needs(Tier.NAMESPACES)
    assert choose("auto") is Tier.NAMESPACES
    assert choose("namespaces") is Tier.NAMESPACES
    assert probe_tier(Tier.NAMESPACES) is probe_tier(Tier.NAMESPACES), "tried once per process"


def test_the_unsafe_tier_must_be_requested() -> None:
    assert choose("unsafe") is Tier.UNSAFE
    assert choose(Tier.UNSAFE) is Tier.UNSAFE
    with pytest.raises(ValueError, match="'none'"):
        choose("none")


def test_docker_without_an_engine_is_an_error() -> None:
    if probe_tier(Tier.DOCKER).works:
        assert choose("docker") is Tier.DOCKER
        return
    with pytest.raises(SandboxUnavailable, match="docker run"):
        choose("docker")
