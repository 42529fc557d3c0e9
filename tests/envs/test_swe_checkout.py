"""The tree an agent starts from: the files of a commit, no history, and nothing that a hostile repository runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.core import TaskError
from rllm_gym.envs.swe import checkout as checkouts
from rllm_gym.envs.swe.checkout import prepare

ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=ENVIRONMENT, input=stdin, capture_output=True, check=True
    )
    return done.stdout.decode()


def files_in(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if ".git" not in path.relative_to(root).parts and (path.is_symlink() or path.is_file())
    }


@pytest.fixture
def repo(tmp_path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "pkg").mkdir()
    (folder / "pkg/core.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/core.py")
    (folder / "windows.txt").write_bytes(b"a\r\nb\r\n")
    (folder / ".gitattributes").write_text("* text=auto\nsecret.txt export-ignore\n")
    (folder / "secret.txt").write_text("$Id$\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the first")
    (folder / "pkg/core.py").write_text("x = 2  # the fix\n")
    git(folder, "commit", "-qam", "the fix, which must not be seen")
    git(folder, "tag", "v2")
    return folder


def first_commit(repo: Path) -> str:
    return git(repo, "rev-parse", "HEAD~1").strip()


def test_the_tree_is_that_of_the_commit_without_past_or_future_commits(repo):
    tree = prepare(repo, first_commit(repo)).path
    files = files_in(tree)
    assert files["pkg/core.py"] == b"x = 1\n"
    assert files["link"] == b"pkg/core.py"
    assert files["secret.txt"] == b"$Id$\n"
    assert os.access(tree / "run.sh", os.X_OK)
    assert git(tree, "log", "--all", "--format=%s").split() == ["base"]
    assert git(tree, "status", "--porcelain") == git(tree, "diff") == git(tree, "remote") == ""
    assert git(tree, "reflog") == ""
    stored = git(tree, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert not any("the fix" in git(tree, "cat-file", "-p", name) for name in stored if name)
    assert not (tree / ".git/hooks").exists()


def test_head_is_the_default_and_ref_names_are_accepted(repo):
    assert files_in(prepare(repo).path)["pkg/core.py"] == b"x = 2  # the fix\n"
    assert files_in(prepare(repo, "v2").path) == files_in(prepare(repo, "main").path)
    # Uncommitted files of the work tree are not part of the base.
    (repo / "pkg/core.py").write_text("x = 3\n")
    (repo / ".env").write_text("PASSWORD=1\n")
    assert files_in(prepare(repo).path)["pkg/core.py"] == b"x = 2  # the fix\n"


def test_a_bare_clone_and_a_bundle_give_the_same_tree(repo, tmp_path):
    commit = first_commit(repo)
    expected = files_in(prepare(repo, commit).path)
    git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    assert files_in(prepare(tmp_path / "bare.git", commit).path) == expected
    git(repo, "bundle", "create", "-q", str(tmp_path / "x.bundle"), "--all")
    assert files_in(prepare(tmp_path / "x.bundle", commit).path) == expected
    assert files_in(prepare(tmp_path / "x.bundle").path) == files_in(prepare(tmp_path / "x.bundle", "v2").path)
    git(repo, "bundle", "create", "-q", str(tmp_path / "thin.bundle"), "HEAD~1..HEAD")
    with pytest.raises(TaskError, match="whole history"):
        prepare(tmp_path / "thin.bundle")


def test_a_plain_directory_is_copied_without_caches_and_environments(tmp_path):
    for path in (
        "a.py",
        "pkg/b.py",
        "__pycache__/a.pyc",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "node_modules/m/i.js",
        ".tox/t",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "outside").symlink_to("/etc/passwd")
    first = prepare(tmp_path)
    assert files_in(first.path) == {"a.py": b"a.py", "pkg/b.py": b"pkg/b.py", "outside": b"/etc/passwd"}
    assert git(first.path, "ls-files").split() == ["a.py", "outside", "pkg/b.py"]
    assert prepare(tmp_path) is first
    (tmp_path / "a.py").write_text("new")
    assert files_in(prepare(tmp_path).path)["a.py"] == b"new"


def test_files_given_as_text_and_a_patch_that_introduces_a_bug():
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    tree = prepare({"a.py": "x = 1\n", "d/run": "#!/bin/sh\n"}, patch=patch)
    assert files_in(tree.path) == {"a.py": b"x = 2\n", "d/run": b"#!/bin/sh\n"}
    assert git(tree.path, "show", "HEAD:a.py") == "x = 2\n"
    with pytest.raises(TaskError, match="does not fit"):
        prepare({"a.py": "y\n"}, patch=patch)


def test_no_program_of_the_repository_is_run(repo, tmp_path):
    mark = tmp_path / "ran"
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    (repo / ".gitattributes").write_text("* filter=x\n")
    git(repo, "commit", "-qam", "filters for all")
    (repo / ".git/hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "pre-commit", "post-index-change", "reference-transaction"):
        (repo / ".git/hooks" / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (repo / ".git/hooks" / name).chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "diff.external",
        "filter.x.smudge",
        "filter.x.clean",
    ):
        git(repo, "config", key, str(program))
    git(repo, "config", "filter.x.required", "true")
    mark.unlink(missing_ok=True)
    assert files_in(prepare(repo).path)[".gitattributes"] == b"* filter=x\n"
    git(tmp_path, "clone", "-q", "--bare", "--no-local", "-c", f"core.fsmonitor={program}", str(repo), "bare2.git")
    mark.unlink(missing_ok=True)
    prepare(tmp_path / "bare2.git")
    assert not mark.exists()


def raw_commit(repo: Path, entries: list[tuple[str, bytes, str]]) -> str:
    """Make a commit whose tree no git command would write."""
    tree = b"".join(b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(identity)) for mode, name, identity in entries)
    identity = git(repo, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=tree).strip()
    return git(repo, "commit-tree", "-m", "raw", identity).strip()


def test_a_tree_with_dangerous_names_is_refused(repo):
    blob = git(repo, "hash-object", "-w", "--stdin", stdin=b"evil\n").strip()
    for name in (b"..", b".git", b".GIT", b"../../outside", b"/etc/cron.d/x", b"a\\b", b"line\nbreak", b"\xff"):
        with pytest.raises(TaskError, match=r"unsupported tree|not supported"):
            prepare(repo, raw_commit(repo, [("100644", name, blob)]))


def test_a_tree_with_files_below_its_own_link_is_refused(repo, tmp_path):
    blob = git(repo, "hash-object", "-w", "--stdin", stdin=b"evil\n").strip()
    inner = git(repo, "mktree", stdin=f"100644 blob {blob}\tx\n".encode()).strip()
    target = git(repo, "hash-object", "-w", "--stdin", stdin=bytes(tmp_path)).strip()
    with pytest.raises(TaskError, match="two entries"):
        prepare(repo, raw_commit(repo, [("120000", b"d", target), ("40000", b"d", inner)]))
    assert not (tmp_path / "x").exists()


UNUSABLE = [
    (lambda repo: repo.parent / "nowhere", None, "does not exist"),
    (lambda repo: repo, "0" * 40, "no commit"),
    (lambda repo: repo, "--output=/tmp/x", "not a commit id"),
    (lambda repo: repo, "no-such-branch", "no commit 'no-such-branch'"),
    (lambda repo: repo / "pkg", "main", "not a git repository"),
    (lambda repo: repo / "pkg/core.py", None, "neither a directory nor a git bundle"),
]


def test_an_unusable_source_is_an_error_with_its_name(repo):
    cases = [((repo_of(repo), commit), output) for repo_of, commit, output in UNUSABLE]
    assert_all_raise(TaskError, lambda case: prepare(*case), cases)


def test_submodules_have_the_files_that_the_clone_has(repo, tmp_path):
    """As after ``git clone`` with and without ``--recurse-submodules``; no name leads to a repository elsewhere."""
    lib = tmp_path / "lib"
    lib.mkdir()
    git(lib, "init", "-q")
    (lib / "cases.json").write_text("[1]")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "cases")
    pinned = git(lib, "rev-parse", "HEAD").strip()
    (lib / "cases.json").write_text("[2]")
    git(lib, "commit", "-qam", "later cases")
    for name, path in (("data", "tests/data"), ("absent", "absent"), ("../../../lib/.git", "outside")):
        git(repo, "update-index", "--add", "--cacheinfo", f"160000,{pinned},{path}")
        with (repo / ".gitmodules").open("a") as file:
            file.write(f'[submodule "{name}"]\n\turl = https://example.com/x.git\n\tpath = {path}\n')
    git(repo, "add", ".gitmodules")
    git(repo, "commit", "-qm", "submodules")
    without = files_in(prepare(repo, git(repo, "rev-parse", "HEAD").strip()).path)
    assert "pkg/core.py" in without
    assert not [path for path in without if path.startswith(("tests/data", "absent", "outside"))]
    git(repo, "commit", "-qm", "the same tree", "--allow-empty")  # its tree is not in memory yet
    git(repo, "clone", "-q", "--bare", str(lib), str(repo / ".git/modules/data"))
    tree = prepare(repo)
    assert tree.read("tests/data/cases.json") == b"[1]"
    assert not [path for path in files_in(tree.path) if path.startswith(("absent", "outside"))]


def test_a_tree_too_large_is_refused(repo, monkeypatch):
    monkeypatch.setattr(checkouts, "MAX_FILES", 3)
    with pytest.raises(TaskError, match="too large: more than 3 files"):
        prepare(repo)
    with pytest.raises(TaskError, match="too large"):
        prepare(repo / "..")


def test_trees_are_shared_and_removed_when_unused(repo, monkeypatch):
    monkeypatch.setattr(checkouts, "MAX_CACHED", 2)
    first = prepare(repo)
    assert prepare(repo) is first
    path = first.path
    others = [prepare({"a": str(number)}) for number in range(3)]
    assert path.exists()  # one environment still uses it
    assert prepare(repo) is first
    for number in range(3, 6):
        prepare({"a": str(number)})
    del first
    assert not path.exists()
    assert others[0].path.exists()


def test_nothing_is_left_when_the_process_ends_or_is_killed(repo, tmp_path):
    code = (
        "import os, signal, sys; from rllm_gym.envs.swe.checkout import prepare; print(prepare(sys.argv[1]).path, "
        "flush=True); os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == 'kill' else None"
    )

    def run(how: str) -> Path:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code, str(repo), how], capture_output=True, env=environment)
        return Path(done.stdout.decode().strip())

    killed = run("kill")
    assert killed.exists()
    assert not run("exit").exists()
    assert not killed.exists()
    assert not list(tmp_path.glob("rllm-gym-scratch-*"))


def test_fifty_megabytes_are_prepared_once(tmp_path):
    for number in range(250):
        path = tmp_path / f"d{number % 50}" / f"f{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(64) * 3200)
    first = prepare(tmp_path)
    assert first.files == 250
    assert first.bytes > 50_000_000
    started = time.thread_time()
    assert prepare(tmp_path) is first
    assert time.thread_time() - started < 5  # 0.05 s on an idle machine
