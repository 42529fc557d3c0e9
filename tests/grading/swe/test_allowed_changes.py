"""Which changes of an agent are kept: honest work must not be lost, and cheats must not stay."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repository import FILES, FIXED, PRICING, TESTS, changes, write

from rllm_gym.grading.swe import AllowedChanges, RepositoryTests, allowed_changes, is_test_path
from rllm_gym.grading.swe.pytest_config_merge import Unmergeable, merge_pyproject, merge_setup_cfg, pytest_table
from rllm_gym.grading.swe.runner_use import find_runner_uses
from rllm_gym.sandbox import TreeFile

PYPROJECT = FILES["pyproject.toml"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(
        tmp_path_factory.mktemp("shop"),
        {
            **FILES,
            "shop/test_runner.py": "def run(): pass\n",
            "shop/logging.py": "",
            "docs/guide/index.md": "",
            "types.py": "",
        },
    )
    (folder / "current").symlink_to("docs")
    (folder / "GUIDE").symlink_to("docs/guide/index.md")
    return folder


def kept(base: Path, written: dict[str, str | TreeFile], removed: tuple[str, ...] = ()) -> set[str]:
    allowed = allowed_changes(base, changes(written, removed), TESTS)
    assert set(allowed.changes.written) | {line.partition(": ")[0] for line in allowed.dropped} >= set(written)
    return set(allowed.changes.written) | set(allowed.changes.removed)


KEPT = [
        "shop/pricing.py", "shop/new.py", "shop/new/__init__.py", "shop/data/rates.json", "Makefile", "setup.py",
        ".github/workflows/test.yml", ".coveragerc", "noxfile.py", "docs/testing.md", "shop/testing.py",
        "shop/logging.py", "shop/json.py", "shop/contest.py", "shop/latest/x.py", "types.py", "newmodule.py",
        "shop/test_runner.py", "requirements.txt", ".gitignore", "shop/üml.py", "a b/c d.txt",
]  # fmt: skip
DROPPED = [
        "conftest.py", "shop/conftest.py", "Conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini",
        "sitecustomize.py", "shop/usercustomize.py", "sitecustomize/__init__.py", "shop.pth", "lib/x.PTH",
        "shop/__pycache__/pricing.cpython-311.pyc", "pricing.pyc", "shop/pricing.so", "shop/pricing.abi3.so",
        "shop/libx.so.1", "x.pyd", "shop.egg-info/entry_points.txt", "src/shop-1.dist-info/METADATA", "x.egg-link",
        "tests/test_pricing.py", "tests/conftest.py", "tests/helpers.py", "tests/data/x.json", "TESTS/x.py",
        "shop/tests/__init__.py", "test/x.py", "test_new.py", "shop/test_new.py", "shop/pricing_test.py",
        "json.py", "json/__init__.py", "src/json.py", "pytest.py", "_pytest/runner.py/x/__init__.py/../a", "pluggy.py",
        "_pytest/__init__.py", ".git/config", "shop/.git/hooks/x", ".GIT/x", "shop/../pytest.py", "/etc/x", "../x", "",
        "a//b", "./a", "a/.", "a\0", "a\nb", "a\\b", "\udc80", "x" * 256, "x/" * 600 + "y", "current/x.py",
        "pyvenv.cfg",
]  # fmt: skip


def test_honest_files_are_kept(base: Path) -> None:
    assert [path for path in KEPT if kept(base, {path: "x = 1\n"}) != {path}] == []


def test_files_that_steer_the_tests_or_the_interpreter_are_dropped(base: Path) -> None:
    for path in DROPPED:
        allowed = allowed_changes(base, changes({path: "x = 1\n"}), TESTS)
        assert not allowed.changes.written, path
        assert len(allowed.dropped) == 1, path
        assert allowed.dropped[0].isprintable()
        assert len(allowed.dropped[0]) < 400


def test_removing_is_allowed_where_writing_is(base: Path) -> None:
    gone = ("README.md", "setup.cfg", "tests/test_stock.py", "tests/conftest.py", "pyproject.toml", "current", "../x")
    assert kept(base, {}, gone) == {"README.md", "setup.cfg", "current"}


# A path, the target of the link that replaces it, and whether the link is kept.
LINKS = [
    ("current", "shop", True),
    ("GUIDE", "docs/../README.md", True),
    ("GUIDE", "../x", False),
    ("GUIDE", "docs/../../x", False),
    ("GUIDE", "/etc/passwd", False),
    ("GUIDE", "current/index.md", False),
    ("GUIDE", "", False),
    ("new", "shop", False),
    ("shop/pricing.py", "stock.py", False),
]


def test_links_only_replace_links_and_stay_inside(base: Path) -> None:
    for path, target, stays in LINKS:
        links = kept(base, {path: TreeFile("symlink", target.encode())})
        assert links == ({path} if stays else set()), (path, target)


def test_a_file_that_replaces_a_folder_with_tests_is_dropped(tmp_path: Path) -> None:
    base = write(tmp_path, {"pkg/tests/test_a.py": "", "pkg/a.py": "", "other/b.py": ""})
    tests = RepositoryTests(hidden_tests={"spec/x/check_a.py": ""}, fail_to_pass=("spec/x/check_a.py::test",))
    gone = ("pkg/tests/test_a.py", "pkg/a.py", "other/b.py")
    written = {"pkg": "x", "other": "x", "spec": "x", "spec/x": "x", "new": "x", "new/a": "x", "other/c": "x"}
    allowed = allowed_changes(base, changes(written, gone), tests)
    assert set(allowed.changes.written) == {"other", "new"}


def test_new_top_level_modules_are_reported_to_the_runtime(base: Path) -> None:
    allowed = allowed_changes(base, changes({"numpy.py": "", "shop/numpy.py": "", "src/yaml/__init__.py": ""}), TESTS)
    assert set(allowed.new_modules) == {("numpy", "numpy.py"), ("yaml", "src/yaml/__init__.py")}


def checked_changes(base: Path, written: dict[str, str]) -> AllowedChanges:
    return allowed_changes(base, changes(written), TESTS)


def test_product_code_that_uses_the_runner_is_refused(base: Path) -> None:
    for added in ("import pytest\n", "from _pytest import runner\n", "import sys\nx = sys.modules['_pytest.runner']\n"):
        assert "shop/pricing.py" in checked_changes(base, {"shop/pricing.py": added + FIXED}).refusal


def test_a_script_that_uses_pytest_counts_as_a_test_and_the_fix_is_kept(base: Path) -> None:
    allowed = checked_changes(base, {"shop/pricing.py": FIXED, "reproduce.py": "import pytest\npytest.main()\n"})
    assert not allowed.refusal
    assert set(allowed.changes.written) == {"shop/pricing.py"}


def test_a_project_about_testing_may_use_pytest(tmp_path: Path) -> None:
    base = write(tmp_path, {**FILES, "shop/plugin.py": "import pytest\n"})
    assert not checked_changes(base, {"shop/pricing.py": "import pytest\n" + PRICING}).refusal


MENTIONS = [
        "# import pytest", '"""import pytest"""', "'pytest'", "extras = {'test': ['pytest']}",
        "from shop import pytest",
        "pytest_args = 1", "def pytest(): pass", "config.get('pytest')", "import pytestlike", "x = 'PYTEST'",
        "def f(pytest, a): pass",
]  # fmt: skip


def test_mentioning_pytest_is_not_using_it() -> None:
    assert [source for source in MENTIONS if find_runner_uses(source.encode())] == []


@given(st.binary(max_size=200), st.sampled_from([b"import pytest", b"", b"'PYTEST"]))
def test_any_bytes_can_be_checked(noise: bytes, core: bytes) -> None:
    find_runner_uses(noise + core + noise)


def test_paths_of_tests_are_recognized() -> None:
    assert is_test_path("tests/x.txt")
    assert not is_test_path("shop/attestation.py")
    assert not is_test_path("")


# pyproject.toml and setup.cfg


def test_an_honest_pyproject_is_kept_byte_for_byte() -> None:
    changed = PYPROJECT.replace("[]", '["tomli"]', 1).encode()
    assert merge_pyproject(PYPROJECT.encode(), changed) == changed


TABLES = [
    '[tool.pytest.ini_options]\naddopts = "-p cheat"\n',
    "",
    '[tool.pytest]\naddopts = ["-p", "cheat"]\n',
    '[ tool . "pytest" . ini_options ] # here\naddopts = """\n-p\ncheat"""\n[tool.pytest.other]\na = 1\n',
]


def test_test_tables_come_from_the_base_and_the_rest_from_the_agent() -> None:
    ours = PYPROJECT[PYPROJECT.index("[tool.pytest") : PYPROJECT.index("[tool.ruff]")]
    for theirs in TABLES:
        changed = PYPROJECT.replace(ours, theirs).replace('"1.0"', '"9"')
        merged = merge_pyproject(PYPROJECT.encode(), changed.encode())
        table = tomllib.loads(merged.decode())
        assert pytest_table(merged) == pytest_table(PYPROJECT.encode()), theirs
        assert table["project"]["version"] == "9", theirs
        assert table["tool"]["ruff"] == {"line-length": 100}, theirs


UNCLEAR = [
    b'tool = {pytest = {ini_options = {addopts = "-p cheat"}}}\n',
    b'[tool]\npytest.ini_options.addopts = "-p cheat"\n',
    b'tool.pytest.ini_options.addopts = "-p cheat"\n',
    b"\xff",
    b"[project",
    b"a = " + b"[" * 100_000,
    b"x" * 2_000_000,
    b"a" + b".a" * 100_000 + b" = 1",
]


def test_indistinguishable_changes_are_left_as_in_the_base() -> None:
    for changed in UNCLEAR:
        with pytest.raises(Unmergeable):
            merge_pyproject(PYPROJECT.encode(), changed)


def test_without_a_pyproject_in_the_base_test_tables_are_removed() -> None:
    merged = merge_pyproject(b"", b'[tool.pytest.ini_options]\naddopts = "-p cheat"\n[project]\nname = "x"\n')
    assert tomllib.loads(merged.decode()) == {"project": {"name": "x"}}


def test_setup_cfg_keeps_its_other_sections() -> None:
    before = b"[metadata]\nname = a\n\n[tool:pytest]\naddopts = -q\nmarkers =\n    slow\n"
    changed = b"[metadata]\nname = b\n[tool:pytest]\naddopts = -p cheat\n[options]\nzip_safe = yes\n"
    merged = merge_setup_cfg(before, changed)
    assert b"cheat" not in merged
    assert b"name = b" in merged
    assert b"zip_safe = yes" in merged
    assert b"addopts = -q\nmarkers =\n    slow\n" in merged
    assert merge_setup_cfg(b"", b"[tool:pytest]\naddopts = -p cheat\n") == b""
    honest = before.replace(b"name = a", b"name = c")
    assert merge_setup_cfg(before, honest) == honest


@given(st.text(alphabet="[]tol.pyes\"=\n# '{}", max_size=80))
def test_no_merge_keeps_other_test_tables(text: str) -> None:
    try:
        merged = merge_pyproject(PYPROJECT.encode(), text.encode())
    except Unmergeable:
        return
    assert pytest_table(merged) == pytest_table(PYPROJECT.encode())


@pytest.mark.long
def test_work_on_hostile_changes_is_bounded(base: Path) -> None:
    """Each of these took from minutes to hours."""
    assert kept(base, {"shop/x.py": "x = [" + "pytest, " * 200_000 + "]\n"}) == {"shop/x.py"}
    blanks = "x = '''\n" + ("[" + " " * 490 + "\n") * 500 + "'''\n[tool.pytest.ini_options]\naddopts = '-x'\n"
    merge_pyproject(PYPROJECT.encode(), blanks.encode())
    deep = changes({f"{'a/' * 200}{number}": "" for number in range(2_000)})
    assert not allowed_changes(base, deep, TESTS).changes.written


def test_folders_count_as_files(base: Path) -> None:
    """Each has an inode in the session, which has a limit of them: a model could make the run fail to start."""
    assert len(kept(base, {f"{number}/a/a/a/f": "" for number in range(1_500)})) == 1_000


@pytest.mark.parametrize("text", ["x = " + "1" * 5_000, "tool = 3", "[[tool]]", "x = " + "[" * 5_000])
def test_no_configuration_breaks_the_filter(base: Path, text: str) -> None:
    """A plain ``ValueError`` or ``TypeError`` voided the episode."""
    result = allowed_changes(base, changes({"pyproject.toml": text, "setup.cfg": text}), TESTS)
    assert "pyproject.toml" not in result.changes.written


def test_no_encoding_breaks_the_filter(base: Path) -> None:
    codecs = ("rot13", "hex", "zlib", "punycode", "undefined", "idna", "utf-16", "unknown", "..")
    files = {f"shop/{codec}.py": f"# coding: {codec}\nimport pytest  # \u00e9\n" for codec in codecs}
    allowed_changes(base, changes(files), TESTS)


def test_folders_are_looked_up_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each file below them: 45,000 files in 60 folders took a minute."""
    deep = changes({f"{'a/' * 60}{number}.py": "" for number in range(2_000)})
    looked_up: list[object] = []
    lstat = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path: looked_up.append(path) or lstat(path))
    allowed_changes(base, deep, TESTS)
    assert len(looked_up) < 20_000
