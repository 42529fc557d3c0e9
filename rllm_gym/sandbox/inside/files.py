"""Reading and writing a hostile directory without following a path out of it.

Every access starts at a descriptor of the root and resolves one component at a time. The kernel follows no link, so
concurrent changes by the owner of the directory cannot redirect an access. The module runs both inside the sandbox and
in the trainer, so it uses the standard library only. Names are bytes on disk and surrogate-escaped text in results.
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
"""Maximum depth of directories. Deeper trees are rejected, because each level holds a descriptor while it is read."""

MAX_LINKS = 40
"""Maximum number of symbolic links followed for one path, as in the kernel."""

MAX_NAMES = 8 << 20
"""Default maximum length of all paths in a tree together: they are sent in one message."""

_MAX_OTHERS = 200_000
_PATH_MAX = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


class FileTooLarge(Exception):
    """A file or a tree exceeds the limit of the request. The message says which, and by how much."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file or symbolic link. ``data`` is its content, or the target of the link."""

    path: str
    kind: str
    data: bytes
    executable: bool


@dataclass(slots=True)
class ReadBudget:
    """The limits of one reading and what it has used."""

    max_bytes: int
    max_files: int
    max_names: int = MAX_NAMES
    bytes: int = 0
    files: int = 0
    names: int = 0
    visited: int = 0

    def visit(self) -> None:
        """Count a name of any kind. Directories, FIFOs and sockets are no files, but a million of them take minutes."""
        self.visited += 1
        if self.visited > self.max_files + _MAX_OTHERS:
            raise FileTooLarge(f"the tree has more than {self.max_files + _MAX_OTHERS} names")

    def take(self, path: str, size: int) -> None:
        self.files += 1
        self.bytes += size
        self.names += len(path)
        if self.names > self.max_names:
            raise FileTooLarge(f"the paths of the tree have more than {self.max_names} characters together")
        if self.files > self.max_files:
            raise FileTooLarge(f"the tree has more than {self.max_files} files")
        if self.bytes > self.max_bytes:
            raise FileTooLarge(f"the tree has more than {self.max_bytes} bytes ({path!r} went over)")


# Single paths


def parts_of(path: str, workdir: str) -> list[bytes]:
    """Return the components of ``path`` below the root. Absolute paths must lie in ``workdir``.

    Raises:
        OSError: The path is empty, too long, has a NUL, or lies elsewhere.
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


class PathEntry:
    """A name in an open directory: the location that a path resolves to."""

    def __init__(self, directory: int, name: bytes) -> None:
        self.directory = directory
        self.name = name

    def lstat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)


@contextlib.contextmanager
def find(root: int, path: str, workdir: str, *, create: bool = False) -> Iterator[PathEntry]:
    """Resolve ``path``, following links inside the root; with ``create``, create missing directories.

    The last component need not exist. The root itself is the name ``.``.

    Raises:
        PermissionError: A link or ``..`` leads out of the root.
        OSError: As from the kernel: not found, not a directory, too many links.
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
                yield PathEntry(held[-1], name)
                return
            if status is None and create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=held[-1])
            if len(held) > MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, f"more than {MAX_DEPTH} directories deep", path)
            held.append(os.open(name, _DIRECTORY, dir_fd=held[-1]))
        yield PathEntry(held[-1], b".")
    finally:
        for fd in held:
            os.close(fd)


def read_file(root: int, path: str, workdir: str, max_bytes: int) -> bytes:
    """Return the content of a file.

    Raises:
        FileTooLarge: The file has more than ``max_bytes``.
        OSError: It does not exist, is not a regular file, or a link leads out of the root.
    """
    with find(root, path, workdir) as found:
        status = found.lstat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _content(found.directory, found.name, path, max_bytes)


def write_file(root: int, path: str, workdir: str, data: bytes, executable: bool | None) -> None:
    """Write ``data`` atomically, creating missing directories. A reader sees the old file or the new one.

    Args:
        root: Descriptor of the root.
        path: The file; a link inside the root is written through.
        workdir: Path of the root, for absolute paths.
        data: The whole new content.
        executable: Whether the file is executable; ``None`` keeps the mode of an existing file.

    Raises:
        OSError: No space is left, the path exists and is not a regular file, or a link leads out of the root.
    """
    with find(root, path, workdir, create=True) as found:
        old = _lstat(found.name, found.directory)
        if old is not None and not stat.S_ISREG(old.st_mode):
            what = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
            raise OSError(what, "in the way, and not a regular file", path)
        mode = stat.S_IMODE(old.st_mode) & 0o777 if old is not None else 0o644
        if executable is not None:
            mode = (mode & ~0o111) | (0o111 if executable else 0)
        _replace(found.directory, found.name, data, mode | 0o600)


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


def _open(name: bytes, flags: int, directory: int) -> int:
    """Open a name to read it. What was created without the right to read it (``mkdir -m 0``) gets that right."""
    try:
        return os.open(name, flags, dir_fd=directory)
    except PermissionError:
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            # The descriptor stays with what it was opened for, whatever the name stands for now; a link has no rights.
            mode = os.fstat(held).st_mode
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | (0o500 if stat.S_ISDIR(mode) else 0o400))
            return os.open(name, flags, dir_fd=directory)
        finally:
            os.close(held)


def _content(directory: int, name: bytes, path: str, max_bytes: int) -> bytes:
    # O_NONBLOCK: if a FIFO has replaced the file since the check, opening does not wait for a writer.
    fd = _open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size > max_bytes:
            raise FileTooLarge(f"{path!r} has {status.st_size} bytes; at most {max_bytes} are read")
        pieces, left = [], max_bytes + 1
        while left and (piece := os.read(fd, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        if not left:
            raise FileTooLarge(f"{path!r} has more than {max_bytes} bytes; at most {max_bytes} are read")
        return b"".join(pieces)
    finally:
        os.close(fd)


# Whole trees


def _join(prefix: str, name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return f"{prefix}/{text}" if prefix else text


def _names(directory: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(directory))


@contextlib.contextmanager
def _subdirectory(directory: int, name: bytes, path: str) -> Iterator[int]:
    if path.count("/") >= MAX_DEPTH or len(path) >= _PATH_MAX:
        raise FileTooLarge(
            f"the tree is deeper than {MAX_DEPTH} directories or {_PATH_MAX} characters: {path[:60]!r}..."
        )
    fd = _open(name, _DIRECTORY, directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _entry(directory: int, name: bytes, path: str, status: os.stat_result, budget: ReadBudget) -> FileEntry | None:
    """Return the file or link of that name; ``None`` for a FIFO, a socket or a device, which is not read."""
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(name, dir_fd=directory)
        budget.take(path, len(target))
        return FileEntry(path, "symlink", target, False)
    if stat.S_ISREG(status.st_mode):
        data = _content(directory, name, path, max(budget.max_bytes - budget.bytes, 0))
        budget.take(path, len(data))
        return FileEntry(path, "file", data, bool(status.st_mode & 0o100))
    return None


def walk(root: int, budget: ReadBudget, leave_out: frozenset[str] = frozenset()) -> Iterator[FileEntry]:
    """Yield every file and link below ``root``, except those under the top-level names in ``leave_out``.

    Raises:
        FileTooLarge: The tree exceeds the budget, or is too deep.
        OSError: A file or directory cannot be read.
    """
    yield from _walk(root, "", budget, leave_out)


def _walk(directory: int, prefix: str, budget: ReadBudget, leave_out: frozenset[str]) -> Iterator[FileEntry]:
    for name in _names(directory):
        path = _join(prefix, name)
        if path in leave_out:
            continue
        budget.visit()
        status = _lstat(name, directory)
        if status is None:
            continue  # removed since it was listed
        if stat.S_ISDIR(status.st_mode):
            with _subdirectory(directory, name, path) as fd:
                yield from _walk(fd, path, budget, leave_out)
        elif (entry := _entry(directory, name, path, status, budget)) is not None:
            yield entry


def leaves(directory: int, name: bytes, path: str) -> Iterator[str]:
    """Yield the paths of all files and links at or below a name."""
    status = _lstat(name, directory)
    if status is None:
        return
    if stat.S_ISDIR(status.st_mode):
        with _subdirectory(directory, name, path) as fd:
            for below in _names(fd):
                yield from leaves(fd, below, _join(path, below))
    elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        yield path


# Differences


@dataclass(slots=True)
class TreeDifference:
    """The difference between two trees: the tree is ``base`` without ``removed`` and with ``written``."""

    written: list[FileEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def overlay_difference(upper: int, base: int, budget: ReadBudget, leave_out: frozenset[str]) -> TreeDifference:
    """Return the changes recorded in an overlay's upper directory.

    The cost depends on what was touched, not on the base. Source: Documentation/filesystems/overlayfs.rst, "whiteouts
    and opaque directories".
    """
    found = TreeDifference()
    _compare(upper, base, "", False, budget, leave_out, found)
    return found


def _compare(
    upper: int,
    base: int | None,
    prefix: str,
    opaque: bool,
    budget: ReadBudget,
    leave_out: frozenset[str],
    found: TreeDifference,
) -> None:
    """Compare one directory. ``opaque``: entries of the base that the upper directory lacks are removed."""
    names = _names(upper)
    for name in names:
        path = _join(prefix, name)
        if path in leave_out:
            continue
        budget.visit()
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


def _takes_its_place(entry: FileEntry | None, before: os.stat_result) -> bool:
    return entry is not None and (stat.S_ISREG(before.st_mode) or stat.S_ISLNK(before.st_mode))


def _same(entry: FileEntry, base: int, name: bytes, before: os.stat_result) -> bool:
    """Return whether the base has the same entry: a touch or a chmod copied it up, or the same content was written."""
    if stat.S_ISLNK(before.st_mode):
        return entry.kind == "symlink" and os.readlink(name, dir_fd=base) == entry.data
    if not stat.S_ISREG(before.st_mode) or entry.kind != "file" or before.st_size != len(entry.data):
        return False
    if bool(before.st_mode & 0o100) != entry.executable:
        return False
    return _content(base, name, entry.path, before.st_size) == entry.data


Mark = tuple[str, bool, bytes]
"""Kind, executable flag and SHA-256 of the content: what is kept of a base that was copied."""


def mark(entry: FileEntry) -> Mark:
    return entry.kind, entry.executable, hashlib.sha256(entry.data).digest()


def copied_difference(
    root: int, marks: dict[str, Mark], budget: ReadBudget, leave_out: frozenset[str]
) -> TreeDifference:
    """Return the changes in a workspace that started as a copy. Reads the whole workspace."""
    found = TreeDifference()
    there = set()
    for entry in walk(root, budget, leave_out):
        there.add(entry.path)
        if marks.get(entry.path) != mark(entry):
            found.written.append(entry)
    found.removed.extend(path for path in marks if path not in there and path.split("/", 1)[0] not in leave_out)
    return found
