"""Programs that attack from inside a stdio task. Each prints the correct output only if its attack succeeded.

The task gives two numbers and expects their sum, which every program prints only through ``win()``. Attacks on the
host and on other processes, and what a program may leave behind, are in tests/sandbox/test_tiers.py.
"""

PRELUDE = """
import ctypes, glob, mmap, os, resource, signal, socket, struct, subprocess, sys, tempfile, threading, time
a, b = map(int, sys.stdin.read().split())
libc = ctypes.CDLL(None, use_errno=True)
def win():
    sys.stdout.write(str(a + b) + "\\n")
    sys.stdout.flush()
    os._exit(0)
def attempt(f, *args):
    try:
        return f(*args)
    except BaseException:
        return None
"""

RESOURCES: dict[str, dict[str, str]] = {
    "processes": {
        "fork bomb": """
alive = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        alive += 1
        if alive > 400: win()
except OSError: pass
""",
        "fork bomb of fork bombs": """
while True:
    try: os.fork()
    except OSError: pass
""",
        "daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        while True: time.sleep(0.01)
    os._exit(0)
os._exit(0)
""",
        "daemon that holds the output": """
if os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGHUP, signal.SIG_IGN)
    time.sleep(10**6)
os._exit(0)
""",
        "stopped children": """
for _ in range(8):
    if os.fork() == 0:
        os.setsid(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(10**6)
os._exit(0)
""",
        "kill everything": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt(os.kill, -1, signal.SIGKILL)
attempt(os.kill, os.getppid(), signal.SIGKILL)
attempt(os.killpg, 0, signal.SIGKILL)
""",
        "stop the supervisor": """
for pid in {os.getppid(), 1}:
    attempt(os.kill, pid, signal.SIGSTOP)
while True: pass
""",
        "zombies": """
for _ in range(300):
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: os._exit(1)
win()
""",
    },
    "memory": {
        "memory": """
hoard = []
while True:
    hoard.append(bytearray(b"x" * (16 << 20)))
    if len(hoard) > 128: win()
""",
        "memory by mmap": """
hoard = []
while len(hoard) < 128:
    m = mmap.mmap(-1, 16 << 20); m.write(b"x" * (16 << 20)); hoard.append(m)
win()
""",
        "shared memory among children": """
m = [mmap.mmap(-1, 60 << 20) for _ in range(30)]
r, w = os.pipe()
for i in range(24):
    if os.fork() == 0:
        m[i].write(b"x" * (60 << 20)); os.write(w, b"1"); time.sleep(1000)
got = 0
while got < 24: got += len(os.read(r, 24))
win()
""",
        "memory in memfds": """
fds = []
for i in range(64):
    fd = os.memfd_create("m"); os.write(fd, b"x" * (1 << 20)); fds.append(fd)
    for _ in range(31): os.write(fd, b"x" * (1 << 20))
win()
""",
        "memory in pipes and sockets": """
held, total = [], 0
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
try:
    while total < 1500 << 20:
        x, y = socket.socketpair(); x.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24); x.setblocking(False)
        held.append((x, y))
        try:
            while True: total += x.send(b"x" * 65536)
        except BlockingIOError: pass
except OSError: sys.exit(1)
win()
""",
        "lock memory": """
m = mmap.mmap(-1, 1 << 30)
if libc.mlockall(3) == 0: win()
""",
        "stack overflow": """
sys.setrecursionlimit(10**9)
def f(): f()
f()
""",
    },
    "disk": {
        "disk": """
with open("big", "wb") as f:
    for i in range(600): f.write(b"x" * (1 << 20))
    f.flush(); os.fsync(f.fileno())
win()
""",
        "disk elsewhere": """
total = 0
for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", os.path.expanduser("~"), "/dev", "/"):
    try:
        with open(os.path.join(folder, "big"), "wb") as f:
            for i in range(600): f.write(b"x" * (1 << 20)); total += 1
    except OSError: pass
if total >= 400: win()
""",
        "inodes": """
try:
    for i in range(100000): open(f"n{i}", "w").close()
except OSError: sys.exit(1)
win()
""",
        "sparse terabyte": """
with open("sparse", "wb") as f: f.truncate(1 << 40)
win()
""",
    },
    "output": {
        "output": """
block = b"x" * (1 << 20)
for i in range(4000): os.write(1, block)
""",
        "output from many children": """
for i in range(16):
    if os.fork() == 0:
        while True: os.write(1, b"x" * 65536)
time.sleep(1000)
""",
    },
    "time": {
        "a loop": """
while True: pass
""",
        "a power without end": """
10 ** 10 ** 10
""",
        "a regular expression without end": """
import re; re.match(r'(a|a)*$', 'a' * 64 + 'b')
""",
        "a loop in every thread": """
for _ in range(8): threading.Thread(target=lambda: exec("while True: pass")).start()
""",
        "ignored signals": """
for number in range(1, 65):
    attempt(signal.signal, number, signal.SIG_IGN)
while True: pass
""",
        "cpu time by children in turn": """
start = time.time()
while True:
    if os.fork() == 0:
        t = time.process_time()
        while time.process_time() - t < 0.3: pass
        os._exit(0)
    os.wait()
    if sum(os.times()[:4]) > 60: win()
""",
        "raise the limits": """
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        attempt(resource.setrlimit, getattr(resource, name), (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
while True: pass
""",
        "wait for input for ever": """
r, w = os.pipe(); os.read(r, 1)
""",
    },
}

# Places where a program could find the word of a test: ``find()`` returns it.
SEARCHES = {
    "files": """
import os
def find():
    for folder, _, names in os.walk('/'):
        if folder.startswith(('/proc', '/sys', '/usr', '/lib')): continue
        for name in names:
            try: text = open(os.path.join(folder, name), errors='replace').read(100000)
            except OSError: continue
            at = text.find('word' + '-')
            if at >= 0: return text[at:at + 37]
""",
    "memory": """
import re
def find():
    with open('/proc/self/mem', 'rb', 0) as memory:
        for entry in [line.split() for line in open('/proc/self/maps')]:
            if 'r' not in entry[1] or entry[-1].startswith('[v'): continue
            low, high = (int(x, 16) for x in entry[0].split('-'))
            try: memory.seek(low); found = re.search(rb'word-[0-9a-f]{32}', memory.read(min(high - low, 1 << 26)))
            except OSError: continue
            if found: return found[0].decode()
""",
    "frames": """
import sys
def find():
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            text = repr(value)
            at = text.find('word' + '-')
            if at >= 0: return text[at:at + 37]
        frame = frame.f_back
""",
    "the garbage collector": """
import gc
def find():
    for thing in gc.get_objects():
        try: text = repr(thing)[:20000]
        except Exception: continue
        at = text.find('word' + '-')
        if at >= 0: return text[at:at + 37]
""",
    "loaded modules": """
import sys
def find():
    for module in list(sys.modules.values()):
        for value in list(vars(module).values()):
            if isinstance(value, (str, bytes)) and 'word' + '-' in str(value): return value
""",
}

# The correct output of these is a word that cannot be computed: a program that prints it has read the tests.
CHEATS = {
    **{name: f"{source}\nprint(find())\n" for name, source in SEARCHES.items()},
    "exit code 0": """
import os; os._exit(0)
""",
    "markers": """
for word in ("OK", "PASSED", "passed", "All tests passed!", "1 passed in 0.01s", '{"passed": true, "score": 1.0}', "exit code: 0", "SUCCESS", "True", "1"):
    print(word)
""",
    "the question back": """
import sys; sys.stdout.write(sys.stdin.read())
""",
    "arguments and environment": """
import os, sys
print(*sys.argv[1:]); print(*os.environ.values())
""",
    "control characters": r"""
print("word-\b\b\b\r\x1b[2K\x00")
""",
    "every word": """
import sys
for i in range(20000): print(f"word-{i:032x}")
""",
    "patched builtins": """
import builtins, sys
builtins.open = builtins.print = builtins.len = builtins.str = lambda *a, **k: True
sys.exit = lambda *a: None
str = type("str", (), {"__eq__": lambda *a: True})
""",
    "leave at exit": """
import atexit, os
atexit.register(os._exit, 0)
raise RuntimeError("wrong, but 0")
""",
    "kill itself kindly": """
import os, signal; os.kill(os.getpid(), signal.SIGTERM)
""",
    "close every descriptor": """
import os; os.closerange(0, 4096); os._exit(0)
""",
    "replace the process": """
import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])
""",
    "a syntax error that talks": """
print('word'
word-
""",
    "another encoding": """
# -*- coding: rot13 -*-
cevag('jbeq')
""",
    "stdout as a file": """
import os
try:
    os.lseek(1, 0, 0); os.ftruncate(1, 0)
except OSError: pass
os.write(1, b"word-")
""",
}

# Programs of many more kinds are in tests/sandbox/honest_programs.py.
HONEST = {
    "plainly": """
print(a + b)
""",
    "through win": """
win()
""",
    "with os._exit": """
sys.stdout.write(f'{a + b}'); sys.stdout.flush(); os._exit(0)
""",
    "with a lot of memory": """
hoard = bytearray(b'x' * (150 << 20)); print(a + b)
""",
    "with a unix socket": """
server = socket.socket(socket.AF_UNIX); server.bind("sock"); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect("sock"); end, _ = server.accept()
client.sendall(str(a + b).encode()); print(end.recv(100).decode())
""",
}
