"""Trees as values, and the changes that a session reports: exact after any edits, and never outside the workspace."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rllm_gym.sandbox import Changes, SandboxPool, TreeFile, TreeTooLarge, session_pool
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import directory_stats
from tests.sandbox.directories import read_directory, write_directory
from tests.sandbox.users import needs

NAMES = ["a", "b", "c.py", "d", "é", "\udcff\udcfe", "with space", "-n", ".git"]
PATHS = [*NAMES, *(f"{a}/{b}" for a in NAMES for b in NAMES), *(f"{a}/d/{b}" for a in NAMES for b in NAMES)]

paths = st.sampled_from(PATHS)
contents = st.binary(max_size=12)
edits = st.one_of(
    st.tuples(st.just("write"), paths, contents, st.booleans()),
    st.tuples(st.just("append"), paths, contents, st.booleans()),
    st.tuples(st.just("remove"), paths, st.none(), st.none()),
    st.tuples(st.just("directory"), paths, st.none(), st.none()),
    st.tuples(st.just("empty"), paths, st.none(), st.none()),
    st.tuples(st.just("link"), paths, st.sampled_from(["a", "../b", "/etc/passwd", "gone", "\udcff"]), st.none()),
    st.tuples(st.just("hardlink"), paths, paths, st.none()),
    st.tuples(st.just("move"), paths, paths, st.none()),
    st.tuples(st.just("mode"), paths, st.sampled_from([0o644, 0o755, 0o600, 0o000, 0o111]), st.none()),
    st.tuples(st.just("fifo"), paths, st.none(), st.none()),
    st.tuples(st.just("touch"), paths, st.none(), st.none()),
)

EDIT = """
import contextlib, json, os, shutil, stat, sys
def edit(kind, path, first, second):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    if kind in ("write", "append"):
        # Without O_NONBLOCK a FIFO would be waited for.
        opener = lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o666)
        with open(path, "wb" if kind == "write" else "ab", opener=opener) as file:
            file.write(bytes(first))
        os.chmod(path, 0o755 if second else 0o644)
    elif kind == "remove":
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "empty":
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
            os.mkdir(path)
    elif kind == "link":
        os.symlink(first, path)
    elif kind == "hardlink":
        os.link(first, path, follow_symlinks=False)
    elif kind == "move":
        # An overlay moves a folder of the base by copying, which ends at a FIFO; elsewhere it is renamed as a whole.
        fifos = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        if os.path.lexists(first) or any(stat.S_ISFIFO(os.lstat(name).st_mode) for name in fifos):
            return
        os.makedirs(os.path.dirname(first) or ".", exist_ok=True)
        shutil.move(path, first)
    elif kind == "mode":
        if not os.path.islink(path) and os.path.isfile(path):
            os.chmod(path, first)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "touch":
        os.utime(path, (1, 1), follow_symlinks=False)
for step in json.load(open(sys.argv[1], encoding="ascii")):
    # What cannot be done is not done, on both sides alike.
    with contextlib.suppress(OSError, shutil.Error):
        edit(*step)
"""


@pytest.fixture(scope="module", params=["overlay", "copy", "landlock"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    """Each way in which a workspace is created from its base."""
    tier = Tier.LANDLOCK if request.param == "landlock" else Tier.NAMESPACES
    needs(tier)
    with pytest.MonkeyPatch.context() as patch, SandboxPool(tier) as pool:
        if request.param == "overlay":
            patch.setattr(session_pool, "COPIED_ENTRIES", -1)
        yield pool


def _script(steps: list[tuple[object, ...]]) -> str:
    return json.dumps([[list(part) if isinstance(part, bytes) else part for part in step] for step in steps])


def _run_edits(steps: list[tuple[object, ...]], directory: Path, program: Path) -> None:
    """Apply the same edits in an ordinary directory."""
    import subprocess
    import sys

    (program.parent / "steps.json").write_text(_script(steps))
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*command, sys.executable, "-I", "-S", str(program), str(program.parent / "steps.json")]
    subprocess.run(command, cwd=directory, check=True, timeout=240)


def _specials(folder: str, names: list[str]) -> list[str]:
    """Return what a copy leaves out; opening a FIFO would block."""
    return [name for name in names if stat.S_ISFIFO(os.lstat(os.path.join(folder, name)).st_mode)]


class TestChanges:
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(before=st.lists(edits, max_size=8), after=st.lists(edits, max_size=10))
    @example(before=[("write", ".git", b"", False)], after=[("move", ".git", "a", None)])
    @example(before=[], after=[("fifo", "a", None, None), ("write", "a", b"", False)])
    @example(before=[("fifo", "a", None, None)], after=[("write", "a", b"", False)])
    @example(
        before=[("remove", "a/a", None, None)],
        after=[("fifo", "a/a", None, None), ("write", "a/d/a", b"", False), ("move", "a", "b", None)],
    )
    def test_base_and_changes_are_the_tree(
        self, pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory, before: list[object], after: list[object]
    ) -> None:
        self._check(pool, tmp_path_factory, before, after)

    @pytest.mark.long
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(before=st.lists(edits, max_size=8), after=st.lists(edits, max_size=10))
    def test_base_and_changes_are_the_tree_after_many_edits(
        self, pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory, before: list[object], after: list[object]
    ) -> None:
        self._check(pool, tmp_path_factory, before, after)

    def _check(
        self, pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory, before: list[object], after: list[object]
    ) -> None:
        folder = tmp_path_factory.mktemp("edits")
        program, base, copy = folder / "edit.py", folder / "base", folder / "copy"
        program.write_text(EDIT)
        base.mkdir()
        _run_edits(before, base, program)  # type: ignore[arg-type]
        base_tree = read_directory(base)
        shutil.copytree(base, copy, symlinks=True, copy_function=shutil.copy2, ignore=_specials)
        with pool.open_session_sync(base) as session:
            assert session.overlay == (session_pool.COPIED_ENTRIES < 0)
            carried = {"edit.py": EDIT, "steps.json": _script(after)}  # type: ignore[arg-type]
            writing = [
                f"echo {b64encode(text.encode()).decode()} | base64 -d > $TMPDIR/{name}"
                for name, text in carried.items()
            ]
            result = session.exec_sync(" && ".join([*writing, "python3 $TMPDIR/edit.py $TMPDIR/steps.json"]))
            assert result.exit_code == 0, result.output
            tree, changes = session.read_tree_sync(), session.changes_sync()
        assert changes.apply(base_tree) == tree
        assert changes == Changes.between(base_tree, tree)
        assert read_directory(base) == base_tree, "the base itself was modified"
        # The reference copy lacks the FIFOs of the base, and a file can be written in their place.
        fifos = [path for path in base.rglob("*") if stat.S_ISFIFO(path.lstat().st_mode)]
        if pool.tier is Tier.NAMESPACES and not fifos:
            _run_edits(after, copy, program)  # type: ignore[arg-type]
            assert tree == read_directory(copy)

    def test_a_recreated_directory_hides_its_old_contents(self, pool: SandboxPool, tmp_path: Path) -> None:
        base = tmp_path / "base"
        write_directory({f"d/{n}": TreeFile("file", b"x") for n in ("a", "b", "e/c")}, base)
        with pool.open_session_sync(base) as session:
            session.exec_sync("rm -r d; mkdir d; echo -n x > d/a; echo new > d/b")
            changes = session.changes_sync()
        assert changes.removed == {"d/e/c"}
        assert set(changes.written) == {"d/b"}, "a file with the same content again is unchanged"

    def test_replacing_a_path_by_another_kind_is_reported(self, pool: SandboxPool, tmp_path: Path) -> None:
        base = tmp_path / "base"
        write_directory(
            {"file": TreeFile("file", b"1"), "d/x": TreeFile("file", b"2"), "l": TreeFile("symlink", b"file")}, base
        )
        with pool.open_session_sync(base) as session:
            session.exec_sync("rm file; mkdir file; echo 3 > file/y; rm -r d; ln -s file d; rm l; mkfifo l")
            changes = session.changes_sync()
        assert changes.removed == {"file", "d/x", "l"}
        assert set(changes.written) == {"file/y", "d"}

    def test_the_git_directory_is_not_part_of_the_tree(self, pool: SandboxPool, tmp_path: Path) -> None:
        base = tmp_path / "base"
        write_directory({".git/HEAD": TreeFile("file", b"x"), "sub/.git/HEAD": TreeFile("file", b"y")}, base)
        with pool.open_session_sync(base) as session:
            session.exec_sync("echo evil > .git/config; echo evil > sub/.git/config; rm .git/HEAD")
            assert set(session.read_tree_sync()) == {"sub/.git/HEAD", "sub/.git/config"}
            assert set(session.changes_sync().written) == {"sub/.git/config"}
            assert session.changes_sync().removed == frozenset()

    def test_no_base_is_an_empty_base(self, pool: SandboxPool) -> None:
        with pool.open_session_sync() as session:
            assert session.read_tree_sync() == {}
            session.exec_sync("mkdir -p a/b; echo hi > a/b/c; chmod 755 a/b/c")
            assert set(session.changes_sync().written) == {"a/b/c"}

    def test_a_tree_larger_than_its_limits_is_reported(self, pool: SandboxPool) -> None:
        with pool.open_session_sync() as session:
            session.exec_sync("head -c 100000 /dev/zero > big; truncate -s 900M sparse; touch 1 2 3 4 5")
            with pytest.raises(TreeTooLarge, match=r"more than 5 files \(max_bytes=\d+, max_files=5\)$"):
                session.read_tree_sync(max_files=5)
            with pytest.raises(TreeTooLarge, match="'sparse' has 943718400 bytes"):
                session.read_tree_sync()
            with pytest.raises(TreeTooLarge, match="'big' has 100000 bytes"):
                session.read_sync("big", 1000)
            session.exec_sync("rm sparse big; i=0; while [ $i -lt 300 ]; do mkdir d && cd d || break; i=$((i+1)); done")
            with pytest.raises(TreeTooLarge, match="deeper than 256"):
                session.changes_sync()
            session.exec_sync("rm -rf d")
            assert len(session.read_tree_sync()) == 5


class TestDirectories:
    """The trainer reads a directory that a hostile program has filled in the same way."""

    def test_links_are_not_followed_and_pipes_do_not_block(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_bytes(b"1")
        (tmp_path / "out").symlink_to("/etc")
        (tmp_path / "loop").symlink_to("loop")
        os.mkfifo(tmp_path / "fifo")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(tmp_path / "socket"))
            tree = read_directory(tmp_path)
        assert tree == {
            "real": TreeFile("file", b"1"),
            "out": TreeFile("symlink", b"/etc"),
            "loop": TreeFile("symlink", b"loop"),
        }

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        tree=st.dictionaries(
            st.sampled_from([path for path in PATHS if not path.startswith(".git")]),
            st.one_of(
                st.builds(TreeFile, st.just("file"), contents, st.booleans()),
                st.builds(TreeFile, st.just("symlink"), contents.filter(lambda data: data and b"\0" not in data)),
            ),
            max_size=12,
        )
    )
    def test_a_written_tree_is_read_back(
        self, tmp_path_factory: pytest.TempPathFactory, tree: dict[str, TreeFile]
    ) -> None:
        tree = {path: file for path, file in tree.items() if not any(path.startswith(f"{other}/") for other in tree)}
        folder = tmp_path_factory.mktemp("tree") / "new"
        write_directory(tree, folder)
        assert read_directory(folder, leave_out=frozenset()) == tree

    def test_a_survey_counts_files_and_bytes(self, tmp_path: Path) -> None:
        write_directory({"d/f": TreeFile("file", b"12345"), "l": TreeFile("symlink", b"d")}, tmp_path / "base")
        found = directory_stats(tmp_path / "base")
        assert (found.entries, found.size) == (3, 6)
        assert found.owner == (os.geteuid(), os.getegid())
        if os.geteuid() == 0:
            os.lchown(tmp_path / "base" / "d" / "f", 12345, 0)
            assert directory_stats(tmp_path / "base").owner is None


def test_names_have_a_limit_too(tmp_path: Path) -> None:
    """All paths are sent in one message, and directories and FIFOs take time though they are not read."""
    write_directory({f"{'d' * 100}/{number}": TreeFile("file", b"") for number in range(10)}, tmp_path / "tree")
    root = os.open(tmp_path / "tree", os.O_RDONLY)
    try:
        assert len(list(files.walk(root, files.ReadBudget(1000, 10, max_names=1030)))) == 10
        with pytest.raises(files.FileTooLarge, match="characters"):
            list(files.walk(root, files.ReadBudget(1000, 10, max_names=500)))
        with pytest.raises(files.FileTooLarge, match="names"):
            list(files.walk(root, files.ReadBudget(1000, 10, visited=10 + 200_000)))
    finally:
        os.close(root)
