"""Nothing that a model does in its workspace voids the episode: it is graded, and the next one works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.env import SWEEnv
from rllm_gym.grading.swe import RepositoryTests, record_trace_sync
from rllm_gym.sandbox import Changes, SandboxPool, Tier, TreeFile
from tests.envs.test_swe_env import FIX, REPO, ROW, SUBMIT, bash
from tests.sandbox.users import needs


@pytest.fixture(
    scope="module", params=[Tier.NAMESPACES, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)], ids=["A", "B"]
)
def env(request: pytest.FixtureRequest) -> Iterator[SWEEnv]:
    needs(request.param)
    with SandboxPool(request.param) as pool:
        tests = RepositoryTests(ROW["hidden_tests"], tuple(ROW["fail_to_pass"]), tuple(ROW["pass_to_pass"]))
        gold = Changes({"calc/core.py": TreeFile("file", b"def add(a, b):\n    return a + b\n")}, frozenset())
        trace = record_trace_sync(pool, prepare(REPO).path, gold, tests)
        env = SWEEnv(tasks=[{**ROW, "trace": trace}], sandbox=pool)
        yield env
        env.close()


def python(code: str) -> str:
    return f"python - <<'END'\n{code}\nEND"


def product(code: str) -> str:
    """Return a command that writes the right solution behind something that runs when it is imported."""
    return python(f"open('calc/core.py', 'w').write({code + 'def add(a, b):{n}    return a + b{n}'!r}.format(n='\\n'))")


NAMES = python(r"""
import os
names = [bytes([code]) for code in range(1, 256) if code not in b"./"] + [b"\xff\xfe.py", b"\xed\xa0\x80", b"x" * 255]
names += [name.encode() for name in ("..py", "...", " .py", "-rf", "$HOME", "class.py", "__main__.py", "\u202e.py")]
names += [b"os.py", b"ast.py", b"site.py", b"pytest.py", b"numpy.py", b"encodings.py", b"CONFTEST.py", b".GIT"]
for name in names:
    for path in (name, b"calc/" + name, name + b".py"):
        try:
            open(path, "wb").write(b"raise SystemExit\n")
        except OSError:
            pass
for name in ("json", "shutil", "pluggy", "sitecustomize"):
    os.mkdir(name)
    open(name + "/__init__.py", "w").write("raise SystemExit\n")
""")
LINKS = (
    "ln -s . loop; ln -s loop/loop other; ln -s / root; ln -s ../../etc up; ln -s /dev/zero zero.py; mkfifo f x.py; "
    "rm -rf .git; ln -s / .git; mkdir d; ln -s ../calc d/calc; chmod 111 d; ln README.md conftest.py; chmod 7777 ."
)
CONFIGURATION = python("""
for number, text in enumerate(["x = " + "1" * 5000, "[[tool]]", "tool = 3", "x = " + "[" * 5000, "[tool:pytest]"]):
    open(["pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", "setup.py"][number], "w").write(text)
for codec in ("rot13", "hex", "undefined", "punycode", "utf-16", "unknown"):
    open("calc/" + codec + ".py", "w").write("# coding: " + codec + "\\nimport pytest\\n")
""")
# Commands after the fix, and whether the fix is still there.
WORKSPACES = {
    "names": (NAMES, True),
    "links and modes": (LINKS, True),
    "configuration": (CONFIGURATION, True),
    "deep folders": (python("import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')"), False),
    "files and folders swapped": ("rm -rf calc tests README.md; touch calc tests; mkdir README.md pytest.ini", False),
    "FIFO for the product": ("rm calc/core.py; mkfifo calc/core.py pyproject.toml", False),
    "link for the product": ("ln -sf /dev/zero calc/core.py", False),
    "all killed": ("kill -9 -1; kill -9 1; kill -9 $PPID; kill -STOP $PPID", True),
    "all removed": ("rm -rf .git * ; cd ..; rm -rf $OLDPWD; true", False),
    "moved": ("cd ..; mv $OLDPWD other; ln -s / $OLDPWD; true", None),
    "written to while it is read": (
        "(while true; do rm -rf sw; mkdir sw; touch sw/x; rm -rf sw; ln -s / sw; rm sw; mkfifo sw; done) "
        ">/dev/null 2>&1 & sleep 0.3",
        True,
    ),
    "run is killed": (product("import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)\n"), False),
    "run forks": (
        product("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"),
        False,
    ),
    "run floods": (product("import os\nfor _ in range(99):\n    os.write(1, b'@\\n' * 30_000)\n"), True),
    "run removes all": (product("import os\nos.system('rm -rf .')\nos.closerange(3, 99)\n"), False),
}
FAST = ("names", "links and modes", "configuration")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.long) for name in WORKSPACES]
)
def test_no_workspace_voids_an_episode(env: SWEEnv, name: str) -> None:
    command, solved = WORKSPACES[name]
    env.grading_timeout = 10 if name == "run forks" else 300  # a run that forks ends at the limit
    env.reset(seed=0)
    env.step(FIX)
    env.step(bash(command))
    reward, terminated, _, info = env.step(SUBMIT)[1:]
    assert terminated
    assert reward in ((0.0, 1.0) if solved is None else (float(solved),)), info["verdict"]


def test_the_model_is_told_what_it_can_do_about_a_tree_that_is_too_large(env: SWEEnv) -> None:
    env.reset(seed=0)
    env.step(FIX)
    env.step(bash("truncate -s 900M big"))
    observation, reward, _, _, info = env.step(SUBMIT)
    assert reward == 0.0
    assert "Remove build outputs and downloads before submitting." in observation
    assert "'big' has 943718400 bytes" in info["verdict"]
    assert "max_" not in observation  # an option of ours, which the model cannot set


def test_the_next_episode_works(env: SWEEnv) -> None:
    env.reset(seed=0)
    env.step(FIX)
    assert env.step(SUBMIT)[1] == 1.0
