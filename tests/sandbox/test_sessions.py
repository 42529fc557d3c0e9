"""Sessions with honest and with hostile agents: they answer, they end, and they leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rllm_gym.sandbox import Ended, Runtime, SandboxFault, SandboxPool, SandboxSession, SessionLimits
from rllm_gym.sandbox.inside.session import CommandOutput
from rllm_gym.sandbox.tier import Tier
from tests.sandbox.users import ROOT, needs
from tests.sandbox.waiting import mark, running
from tests.waiting import until

SMALL = SessionLimits(memory_mb=300, processes=40, workspace_mb=64, workspace_files=3000, output_bytes=4000)


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK, Tier.UNSAFE], ids=["A", "B", "C"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def namespaces() -> Iterator[SandboxPool]:
    needs(Tier.NAMESPACES)
    with SandboxPool(Tier.NAMESPACES) as pool:
        yield pool


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def confined_pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as pool:
        yield pool


@pytest.fixture
def session(pool: SandboxPool) -> Iterator[SandboxSession]:
    with pool.open_session_sync(limits=SMALL) as session:
        yield session


ATTACKS = [
    "f() { f | f & }; f; sleep <60>",
    "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass' <60>",
    "python3 -c 'import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()' <60>",
    "python3 -c 'import mmap, time\nm = [mmap.mmap(-1, 50 << 20) for i in range(12)]\n"
    'for x in m: x.write(b"x" * (50 << 20))\ntime.sleep(60)\' <60>',
    "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = b\"x\" * (80 << 20); import time; time.sleep(60)' <60> & done; wait",
    "yes <60>; sleep <60>",
    "yes <60> & yes <60> & yes <60> & sleep 0.1",
    "exec 0>&- 1>&- 2>&-; sleep <60>",
    "kill -STOP $$",
    "kill -KILL -1",
    "kill -STOP -1; sleep <60>",
    "kill -TERM -1; sleep <60>",
    "kill -KILL $PPID; sleep <60>",
    "(setsid sleep <4545> &); kill -KILL $PPID; sleep <60>",
    "kill -KILL 1; kill -STOP 1; kill -INT 1; kill -TERM 1; echo x > /proc/1/oom_score_adj; cat /proc/1/mem",
    "chmod 000 . .. $HOME",
    "mkdir -m 0300 d; sleep 0.3",
    "ulimit -f unlimited; head -c 200000000 /dev/zero > big; sleep 0.3",
    "i=0; while [ $i -lt 5000 ]; do : > f$i || break; i=$((i+1)); done; sleep 0.3",
    "rm -rf $PWD $PWD/* $PWD/.*",
    "d=$PWD; cd /; rm -rf $d; ln -s /etc $d; mv $d $d.x",
    "mkdir deep; cd deep; rm -rf ../deep; exec sh -c 'sleep <60>'",
    "exec -a '[kworker/0:1]' sleep <60>",
    "cp /bin/sleep './a) R 1 1'; './a) R 1 1' 60",
    "python3 -c 'import ctypes, os, threading, time\n"
    "if os.fork() == 0:\n threading.Thread(target=time.sleep, args=(4545,)).start()\n"
    " time.sleep(.1); ctypes.CDLL(None).syscall(60, 0)\ntime.sleep(60)' <60>",
]
"""``<60>`` stands for a number that identifies these processes on the machine."""


def say(session: SandboxSession, command: str, timeout: float = 60.0) -> str:
    return session.exec_sync(command, timeout).output.decode().strip()


class TestCommands:
    def test_each_command_is_a_fresh_shell_in_the_workspace(self, session: SandboxSession) -> None:
        assert say(session, "pwd") == session.workdir
        assert say(session, "cd /; export X=1; Y=2; echo $X$Y") == "12"
        assert say(session, "pwd; echo $X$Y") == session.workdir
        say(session, "echo kept > file")
        assert say(session, "cat file") == "kept"

    def test_output_is_interleaved_and_returned_with_the_exit_code(self, session: SandboxSession) -> None:
        result = session.exec_sync("echo one; echo two >&2; echo three; exit 3")
        assert (result.output, result.exit_code, result.ended) == (b"one\ntwo\nthree\n", 3, Ended.EXITED)
        assert session.exec_sync("kill -9 $$").exit_code == 137
        assert session.exec_sync("no-such-command").exit_code == 127
        assert say(session, "cat; read x; echo $?") == "1", "standard input is empty"

    def test_long_output_keeps_both_ends(self, session: SandboxSession) -> None:
        result = session.exec_sync("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
        assert result.output_bytes == 3_000_012
        assert result.output.startswith(b"first\nxxx")
        assert result.output.endswith(b"x\nlast\n")
        assert b"\n[... 2996012 bytes left out ...]\n" in result.output
        assert len(result.output) < 4100

    def test_a_timeout_kills_a_command_with_its_children_and_the_session_continues(
        self, session: SandboxSession
    ) -> None:
        seconds = mark(4242)
        late = f"sleep {seconds}"
        command = f"(setsid {late} &); nohup {late} & (trap '' TERM HUP INT; {late}) & echo begun; : > said; {late}"
        result = session.exec_sync(command, 0.5)
        assert (result.timed_out, result.exit_code, result.ended) == (True, None, Ended.WALL)
        # On a machine that stalls it may have printed nothing until then.
        assert result.output == b"begun\n" or say(session, "test -e said; echo $?") == "1"
        assert say(session, "echo on") == "on"
        assert not running(seconds)

    def test_background_processes_live_until_the_session_ends(self, pool: SandboxPool) -> None:
        with pool.open_session_sync() as session:
            seconds = mark(4343)
            write = "(while :; do date +%N > beat; sleep 0.02; done)"
            result = session.exec_sync(f"{write} & setsid sleep {seconds} & nohup sleep {seconds} > /dev/null 2>&1 &")
            assert result.ended is Ended.EXITED, "the command ends with its shell"
            assert session.exec_sync("sleep 60", 0.3).timed_out  # another command's timeout does not end them
            first = say(session, "cat beat")
            assert say(session, f"while [ \"$(cat beat)\" = '{first}' ]; do sleep 0.02; done; echo beats") == "beats"
            assert until(lambda: len(running(seconds)) == 2)
        assert not running(seconds)

    def test_a_server_answers_the_next_commands(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync() as session:
            say(session, "echo page > index.html; python -m http.server 8000 & echo $! > pid")
            get = "python -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/').read())\""
            # It logs every request to a terminal that is gone: that must not end it.
            assert "page" in say(session, f"until {get}; do sleep 0.1; done 2> /dev/null")
            assert "page" in say(session, f"{get}; {get}")
            assert (
                say(session, "kill $(cat pid); while kill -0 $(cat pid); do sleep 0.02; done 2> /dev/null; echo gone")
                == "gone"
            )

    def test_any_text_of_a_model_is_a_command_without_an_exception(self, session: SandboxSession) -> None:
        assert session.exec_sync("echo a\0b").exit_code == 126
        assert session.exec_sync("x" * 2_000_000).exit_code == 126
        assert session.exec_sync("echo \ud800").exit_code == 0
        assert session.exec_sync("if; then").exit_code == 2
        assert session.exec_sync("").exit_code == 0
        long = "cat > long <<'END'\n" + "line\n" * 60_000 + "END\nwc -l < long"
        assert say(session, long) == "60000"

    def test_environment_variables_are_those_of_the_session(
        self, pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        with pool.open_session_sync(environment={"GREETING": "hello"}) as session:
            variables = say(session, "env")
            assert "GREETING=hello" in variables
            assert "secret" not in variables
            assert say(session, "echo hi > $HOME/f; cat ~/f; mktemp > /dev/null && echo made") == "hi\nmade"

    def test_the_output_buffer_keeps_both_ends(self) -> None:
        for limit in (1, 2, 7, 100):
            for pieces in ([], [b"abc"], [b"a"] * 250, [b"0123456789" * 30], [b"x" * 99, b"yz"]):
                output, complete = CommandOutput(limit), b"".join(pieces)
                for piece in pieces:
                    output.add(piece)
                half = max(limit // 2, 1)
                left_out = len(complete) - 2 * half
                text = b"\n[... %d bytes left out ...]\n" % left_out
                expected = complete if left_out <= 0 else complete[:half] + text + complete[-half:]
                assert (output.text(), output.total) == (expected, len(complete)), limit


class TestHostile:
    """Whatever a command does, the next one is answered."""

    @pytest.mark.parametrize(
        "confined_pool",
        [Tier.NAMESPACES, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)],
        ids=["A", "B"],
        indirect=True,
    )
    def test_the_session_survives_hostile_commands(self, confined_pool: SandboxPool) -> None:
        marks = {"<60>": mark(60), "<4545>": mark(4545)}

        def attack(command: str) -> tuple[bytes, int | None]:
            for word, seconds in marks.items():
                command = command.replace(word, seconds)
            with confined_pool.open_session_sync(limits=SMALL) as session:
                session.exec_sync(command, 1.0)
                result = session.exec_sync("echo alive; (exit 5)")
                session.exec_sync("rm -f f* big")
                session.write_sync("from-outside/file", b"1")
                assert session.read_sync("from-outside/file") == b"1"
                return b"".join(result.output.splitlines()[-1:]), result.exit_code

        with ThreadPoolExecutor(6) as threads:
            answers = dict(zip(ATTACKS, threads.map(attack, ATTACKS)))
        assert answers == dict.fromkeys(ATTACKS, (b"alive", 5))
        assert not [seconds for seconds in marks.values() if running(seconds)]

    def test_leftover_background_processes_are_killed_at_the_process_limit(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync(limits=SMALL) as session:
            session.exec_sync(f"for i in $(seq 39); do sleep {mark(4646)} & done")
            assert say(session, "(echo a) | cat | cat | cat") == "a"
            assert not running(mark(4646))

    def test_background_cpu_time_is_limited(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync(limits=SessionLimits(background_cpu_s=0.5)) as session:
            session.exec_sync(f"sh -c 'while :; do :; done' {mark(4747)} &")

            def ended() -> bool:
                session.exec_sync("sleep 0.1")
                return not running(mark(4747))

            assert until(ended)

    def test_shared_memory_is_counted_once(self, namespaces: SandboxPool) -> None:
        source = """
            import os, time
            held = bytearray(os.urandom(1 << 20) * 100)
            for _ in range(8):
                if os.fork() == 0:
                    time.sleep(1)
                    os._exit(0)
            time.sleep(1)
        """
        with namespaces.open_session_sync(limits=SMALL) as session:
            session.write_sync("share.py", textwrap.dedent(source).encode())
            assert session.exec_sync("python share.py").ended is Ended.EXITED

    def test_the_memory_limit_includes_all_children(self, namespaces: SandboxPool) -> None:
        command = (
            "for i in 1 2 3 4 5 6; do python3 -c 'x = b\"x\" * (90 << 20); import time; time.sleep(600)' & done; wait"
        )
        with namespaces.open_session_sync(limits=SMALL) as session:
            result = session.exec_sync(command, 240)
            assert (result.ended, result.exit_code, result.timed_out) == (Ended.MEMORY, None, False)

    def test_the_size_of_the_workspace_is_limited(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync(limits=SMALL) as session:
            result = session.exec_sync(
                "for i in 1 2 3; do head -c 30000000 /dev/zero > $i; done; : > $TMPDIR/x; du -sm ."
            )
            assert b"No space left on device" in result.output
            with pytest.raises(OSError, match="No space left"):
                session.write_sync("more", bytes(10_000_000))
            assert say(session, "rm 1 2 3; echo room > x; cat x") == "room"
            session.write_sync("more", bytes(10_000_000))

    def test_the_host_is_hidden(self, namespaces: SandboxPool, tmp_path: Path) -> None:
        secret, other, base = tmp_path / "secret", tmp_path / "other", tmp_path / "base"
        secret.write_text("s3cret")
        for folder in (base, other):
            folder.mkdir()
        with namespaces.open_session_sync(base) as session:
            assert "s3cret" not in say(
                session, f"cat {secret} /host{secret} /proc/1/root{secret}; ls -R /host {tmp_path}"
            )
            assert say(session, "ls /proc | grep -c '^[0-9]'").isdigit()
            # echo, not ls: a process listed by the pattern may be gone when ls looks at it.
            assert int(say(session, "echo /proc/[0-9]* | wc -w")) < 10
            assert "Operation not permitted" in say(session, "unshare -U true")
            assert "EPERM" in say(
                session, "python3 -c \"import ctypes,errno; c=ctypes.CDLL(None,use_errno=True); c.ptrace(16,1,0,0);"
                " print(errno.errorcode[ctypes.get_errno()])\""
            )  # fmt: skip
            status = say(session, "grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp:' /proc/self/status").split()
            assert status[1::2] == ["0" * 16] * 4 + ["1", "2"]
            assert "Permission denied" in say(session, "ls -l /proc/1/fd")

    def test_the_network_is_only_the_sessions_own(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync() as session:
            assert say(session, "cat /proc/net/dev | tail -n +3 | wc -l") == "1"
            connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
            assert "unreachable" in say(session, f'python3 -c "{connect}"')

    def test_sessions_do_not_share_processes_or_ports(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync() as a, namespaces.open_session_sync() as b:
            a.exec_sync(f"echo 1 > /tmp/left; echo 1 > here; sleep {mark(4848)} &")
            assert until(lambda: len(running(mark(4848))) == 1)  # the shell's child has become sleep
            assert say(b, "cat /tmp/left here 2>&1 | grep -c 'No such file'") == "2"
            b.exec_sync("kill -9 -1; pkill sleep")
            assert len(running(mark(4848))) == 1


class TestFiles:
    def test_written_files_are_read_back(self, session: SandboxSession) -> None:
        session.write_sync("a/b/c.txt", b"text\0\xff")
        assert session.read_sync("a/b/c.txt") == b"text\0\xff"
        assert session.read_sync(f"{session.workdir}/a/../a/./b/c.txt") == b"text\0\xff"
        assert say(session, "wc -c < a/b/c.txt") == "6"
        session.exec_sync("echo more >> a/b/c.txt")
        assert session.read_sync("a/b/c.txt").endswith(b"more\n")

    def test_replacing_keeps_the_executable_bit(self, namespaces: SandboxPool) -> None:
        with namespaces.open_session_sync() as session:
            session.write_sync("run", b"#!/bin/sh\necho 1\n", executable=True)
            assert say(session, "./run") == "1"
            session.write_sync("run", b"#!/bin/sh\necho 2\n")
            assert say(session, "./run") == "2"
            session.write_sync("run", b"", executable=False)
            assert session.exec_sync("./run").exit_code == 126
            assert session.read_tree_sync()["run"].executable is False

    def test_file_names_that_are_not_utf8_are_supported(self, session: SandboxSession) -> None:
        name = "\udcff\udcfe/é ü\n"
        session.write_sync(name, b"1")
        assert session.read_sync(name) == b"1"
        assert set(session.changes_sync().written) == {name}
        assert say(session, "cat $(printf '\\377\\376')/*") == "1"

    def test_no_path_leads_outside_the_workspace(self, session: SandboxSession) -> None:
        session.exec_sync("mkdir a; ln -s /etc out; ln -s .. up; ln -s /etc/passwd file-out; ln -s loop loop")
        session.exec_sync("ln -s /nowhere dangling-out")
        escaped = []
        for path in ("../x", "/etc/passwd", "out/passwd", "up/x", "file-out", "a/../../x", "loop/x", "dangling-out"):
            for do in (session.read_sync, lambda path: session.write_sync(path, b"x")):
                with contextlib.suppress(OSError):
                    escaped.append((path, do(path)))
        assert not escaped

    def test_links_inside_are_followed(self, session: SandboxSession) -> None:
        session.exec_sync(f"mkdir d; echo 1 > d/f; ln -s d/f l; ln -s {session.workdir}/d abs; ln -s ../d/f d/back")
        for path in ("l", "abs/f", "d/back"):
            assert session.read_sync(path) == b"1\n"
            session.write_sync(path, b"1\n")
        assert session.read_tree_sync()["l"].kind == "symlink", "written through the link, not over it"

    def test_only_regular_files_are_read(self, session: SandboxSession) -> None:
        session.exec_sync("mkfifo fifo; mkdir d")
        for path, error in (("fifo", OSError), ("d", IsADirectoryError), ("gone", FileNotFoundError)):
            with pytest.raises(error):
                session.read_sync(path)
        for path in ("fifo", "d"):
            with pytest.raises(OSError):
                session.write_sync(path, b"")
        for path in ("", "a\0b", "\ud800", "x" * 5000, "n" * 300, "/".join("a" * 1000)):
            with pytest.raises(OSError):
                session.write_sync(path, b"")

    def test_a_base_is_writable_in_the_session_and_unchanged_outside(self, pool: SandboxPool, tmp_path: Path) -> None:
        base = tmp_path / "closed" / "base"
        base.mkdir(parents=True)
        (base / "f").write_text("old\n")
        (base / "run").write_text("#!/bin/sh\necho ran\n")
        (base / "run").chmod(0o755)
        (tmp_path / "closed").chmod(0o700)
        with pool.open_session_sync(base) as session:
            assert say(session, "echo new >> f; cat f; ./run").splitlines() == ["old", "new", "ran"]
            assert say(session, "test -O f && test -O . && echo mine") == "mine"
            assert say(session, "rm f run && ls | wc -l") == "0"
        assert (base / "f").read_text() == "old\n"

    def test_a_base_with_files_of_several_users_is_copied(self, pool: SandboxPool, tmp_path: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can change the owner of files")
        base = tmp_path / "base"
        (base / "d").mkdir(parents=True)
        (base / "d" / "f").write_text("1")
        (base / "l").symlink_to("d/f")
        os.chown(base / "d" / "f", 4711, 4711)
        with pool.open_session_sync(base) as session:
            assert say(session, "test -O d/f && echo -n 2 >> d/f && cat l") == "12"
            assert set(session.changes_sync().written) == {"d/f"}

    def test_a_missing_base_is_reported(self, pool: SandboxPool, tmp_path: Path) -> None:
        with pytest.raises(NotADirectoryError, match="gone"):
            pool.open_session_sync(tmp_path / "gone")

    def test_a_large_base_is_overlaid_and_a_small_one_copied(self, namespaces: SandboxPool, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").write_text("1")
        rename = "python -c \"import os; os.rename('d', 'e')\""
        with namespaces.open_session_sync(tmp_path) as session:
            assert not session.overlay
            assert session.exec_sync(f"{rename} && cat e/f").output == b"1"
        (tmp_path / "large").write_bytes(bytes(5_000_000))
        with namespaces.open_session_sync(tmp_path) as session:
            assert session.overlay
            assert b"cross-device" in session.exec_sync(rename).output, "as in every container"
            assert session.exec_sync("mv d e && cat e/f").output == b"1"


class TestLifecycle:
    def test_async_methods(self, namespaces: SandboxPool) -> None:
        async def main() -> None:
            async with namespaces.open_session() as session:
                await session.write("f", b"1")
                assert (await session.exec("cat f")).output == b"1"
                assert await session.read("f") == b"1"
                assert set(await session.read_tree()) == set((await session.changes()).written) == {"f"}
            session = await namespaces.open_session()
            async with session:
                assert (await session.exec("echo 2")).output == b"2\n"
            with pytest.raises(RuntimeError, match="closed"):
                await session.exec("true")

        asyncio.run(main())

    def test_a_cancelled_command_is_killed_and_the_session_continues(self, namespaces: SandboxPool) -> None:
        async def main() -> None:
            async with namespaces.open_session() as session:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(session.exec(f"setsid sleep {mark(4949)} & sleep {mark(4949)}", 300), 0.5)
                assert (await session.exec("echo on")).output == b"on\n"
                assert not running(mark(4949))

        asyncio.run(main())

    def test_a_command_cancelled_just_before_it_is_sent_is_killed(self, namespaces: SandboxPool) -> None:
        async def main() -> None:
            async with namespaces.open_session() as session:
                channel, begun, cancelled = session._process.channel, threading.Event(), threading.Event()
                send = channel.send

                def delayed(header: dict[str, object], body: bytes, deadline: float) -> None:
                    if header["do"] == "exec":
                        begun.set()
                        assert cancelled.wait(120)
                    send(header, body, deadline)

                channel.send = delayed  # type: ignore[method-assign]
                call = asyncio.create_task(session.exec(f"sleep {mark(5656)}", 300))
                assert await asyncio.to_thread(begun.wait, 120)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                channel.send = send  # type: ignore[method-assign]
                cancelled.set()
                assert (await session.exec("echo on", 120)).output == b"on\n"
                assert not running(mark(5656))

        asyncio.run(asyncio.wait_for(main(), 250))

    def test_cancelling_a_waiting_call_leaves_the_running_command_of_another_thread(
        self, namespaces: SandboxPool
    ) -> None:
        async def cancel_waiting(session: SandboxSession) -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.exec("echo > late", 300), 0.5)

        with namespaces.open_session_sync() as session, ThreadPoolExecutor(1) as thread:
            command = thread.submit(session.exec_sync, f"sleep {mark(5454)}; echo on", 300)
            assert until(lambda: running(mark(5454)))
            asyncio.run(cancel_waiting(session))
            for pid in running(mark(5454)):
                os.kill(pid, signal.SIGKILL)
            result = command.result(240)
            assert (result.ended, result.output[-3:]) == (Ended.EXITED, b"on\n")
            with pytest.raises(FileNotFoundError):  # nor does the cancelled command run afterwards
                session.read_sync("late")

    def test_many_concurrent_sessions(self, namespaces: SandboxPool) -> None:
        async def one(number: int) -> bytes:
            async with namespaces.open_session() as session:
                await session.exec(f"echo {number} > f; sleep 0.2")
                return await session.read("f")

        async def main() -> list[bytes]:
            return await asyncio.gather(*(one(number) for number in range(24)))

        assert asyncio.run(main()) == [b"%d\n" % number for number in range(24)]

    def test_closing_while_a_command_runs(self, namespaces: SandboxPool) -> None:
        session = namespaces.open_session_sync()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                session.exec_sync(f"echo > begun; sleep {mark(5050)}", 300)
            except RuntimeError as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert until(lambda: running(mark(5050)))
        session.close_sync()
        thread.join(120)
        assert "closed" in str(failed[0])
        assert not running(mark(5050))
        session.close_sync()

    def test_a_broken_environment_is_a_fault(self, namespaces: SandboxPool) -> None:
        session = namespaces.open_session_sync()
        os.kill(session._process.pids()[0], signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(SandboxFault):
            session.exec_sync(f"sleep {mark(5151)}", 600)
        assert not running(mark(5151))
        assert session.closed
        with namespaces.open_session_sync() as fresh:
            assert say(fresh, "echo ok") == "ok"

    @pytest.mark.parametrize("tier", [Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
    def test_nothing_outlives_the_trainer(self, tier: Tier) -> None:
        needs(tier)
        numbers = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)  # for the spare user of tier B, as /tmp is
            folders = [Path(folder, number.name) for number in numbers]
            for item in folders:
                item.mkdir()
            with ThreadPoolExecutor(len(numbers)) as threads:
                left = list(threads.map(self._survivors, [tier] * len(numbers), numbers, folders))
        assert not any(left), dict(zip(numbers, left, strict=True))

    def _survivors(self, tier: Tier, number: signal.Signals, tmp_path: Path) -> list[object]:
        """Return what outlived the signal to a trainer."""
        seconds = mark(5300 + number)
        source = f"""
            from rllm_gym.sandbox import SandboxPool
            session = SandboxPool({tier.name.lower()!r}).open_session_sync()
            session.exec_sync("setsid sleep {seconds} & nohup sleep {seconds} > /dev/null 2>&1 &")
            print("ready", session.workdir, flush=True)
            session.exec_sync("sleep {seconds}", 600)
        """
        trainer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}, start_new_session=True,
        )  # fmt: skip
        with trainer:
            assert trainer.stdout is not None
            assert trainer.stdout.readline().startswith("ready")
            assert until(lambda: len(running(seconds)) == 3)
            trainer.send_signal(number)
            trainer.wait(120)
        until(lambda: not running(seconds) and not any(tmp_path.glob("rllm-gym-session-*")))
        return [*running(seconds), *tmp_path.glob("rllm-gym-session-*")]

    def test_sessions_work_for_an_ordinary_user(
        self, ordinary_user: Callable[..., subprocess.CompletedProcess[str]]
    ) -> None:
        """All operations, by a user who owns only one directory on this machine; the tiers take turns in waiting."""
        for tier in (Tier.NAMESPACES, Tier.LANDLOCK):
            needs(tier)
        source = """
            import os, tempfile, pathlib
            from concurrent.futures import ThreadPoolExecutor
            from rllm_gym.sandbox import SandboxPool, SessionLimits, TreeFile, session_pool
            session_pool.COPIED_ENTRIES = -1
            base = pathlib.Path(tempfile.mkdtemp()) / "closed" / "base"
            base.mkdir(parents=True)
            (base / "f").write_text("old")
            (base / "g").write_text("gone")
            base.parent.chmod(0o700)
            def use(sandbox):
                with SandboxPool(sandbox) as pool:
                    with pool.open_session_sync(base, limits=SessionLimits(processes=40, memory_mb=300)) as session:
                        assert session.exec_sync("cat f; echo -n new > f; rm g").output == b"old"
                        # Their owner may not read these: that must not be an error of the sandbox.
                        assert not session.exec_sync("mkdir -m 0300 d; umask 777; echo 1 > d/x; mkdir d/y").output
                        assert session.read_sync("f") == b"new"
                        changes = session.changes_sync()
                        assert set(changes.written) == {"f", "d/x"} and changes.removed == {"g"}, changes
                        expected = {"f": TreeFile("file", b"new"), "d/x": TreeFile("file", b"1\\n")}
                        assert session.read_tree_sync() == changes.written == expected
                        for hostile in ("f() { f | f & }; f; sleep 9", "kill -9 -1", "kill -9 $PPID; sleep 9",
                                        "kill -STOP -1; sleep 9", "rm -rf $PWD; ln -s /etc $PWD", "mkdir -m 0300 d"):
                            session.exec_sync(hostile, 0.4)
                            result = session.exec_sync("sleep 0.3; echo alive")
                            assert result.output.endswith(b"alive\\n"), (hostile, result)
                        return session.overlay if sandbox == "namespaces" else ""
            with ThreadPoolExecutor(2) as threads:
                print(*threads.map(use, ("namespaces", "landlock")))
            assert (base / "f").read_text() == "old"
            assert os.geteuid() != 0
        """
        done = ordinary_user(textwrap.dedent(source))
        assert (done.stdout.split(), done.stderr[-3000:]) == (["True"], "")


def test_a_runtime_below_tmp_is_visible_at_its_path(confined_pool: SandboxPool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{folder}/venv"], check=True, timeout=240)
        os.chmod(folder, 0o755)
        runtime = Runtime.of_python(f"{folder}/venv")
        with confined_pool.open_session_sync(runtime=runtime, limits=SMALL) as session:
            output = say(session, "python -c 'import sys, tempfile; tempfile.TemporaryFile(); print(sys.prefix)'")
            assert output == f"{folder}/venv"
