"""Access to git as an object store: reading commits, and creating one, without running anything from a repository.

For an untrusted repository, only ``rev-parse``, ``rev-list``, ``diff-tree``, ``ls-tree`` and ``cat-file`` are called:
they run no hook, filter, pager or editor. Git reads no configuration of the machine or the user, and may use no
protocol.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.patch import safe_path
from rllm_gym.runtime.scratch import scratch_directory

_DEADLINE_S = 300.0
_MAX_OBJECT = 512 << 20
_MAX_NESTED = 3
"""Submodules in submodules."""
_REVISION = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_./@{}^~+-]{0,200}")
_SAFE = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never"),
    *("-c", "core.alternateRefsCommand=false", "-c", "gc.auto=0", "-c", "advice.detachedHead=false"),
)
_DATE = "1577836800 +0000"
_WHO = "repository <repository@localhost>"


@dataclass(frozen=True, slots=True)
class GitEntry:
    """A file or symbolic link of a tree; for a link, ``data`` is the target."""

    path: str
    data: bytes
    executable: bool
    symlink: bool


@dataclass(frozen=True, slots=True)
class GitSource:
    """A repository whose commits can be read.

    Attributes:
        folder: Its git directory.
        name: Its name in messages.
        named: For a bundle, its commits by name; otherwise git resolves names.
    """

    folder: Path
    name: str
    named: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, revision: str | None) -> str:
        """Return the id of the commit that a revision refers to, ``HEAD`` if it is ``None``.

        Raises:
            TaskError: There is no such commit.
        """
        wanted = "HEAD" if revision is None else revision
        if not _REVISION.fullmatch(wanted):
            raise TaskError(f"base_commit={wanted[:80]!r} is not a commit id, tag or branch")
        for prefix in ("", "refs/heads/", "refs/tags/"):
            if prefix + wanted in self.named:
                wanted = self.named[prefix + wanted]
                break
        done = _git(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{wanted}^{{commit}}"], self.folder)
        commit = done.stdout.decode().strip()
        if done.returncode or not commit:
            detail = done.stderr.decode("utf-8", "replace").strip()
            raise TaskError(
                f"{self.name!r} has no commit {wanted!r}{f' ({detail[:200]})' if detail else ''}; is the clone "
                "shallow, or the commit not fetched?"
            )
        return commit

    def first_parents(self, revision: str | None, count: int) -> list[str]:
        """Return the ids of a commit and of its first parents in turn: the commits of a branch and merges into it.

        Raises:
            TaskError: There is no such commit.
        """
        options = ["--first-parent", f"--max-count={count}", "--end-of-options", self.resolve(revision)]
        done = _git(["rev-list", *options], self.folder)
        _must(done, f"reading the history of {self.name!r}")
        return done.stdout.decode().split()

    def changed_paths(self, commit: str, parent: str) -> list[str]:
        """Return the paths that ``commit`` adds to or changes in ``parent``; if not UTF-8, they are escaped."""
        options = ["-r", "-z", "--name-only", "--diff-filter=d", "--no-renames", "--no-ext-diff", "--no-textconv"]
        done = _git(["diff-tree", *options, "--end-of-options", parent, commit], self.folder)
        _must(done, f"comparing {parent} and {commit} of {self.name!r}")
        return [path.decode("utf-8", "backslashreplace") for path in done.stdout.split(b"\0") if path]

    def lineage(self, revision: str | None) -> tuple[tuple[str, ...], str, str]:
        """Return the ids of a commit's parents, its message, and its date (``2024-05-31``).

        Raises:
            TaskError: There is no such commit.
        """
        commit = self.resolve(revision)
        done = _git(["cat-file", "commit", commit], self.folder)
        if done.returncode:
            raise TaskError(f"the commit {commit} of {self.name!r} cannot be read: {_last_line(done.stderr)}")
        head, _, message = done.stdout.partition(b"\n\n")
        parents = tuple(line[7:].decode() for line in head.split(b"\n") if line.startswith(b"parent "))
        written = re.search(rb"^committer .* (\d{1,12}) [+-]\d{4}$", head, re.MULTILINE)
        seconds = min(int(written[1]) if written else 0, 32_503_680_000)  # the year 3000
        date = datetime.fromtimestamp(seconds, UTC).date().isoformat()
        return parents, message.decode("utf-8", "replace"), date

    def entries(self, commit: str) -> Iterator[GitEntry]:
        """Yield everything in the tree of a commit, with its stored content: no filters, no conversion of line ends.

        Files of a submodule are included if the clone has its repository (``git clone --recurse-submodules``).

        Raises:
            TaskError: The commit is missing, or contains forbidden paths.
        """
        yield from self._entries(self.resolve(commit), depth=0)

    def _entries(self, commit: str, depth: int) -> Iterator[GitEntry]:
        listing = _git(["ls-tree", "-r", "-z", "--full-tree", "--end-of-options", commit], self.folder)
        if listing.returncode:
            raise TaskError(f"the tree of {commit} in {self.name!r} cannot be read: {_last_line(listing.stderr)}")
        rows = [_row(row, self.name) for row in listing.stdout.split(b"\0") if row]
        links = [row for row in rows if row[0] == "160000"]
        rows = [row for row in rows if row[0] != "160000"]
        yield from self._contents(rows)
        for _, pinned, path in links if depth < _MAX_NESTED else ():
            inner = self._submodule(path, rows)
            if inner is not None and not _git(["cat-file", "-e", f"{pinned}^{{commit}}"], inner.folder).returncode:
                for entry in inner._entries(pinned, depth + 1):
                    yield replace(entry, path=safe_path(f"{path}/{entry.path}"))

    def _submodule(self, path: str, rows: list[tuple[str, str, str]]) -> GitSource | None:
        """Return the repository of the submodule at ``path``, where ``git submodule`` keeps it, ``None`` if absent."""
        stated = [row for row in rows if row[2] == ".gitmodules" and row[0] != "120000"]
        text = next((entry.data.decode("utf-8", "replace") for entry in self._contents(stated)), "")
        name, section = path, ""
        for line in text.splitlines():
            key, _, value = line.strip().partition("=")
            if line.lstrip().startswith("["):
                section = line.partition('"')[2].rpartition('"')[0]
            elif key.rstrip() == "path" and value.strip() == path:
                name = section
        # The name is the repository's choice: it must not lead out of the clone.
        folder = self.folder / "modules" / name
        inside = self.folder.resolve() / "modules"
        if not folder.resolve().is_relative_to(inside) or not (folder / "HEAD").is_file():
            return None
        return GitSource(folder, f"{self.name}/{path}")

    def _contents(self, rows: list[tuple[str, str, str]]) -> Iterator[GitEntry]:
        process = subprocess.Popen(
            _command(["cat-file", "--batch"], self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # A batch of this size fits into the pipe buffer, so that neither side blocks.
            for first in range(0, len(rows), 200):
                part = rows[first : first + 200]
                process.stdin.write(b"".join(identity.encode() + b"\n" for _, identity, _ in part))
                process.stdin.flush()
                for mode, identity, path in part:
                    data = _object(process.stdout, identity, path, self.name)
                    yield GitEntry(path, data, mode == "100755", mode == "120000")
        except BrokenPipeError as error:
            raise TaskError(f"git stopped while {self.name!r} was read; is the repository corrupt?") from error
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _row(row: bytes, name: str) -> tuple[str, str, str]:
    head, _, raw = row.partition(b"\t")
    mode, _, identity = head.decode("ascii", "replace").split(" ")[:3]
    try:
        path = raw.decode()
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{name!r} has a file whose name is not UTF-8: {raw[:80]!r}; such trees are not supported"
        ) from error
    try:
        return mode, identity, safe_path(path)
    except TaskError as error:
        raise TaskError(f"{name!r} has an unsupported tree: {error}") from error


def _object(stream: IO[bytes], identity: str, path: str, name: str) -> bytes:
    head = stream.readline(300).split()
    if len(head) != 3 or head[1] != b"blob":
        raise TaskError(
            f"{name!r} lacks the content of {path!r} ({identity}); is it a partial or corrupt clone? Fetch it "
            "completely"
        )
    size = int(head[2])
    if size > _MAX_OBJECT:
        raise TaskError(f"{path!r} of {name!r} has {size} bytes; the maximum is {_MAX_OBJECT}")
    data = stream.read(size)
    stream.read(1)
    if len(data) != size:
        raise TaskError(f"git stopped in the middle of {path!r} of {name!r}; is the repository corrupt?")
    return data


# Opening


def open_directory(path: Path) -> GitSource | None:
    """Return the git repository of a directory, work tree or bare, ``None`` if it is not one.

    Raises:
        TaskError: It is one, but git is not installed.
    """
    if (path / ".git").exists():
        folder = path / ".git"
    elif (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir():
        folder = path
    else:
        return None
    _need_git(f"{str(path)!r} is a git repository")
    return GitSource(folder, str(path))


def is_bundle(path: Path) -> bool:
    """Return whether a file has the signature of a git bundle."""
    with path.open("rb") as file:
        return re.match(rb"# v[23] git bundle\n", file.read(20)) is not None


@contextmanager
def open_bundle(path: Path) -> Iterator[GitSource]:
    """Unpack a bundle for the duration of the block, to read its commits.

    Raises:
        TaskError: The bundle is corrupt, or requires commits that it does not contain.
    """
    _need_git(f"{str(path)!r} is a git bundle")
    folder = scratch_directory("bundle-")
    try:
        _must(_git(["init", "--quiet", "--bare", "--template=", str(folder)], None), f"creating {folder}")
        listed = _git(["bundle", "unbundle", str(path)], folder)
        if listed.returncode:
            raise TaskError(
                f"the bundle {str(path)!r} cannot be unpacked: {_last_line(listed.stderr)}; a bundle must contain its "
                "whole history ('git bundle create repo.bundle --all')"
            )
        named: dict[str, str] = {}
        for line in listed.stdout.decode("utf-8", "replace").splitlines():
            identity, _, ref = line.partition(" ")
            named[ref] = identity
        heads = [identity for ref, identity in named.items() if ref.startswith("refs/heads/")]
        if "HEAD" not in named and len(set(heads)) == 1:
            named["HEAD"] = heads[0]
        yield GitSource(folder, str(path), named)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Creating a commit

_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tcheckStat = minimal
\ttrustctime = false
[user]
\tname = agent
\temail = agent@localhost
"""
# Files are stored unchanged, whatever the repository's attributes say, so that a new checkout shows no changes.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
_EXCLUDED = "__pycache__/\n*.pyc\n.pytest_cache/\n"


def commit_all(root: Path) -> None:
    """Make ``root`` a git repository with one commit of all its files. Without git it remains a plain directory."""
    if not has_git():
        return
    folder = root / ".git"
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(_CONFIG)
    (folder / "info/attributes").write_text(_ATTRIBUTES)
    (folder / "info/exclude").write_text(_EXCLUDED)
    speed = ["-c", "pack.compression=1", "-c", "core.compression=1", "-c", "fastimport.unpackLimit=0"]
    with _GitWithInput([*speed, "fast-import", "--quiet", "--depth=0", "--done"], folder) as stream:
        stream.write(f"commit refs/heads/main\ncommitter {_WHO} {_DATE}\ndata 5\nbase\n\n".encode())
        for path in _files_below(root):
            if path.is_symlink():
                mode, data = b"120000", os.fsencode(os.readlink(path))
            else:
                mode, data = b"100755" if path.stat().st_mode & 0o100 else b"100644", path.read_bytes()
            quoted = os.fsencode(str(path.relative_to(root))).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            stream.write(b'M %b inline "%b"\ndata %d\n' % (mode, quoted, len(data)))
            stream.write(data + b"\n")
        stream.write(b"done\n")
    for arguments in (["read-tree", "HEAD"], ["update-index", "-q", "--refresh"]):
        _must(_git(arguments, folder, work_tree=root), f"git {arguments[0]} in {root}")
    shutil.rmtree(folder / "logs", ignore_errors=True)


def write_bundle(root: Path, path: Path) -> None:
    """Write the commit that :func:`commit_all` created in ``root`` as a git bundle.

    Raises:
        TaskError: git is not installed, or the file cannot be written.
    """
    _need_git("writing a bundle requires git")
    done = _git(["bundle", "create", "--quiet", str(path), "HEAD", "refs/heads/main"], root / ".git")
    _must(done, f"writing the bundle {path}")


def _files_below(root: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(root):
        if above == str(root):
            folders.remove(".git")
        links = [name for name in folders if os.path.islink(os.path.join(above, name))]
        folders.sort()
        for name in sorted([*files, *links]):
            yield Path(above, name)


class _GitWithInput:
    """A running git command whose input is written incrementally."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._what = arguments
        self._process = subprocess.Popen(
            _command(arguments, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(),
        )

    def __enter__(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, BrokenPipeError):
            self._process.kill()
        try:
            error = self._process.communicate(timeout=_DEADLINE_S)[1]
        except (BrokenPipeError, subprocess.TimeoutExpired) as failure:
            self._process.kill()
            self._process.wait()
            raise TaskError(f"git could not commit the tree ({type(failure).__name__})") from failure
        if self._process.returncode and (kind is None or issubclass(kind, BrokenPipeError)):
            raise TaskError(f"git could not commit the tree: {_last_line(error)}")


# Running git


@lru_cache(maxsize=1)
def has_git() -> bool:
    """Return whether git is installed."""
    return shutil.which("git") is not None


def _need_git(what: str) -> None:
    if not has_git():
        raise TaskError(f"{what}, and git is not installed here; install git, or use a plain directory")


def _command(arguments: list[str], folder: Path | None, work_tree: Path | None = None) -> list[str]:
    places = [] if folder is None else [f"--git-dir={folder}"]
    if work_tree is not None:
        places.append(f"--work-tree={work_tree}")
    return ["git", *_SAFE, *places, *arguments]


def _environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
    }


def _git(
    arguments: list[str], folder: Path | None, work_tree: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            _command(arguments, folder, work_tree),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise TaskError(
            f"git {arguments[0]} took more than {_DEADLINE_S:.0f} s; is the repository very large?"
        ) from error


def _must(done: subprocess.CompletedProcess[bytes], what: str) -> None:
    if done.returncode:
        raise TaskError(f"{what} failed: {_last_line(done.stderr)}")


def _last_line(error: bytes) -> str:
    lines = error.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "git printed no error message"
