"""The guarantees of each tier, tested by programs that try to break them; docs/sandbox.md names these tests."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import psutil

from rllm_gym.sandbox.tier import Tier
from tests.sandbox.conftest import Trainer
from tests.sandbox.users import ROOT
from tests.sandbox.waiting import alive
from tests.waiting import is_alive, until

TRY = """
import contextlib, ctypes, errno, fcntl, gc, glob, json, os, resource, signal, socket, subprocess, sys, threading, time
trainer = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
said = {}
def attempt(name, call):
    try:
        said[name] = call() or "done"
    except (OSError, MemoryError, ValueError) as error:
        said[name] = type(error).__name__
def system_call(number, *arguments):
    if libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), str(number))
"""
PRINT_RESULTS = "\nprint(json.dumps(said))"
REFUSED = {"PermissionError", "FileNotFoundError", "ConnectionRefusedError", "ProcessLookupError", "OSError",
           "NotADirectoryError", "MemoryError", "IsADirectoryError"}  # fmt: skip


def results_of(trainer: Trainer, source: str, **limits: float) -> dict[str, object]:
    """Return the result that a program reports for each of its attempts."""
    result = trainer.run(TRY + source + PRINT_RESULTS, **limits)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def refused(said: dict[str, object]) -> bool:
    print({name: answer for name, answer in said.items() if answer not in REFUSED})  # shown on failure
    return set(said.values()) <= REFUSED


def test_files_of_the_host_cannot_be_read(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
folder, pid = trainer["folder"], trainer["pid"]
detours = [f"/proc/{process}/{way}{folder}/file" for process in ("self", 1, os.getppid(), pid)
           for way in ("root", "cwd", "root/proc/1/root")]
for path in (*detours, f"{folder}/file", "/etc/shadow", "/etc/hostname", "/etc/machine-id", "/proc/1/environ",
             "/proc/1/root", f"/proc/{pid}/root", f"/proc/{pid}/cwd", f"/proc/{pid}/fd",
             f"/proc/{pid}/cmdline", "/var/log", "/home", "/mnt", "/sys/kernel", "/dev/mem", "/run", "/opt", "/srv"):
    # In namespaces a path may be there, empty.
    attempt(path, lambda: "".join(os.listdir(path)) if os.path.isdir(path) else open(path).read())
os.symlink(f"{folder}/file", "link")
attempt("through a link", lambda: open("link").read())
attempt("through a hard link", lambda: os.link(f"{folder}/file", "hard"))
for device in ("kmem", "kmsg", "sda", "vda", "fuse", "kvm", "net/tun", "loop0"):
    attempt(f"device file {device}", lambda: os.open(f"/dev/{device}", os.O_RDONLY))
attempt("by handle", lambda: system_call(304 if os.uname().machine == "x86_64" else 265, -100, 0, 0))
""",
    )
    seen = {name: answer for name, answer in output.items() if answer not in REFUSED}
    assert set(seen.values()) <= {"done"}, seen
    assert not [name for name in seen if "link" in name or "handle" in name or "file" in name], seen
    importable = trainer.run("import rllm_gym")
    assert importable.exit_code == 1
    assert "rllm_gym" in importable.stderr


def test_files_of_the_host_cannot_be_changed(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
import sysconfig
library = sysconfig.get_path("stdlib")
kernel = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
          "/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True)]
for path in (f"{trainer['folder']}/file", f"{library}/json/__init__.py", sys.executable, "/usr/bin/env", "/etc/passwd",
             *kernel):
    attempt(f"write {path}", lambda: os.open(path, os.O_WRONLY))
    attempt(f"empty {path}", lambda: os.truncate(path, 0))
    attempt(f"empty {path} by reading", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
    attempt(f"remove {path}", lambda: os.unlink(path))
    attempt(f"rename {path}", lambda: os.rename(path, path + ".moved"))
    attempt(f"take {path}", lambda: os.rename(path, "taken"))
for path in (trainer["folder"], library, sysconfig.get_path("purelib"), "/usr/bin", "/etc", "/", "/dev", "/var/tmp"):
    attempt(f"make in {path}", lambda: os.mkdir(f"{path}/made"))
for path in (f"{library}/json/__init__.py", f"{trainer['folder']}/file"):
    with contextlib.suppress(OSError):
        os.chmod(path, 0)
    with contextlib.suppress(OSError):
        os.utime(path, (0, 0))
attempt("a device", lambda: os.mknod("device", 0o20666, os.makedev(1, 1)))
attempt("a mount", lambda: libc.mount(b"none", b".", b"tmpfs", 0, 0) and (_ for _ in ()).throw(OSError()))
""",
    )
    assert refused(output), output
    import json.__init__ as witness

    for path in (Path(str(witness.__file__)), Path(trainer.facts["folder"], "file")):
        if path.exists():  # this process may not see the ordinary user's folder
            assert path.stat().st_mode & 0o444
            assert path.stat().st_mtime > 0


def test_environment_variables_of_the_trainer_are_hidden(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
attempt("own", lambda: ",".join(name for name in os.environ))
attempt("value", lambda: str(any("trainer" in value for value in os.environ.values())))
attempt("of the trainer", lambda: open(f"/proc/{trainer['pid']}/environ").read())
attempt("of the parent", lambda: open(f"/proc/{os.getppid()}/environ").read())
attempt("left in memory", lambda: str("SECRET_TOKEN" in open("/proc/self/environ").read()))
token = "".join(reversed("s'reniart eht"))
def held(thing):
    return isinstance(thing, (dict, list, tuple)) and thing is not globals() and token in repr(thing)[:100_000]
attempt("left in the worker", lambda: str(any(held(thing) for thing in gc.get_objects())))
""",
    )
    assert "SECRET_TOKEN" not in str(output["own"])
    assert output["value"] == "False"
    assert output["of the trainer"] in REFUSED
    assert output["of the parent"] in REFUSED
    assert output["left in memory"] in REFUSED | {"False"}
    assert output["left in the worker"] == "False"


def test_there_is_no_network(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
port = trainer["port"]
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", port), timeout=5))
attempt("loopback 6", lambda: socket.create_connection(("::1", port), timeout=5))
def datagram(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((host, 53))
attempt("a route", lambda: datagram("192.0.2.1"))
attempt("names", lambda: socket.getaddrinfo("example.com", 80))
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_NETLINK, 3),
                     (40, socket.SOCK_STREAM), (38, socket.SOCK_SEQPACKET), (31, socket.SOCK_RAW),
                     (44, socket.SOCK_RAW)):
    attempt(f"family {family} type {kind}", lambda: socket.socket(family, kind))
""",
    )
    assert refused({name: "OSError" if answer == "gaierror" else answer for name, answer in output.items()}), output


def test_sockets_of_the_host_are_unreachable(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
def connect(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(address)
attempt("by path", lambda: connect(f"{trainer['folder']}/socket"))
attempt("abstract", lambda: connect("\\0" + trainer["abstract"]))
attempt("the log", lambda: connect("/dev/log", socket.SOCK_DGRAM))
attempt("docker", lambda: connect("/var/run/docker.sock"))
def sidestep():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b"x", f"{trainer['folder']}/socket")
attempt("a pair pointed elsewhere", sidestep)
""",
    )
    assert refused(output), output


def test_other_processes_cannot_be_signalled(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
pid = trainer["pid"]
for other in {pid, os.getppid()} - {0, 1, os.getpid()}:
    for number in (0, signal.SIGSTOP, signal.SIGKILL):
        attempt(f"kill {other} {number}", lambda: os.kill(other, number))
        attempt(f"its group {other} {number}", lambda: os.killpg(other, number))
    attempt(f"tkill {other}", lambda: system_call(200 if os.uname().machine == "x86_64" else 130, other, 9))
    attempt(f"pidfd {other}", lambda: signal.pidfd_send_signal(os.pidfd_open(other), signal.SIGKILL))
    attempt(f"queue {other}", lambda: system_call(129 if os.uname().machine == "x86_64" else 138, other, 9, 0))
    attempt(f"priority {other}", lambda: os.setpriority(os.PRIO_PROCESS, other, 19))
    attempt(f"limits {other}", lambda: resource.prlimit(other, resource.RLIMIT_NOFILE, (0, 0)))
    attempt(f"affinity {other}", lambda: os.sched_setaffinity(other, {0}))
""",
    )
    assert refused(output), output
    assert trainer.process.poll() is None


def test_a_program_can_kill_its_own_children(trainer: Trainer) -> None:
    result = trainer.run("""
import subprocess, sys
sleeper = subprocess.Popen(["sleep", "60"])
sleeper.kill()
print(sleeper.wait())
try:
    subprocess.run(["sleep", "60"], timeout=0.1)
except subprocess.TimeoutExpired:
    print("timeout")
""")
    assert (result.exit_code, result.stdout) == (0, "-9\ntimeout\n"), result


def test_other_processes_cannot_be_inspected(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
for other in {trainer["pid"], os.getppid()} - {0, os.getpid()}:
    for name in ("environ", "mem", "maps", "fd", "root", "cwd", "exe", "auxv", "io", "stack", "task", "cmdline"):
        path = f"/proc/{other}/{name}"
        attempt(path, lambda: str(os.listdir(path)) if os.path.isdir(path) else str(open(path, "rb").read(100)))
    attempt(f"trace {other}", lambda: system_call(101 if os.uname().machine == "x86_64" else 117, 16, other, 0, 0))
    attempt(f"read {other}", lambda: system_call(310 if os.uname().machine == "x86_64" else 270, other, 0, 0, 0, 0, 0))
    attempt(f"descriptor {other}", lambda: system_call(438, os.pidfd_open(other), 0, 0))
""",
    )
    assert refused(output), output


def test_process_ids_are_hidden_in_namespaces(trainer: Trainer) -> None:
    """Tier B cannot, and documents it: whether a number is taken is visible, and nothing else of the process."""
    if trainer.tier is Tier.LANDLOCK:
        source = "import json, os, sys\nprint(os.path.exists('/proc/%d' % json.loads(sys.argv[1])['pid']))"
        assert trainer.run(source).stdout == "True\n"
        return
    result = trainer.run("import os\nprint([name for name in os.listdir('/proc') if name.isdigit()], os.getpid())")
    pids, own = result.stdout.rsplit(" ", 1)
    assert set(ast.literal_eval(pids)) <= {"1", own.strip()}
    assert int(own) < 10


def test_concurrent_programs_do_not_see_each_other(trainer: Trainer) -> None:
    source = (
        TRY
        + """
os.mkdir("here"); open("here/secret", "w").write("secret")
open(os.environ["TMPDIR"] + "/met", "a").write(str(os.getpid()))
time.sleep(0.5)
with contextlib.suppress(OSError):
    os.kill(-1, signal.SIGKILL)  # everyone but itself that it may
said["met"] = open(os.environ["TMPDIR"] + "/met").read() == str(os.getpid())
home = os.path.dirname(os.getcwd())
said["theirs"] = []
for root, _, files in os.walk(os.path.dirname(home) if home != "/scratch" else home):
    said["theirs"] += [f"{root}/{name}" for name in files if not root.startswith(home)]
"""
        + PRINT_RESULTS
    )
    for result in trainer.run_together({"source": source, "limits": {}}, {"source": source, "limits": {}}):
        assert result.exit_code == 0, result
        output = json.loads(result.stdout)
        assert output["met"]
        assert not output["theirs"]


def test_a_program_cannot_gain_privileges(trainer: Trainer) -> None:
    output = results_of(
        trainer,
        """
said["root"] = os.getuid() == 0 or os.geteuid() == 0
said["no new privileges"] = libc.prctl(39, 0, 0, 0, 0) == 1
held = (ctypes.c_uint32 * 6)()
said["capabilities"] = libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) or list(held)
attempt("become root", lambda: os.setuid(0))
for fd in (0, 1, 2):
    attempt(f"type into the terminal {fd}", lambda: fcntl.ioctl(fd, 0x5412, b"x"))
attempt("open the terminal", lambda: os.open("/dev/tty", os.O_RDWR))
attempt("a user namespace", lambda: system_call(272 if os.uname().machine == "x86_64" else 97, 0x10000000))
attempt("a network namespace", lambda: system_call(272 if os.uname().machine == "x86_64" else 97, 0x40000000))
attempt("change the root", lambda: os.chroot("."))
attempt("bpf", lambda: system_call(321 if os.uname().machine == "x86_64" else 280, 0, 0, 0))
attempt("io_uring", lambda: system_call(425, 1, 0))
attempt("keys", lambda: system_call(250 if os.uname().machine == "x86_64" else 219, 0, -3, 0))
attempt("more memory", lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 50, 1 << 50)))
said["su"] = subprocess.run(["su", "-c", "true"], stdin=-3, capture_output=True).returncode != 0
""",
    )
    assert output.pop("root") is False
    assert output.pop("no new privileges") is True
    assert output.pop("su") is True
    # docs/sandbox.md: in tier B programs of root may enter closed directories (CAP_DAC_READ_SEARCH).
    allowed = {0, 1 << 2} if trainer.tier is Tier.LANDLOCK and os.geteuid() == 0 else {0}
    assert set(output.pop("capabilities")) <= allowed  # type: ignore[call-overload]
    assert output.pop("more memory") in ("ValueError", "PermissionError", "OSError")
    assert refused(output), output


def test_descriptors_of_the_trainer_are_not_inherited(trainer: Trainer) -> None:
    result = trainer.run("""
import os, stat
for fd in range(3, 4096):
    try:
        print(fd, stat.filemode(os.fstat(fd).st_mode))
    except OSError:
        pass
""")
    assert (result.exit_code, result.stdout) == (0, ""), result


def test_cpu_time_of_all_processes_is_bounded(trainer: Trainer) -> None:
    source = """
import os, signal
for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
while True:
    sum(range(10**7))
"""
    result = trainer.run(source, cpu_s=0.4, wall_s=100)
    assert result.ended == "cpu limit"
    assert result.cpu_s < 10
    assert not orphans(trainer)


def test_wall_time_is_bounded(trainer: Trainer) -> None:
    source = """
import os, signal
for number in range(1, 65):
    if number not in (9, 19, 32, 33):
        signal.signal(number, signal.SIG_IGN)
os.fork()
os.kill(os.getpid(), signal.SIGSTOP)
"""
    result = trainer.run(source, wall_s=0.5)
    assert result.ended == "wall limit"
    assert not orphans(trainer)


MEMORY = {
    "one process": "held = bytearray(400 << 20)\nheld[::4096] = bytes(len(held[::4096]))",
    "children": """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(50 << 20)
        held[::4096] = bytes(len(held[::4096]))
        time.sleep(1000)
        os._exit(0)
time.sleep(1000)
""",
    "unreadable": """
import os, subprocess, sys
copy = os.open("copy", os.O_CREAT | os.O_WRONLY, 0o111)
os.write(copy, open(sys.executable, "rb").read())
os.close(copy)
hold = "held = bytearray(300 << 20); held[::4096] = bytes(len(held[::4096])); import time; time.sleep(1000)"
subprocess.run(["./copy", "-c", hold], env={"PYTHONHOME": sys.base_prefix})
""",
    "shared": """
import mmap, time
held = mmap.mmap(-1, 300 << 20)
for at in range(0, 300 << 20, 4096):
    held[at] = 1
time.sleep(1000)
""",
}


def test_memory_of_all_processes_is_bounded(trainer: Trainer) -> None:
    check_memory(trainer, *MEMORY)


def check_memory(trainer: Trainer, *names: str) -> None:
    limits = {"memory_mb": 128, "wall_s": 100}
    results = trainer.run_together(*[{"source": MEMORY[name], "limits": limits} for name in names])
    # A process that cannot be inspected may also be ended for the deleted files that it may hold: the earlier counts.
    ends = {"unreadable": ("memory limit", "scratch limit")}
    wrong = {
        name: result
        for name, result in zip(names, results, strict=True)
        if result.ended not in ends.get(name, ("memory limit",)) and (result.ended, result.exit_code) != ("exited", 1)
    }
    assert not wrong
    assert not orphans(trainer)


def test_processes_are_bounded(trainer: Trainer) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    result = trainer.run(bomb, processes=16, cpu_s=0.3, wall_s=100)
    assert result.ended in ("cpu limit", "wall limit", "processes limit")
    assert not orphans(trainer)
    threads = """
import os, threading, time
try:
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(1000,)).start()
except RuntimeError:
    os._exit(7)
os._exit(0)
"""
    result = trainer.run(threads, processes=16, wall_s=100)
    assert result.ended == "processes limit" or result.exit_code == 7, result
    assert trainer.run("print(1)").stdout == "1\n"


SCRATCH = {
    "many": "for n in range(100):\n    with open(str(n), 'wb') as file:\n        file.write(bytes(1 << 20))\n",
    "without names": (
        "import os\nfor n in range(100):\n    file = os.open(str(n), os.O_CREAT | os.O_WRONLY)\n    os.unlink(str(n))\n"
        "    os.write(file, bytes(1 << 20))\n"
    ),
    "one": "with open('big', 'wb') as file:\n    for n in range(100):\n        file.write(bytes(1 << 20))\n",
    "empty files": "for n in range(5000):\n    open(str(n), 'w').close()\n",
    "directories": "import os, tempfile\nfor n in range(5000):\n    os.mkdir(f'{tempfile.gettempdir()}/{n}')\n",
    "below what a path can name": (
        "import os\nfor n in range(600):\n    os.mkdir('deep' * 4)\n    os.chdir('deep' * 4)\n"
        "for n in range(100):\n    with open(str(n), 'wb') as file:\n        file.write(bytes(1 << 20))\n"
    ),
    "out of sight": (
        "import os\nos.mkdir('closed', 0o300)\nfor n in range(100):\n    with open(f'closed/{n}', 'wb') as file:\n"
        "        file.write(bytes(1 << 20))\n"
    ),
}


def test_scratch_space_is_bounded(trainer: Trainer) -> None:
    limits = {"scratch_mb": 16, "scratch_files": 1000, "wall_s": 100}
    stay = "import time\ntime.sleep(1000)"
    results = trainer.run_together(*[{"source": source + stay, "limits": limits} for source in SCRATCH.values()])
    wrong = {
        name: result
        for name, result in zip(SCRATCH, results, strict=True)
        if result.ended not in ("exited", "scratch limit", "signalled") or result.exit_code == 0
    }
    assert not wrong
    assert trainer.run("open('x', 'wb').write(bytes(1 << 20))", scratch_mb=16).exit_code == 0


def test_output_is_bounded(trainer: Trainer) -> None:
    result = trainer.run("import os\nwhile True:\n    os.write(1, b'x' * 65536)", output_bytes=1000)
    assert result.ended == "output limit"
    assert result.stdout == "x" * 1000
    assert result.stdout_bytes > 1000


def test_no_process_is_left(trainer: Trainer) -> None:
    """Daemons in sessions of their own that ignore signals, whose parents have ended, and that are not traced."""
    result = trainer.run("""
import os, signal, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 65):
                if number not in (9, 19, 32, 33):
                    signal.signal(number, signal.SIG_IGN)
            os.closerange(0, 100)
            while True:
                time.sleep(60)
        os._exit(0)
for _ in range(5):
    daemon()
print("gone")
""")
    assert (result.exit_code, result.stdout) == (0, "gone\n"), result
    assert not orphans(trainer)


def test_no_file_is_left(trainer: Trainer) -> None:
    result = trainer.run("""
import os, tempfile
left = []
above = [os.getcwd() + "/.." * up for up in range(5)]
for directory in (*above, tempfile.gettempdir(), os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm", "/run", "/"):
    try:
        with open(f"{directory}/rllm-gym-left", "w") as file:
            left.append(file.name)
        os.mkdir(f"{directory}/rllm-gym-deep", 0o000)
    except OSError:
        pass
for directory in above:
    try:
        os.chmod(directory, 0)
    except OSError:
        pass
print(left)
""")
    assert result.exit_code == 0, result
    left = ast.literal_eval(result.stdout)
    assert left
    assert not [path for path in left if os.path.lexists(path)]
    assert trainer.run(f"import os\nprint([p for p in {left!r} if os.path.lexists(p)])").stdout == "[]\n"


def test_no_shared_memory_is_left(trainer: Trainer) -> None:
    name = f"rllm-gym-left-{os.getpid()}"  # other processes of the machine use /dev/shm, too
    result = trainer.run(f"""
import ctypes, os
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *a: None
memory = shared_memory.SharedMemory("{name}", create=True, size=4096)
memory.buf[:4] = b"left"
libc = ctypes.CDLL(None)
found = [libc.shmget(0x1234, 4096, 0o1666), libc.semget(0x1234, 1, 0o1666), libc.msgget(0x1234, 0o1666)]
os._exit(0 if found == [-1] * 3 else 3)
""")
    assert result.exit_code == 0, result
    assert not os.path.lexists(f"/dev/shm/{name}")
    after = trainer.run(f"from multiprocessing import shared_memory\nshared_memory.SharedMemory({name!r})")
    assert "FileNotFoundError" in after.stderr


def test_no_state_is_left_in_the_worker(trainer: Trainer) -> None:
    spoil = """
import builtins, json, os, signal, sys, locale, random
builtins.print = None
json.dumps = lambda *a: "spoiled"
sys.path.insert(0, "/spoiled"); sys.setrecursionlimit(50); os.environ["SPOILED"] = "1"; os.umask(0o777)
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.modules["math"] = None
os.chdir("/")
import ctypes
ctypes.memset(id(10**6), 0, 8)
"""
    look = """
import json, math, os, signal, sys
print(json.dumps([math.sqrt(4), "/spoiled" in sys.path, sys.getrecursionlimit(), "SPOILED" in os.environ,
                  signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.umask(0)]))
"""
    fresh = trainer.run(look).stdout
    for _ in range(3):
        trainer.run(spoil)
        assert trainer.run(look).stdout == fresh


def test_multiprocessing_works(trainer: Trainer) -> None:
    """What honest programs use: pools, queues, locks, shared memory."""
    result = trainer.run("""
import multiprocessing, multiprocessing.shared_memory
from concurrent.futures import ProcessPoolExecutor
def count(total, queue):
    for _ in range(50):
        with total.get_lock():
            total.value += 1
    queue.put("x" * 100_000)
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(sum(pool.map(abs, range(-10, 10))))
    with ProcessPoolExecutor(2) as executor:
        print(list(executor.map(abs, [-1, -2])))
    queue, total = multiprocessing.Queue(), multiprocessing.Value("i", 0)
    counters = [multiprocessing.Process(target=count, args=(total, queue)) for _ in range(3)]
    for counter in counters: counter.start()
    print(sum(len(queue.get()) for _ in counters))
    for counter in counters: counter.join()
    print(total.value)
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=100)
    other = multiprocessing.shared_memory.SharedMemory(memory.name)
    memory.buf[0] = 7
    print(other.buf[0])
    other.close(); memory.close(); memory.unlink()
""")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split("\n") == ["100", "[1, 2]", "300000", "150", "7", ""], result


def test_killing_the_trainer_leaves_no_process(trainer: Trainer) -> None:
    source = """
import os, sys
from rllm_gym.sandbox import *
from rllm_gym.sandbox.tier import Tier
import threading
stay = '''
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    os.fork()
for number in range(1, 65):
    if number not in (9, 19, 32, 33):
        signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(60)
'''
with SandboxPool(Tier(sys.argv[1])) as pool:
    for _ in range(3):
        threading.Thread(target=pool.run_sync, args=(Program(stay, limits=Limits(wall_s=1000)),), daemon=True).start()
    import psutil
    while len(psutil.Process().children(recursive=True)) < 9:
        pass
    print("ready", flush=True)
    input()
"""
    victim = trainer.user.start(source, trainer.tier.value)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
    family = psutil.Process(victim.pid).children(recursive=True)
    victim.kill()
    victim.communicate()
    assert until(lambda: not alive(family)), alive(family)


def test_the_unsafe_tier_applies_limits_and_ends_its_processes(unsafe_trainer: Trainer) -> None:
    trainer = unsafe_trainer
    assert trainer.run("while True:\n    pass", cpu_s=0.3).ended == "cpu limit"
    assert trainer.run("import time\ntime.sleep(60)", wall_s=0.3).ended == "wall limit"
    flood = "import os\nwhile True:\n    os.write(1, b'x' * 65536)"
    assert trainer.run(flood, output_bytes=1000).ended == "output limit"
    result = trainer.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint(os.environ)")
    assert result.exit_code == 0
    assert "SECRET_TOKEN" not in result.stdout
    assert not orphans(trainer)
    check_memory(trainer, "children")
    test_descriptors_of_the_trainer_are_not_inherited(trainer)
    test_no_state_is_left_in_the_worker(trainer)
    test_killing_the_trainer_leaves_no_process(trainer)


def test_the_table_of_guarantees_names_existing_tests() -> None:
    """Every guarantee in docs/sandbox.md names a test, and every test named there exists."""
    text = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+\.py)::(\w+)`", text))
    assert len(named) > 15
    for file, name in named:
        found = list((ROOT / "tests").rglob(file))
        assert found, f"docs/sandbox.md names {file}, which does not exist"
        assert re.search(rf"^\s*def {name}\(", found[0].read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"
    rows = [line for line in text.splitlines() if line.startswith("| ") and "guarantee" not in line]
    assert all("::" in row for row in rows if row.count("|") >= 6), "a guarantee without a test"


def orphans(trainer: Trainer) -> list[int]:
    """Return processes below the trainer that are neither its warm workers nor their bwrap processes."""
    deep = [pid for pid in trainer.left if is_alive(pid)]
    # Up to four workers; in tier A each has bwrap's two processes above it.
    return deep if len(deep) > 12 else []
