"""Changes that make hidden tests look passed without fixing anything: none is accepted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from small_repository import FIXED, FORGE, GOLD, HIDDEN_PRICING_TESTS, PRICING, PRICING_TESTS, TESTS, changes, write

from rllm_gym.grading.swe import allowed_changes, grade_repository_sync
from rllm_gym.sandbox import Changes, SandboxFault, SandboxPool, TreeFile

# Names that a scan of product code could look for are composed at run time: the behaviour must count.
IN_PROCESS = {
    "exit_code_1_at_import": "import os\nos._exit(1)\n",
    "exit_from_the_function": PRICING.replace("return price - percent", "import os; os._exit(0)"),
    "exit_handler": "import atexit, os\natexit.register(os._exit, 1)\n" + PRICING,
    "exit_of_pytest": PRICING.replace(
        "return price - percent",
        "import sys; raise sys.modules['_py' + 'test.outcomes'].Exit('done', 0)",
    ),
    "skip": PRICING.replace("return price - percent", "import unittest; raise unittest.SkipTest('no')"),
    "equal_to_everything": PRICING.replace("return price - percent", "return Any()")
    + """

class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
""",
    "a_number_equal_to_everything": PRICING.replace("return price - percent", "return Number(price)")
    + "\n\nclass Number(float):\n    def __eq__(self, other): return True\n",
    "reads_the_expected_value_from_the_test": PRICING.replace(
        "return price - percent",
        """import sys, linecache, re
    frame = sys._getframe(1)
    if "expected" in frame.f_locals:
        return frame.f_locals["expected"]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return float(re.search(r"== *([0-9.]+)", line)[1])""",
    ),
    "reports_are_made_passed": PRICING
    + """

import sys
reports = sys.modules["_py" + "test.reports"]
made = reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    call.excinfo = None
    return made(cls, item, call)
reports.TestReport.from_item_and_call = classmethod(passed)
""",
    "calls_never_fail": PRICING
    + """

import sys
runner = sys.modules["_py" + "test.runner"]
made = runner.CallInfo.from_call.__func__
def from_call(cls, func, when, reraise=None):
    def tried():
        try:
            func()
        except BaseException:
            pass
    return made(cls, tried, when, reraise)
runner.CallInfo.from_call = classmethod(from_call)
""",
    "test_functions_are_not_called": PRICING
    + """

import sys
python = sys.modules["_py" + "test.python"]
python.Function.runtest = lambda self: None
""",
    "assertions_are_compiled_away": PRICING
    + """

import ast, sys
rewrite = sys.modules["_py" + "test.assertion.rewrite"]
def no_asserts(module, source, path=None, config=None):
    class Gone(ast.NodeTransformer):
        def visit_Assert(self, node): return ast.copy_location(ast.Pass(), node)
    Gone().visit(module)
rewrite.rewrite_asserts = no_asserts
for name in [name for name in sys.modules if name.startswith("test_")]:
    pass
import gc, types
for function in gc.get_objects():
    if isinstance(function, types.FunctionType) and function.__name__.startswith("test_"):
        function.__code__ = (lambda *a, **k: None).__code__
""",
    "functions_of_the_test_module_are_emptied": PRICING.replace(
        "def total",
        """def empty():
    import sys
    frame = sys._getframe(1)
    while frame:
        for name, value in list(frame.f_globals.items()):
            if name.startswith("test_") and callable(value):
                value.__code__ = (lambda price=0, percent=0, expected=0: None).__code__
        frame = frame.f_back


def total""",
    ).replace("return price - percent", "empty(); return Never()")
    + """

class Never:
    def __eq__(self, other):
        import sys
        sys._getframe(1).f_trace = None
        raise SystemExit(0)
""",
    "tracing_skips_the_assertions": PRICING
    + """

import sys, threading
def trace(frame, event, argument):
    if frame.f_code.co_name.startswith("test_"):
        def local(frame, event, argument):
            if event == "exception":
                raise StopIteration
            if event == "line":
                frame.f_lineno = frame.f_code.co_firstlineno + 1
            return local
        return local
sys.settrace(trace)
""",
    "a_plugin_registered_through_gc": PRICING
    + """

import gc
for manager in gc.get_objects():
    if type(manager).__name__ == "Py" + "testPluginManager":
        class Plugin:
            def py_test_pyfunc_call(self, pyfuncitem): return True
        hook = Plugin.py_test_pyfunc_call
        setattr(Plugin, "py" + "test_pyfunc_call", hook)
        manager.register(Plugin())
""",
    "the_reporter_is_found_and_lies": PRICING
    + """

import gc
for writer in gc.get_objects():
    if type(writer).__name__ == "EventWriter":
        write = type(writer).write
        def altered(self, event, **more):
            if event == "test":
                more["phases"] = [["setup", "passed"], ["call", "passed"], ["teardown", "passed"]]
            write(self, event, **more)
        type(writer).write = altered
""",
    "a_whole_report_is_forged": PRICING
    + f"""

import gc, os
for writer in gc.get_objects():
    if type(writer).__name__ == "EventWriter":
        good = [["setup", "passed"], ["call", "passed"], ["teardown", "passed"]]
        names = {list(TESTS.listed)!r}
        writer.write("collected", tests=len(names))
        for name in names:
            writer.write("test", id=name, phases=good, xfail=False)
        writer.write("end", code=1, tests=len(names))
        os._exit(1)
""",
    "only_tests_that_use_the_product_are_forged": PRICING + FORGE + "forge()\n",
    "test_files_are_rewritten": PRICING
    + """

import pathlib
for path in pathlib.Path("tests").glob("test_*.py"):
    path.write_text("def test_nothing(): pass\\n")
""",
    "imports_are_redirected": PRICING
    + """

import importlib.abc, importlib.machinery, sys
class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("test_") or name.startswith("tests"):
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec): return None
    def exec_module(self, module): pass
sys.meta_path.insert(0, Empty())
""",
    "the_exit_code_is_patched": PRICING
    + """

import os
really = os._exit
os._exit = lambda code: really(0)
""",
    "comparisons_are_patched": PRICING
    + """

import builtins, operator, unittest
builtins.AssertionError = type("Never", (Exception,), {})
builtins.isinstance = lambda *a: True
operator.eq = lambda *a: True
unittest.TestCase.assertEqual = lambda *a, **k: None
""",
    "the_shell_above_is_killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + PRICING,
    "every_process_is_killed": "import os, signal\nos.kill(-1, signal.SIGKILL)\n" + PRICING,
    "stops_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n" + PRICING,
    "floods_every_descriptor": PRICING
    + """

import os
for descriptor in range(3, 64):
    try:
        for _ in range(20):
            os.write(descriptor, b"@passed\\n" * 100_000)
    except OSError:
        pass
""",
    "raises_an_exception_that_cannot_be_printed": PRICING.replace("return price - percent", "raise Odd()")
    + "\n\nclass Odd(BaseException):\n    def __str__(self): raise SystemExit(0)\n    __repr__ = __str__\n",
    "imports_the_runner": "import _pytest.runner\n" + PRICING,
    "asks_whether_it_is_tested": "import os\nTESTED = os.environ.get('PYTEST_CURRENT_TEST')\n" + PRICING,
}

CONFTEST = """import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""

TREE_CHANGES: dict[str, Changes] = {
    "nothing": changes({}),
    "conftest_at_the_top": changes({"conftest.py": CONFTEST}),
    "conftest_in_tests": changes({"tests/conftest.py": CONFTEST}),
    "conftest_in_the_package": changes({"shop/conftest.py": CONFTEST}),
    "a_plugin_by_pytest_ini": changes({"pytest.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": CONFTEST}),
    "a_plugin_by_pyproject": changes(
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n', "cheat.py": CONFTEST}
    ),
    "a_plugin_by_setup_cfg": changes({"setup.cfg": "[tool:pytest]\naddopts = -p cheat\n", "cheat.py": CONFTEST}),
    "a_plugin_by_entry_point": changes(
        {
            "shop.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
            "shop-1.0.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
            "shop-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
            "cheat.py": CONFTEST,
        }
    ),
    "tests_deselected": changes(
        {"tests/conftest.py": "def pytest_collection_modifyitems(items):\n    del items[1:]\n"}
    ),
    "options_of_pytest": changes({"pytest.ini": "[pytest]\naddopts = --runxfail -k total\n"}),
    "a_plugin_by_tox_ini": changes({"tox.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": CONFTEST}),
    "a_plugin_by_hidden_ini_files": changes(
        {".pytest.ini": "[pytest]\naddopts = -p cheat\n", "tests/pytest.ini": "[pytest]\n", "cheat.py": CONFTEST}
    ),
    "programs_beside_the_code": changes(
        {path: TreeFile("file", b"#!/bin/sh\nexit 0\n", executable=True) for path in ("bin/python", "python", "pytest")}
    ),
    "tests_of_the_same_name": changes(
        dict.fromkeys(("tests/tests/test_pricing.py", "shop/tests/test_pricing.py"), "def test_total(): pass\n")
    ),
    "a_package_for_the_tests": changes(
        {"tests/__init__.py": "", "tests/test_pricing/__init__.py": "def test_total(): pass\n"}
    ),
    "sitecustomize": changes({"sitecustomize.py": "import os; os._exit(0)", "usercustomize.py": "raise SystemExit"}),
    "a_path_file": changes({"shop.pth": "import os; os._exit(0)"}),
    "a_pytest_of_its_own": changes({"pytest.py": "def main(*a, **k): return 0", "_pytest/__init__.py": ""}),
    "a_json_of_its_own": changes({"json.py": "import os; os._exit(0)", "src/json.py": "import os; os._exit(0)"}),
    "a_pluggy_of_its_own": changes({"pluggy/__init__.py": "import os; os._exit(0)"}),
    "an_inspect_beside_the_tests": changes({"tests/inspect.py": "import os; os._exit(0)"}),
    "tests_made_easy": changes({"tests/test_pricing.py": "def test_total(): pass\n", "tests/test_stock.py": ""}),
    "tests_removed": changes({}, ("tests/test_pricing.py", "tests/test_stock.py", "tests/conftest.py")),
    "tests_is_a_link": changes({"tests": TreeFile("symlink", b"shop")}, ("tests/test_pricing.py", "tests/conftest.py")),
    "tests_is_a_file": changes({"tests": "x"}, ("tests/test_pricing.py", "tests/test_stock.py", "tests/conftest.py")),
    "a_link_to_the_hosts_files": changes({"shop/data.py": TreeFile("symlink", b"/etc/passwd")}),
    "a_link_upwards": changes({"README.md": TreeFile("symlink", b"../../../../etc/passwd")}),
    "compiled_tests": changes({"tests/__pycache__/test_pricing.cpython-311-pytest-9.2.0.pyc": b"\0" * 64}),
    "a_compiled_module": changes({"shop/pricing.cpython-311-x86_64-linux-gnu.so": b"\x7fELF"}),
    "paths_out_of_the_tree": changes({"../evil.py": "", "/tmp/evil.py": "", "shop/../conftest.py": CONFTEST}),
    "odd_paths": changes({"a\0b": "", "\udcff": "", "x" * 3000: "", "shop//pricing.py": FIXED, "./shop/a.py": FIXED}),
    "git": changes({".git/hooks/post-checkout": "#!/bin/sh\nexit 0\n", "shop/.GIT/config": "[core]\nfsmonitor=x\n"}),
    "the_product_breaks_what_worked": changes(
        {"shop/pricing.py": FIXED, "shop/stock.py": "class Stock:\n    def __init__(self, counts): raise KeyError\n"}
    ),
    "right_and_broken_elsewhere": changes({"shop/pricing.py": FIXED.replace("sum(prices)", "sum(prices) or None")}),
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("shop"))


# Each of these works like another one, at a different place.
LIKE_OTHERS = {
    "exit_code_1_at_import": "the_shell_above_is_killed",
    "exit_handler": "exit_from_the_function",
    "exit_of_pytest": "exit_from_the_function",
    "a_number_equal_to_everything": "equal_to_everything",
    "calls_never_fail": "reports_are_made_passed",
    "assertions_are_compiled_away": "test_functions_are_not_called",
    "functions_of_the_test_module_are_emptied": "test_functions_are_not_called",
    "a_plugin_registered_through_gc": "test_functions_are_not_called",
    "the_reporter_is_found_and_lies": "a_whole_report_is_forged",
    "only_tests_that_use_the_product_are_forged": "test_one_forged_run_of_several_is_detected",
    "imports_are_redirected": "test_files_are_rewritten",
    "the_exit_code_is_patched": "a_whole_report_is_forged",
    "every_process_is_killed": "the_shell_above_is_killed",
    "raises_an_exception_that_cannot_be_printed": "skip",
    "asks_whether_it_is_tested": "imports_the_runner",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LIKE_OTHERS else ()) for name in IN_PROCESS]
)
def test_product_code_that_takes_over_the_runner_is_rejected(pool: SandboxPool, base: Path, name: str) -> None:
    attack = changes({"shop/pricing.py": IN_PROCESS[name]})
    # It uses all the time there is. With less than the run needs to start, the machine is at fault, not the product.
    for timeout in (1, 4, 16, 64) if name == "stops_itself" else (240,):
        try:
            verdict = grade_repository_sync(pool, base, attack, dataclasses.replace(TESTS, timeout=timeout))
            break
        except SandboxFault as fault:
            if "did not start" not in str(fault):
                raise
    assert not verdict.correct
    assert verdict.reason
    for test in TESTS.hidden_tests.values():
        for line in test.splitlines():
            assert len(line) < 12 or line not in verdict.reason


def test_files_that_steer_the_run_are_rejected(pool: SandboxPool, base: Path) -> None:
    for name, change in TREE_CHANGES.items():
        left = allowed_changes(base, change, TESTS).changes
        if name != "nothing" and not left.written and not left.removed:
            continue  # the same as doing nothing, which is graded
        assert not grade_repository_sync(pool, base, change, TESTS).correct, name


def test_files_that_steer_the_run_are_dropped_from_a_correct_fix(pool: SandboxPool, base: Path) -> None:
    steering = [attack for name, attack in TREE_CHANGES.items() if "broken" not in name and "breaks" not in name]
    written = {path: file for attack in steering for path, file in attack.written.items()}
    removed = frozenset(path for attack in steering for path in attack.removed)
    verdict = grade_repository_sync(pool, base, Changes({**written, **GOLD.written}, removed), TESTS)
    assert verdict.correct, verdict
    assert len(verdict.dropped) >= len(written)


def test_one_forged_run_of_several_is_detected(pool: SandboxPool, base: Path) -> None:
    """A forger that lets every sentinel fail because it guesses that tests without product code are sentinels."""
    source = IN_PROCESS["only_tests_that_use_the_product_are_forged"]
    verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": source}), TESTS)
    assert verdict.reason == "a value computed for a test differs from the expected value"


def test_forging_tests_that_the_agent_has_read_is_detected(pool: SandboxPool, base: Path) -> None:
    """The fix breaks a known test and reports it as passed by its name."""
    source = (
        FIXED.replace("sum(prices)", "None")
        + """

import sys
python = sys.modules["_py" + "test.python"]
run = python.Function.runtest
python.Function.runtest = lambda self: None if self.name in ("test_total", "test_total_of_nothing") else run(self)
"""
    )
    assert PRICING_TESTS.splitlines()[-1] in HIDDEN_PRICING_TESTS
    verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": source}), TESTS)
    assert not verdict.correct
    assert verdict.reason == "a mutated test passes"
