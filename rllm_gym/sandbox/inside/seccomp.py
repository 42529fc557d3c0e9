"""The seccomp filter with the system calls that a model-written program may not make.

Sent in as source text: standard library only. The filter is a deny list, so that ordinary programs see the system they
know. It is closed at the top: calls newer than this file do not exist (``ENOSYS``, for which every library has a
fallback). A denied call fails as on a machine that lacks the feature. Only the calling convention of another
architecture, which ordinary programs never use, kills the process. Sources: seccomp(2); the kernel's syscall tables;
the default profile of moby/profiles for the families.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_*
_ARCHITECTURES = {"x86_64": _X86_64, "aarch64": _AARCH64}

# fmt: off
_REFUSED: dict[str, tuple[int | None, int | None]] = {  # name: (x86_64, aarch64)
    # access to other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "open_tree_attr": (467, 467), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # memory and queues that outlive a process
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # kernel subsystems with a history of vulnerabilities
    "bpf": (321, 280), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "modify_ldt": (154, None),
    "uselib": (134, None), "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
    "vmsplice": (278, 75), "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "lsm_get_self_attr": (459, 459),
    "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    # the machine itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "create_module": (174, None), "query_module": (178, None),
    "get_kernel_syms": (177, None), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    "vhangup": (153, 58), "sched_setattr": (314, 274),
}
_ABSENT: dict[str, tuple[int | None, int | None]] = {  # optional on older kernels: libraries have fallbacks
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "remap_file_pages": (216, 234),
    # which pages of a file another program has read
    "mincore": (27, 232), "cachestat": (451, 451),
    "io_setup": (206, 0),  # its requests are counted for the whole machine
}
_DEPENDS: dict[str, tuple[int | None, int | None]] = {  # depending on arguments or on options
    "prlimit64": (302, 261), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "clone": (56, 220), "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203),
    "personality": (135, 92), "prctl": (157, 167), "ioctl": (16, 29), "setsockopt": (54, 208),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setaffinity": (203, 122), "setpriority": (141, 140), "ioprio_set": (251, 30), "open": (2, None),
    "openat": (257, 56), "openat2": (437, 437), "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None), "fchown": (93, 55),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469), "inotify_add_watch": (254, 27),
    "fcntl": (72, 25), "preadv2": (327, 286),
}
# fmt: on
_NUMBERS = _REFUSED | _ABSENT | _DEPENDS
_NEWEST = 469  # file_setattr, Linux 6.17
_X32 = 0x40000000

# fmt: off
_OF_THE_OWNER = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat",
    "utime", "utimes", "futimesat", "utimensat",
)
# fmt: on
_CLONE_NEW = 0x7E020000  # CLONE_NEWNS | CGROUP | UTS | IPC | USER | PID | NET; NEWTIME needs clone3 or unshare
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 2, 5, 0xF
_SO_SNDBUF, _SO_RCVBUF, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 7, 8, 32, 33
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SCHED_ORDINARY = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE
_SCHED_RESET_ON_FORK = 0x40000000
_PR_SET_DUMPABLE = 4
_F_SETLEASE, _F_NOTIFY, _RWF_NOWAIT = 1024, 1026, 8
_ALL = 0xFFFFFFFF

_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_BITS, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_Check = tuple[int, int, tuple[int, ...], bool]  # argument, mask, values, whether the values are the denied ones


def deny_list(
    *,
    sockets: str = "unix",
    watched: bool = False,
    shared_user: bool = False,
    landlock_abi: int = 0,
    own_pid: int = 0,
    machine: str | None = None,
) -> bytes:
    """Return the filter for one program.

    The result is the array of ``struct sock_filter`` that the kernel and ``bwrap --seccomp`` take.

    Args:
        sockets: ``"none"``: only connected pairs of stream sockets (where the host's sockets are reachable);
            ``"unix"``: Unix sockets; ``"loopback"``: also TCP and UDP (for a separate network namespace).
        watched: The program is monitored through its /proc: it may not make that unreadable.
        shared_user: The program shares its user id with processes and files that it must not touch, and no namespace
            hides them. Calls that act on another process by number are refused. Calls that change a file's mode, owner
            or times, which Landlock does not restrict, have no effect.
        landlock_abi: With ``shared_user``: what Landlock restricts. Below 3 ``truncate`` is refused, below 6 signals to
            any process except ``own_pid`` and its group.
        own_pid: With ``shared_user``: the program's process id, which leads a process group.
        machine: ``"x86_64"`` or ``"aarch64"``; this machine's by default.

    Raises:
        ValueError: An unknown ``sockets``, or a machine without a table here.
    """
    machine = machine or os.uname().machine
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system call numbers for machine {machine!r}; known: {', '.join(_ARCHITECTURES)}")
    denied = dict.fromkeys(_REFUSED, errno.EPERM) | dict.fromkeys(_ABSENT, errno.ENOSYS)
    checked: dict[str, tuple[int, list[_Check]]] = {
        "clone": (errno.EPERM, [(0, _CLONE_NEW, (0,), False)]),
        "prlimit64": (errno.EPERM, [(0, _ALL, (0,), False)]),
        "personality": (errno.EPERM, [(0, _ALL, (0, _ALL), False)]),
        "ioctl": (errno.EPERM, [(1, _ALL, (_TIOCSTI, _TIOCLINUX), True)]),
        "sched_setscheduler": (errno.EPERM, [(1, _ALL & ~_SCHED_RESET_ON_FORK, _SCHED_ORDINARY, False)]),
        "socketpair": (errno.EAFNOSUPPORT, [(0, _ALL, (_AF_UNIX,), False)]),
        # It reads what is in memory already, which tells what another program has read.
        "preadv2": (errno.EOPNOTSUPP, [(5, _RWF_NOWAIT, (_RWF_NOWAIT,), True)]),
        # Data in sockets is memory of the kernel that no monitor counts. The request succeeds without effect, as one
        # above the kernel's own maximum does. The level is not checked: the numbers are unusual on other levels.
        "setsockopt": (0, [(2, _ALL, (_SO_SNDBUF, _SO_RCVBUF, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE), True)]),
    }
    if sockets == "none":
        denied |= {"socket": errno.EAFNOSUPPORT, "connect": errno.EPERM}
        # Landlock lets it watch files that it hides, and files and directories are shared with other programs.
        denied["inotify_add_watch"] = errno.EACCES
        checked["fcntl"] = (errno.EINVAL, [(1, _ALL, (_F_SETLEASE, _F_NOTIFY), True)])
        # A datagram socket, even one of a pair, can be connected to any address.
        checked["socketpair"][1].append((1, _SOCK_TYPE, (_SOCK_STREAM, _SOCK_SEQPACKET), False))
    elif sockets == "unix":
        checked["socket"] = (errno.EAFNOSUPPORT, [(0, _ALL, (_AF_UNIX,), False)])
    elif sockets == "loopback":
        types = (_SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET)
        families = (_AF_UNIX, _AF_INET, _AF_INET6)
        checked["socket"] = (errno.EAFNOSUPPORT, [(0, _ALL, families, False), (1, _SOCK_TYPE, types, False)])
    else:
        raise ValueError(f"sockets is {sockets!r}; it is 'none', 'unix' or 'loopback'")
    if watched:
        checked["prctl"] = (errno.EPERM, [(0, _ALL, (_PR_SET_DUMPABLE,), True)])
    if shared_user:
        _protect_the_user(denied, checked, landlock_abi, own_pid)
    return _assemble(denied, checked, machine)


def _protect_the_user(
    denied: dict[str, int], checked: dict[str, tuple[int, list[_Check]]], landlock_abi: int, own_pid: int
) -> None:
    """Add rules that protect other processes and files of the same user, for lack of a namespace or user id."""
    for name in _OF_THE_OWNER:
        denied[name] = 0  # reports success without effect: copying a file with its mode is common in ordinary programs
    for name in _NUMBERS:
        if "xattr" in name:
            denied[name] = errno.ENOTSUP
    denied["file_setattr"] = errno.ENOTSUP
    # Opening for reading with O_TRUNC empties the file. openat2 passes its flags where no filter can see them.
    denied["openat2"] = errno.ENOSYS
    access_and_truncate, truncate = os.O_ACCMODE | os.O_TRUNC, os.O_TRUNC
    checked["open"] = (errno.EACCES, [(1, access_and_truncate, (truncate,), True)])
    checked["openat"] = (errno.EACCES, [(2, access_and_truncate, (truncate,), True)])
    for name in ("sched_setaffinity", "sched_setparam"):
        checked[name] = (errno.EPERM, [(0, _ALL, (0,), False)])
    checked["sched_setscheduler"][1].append((0, _ALL, (0,), False))
    for name in ("setpriority", "ioprio_set"):
        kind = 0 if name == "setpriority" else 1  # PRIO_PROCESS, IOPRIO_WHO_PROCESS
        checked[name] = (errno.EPERM, [(0, _ALL, (kind,), False), (1, _ALL, (0,), False)])
    if landlock_abi < 3:
        denied["truncate"] = errno.EACCES
    if landlock_abi < 6:
        own = (0, own_pid, -own_pid & _ALL)
        checked["kill"] = (errno.EPERM, [(0, _ALL, own, False)])
        for name in ("tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            checked[name] = (errno.EPERM, [(0, _ALL, (own_pid,), False)])
        checked["tkill"] = (errno.EPERM, [(0, _ALL, (own_pid,), False)])
        denied["pidfd_send_signal"] = errno.EPERM


def _assemble(denied: dict[str, int], checked: dict[str, tuple[int, list[_Check]]], machine: str) -> bytes:
    column = 0 if machine == "x86_64" else 1
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_instruction(_JUMP_BITS, _X32, 0, 1), _instruction(_RETURN, _KILL)]
    code += [_instruction(_JUMP_GREATER, _NEWEST, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    for name, error in denied.items():
        if (number := _NUMBERS[name][column]) is not None:
            code += [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, _ERRNO | error)]
    for name, (error, checks) in checked.items():
        if (number := _NUMBERS[name][column]) is not None:
            block = [step for check in checks for step in _check(check, error)]
            block.append(_instruction(_RETURN, _ALLOW))
            code += [_instruction(_JUMP_EQUAL, number, 0, len(block)), *block]
    code.append(_instruction(_RETURN, _ALLOW))
    return b"".join(code)


def _check(check: _Check, error: int) -> list[bytes]:
    """Deny where the low half of an argument, masked, is (or is not) one of the values; fall through otherwise.

    The checked arguments are ``int`` or have their flags in the low half, so that the kernel reads no more either.
    """
    argument, mask, values, is_denied = check
    steps = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * argument), _instruction(_AND, mask)]
    for value in values[:-1]:
        left = len(values) - (len(steps) - 1)  # comparisons after this one
        steps.append(_instruction(_JUMP_EQUAL, value, left if is_denied else left + 1, 0))
    steps.append(_instruction(_JUMP_EQUAL, values[-1], 0 if is_denied else 1, 1 if is_denied else 0))
    return [*steps, _instruction(_RETURN, _ERRNO | error)]


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(filter: bytes) -> None:
    """Apply the filter permanently to the calling thread and everything it starts. ``no_new_privs`` must be set.

    Raises:
        OSError: The kernel refused it.
    """
    program = _Program(len(filter) // 8, filter)
    if _libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp filter refused: {os.strerror(number)}")
