"""The Docker backend, as far as it can be tested without an engine.

The ``docker`` on the path of these tests is a stand-in. It records its arguments and runs the command of a container
with bubblewrap: the process inside, its output and its ending are real; the engine, its limits and its images are not.
These tests do not show whether an engine accepts the command lines.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rllm_gym.sandbox import Ended, Limits, Program, SandboxFault, SandboxPool, SandboxUnavailable, SessionLimits
from rllm_gym.sandbox.docker import ask, command_line, orphans, owner, remove_orphans, require_engine
from rllm_gym.sandbox.tier import Tier
from tests.sandbox.directories import read_directory
from tests.sandbox.users import ROOT
from tests.sandbox.waiting import mark, running
from tests.waiting import until

FAKE_DOCKER = """#!{python}
import json, os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
arguments = sys.argv[1:]
with open(folder + "/asked", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
def says(name):
    return open(folder + "/" + name).read() if os.path.exists(folder + "/" + name) else ""
if says("dead"):
    sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
if says("slow"):
    time.sleep(60)
if arguments[0] == "version":
    print("0.0-stand-in")
elif arguments[0] == "ps":
    print(says("containers"), end="")
elif arguments[:2] == ["image", "inspect"] and says("missing"):
    sys.exit("Error response from daemon: No such image: x")
elif arguments[0] == "pull" and says("missing"):
    sys.exit("Error response from daemon: pull access denied for x")
elif arguments[0] == "run":
    if says("no-python"):
        sys.exit('docker: Error response from daemon: exec: "python3": executable file not found in $PATH')
    entry = arguments.index("--entrypoint")
    python, image, *rest = arguments[entry + 1:]
    wall = ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"]
    wall += ["--symlink", "usr/lib64", "/lib64", "--ro-bind", {prefix!r}, {prefix!r}]
    wall += ["--proc", "/proc", "--dev", "/dev"]
    wall += ["--tmpfs", "/tmp", "--tmpfs", "/workspace", "--dir", "/testbed", "--unshare-all", "--die-with-parent"]
    wall += ["--as-pid-1", "--cap-drop", "ALL", "--setenv", "PATH", {path!r}, "--bind", folder + "/testbed", "/testbed"]
    os.execvp("bwrap", ["bwrap", *wall, "--chdir", "/", {executable!r}, *rest])
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in."""
    if shutil.which("bwrap") is None:
        pytest.skip("the stand-in for an engine needs bubblewrap")
    folder = tmp_path / "bin"
    (folder / "testbed").mkdir(parents=True)
    (folder / "testbed" / "module.py").write_text("x = 1\n")
    executable = os.path.realpath(f"{sys.base_prefix}/bin/python3")
    text = FAKE_DOCKER.format(
        python=sys.executable,
        prefix=sys.base_prefix,
        executable=executable,
        path=f"{sys.base_prefix}/bin:/usr/bin:/bin",
    )
    (folder / "docker").write_text(text)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def pool(docker: Path) -> Iterator[SandboxPool]:
    with SandboxPool(Tier.DOCKER, max_workers=4) as pool:
        yield pool


class TestEngine:
    def test_without_an_engine_it_is_an_error(self, docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert require_engine() == "0.0-stand-in"
        (docker / "dead").write_text("yes")
        with pytest.raises(
            SandboxUnavailable, match="the docker client is installed, but no engine answers: Cannot connect"
        ):
            require_engine()
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxUnavailable, match="'docker' was not found"):
            require_engine()

    def test_the_real_client_without_an_engine(self) -> None:
        try:
            answer = subprocess.run(["docker", "version"], capture_output=True, timeout=240)
        except FileNotFoundError:
            pytest.skip("no docker client is installed")
        if answer.returncode == 0:
            pytest.skip("a Docker engine is running")
        with pytest.raises(SandboxUnavailable, match="the docker client is installed, but no engine answers"):
            SandboxPool("docker")

    def test_an_engine_that_hangs_times_out(self, docker: Path) -> None:
        (docker / "slow").write_text("yes")
        with pytest.raises(SandboxUnavailable, match="did not answer within 0"):
            ask("version", timeout=0.3)

    def test_an_image_that_cannot_be_pulled_is_an_error(self, docker: Path, pool: SandboxPool) -> None:
        (docker / "missing").write_text("yes")
        with pytest.raises(SandboxUnavailable, match="pull access denied"):
            pool.open_session_sync(image="x")

    def test_an_image_without_python_is_a_fault(self, docker: Path, pool: SandboxPool) -> None:
        (docker / "no-python").write_text("yes")
        with pytest.raises(SandboxFault, match=r"python3 must be in it.*executable file not found"):
            pool.open_session_sync()

    def test_only_orphans_of_dead_owners_are_removed(self, docker: Path) -> None:
        boot, pid, start = owner().split(":")
        listing = (
            f"mine {owner()}\ndead {boot}:4194399:17\nreused {boot}:{pid}:{int(start) + 1}\nother host:1:1\nodd \n"
        )
        assert orphans(listing) == ["dead", "reused"]
        (docker / "containers").write_text(listing)
        remove_orphans()
        assert '["rm", "--force", "dead", "reused"]' in (docker / "asked").read_text()

    def test_the_container_has_no_network_mounts_or_privileges(self) -> None:
        limits = SessionLimits(memory_mb=1000, processes=50, workspace_mb=200)
        line = command_line("name", "image:1", limits, None)
        output = " ".join(line)
        for words in (
            "--network none", "--cap-drop ALL", "--security-opt no-new-privileges", "--pids-limit 58", "--rm",
            "--memory 1264m --memory-swap 1264m", "--tmpfs /workspace:rw,exec,nosuid,nodev,size=200m,nr_inodes=100000",
            f"--label rllm-gym.owner={owner()}", "--entrypoint python3 image:1 -S",
        ):  # fmt: skip
            assert words in output
        assert not any(word in output for word in ("--volume", "--mount", "--privileged", "docker.sock"))
        assert "--memory 1064m" in " ".join(command_line("name", "image", limits, "/testbed"))


class TestSessions:
    def test_commands_files_and_changes(self, pool: SandboxPool, tmp_path: Path) -> None:
        base = tmp_path / "base"
        base.mkdir()
        (base / "f").write_text("old\n")
        (base / "g").write_text("gone\n")
        with pool.open_session_sync(base, environment={"X": "1"}) as session:
            assert session.tier is Tier.DOCKER
            assert session.exec_sync("pwd; cat f; echo $X; echo new > f; rm g; mkdir d; echo 1 > d/x").output == (
                b"/workspace\nold\n1\n"
            )
            session.write_sync("d/y", b"2")
            changes = session.changes_sync()
            assert (set(changes.written), changes.removed) == ({"f", "d/x", "d/y"}, {"g"})
            assert changes.apply(read_directory(base)) == session.read_tree_sync()

    def test_a_repository_in_the_image(self, pool: SandboxPool) -> None:
        with pool.open_session_sync(image="swebench/x:latest", workdir="/testbed") as session:
            assert session.workdir == "/testbed"
            assert session.changes_sync().written == {}
            session.exec_sync("echo 'x = 2' > module.py")
            assert session.changes_sync().written["module.py"].data == b"x = 2\n"

    def test_timeouts_and_attacks(self, pool: SandboxPool) -> None:
        with pool.open_session_sync() as session:
            stays, goes = mark(6161), mark(6262)
            session.exec_sync(f"setsid sleep {stays} &")
            late = session.exec_sync(f"(setsid sleep {goes} &) ; sleep {goes}", 0.5)
            assert late.timed_out
            assert not running(goes)
            assert until(lambda: len(running(stays)) == 1)
            for attack in (
                "kill -9 1",
                "kill -9 -1",
                "kill -9 $PPID; sleep 9",
                "cat /proc/1/mem; echo x > /proc/1/fd/1",
            ):
                session.exec_sync(attack, 1)
                assert session.exec_sync("echo alive").output == b"alive\n"

    def test_nothing_outlives_the_trainer(self, docker: Path) -> None:
        seconds = mark(6363)
        source = f"""
            from rllm_gym.sandbox import SandboxPool
            from rllm_gym.sandbox.tier import Tier
            session = SandboxPool(Tier.DOCKER).open_session_sync()
            print("ready", flush=True)
            session.exec_sync("setsid sleep {seconds} & sleep {seconds}", 600)
        """
        trainer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        with trainer:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == b"ready\n"
            assert until(lambda: len(running(seconds)) == 2)
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(120)
        assert until(lambda: not running(seconds))

    def test_options_without_effect_are_refused(self, pool: SandboxPool, tmp_path: Path) -> None:
        from rllm_gym.sandbox import Runtime

        with pytest.raises(ValueError, match="runtime= has no effect"):
            pool.open_session_sync(runtime=Runtime.default())
        with pytest.raises(ValueError, match="give at most one of them"):
            pool.open_session_sync(tmp_path, workdir="/testbed")
        with SandboxPool(Tier.NAMESPACES) as other, pytest.raises(ValueError, match="need sandbox='docker'"):
            other.open_session_sync(image="x")


class TestPrograms:
    def test_run(self, pool: SandboxPool) -> None:
        source = "import sys, helper.more; print(input(), sys.argv[1:], open('data').read(), helper.more.X)\n"
        source += "print('err', file=sys.stderr); sys.exit(3)"
        program = Program(
            source,
            b"in\n",
            args=("a b", "c'd"),
            files={"data": b"text"},
            library={"helper": "", "helper.more": "X = 7"},
        )
        result = pool.run_sync(program)
        assert (result.ended, result.exit_code, result.stdout, result.stderr, result.tier) == (
            Ended.EXITED, 3, b"in ['a b', \"c'd\"] text 7\n", b"err\n", "docker",
        )  # fmt: skip

    def test_ends(self, pool: SandboxPool) -> None:
        async def main() -> list[Ended]:
            programs = [
                Program("import os; os.abort()"),
                Program("while True: pass", limits=Limits(cpu_s=1)),
                Program("import time; time.sleep(60)", limits=Limits(wall_s=1)),
                Program("print('x' * 5000)", limits=Limits(output_bytes=100)),
            ]
            return [result.ended for result in await asyncio.gather(*map(pool.run, programs))]

        assert asyncio.run(main()) == [Ended.SIGNALLED, Ended.CPU, Ended.WALL, Ended.OUTPUT]

    def test_unsupported_options_of_containers_are_reported(self, pool: SandboxPool) -> None:
        with pytest.raises(SandboxUnavailable, match="no channel to the trainer"):
            pool.start(Program("pass"))
        with pytest.raises(ValueError, match="preload"):
            pool.run_sync(Program("pass", preload=("numpy",)))
