"""Checks what a program in a sandbox can access of the machine, and prints the forbidden things it could do as JSON.

Sent in as source text: standard library only. The arguments name things that exist outside: a file and its directory, a
Unix socket, a port on the loopback interface, and a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys


def main() -> None:
    file, unix_socket, port, pid = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    could = []
    with contextlib.suppress(OSError), open(file, "rb"):
        could.append("read a file of the host")
    with contextlib.suppress(OSError), open(f"{file}.written", "wb"):
        could.append("write next to a file of the host")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(unix_socket)
        could.append("connect to a Unix socket of the host")
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        could.append("connect to a TCP port of the host")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("192.0.2.1", 9))  # finds a route, sends nothing
        could.append("send to the network")
    if pid not in (os.getpid(), os.getppid()):  # in another pid namespace the same number means another process
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb"):
            could.append("read the environment of a process outside")
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    libc = ctypes.CDLL(None, use_errno=True)
    for name, flag in (("user", 0x10000000), ("network", 0x40000000)):
        if libc.unshare(flag) == 0:
            could.append(f"create a {name} namespace")
    if os.geteuid() == 0 or os.getuid() == 0:
        could.append("be root")
    print(json.dumps({"could": could, "environment": sorted(os.environ)}))


if __name__ == "__main__":
    main()
