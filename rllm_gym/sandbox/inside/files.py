"""A hostile directory, read and written without ever being led out of it.

Everything goes from one descriptor of the root, a component at a time, never following a link by itself: what the
owner of the directory does meanwhile cannot lead elsewhere. Runs behind the wall and in the trainer alike, so it
uses the standard library only. Names are bytes on disk and surrogate-escaped text in answers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_DEPTH = 256
"""Directories below one another. Deeper trees are refused: each level holds a descriptor while it is read."""

MAX_LINKS = 40
"""Symbolic links followed for one path, as the kernel does."""

_PATH_MAX = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


class TooLarge(Exception):
    """A file or a tree is over the limit it was asked for with; says which and by what."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or symbolic link: ``data`` is its content, or what the link says."""

    path: str
    kind: str
    data: bytes
    executable: bool


@dataclass(slots=True)
class Budget:
    """What one reading may take, and what it has taken."""

    max_bytes: int
    max_files: int
    bytes: int = 0
    files: int = 0
    skipped: int = 0
    """FIFOs, sockets and devices met: they are nobody's file."""

    def take(self, path: str, size: int) -> None:
        self.files += 1
        self.bytes += size
        if self.files > self.max_files:
            raise TooLarge(f"the tree has more than {self.max_files} files; remove some, or raise max_files")
        if self.bytes > self.max_bytes:
            raise TooLarge(f"the tree has more than {self.max_bytes} bytes ({path!r} went over); raise max_bytes")


# One path -------------------------------------------------------------------------------------------------------


def parts_of(path: str, workdir: str) -> list[bytes]:
    """The components of ``path`` below the root; absolute paths must lie in ``workdir``.

    Raises:
        OSError: It is empty, too long, has a NUL, or lies elsewhere.
    """
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "not a path: it cannot be encoded", ascii(path)[:200]) from None
    if not raw or b"\0" in raw or len(raw) >= _PATH_MAX:
        raise OSError(errno.EINVAL, "not a path: it is empty, has a NUL, or is too long", path[:200])
    if raw.startswith(b"/"):
        root = os.fsencode(workdir).rstrip(b"/")
        if raw != root and not raw.startswith(root + b"/"):
            raise PermissionError(errno.EACCES, f"outside the workspace ({workdir})", path)
        raw = raw[len(root) :]
    return [part for part in raw.split(b"/") if part not in (b"", b".")]


class Place:
    """A name in a directory that is held open: where a path leads."""

    def __init__(self, directory: int, name: bytes) -> None:
        self.directory = directory
        self.name = name

    def lstat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)


@contextlib.contextmanager
def find(root: int, path: str, workdir: str, *, create: bool = False) -> Iterator[Place]:
    """Where ``path`` leads, links inside the root followed; with ``create``, missing directories are made.

    The last component need not exist. The root itself is the place ``.``.

    Raises:
        PermissionError: A link or ``..`` leads out of the root.
        OSError: As the kernel would say: not there, not a directory, too many links.
    """
    todo = parts_of(path, workdir)[::-1]
    held = [os.dup(root)]
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == b".":
                continue
            if name == b"..":
                if len(held) == 1:
                    raise PermissionError(errno.EACCES, "leads out of the workspace", path)
                os.close(held.pop())
                continue
            status = _lstat(name, held[-1])
            if status is not None and stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=held[-1])
                if target.startswith(b"/"):
                    try:
                        pieces = parts_of(os.fsdecode(target), workdir)
                    except OSError:
                        raise PermissionError(errno.EACCES, "a link leads out of the workspace", path) from None
                    while len(held) > 1:
                        os.close(held.pop())
                else:
                    pieces = [piece for piece in target.split(b"/") if piece]
                todo.extend(pieces[::-1])
                if not todo:
                    todo.append(b".")
                continue
            if not todo:
                yield Place(held[-1], name)
                return
            if status is None and create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=held[-1])
            if len(held) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep", path)
            held.append(os.open(name, _DIRECTORY, dir_fd=held[-1]))
        yield Place(held[-1], b".")
    finally:
        for fd in held:
            os.close(fd)


def read_file(root: int, path: str, workdir: str, max_bytes: int) -> bytes:
    """
    Raises:
        TooLarge: It has more than ``max_bytes``.
        OSError: It is not there, not a regular file, or a link leads out.
    """
    with find(root, path, workdir) as place:
        status = place.lstat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _content(place.directory, place.name, path, max_bytes)


def write_file(root: int, path: str, workdir: str, data: bytes, executable: bool | None) -> None:
    """Put ``data`` there in one step, with the directories it needs. Who reads sees the old file or the new one.

    Args:
        root: Descriptor of the root.
        path: Where; a link inside the root is written through.
        workdir: What the root is called.
        data: The whole new content.
        executable: ``None`` keeps what an existing file has.

    Raises:
        OSError: There is no room, something that is no regular file is in the way, or a link leads out.
    """
    with find(root, path, workdir, create=True) as place:
        old = _lstat(place.name, place.directory)
        if old is not None and not stat.S_ISREG(old.st_mode):
            what = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
            raise OSError(what, "in the way, and not a regular file", path)
        mode = stat.S_IMODE(old.st_mode) & 0o777 if old is not None else 0o644
        if executable is not None:
            mode = (mode & ~0o111) | (0o111 if executable else 0)
        _replace(place.directory, place.name, data, mode | 0o600)


def link_file(root: int, path: str, target: bytes) -> None:
    """Make a symbolic link, with the directories it needs."""
    with find(root, path, "/", create=True) as place:
        os.symlink(target, place.name, dir_fd=place.directory)


def _replace(directory: int, name: bytes, data: bytes, mode: int) -> None:
    temporary = b"." + secrets.token_hex(8).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def _lstat(name: bytes, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _content(directory: int, name: bytes, path: str, max_bytes: int) -> bytes:
    # O_NONBLOCK: should a FIFO have taken the file's place since it was looked at, opening does not wait for a writer.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size > max_bytes:
            raise TooLarge(f"{path!r} has {status.st_size} bytes; at most {max_bytes} were asked for")
        pieces, left = [], max_bytes + 1
        while left and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        if not left:
            raise TooLarge(f"{path!r} has more than {max_bytes} bytes; at most {max_bytes} were asked for")
        return b"".join(pieces)
    finally:
        os.close(fd)


# Whole trees ----------------------------------------------------------------------------------------------------


def _join(prefix: str, name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return f"{prefix}/{text}" if prefix else text


def _names(directory: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(directory))


@contextlib.contextmanager
def _subdirectory(directory: int, name: bytes, path: str) -> Iterator[int]:
    if path.count("/") >= MAX_DEPTH or len(path) >= _PATH_MAX:
        raise TooLarge(f"the tree is deeper than {MAX_DEPTH} directories or {_PATH_MAX} characters: {path[:60]!r}...")
    fd = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _entry(directory: int, name: bytes, path: str, status: os.stat_result, budget: Budget) -> Entry | None:
    """The file or link of that name; ``None`` for anything else, which is counted."""
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(name, dir_fd=directory)
        budget.take(path, len(target))
        return Entry(path, "symlink", target, False)
    if stat.S_ISREG(status.st_mode):
        data = _content(directory, name, path, max(budget.max_bytes - budget.bytes, 0))
        budget.take(path, len(data))
        return Entry(path, "file", data, bool(status.st_mode & 0o100))
    budget.skipped += 1
    return None


def walk(root: int, budget: Budget, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Every file and link below ``root`` but those under the top-level names ``leave_out``.

    Raises:
        TooLarge: The tree is over the budget, or too deep.
        OSError: Something cannot be read.
    """
    yield from _walk(root, "", budget, leave_out)


def _walk(directory: int, prefix: str, budget: Budget, leave_out: frozenset[str]) -> Iterator[Entry]:
    for name in _names(directory):
        path = _join(prefix, name)
        if path in leave_out:
            continue
        status = _lstat(name, directory)
        if status is None:
            continue  # gone since it was listed
        if stat.S_ISDIR(status.st_mode):
            with _subdirectory(directory, name, path) as fd:
                yield from _walk(fd, path, budget, leave_out)
        elif (entry := _entry(directory, name, path, status, budget)) is not None:
            yield entry


def leaves(directory: int, name: bytes, path: str) -> Iterator[str]:
    """The paths of all files and links at or below that name."""
    status = _lstat(name, directory)
    if status is None:
        return
    if stat.S_ISDIR(status.st_mode):
        with _subdirectory(directory, name, path) as fd:
            for below in _names(fd):
                yield from leaves(fd, below, _join(path, below))
    elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        yield path


# What was changed -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Difference:
    """``base`` without ``removed`` and with ``written`` is the tree."""

    written: list[Entry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def overlay_difference(upper: int, base: int, budget: Budget, leave_out: frozenset[str]) -> Difference:
    """What an overlay's upper directory says was changed. Its cost goes by what was touched, not by the base.

    Source: Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".
    """
    found = Difference()
    _compare(upper, base, "", False, budget, leave_out, found)
    return found


def _compare(
    upper: int,
    base: int | None,
    prefix: str,
    opaque: bool,
    budget: Budget,
    leave_out: frozenset[str],
    found: Difference,
) -> None:
    """``opaque``: what the base has here and the upper directory has not is gone."""
    names = _names(upper)
    for name in names:
        path = _join(prefix, name)
        if path in leave_out:
            continue
        status = _lstat(name, upper)
        if status is None:
            continue
        before = _lstat(name, base) if base is not None else None
        if stat.S_ISDIR(status.st_mode):
            with _subdirectory(upper, name, path) as fd:
                if before is not None and base is not None and stat.S_ISDIR(before.st_mode):
                    with _subdirectory(base, name, path) as below:
                        _compare(fd, below, path, opaque or _is_opaque(fd), budget, leave_out, found)
                    continue
                _compare(fd, None, path, True, budget, leave_out, found)
            if base is not None:
                found.removed.extend(leaves(base, name, path))
            continue
        whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
        entry = None if whiteout else _entry(upper, name, path, status, budget)
        if entry is not None and base is not None and before is not None and _same(entry, base, name, before):
            continue
        if base is not None and before is not None and not _takes_its_place(entry, before):
            found.removed.extend(leaves(base, name, path))
        if entry is not None:
            found.written.append(entry)
    if opaque and base is not None:
        there = set(names)
        for name in _names(base):
            path = _join(prefix, name)
            if name not in there and path not in leave_out:
                found.removed.extend(leaves(base, name, path))


def _is_opaque(directory: int) -> bool:
    for attribute in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, attribute) == b"y":
                return True
    return False


def _takes_its_place(entry: Entry | None, before: os.stat_result) -> bool:
    return entry is not None and (stat.S_ISREG(before.st_mode) or stat.S_ISLNK(before.st_mode))


def _same(entry: Entry, base: int, name: bytes, before: os.stat_result) -> bool:
    """The base has the same there: it was copied up by a touch or a chmod, or written with what it had."""
    if stat.S_ISLNK(before.st_mode):
        return entry.kind == "symlink" and os.readlink(name, dir_fd=base) == entry.data
    if not stat.S_ISREG(before.st_mode) or entry.kind != "file" or before.st_size != len(entry.data):
        return False
    if bool(before.st_mode & 0o100) != entry.executable:
        return False
    return _content(base, name, entry.path, before.st_size) == entry.data


Mark = tuple[str, bool, bytes]
"""Kind, executable, SHA-256 of the content: what is remembered of a base that was copied."""


def mark(entry: Entry) -> Mark:
    return entry.kind, entry.executable, hashlib.sha256(entry.data).digest()


def copied_difference(root: int, marks: dict[str, Mark], budget: Budget, leave_out: frozenset[str]) -> Difference:
    """What was changed in a workspace that began as a copy. Reads all of it."""
    found = Difference()
    there = set()
    for entry in walk(root, budget, leave_out):
        there.add(entry.path)
        if marks.get(entry.path) != mark(entry):
            found.written.append(entry)
    found.removed.extend(path for path in marks if path not in there and path.split("/", 1)[0] not in leave_out)
    return found
