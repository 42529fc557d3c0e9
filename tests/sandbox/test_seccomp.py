"""The filter: denied calls fail as on a machine without them, honest programs work, and nothing is killed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest

from rllm_gym.sandbox.inside import seccomp

PREFACE = """
import ctypes, errno, json, os, socket, sys
from rllm_gym.sandbox.inside import seccomp
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
settings = json.loads(sys.argv[1])
if settings.pop("own", False):
    settings["own_pid"] = os.getpid()
seccomp.install(seccomp.deny_list(**settings))
said = {}
def attempt(name, call):
    try:
        call()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
def system_call(name, *arguments):
    number = seccomp._NUMBERS[name][0 if os.uname().machine == "x86_64" else 1]
    if number is not None and libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
"""


def under_filter(source: str, **settings: object) -> dict[str, str]:
    command = [sys.executable, "-c", PREFACE + source + "\nprint(json.dumps(said))", json.dumps(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def test_every_denied_system_call_fails() -> None:
    output = under_filter("""
for name in [*seccomp._REFUSED, *seccomp._ABSENT]:
    attempt(name, lambda: system_call(name, 0, 0, 0, 0, 0, 0))
attempt("a call of tomorrow", lambda: (libc.syscall(seccomp._NEWEST + 1) + 1) or system_call("clone3"))
attempt("clone into a user namespace", lambda: system_call("clone", 0x10000000 | 17, 0, 0, 0, 0))
attempt("push input into a terminal", lambda: system_call("ioctl", 0, 0x5412, b"x"))
attempt("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("limits of another process", lambda: system_call("prlimit64", 1, 7, None, None))
attempt("no address randomization", lambda: system_call("personality", 0x40000))
""")
    present = {
        name for name, numbers in seccomp._NUMBERS.items() if numbers[os.uname().machine != "x86_64"] is not None
    }
    for name, answer in output.items():
        if name in seccomp._NUMBERS and name not in present:
            continue
        assert answer in ("EPERM", "ENOSYS"), (name, answer)


@pytest.mark.parametrize(
    ("sockets", "works"),
    [
        ("none", {"pair"}),
        ("unix", {"pair", "datagram pair", "unix"}),
        ("loopback", {"pair", "datagram pair", "unix", "tcp", "udp"}),
    ],
)
def test_only_the_requested_kinds_of_sockets_work(sockets: str, works: set[str]) -> None:
    output = under_filter(
        """
attempt("pair", socket.socketpair)
attempt("datagram pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("tcp", socket.socket)
attempt("udp", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("kernel crypto", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
""",
        sockets=sockets,
    )
    assert {name for name, answer in output.items() if answer == "done"} == works
    assert set(output.values()) <= {"done", "EAFNOSUPPORT"}


def test_honest_programs_work_under_the_filter() -> None:
    output = under_filter("""
import asyncio, subprocess, tempfile, threading, multiprocessing, resource, shutil, time
attempt("threads", lambda: [t.start() or t.join() for t in [threading.Thread(target=time.time)]])
attempt("fork", lambda: os.waitpid(os.fork() or os._exit(0), 0))
attempt("subprocess", lambda: subprocess.run(["true"], check=True))
attempt("multiprocessing", lambda: multiprocessing.Pool(2).map(abs, [1]))
attempt("asyncio", lambda: asyncio.run(asyncio.create_subprocess_exec("true")))
attempt("limits", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
attempt("lower priority", lambda: os.nice(1))
attempt("affinity", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
attempt("batch", lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)))
attempt("copies with mode and times", lambda: shutil.copy2("/etc/passwd", tempfile.mkdtemp()))
attempt("signals", lambda: os.kill(os.getpid(), 0))
attempt("query of the personality", lambda: system_call("personality", 0xFFFFFFFF))
""")
    assert set(output.values()) == {"done"}, output


def test_buffers_of_sockets_cannot_be_enlarged() -> None:
    """Data in sockets is kernel memory that is not counted as the program's."""
    output = under_filter(
        """
import socket
with socket.socketpair()[0] as pair:
    for name in ("SO_SNDBUF", "SO_RCVBUF"):
        option = getattr(socket, name)
        before = pair.getsockopt(socket.SOL_SOCKET, option)
        attempt(f"set {name}", lambda: pair.setsockopt(socket.SOL_SOCKET, option, before // 4))
        attempt(f"{name} is unchanged", lambda: {before: 0}[pair.getsockopt(socket.SOL_SOCKET, option)])
    attempt("other options", lambda: pair.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1))
"""
    )
    assert set(output.values()) == {"done"}, output


def test_with_a_shared_user_other_processes_and_file_metadata_cannot_be_changed() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        output = under_filter(
            f"""
import shutil, subprocess, tempfile, time
other = {victim.pid}
target = tempfile.NamedTemporaryFile()
os.write(target.fileno(), b"kept")
attempt("kill", lambda: os.kill(other, 9))
attempt("kill all", lambda: os.kill(-1, 0))
attempt("kill a thread", lambda: system_call("tkill", other, 9))
attempt("kill a thread of a group", lambda: system_call("tgkill", other, other, 9))
attempt("queue a signal", lambda: system_call("rt_sigqueueinfo", other, 9, 0))
attempt("lower its priority", lambda: os.setpriority(os.PRIO_PROCESS, other, 19))
attempt("lower the user's priority", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("pin it", lambda: os.sched_setaffinity(other, {{0}}))
attempt("truncate", lambda: os.truncate(target.name, 0))
attempt("truncate by reading", lambda: os.open(target.name, os.O_RDONLY | os.O_TRUNC))
attempt("attribute", lambda: os.setxattr(target.name, "user.x", b"y"))
os.chmod(target.name, 0o777)
os.utime(target.name, (0, 0))
status = os.stat(target.name)
said["unchanged"] = [oct(status.st_mode), status.st_mtime > 0, os.path.getsize(target.name)]
said["own"] = []
attempt("own", lambda: os.kill(os.getpid(), 0))
attempt("copy", lambda: shutil.copy2("/etc/passwd", tempfile.mkdtemp()))
attempt("own threads", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
attempt("append", lambda: open(target.name, "ab").write(b"x"))
attempt("rewrite", lambda: open(target.name, "wb").write(b"x"))
""",
            shared_user=True,
            own=True,
        )
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.communicate()
    honest = {name: output.pop(name) for name in ("own", "copy", "own threads", "append", "rewrite")}
    assert set(honest.values()) == {"done"}, honest
    assert output.pop("unchanged") == ["0o100600", True, 4]
    assert set(output.values()) <= {"EPERM", "EACCES", "ENOTSUP"}, output


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the 32-bit convention is x86's")
def test_system_calls_of_another_architecture_kill_the_process() -> None:
    # mov eax, 20 (getpid in the 32-bit table); int 0x80; ret
    ended = subprocess.run(
        [sys.executable, "-c", PREFACE + """
import mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(bytes.fromhex("b814000000cd80c3"))
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
ctypes.CFUNCTYPE(ctypes.c_int)(at)()
print("lived")
""", "{}"], capture_output=True, text=True, timeout=240)  # fmt: skip
    assert ended.returncode == -31  # SIGSYS
    assert "lived" not in ended.stdout


def test_every_path_through_the_filter_ends() -> None:
    """Jumps stay inside and the last instruction returns, as the kernel checks, also for the other architecture."""
    for machine in ("x86_64", "aarch64"):
        for shared_user in (False, True):
            check_paths(machine, shared_user)


def check_paths(machine: str, shared_user: bool) -> None:
    code = seccomp.deny_list(machine=machine, shared_user=shared_user, sockets="none", watched=True)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    assert len(steps) < 4096
    for at, (operation, if_true, if_false, _) in enumerate(steps):
        if operation & 7 == 5:
            assert at + 1 + max(if_true, if_false) < len(steps)
    assert steps[-1][0] == 6
    numbers = [numbers[machine == "aarch64"] for numbers in seccomp._NUMBERS.values()]
    assert len({n for n in numbers if n is not None}) == len([n for n in numbers if n is not None]), "duplicate number"


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="'all'"):
        seccomp.deny_list(sockets="all")
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.deny_list(machine="riscv64")
