"""Landlock: listed paths are readable, scratch is writable, everything else is unreachable, also for children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rllm_gym.sandbox.inside import landlock, landlock_worker

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock, or it is not enabled")

PREFACE = """
import ctypes, errno, json, os, signal, socket, subprocess, sys
from rllm_gym.sandbox.inside import landlock
place = sys.argv[1]
rules = landlock.ruleset(
    [f"{place}/readable", f"{place}/absent", "/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"],
    [f"{place}/scratch"], ["/dev/null"], without=[f"{place}/readable/inner/private"],
)
said = {}
def attempt(name, call):
    try:
        call()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
landlock.restrict(rules)
"""


def behind(source: str, place: Path, *args: str) -> dict[str, str]:
    command = [sys.executable, "-c", PREFACE + source + "\nprint(json.dumps(said))", str(place), *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for path in ("readable/inner/private/more", "readable/inner/beside", "scratch/sub", "secret"):
        (tmp_path / path).mkdir(parents=True)
    for path in ("readable/file", "readable/inner/private/file", "readable/inner/private/more/file",
                 "readable/inner/beside/file", "readable/inner/file", "scratch/file", "secret/file"):  # fmt: skip
        (tmp_path / path).write_text("text")
    (tmp_path / "readable/link").symlink_to(tmp_path / "secret/file")
    (tmp_path / "readable/inner/link").symlink_to(tmp_path / "secret")
    (tmp_path / "scratch/link").symlink_to(tmp_path / "secret/file")
    return tmp_path


def test_unlisted_paths_are_unreachable(place: Path) -> None:
    output = behind(
        """
for path in ("secret/file", "readable/link", "readable/inner/link/file", "scratch/link",
             "readable/inner/private/file", "readable/inner/private/more/file"):
    attempt(f"read {path}", lambda: open(f"{place}/{path}"))
attempt("read a password file", lambda: open("/etc/passwd"))
attempt("list", lambda: os.listdir(f"{place}/secret"))
attempt("write beside", lambda: open(f"{place}/new", "w"))
attempt("write what is readable", lambda: open(f"{place}/readable/file", "r+"))
attempt("truncate what is readable", lambda: os.truncate(f"{place}/readable/file", 0))
attempt("remove what is readable", lambda: os.unlink(f"{place}/readable/file"))
attempt("move out", lambda: os.rename(f"{place}/scratch/file", f"{place}/secret/moved"))
attempt("link in", lambda: os.link(f"{place}/secret/file", f"{place}/scratch/linked"))
attempt("make a device", lambda: os.mknod(f"{place}/scratch/device", 0o20600, os.makedev(1, 3)))
""",
        place,
    )
    assert set(output.values()) <= {"EACCES", "EXDEV", "EPERM"}, output
    assert (place / "secret/file").read_text() == "text"


def test_children_have_the_same_rules(place: Path) -> None:
    output = behind(
        'ended = subprocess.run(["cat", f"{place}/secret/file", f"{place}/readable/file"], capture_output=True)\n'
        'said["child"] = ended.stdout.decode()',
        place,
    )
    assert output == {"child": "text"}


def test_listed_paths_work(place: Path) -> None:
    output = behind(
        """
for path in ("readable/file", "readable/inner/file", "readable/inner/beside/file", "scratch/file"):
    attempt(f"read {path}", lambda: open(f"{place}/{path}").read())
attempt("list", lambda: os.listdir(f"{place}/readable/inner"))
attempt("write", lambda: open(f"{place}/scratch/new", "w").write("x"))
attempt("make, move, link, remove", lambda: (
    os.mkdir(f"{place}/scratch/made"), os.rename(f"{place}/scratch/new", f"{place}/scratch/made/new"),
    os.symlink("new", f"{place}/scratch/made/link"), os.link(f"{place}/scratch/made/new", f"{place}/scratch/hard"),
    os.unlink(f"{place}/scratch/made/new"), os.mkfifo(f"{place}/scratch/fifo"), os.truncate(f"{place}/scratch/hard", 0),
))
attempt("run", lambda: subprocess.run(["true"], check=True))
attempt("the null device", lambda: open("/dev/null", "w").write("x"))
attempt("a pipe", os.pipe)
""",
        place,
    )
    assert set(output.values()) == {"done"}, output


def test_outside_processes_and_sockets_are_unreachable(place: Path) -> None:
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
    ):
        name = f"\0rllm-gym-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        output = behind(
            """
other, port, name = int(sys.argv[2]), int(sys.argv[3]), "\\0" + sys.argv[4]
attempt("its environment", lambda: open(f"/proc/{other}/environ"))
attempt("its memory", lambda: open(f"/proc/{other}/mem"))
if landlock.abi() >= 4:
    attempt("TCP", lambda: socket.create_connection(("127.0.0.1", port)))
    attempt("a server", lambda: socket.create_server(("127.0.0.1", 0)))
if landlock.abi() >= 6:
    attempt("a signal", lambda: os.kill(other, signal.SIGKILL))
    attempt("an abstract socket", lambda: socket.socket(socket.AF_UNIX).connect(name))
""",
            place, str(other.pid), str(tcp.getsockname()[1]), name[1:],
        )  # fmt: skip
        assert other.poll() is None
        other.kill()
    assert set(output.values()) <= {"EACCES", "EPERM"}, output


def test_leftover_files_of_any_kind_are_removed(tmp_path: Path) -> None:
    """Too deep for any path, without permissions, with links to the outside: nothing outside changes, nothing stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    left = tmp_path / "left"
    left.mkdir()
    here = os.open(left, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (left / "link").symlink_to(outside)
    (left / "closed").mkdir()
    (left / "closed" / "in it").mkdir(mode=0)
    (left / "closed" / "link").symlink_to(outside)
    os.mkfifo(left / "fifo")
    (left / "closed").chmod(0)
    landlock_worker.remove(str(left))
    assert not left.exists()
    assert (outside / "kept").read_text() == "kept"
