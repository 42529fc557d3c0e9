"""Two sandboxes side by side see the same files; what one does to a file must not be visible in the other."""

from __future__ import annotations

import json
import os

import pytest

from rllm_gym.sandbox import Program, SandboxPool, session_process, worker
from rllm_gym.sandbox.tier import Tier
from tests.sandbox.users import RunPython, needs

SOURCES = worker.sources

PEER = """
import ctypes, fcntl, glob, json, os, select, signal, stat, struct, sys, sysconfig
libc = ctypes.CDLL(None, use_errno=True)
LOCK = "hhqqi4x"

def visible():
    library = sysconfig.get_path("stdlib")
    paths = ["/", "/usr", "/usr/local", "/usr/bin/env", "/etc", "/etc/passwd", "/etc/ld.so.cache", "/etc/localtime",
             "/etc/ld.so.conf.d", "/dev", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
             "/proc/stat", "/proc/cpuinfo", "/proc/sys/kernel/hostname", "/proc/self/exe", "/proc/self/status",
             *glob.glob("/proc/self/ns/*"), "/tmp", "/dev/shm", library, f"{library}/os.py", sys.executable,
             "base/file0", "base"]
    for name in ("numpy", "pytest", "py"):
        try:
            paths.append(__import__(name).__file__)
        except ImportError:
            pass
    try:
        with open("/proc/self/maps") as maps:
            paths += {line.split(None, 5)[5].strip() for line in maps if line.split()[-1].startswith("/")}
    except OSError:
        pass
    return [path for path in paths if os.access(path, os.R_OK) and not stat.S_ISFIFO(os.stat(path).st_mode)]

def opened(path):
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, flags | os.O_NONBLOCK)
        except OSError:
            pass
    return -1

def region(kind):
    return struct.pack(LOCK, kind, os.SEEK_SET, 0, 0, 0)

def lock(fd, command, kind):
    try:
        fcntl.fcntl(fd, command, region(kind))
    except OSError:
        pass

def hold():
    for path in visible():
        fd, other = opened(path), opened(path)
        if fd < 0:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        lock(fd, fcntl.F_SETLK, fcntl.F_RDLCK)
        lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK)
        lock(other, fcntl.F_OFD_SETLK, fcntl.F_RDLCK)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            pass
        try:
            os.listdir(path) if os.path.isdir(path) else os.read(fd, 1)
            os.utime(path)
        except OSError:
            pass

def look():
    found = []
    for path in visible():
        fd = opened(path)
        if fd < 0:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            found.append(("flock", path))
        for name, command in (("fcntl", fcntl.F_GETLK), ("open file description", fcntl.F_OFD_GETLK)):
            try:
                answer = struct.unpack(LOCK, fcntl.fcntl(fd, command, region(fcntl.F_WRLCK)))
                if answer[0] != fcntl.F_UNLCK:
                    found.append((name, path))
            except OSError:
                pass
        os.close(fd)
    return found

def times():
    return {path: os.stat(path).st_mtime_ns for path in visible() if not path.startswith("/proc")}

def watch():
    signal.signal(signal.SIGIO, lambda number, frame: notified.append(1))
    for path in visible():
        try:
            fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_ATTRIB)
        except OSError:
            pass
    fd = libc.inotify_init1(os.O_NONBLOCK)
    watched = {}
    for path in visible():
        watched[libc.inotify_add_watch(fd, os.fsencode(path), 0xFFF)] = path
    for path in watched.values():
        opened(path)
    events(fd, watched)
    notified.clear()
    return fd, watched

notified = []

def seen():
    before = times()
    watch_fd, watched = watch()
    yield len(visible())
    found = [("watch", path) for path in events(watch_fd, watched)] + [("notified", "directory")] * bool(notified)
    after = times()
    yield found + look() + [("time", path) for path in before if before[path] != after[path]]

def events(fd, watched):
    found = set()
    while select.select([fd], [], [], 0)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        while data:
            number, _, _, length = struct.unpack_from("iIII", data)
            found.add(watched.get(number, ""))
            data = data[16 + length:]
    return sorted(found)
"""

PROGRAMS = """
import json, sys
from rllm_gym.sandbox import Limits, Program, SandboxPool
peer = sys.stdin.read()
receive = '''
import struct
def exactly(n):
    data = b""
    while len(data) < n:
        data += os.read(3, n - len(data)) or sys.exit(1)
    return data
def receive():
    return exactly(struct.unpack(">I", exactly(4))[0])
def send(value):
    frame = json.dumps(value).encode()
    os.write(3, struct.pack(">I", len(frame)) + frame)
'''
holder = peer + receive + "receive(); hold(); send(1); receive()"
looker = peer + receive + "steps = seen(); send(next(steps)); receive(); send(next(steps))"
with SandboxPool(sys.argv[1], max_workers=2) as pool:
    limits = Limits(wall_s=240)
    with pool.start(Program(holder, limits=limits), Program(looker, limits=limits)) as (a, b):
        seen = b.receive_sync()
        assert seen is not None, b.result_sync()
        a.send_sync(b"go")
        assert a.receive_sync() is not None, a.result_sync()
        b.send_sync(b"go")
        found = b.receive_sync()
        assert found is not None, b.result_sync()
    print(json.dumps([json.loads(seen), json.loads(found)]))
"""

SESSIONS = """
import json, os, pathlib, sys, tempfile, time
from rllm_gym.sandbox import SandboxPool
peer = sys.stdin.read()
wait = '''
import time
def put(name, text):
    with open("new", "w") as file:
        file.write(text)
    os.rename("new", name)
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)
'''
holder = peer + wait + "hold(); put('held', ''); until('end')"
looker = peer + wait + "steps = seen(); count = next(steps); put('watching', ''); until('go'); " \
    "put('found', json.dumps([count, next(steps)]))"

def get(session, name):
    end = time.monotonic() + 200
    while time.monotonic() < end:
        try:
            return session.read_sync(name)
        except FileNotFoundError:
            time.sleep(0.02)
    raise SystemExit(session.exec_sync("cat out").output.decode())

with tempfile.TemporaryDirectory() as folder, SandboxPool(sys.argv[1]) as pool:
    base = pathlib.Path(folder, "tree")
    (base / "base").mkdir(parents=True)
    for number in range(400):  # enough for an overlay
        (base / "base" / f"file{number}").write_text("x")
    with pool.open_session_sync(base) as a, pool.open_session_sync(base) as b:
        for session, source, name in ((b, looker, "watching"), (a, holder, "held")):
            session.write_sync("peer.py", source.encode())
            session.exec_sync("python3 peer.py >out 2>&1 &")
            get(session, name)
        b.write_sync("go", b"")
        print(get(b, "found").decode())
"""


@pytest.mark.parametrize("kind", ["programs", pytest.param("sessions", marks=pytest.mark.long)])
def test_nothing_done_to_a_visible_file_is_seen_in_another_sandbox(
    request: pytest.FixtureRequest, confined_tier: Tier, each_user: RunPython, kind: str
) -> None:
    with each_user.start(PROGRAMS if kind == "programs" else SESSIONS, confined_tier.name.lower()) as process:
        output, errors = process.communicate(PEER, timeout=240)
    assert process.returncode == 0, errors
    visible, found = json.loads(output)
    assert visible > 15
    if confined_tier is Tier.LANDLOCK:  # docs/sandbox.md: it has the files of the machine
        found = [entry for entry in found if entry[0] in ("watch", "notified")]
    elif os.geteuid() != 0 or "ordinary" in request.node.name:  # docs/sandbox.md: only root can make device files
        found = [entry for entry in found if entry[0] == "time" or not entry[1].startswith("/dev/")]
    print(found)
    assert not found


def test_a_kernel_without_overlays_or_devices_still_has_tier_a(monkeypatch: pytest.MonkeyPatch) -> None:
    needs(Tier.NAMESPACES)

    def refusing(modules: tuple[str, ...]) -> list[tuple[str, str]]:
        texts = dict(SOURCES(modules))
        old = texts["private_files"]
        new = old.replace('"overlay", _KEEP', '"none", _KEEP').replace("os.mknod(", "raise PermissionError; (")
        assert (new.count('"none", _KEEP'), new.count("raise PermissionError")) == (1, 1)
        texts["private_files"] = new
        return list(texts.items())

    source = (
        "import os, numpy\nopen('x', 'w').write('x')\nprint(open('/dev/null').read() == '', os.listdir('/usr/src'))"
    )
    view = worker._VIEW_MODULES
    monkeypatch.setattr(worker, "sources", lambda names: refusing(names) if names == view else SOURCES(names))
    monkeypatch.setattr(session_process, "sources", refusing)
    with SandboxPool(Tier.NAMESPACES, max_workers=1) as pool:
        assert pool.run_sync(Program(source)).stdout == b"True []\n"
        with pool.open_session_sync() as session:
            session.write_sync("main.py", source.encode())
            assert session.exec_sync("python3 main.py").output == b"True []\n"
