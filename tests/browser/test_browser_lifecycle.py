"""Browsers and sessions from start to end, for every way in which they end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from rllm_gym.envs.web.browser import BrowserFault, BrowserPool, SiteFault, find_chromium, shared_pool
from rllm_gym.envs.web.sites.http import Request, Response
from tests.browser.browser_processes import browsers, command_line
from tests.waiting import is_alive, until

pytestmark = pytest.mark.usefixtures("long_timeouts")

HELLO = {"http://a.test": lambda request: Response(b"<title>hello</title><p>hello")}


def test_a_site_of_this_process_is_served_like_a_real_one(pool: BrowserPool) -> None:
    asked: list[Request] = []

    def shop(request: Request) -> Response:
        asked.append(request)
        if request.path == "/order":
            return Response(status=303, headers={"location": "/thanks?for=käse", "set-cookie": "seen=1"})
        return Response(
            f"<title>{request.path}</title><form action=/order method=post><input name=q value='5 &amp; ü'>"
            f"</form><p>{request.headers.get('cookie', '')}".encode()
        )

    async def scenario() -> None:
        session = await pool.open(sites={"http://shop.test": shop})
        await session.goto("http://shop.test/")
        await session.evaluate("document.forms[0].submit()")
        while await session.evaluate("document.readyState + document.title") != "complete/thanks":
            pass
        assert await session.evaluate("document.querySelector('p').innerText") == "seen=1"
        head = "fetch('/x', {method: 'HEAD'}).then(async answer => [answer.status, (await answer.text()).length])"
        assert await session.evaluate(head) == [200, 0]
        assert await session.evaluate("fetch('/x', {method: 'DELETE'}).then(answer => answer.status)") == 405
        await session.close()

    asyncio.run(scenario())
    assert [request.method for request in asked] == ["GET", "POST", "GET", "GET"]
    assert asked[1].form == {"q": "5 & ü"}
    assert not any("proxy" in name for request in asked for name in request.headers)


def test_text_of_a_site_without_a_charset_is_read_as_utf8_if_it_is(pool: BrowserPool) -> None:
    cases = {
        "ö 确定": ("ö 确定".encode(), "text/html"),
        "é": (b"\xe9", "text/html"),
        "ж": (b"\xd6", "text/html; charset=koi8-r"),
    }

    async def scenario(body: bytes, kind: str) -> str:
        site = lambda request: Response(b"<p>" + body, headers={"content-type": kind})  # noqa: E731
        session = await pool.open(sites={"http://a.test": site})
        await session.goto("http://a.test/")
        text: str = await session.evaluate("document.body.innerText")
        await session.close()
        return text

    for expected, served in cases.items():
        assert asyncio.run(scenario(*served)).lower() == expected


def test_episodes_share_nothing(pool: BrowserPool) -> None:
    async def scenario() -> None:
        first, second = [await pool.open(sites=HELLO) for _ in range(2)]
        for session in (first, second):
            await session.goto("http://a.test/")
        await first.evaluate("(localStorage.x = 1, document.cookie = 'x=1; max-age=99')")
        assert await second.evaluate("[localStorage.x, document.cookie]") == [None, ""]
        await first.close()
        third = await pool.open(sites=HELLO)
        await third.goto("http://a.test/")
        assert await third.evaluate("[localStorage.x, document.cookie, navigator.webdriver && 1]") == [None, "", 1]
        await second.close()
        await third.close()

    asyncio.run(scenario())


def test_ten_concurrent_episodes_on_separate_event_loops(pool: BrowserPool) -> None:
    async def scenario(number: int) -> str:
        site = lambda request: Response(f"<title>{number}</title>".encode())  # noqa: E731
        session = await pool.open(sites={"http://a.test": site})
        await session.goto("http://a.test/")
        title: str = await session.evaluate("document.title")
        await session.close()
        return title

    async def run_all() -> list[str]:
        alone = [asyncio.to_thread(asyncio.run, scenario(number)) for number in range(2)]
        return await asyncio.gather(*alone, *(scenario(number) for number in range(2, 10)))

    assert asyncio.run(run_all()) == [str(number) for number in range(10)]


def test_a_site_that_raises_is_a_fault_and_not_a_page(pool: BrowserPool) -> None:
    def broken(request: Request) -> Response:
        if request.path == "/":
            return Response(b"<p>fine")
        raise KeyError("stock")

    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": broken})
        await session.goto("http://a.test/")
        with pytest.raises(SiteFault, match=r"GET http://a.test/cart.*KeyError: 'stock'"):
            await session.evaluate("fetch('/cart').then(answer => answer.status)")
        with pytest.raises(SiteFault):
            await session.evaluate("1")
        await session.close()

    asyncio.run(scenario())


def test_a_header_that_would_split_the_response_is_a_fault(pool: BrowserPool) -> None:
    evil = Response(b"", status=303, headers={"location": "/x\r\nset-cookie: a=1"})

    async def scenario() -> None:
        session = await pool.open(sites={"http://a.test": lambda request: evil})
        with pytest.raises(SiteFault, match="location"):
            await session.goto("http://a.test/")
        await session.close()

    asyncio.run(scenario())


def test_a_page_that_cannot_be_opened_is_reported(pool: BrowserPool) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"origins": ["example.org"]}, "example.org"),
        ({"origins": "http://a.test"}, "sequence"),
        ({"origins": ["file:///etc"]}, "file:///etc"),
        ({"origins": ["http://a.test/path"]}, "not an origin"),
        ({"sites": {"https://a.test": HELLO["http://a.test"]}}, "http://"),
        ({"sites": HELLO, "origins": ["http://A.test:80"]}, "both sites and origins"),
        ({"viewport": (10, 720)}, "viewport"),
    ]
    for arguments, output in cases:
        with pytest.raises(ValueError, match=output):
            asyncio.run(pool.open(**arguments))


def test_a_missing_browser_path_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BrowserFault, match=r"executable='/no/such'.*apt-get install") as raised:
        find_chromium("/no/such")
    assert raised.value.kind == "browser_unavailable"
    monkeypatch.setenv("RLLM_GYM_CHROMIUM", "/nor/this")
    with pytest.raises(BrowserFault, match="RLLM_GYM_CHROMIUM='/nor/this'"):
        find_chromium()


def test_a_program_that_is_not_a_browser_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        with BrowserPool("/bin/false") as pool:
            with pytest.raises(BrowserFault, match="/bin/false cannot be started") as raised:
                await pool.open()
            assert raised.value.kind == "browser_unavailable"

    asyncio.run(scenario())


def test_a_killed_browser_is_a_fault_and_the_next_episode_gets_another(chromium: str) -> None:
    others = set(browsers())

    async def scenario() -> None:
        with BrowserPool(chromium, prewarm=1) as pool:
            for victim in ("browser", "driver"):
                sessions = [await pool.open(sites=HELLO) for _ in range(2)]
                await sessions[0].goto("http://a.test/")
                waiting = asyncio.create_task(sessions[0].evaluate("new Promise(() => 0)"))
                await sessions[0].evaluate("1")
                (process,) = [process for process in browsers() if process not in others]
                (process if victim == "browser" else process.parent()).kill()
                for doing in (waiting, sessions[0].evaluate("1"), sessions[1].goto("http://a.test/")):
                    with pytest.raises(BrowserFault) as raised:
                        await doing
                    assert raised.value.kind == "browser_died", (victim, raised.value)
                next_one = await pool.open(sites=HELLO)
                await next_one.goto("http://a.test/")
                assert await next_one.evaluate("document.title") == "hello", victim
                for session in (*sessions, next_one):
                    await session.close()
                assert until(lambda: len(set(browsers()) - others) == 1)

    asyncio.run(scenario())


@pytest.mark.long
def test_repeated_crashes_of_the_gpu_process_end_no_episode(chromium: str) -> None:
    """Filling its memory with pictures ends it; after six times Chromium would exit, with all its episodes."""

    async def scenario() -> None:
        with BrowserPool(chromium, prewarm=0) as pool:
            session = await pool.open(sites=HELLO)
            for _ in range(8):
                await session.goto("http://a.test/")
                assert "hello" in (await session.observe()).text  # it draws, so there is one
                assert until(lambda: gpu_processes())
                for process in gpu_processes():
                    process.kill()
            await session.close()

    def gpu_processes() -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [process for process in below if "--type=gpu-process" in command_line(process)]

    asyncio.run(scenario())


def test_closing_the_pool_leaves_nothing(chromium: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool = BrowserPool(chromium)
    session = asyncio.run(pool.open(sites=HELLO))
    ours = [process for process in browsers() if str(tmp_path) in command_line(process)]
    assert len(ours) == 1
    assert list(tmp_path.iterdir())
    pool.close()
    pool.close()
    assert until(lambda: not is_alive(ours[0].pid))
    assert until(lambda: not list(tmp_path.iterdir()))
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(pool.open())
    with pytest.raises(BrowserFault, match="closed"):
        asyncio.run(session.goto("http://a.test/"))
    asyncio.run(session.close())


@pytest.mark.long
def test_an_unreferenced_session_and_pool_are_closed(chromium: str) -> None:
    pool = BrowserPool(chromium, prewarm=0)
    contexts = pool._contexts
    session = asyncio.run(pool.open(sites=HELLO))
    asyncio.run(session.goto("http://a.test/"))
    started = contexts._chromium
    assert len(contexts._out) == 1
    assert started is not None
    del session
    gc.collect()
    assert until(lambda: not contexts._out and not len(started.contexts))
    del pool
    gc.collect()
    assert until(lambda: started.dead)


def test_a_cancelled_open_leaves_no_context(chromium: str) -> None:
    async def scenario() -> None:
        with BrowserPool(chromium, prewarm=0) as pool:
            await (await pool.open()).close()
            for _ in range(3):
                opening = asyncio.create_task(pool.open())
                await asyncio.sleep(0)  # it has begun
                opening.cancel()
            chromium_of_pool = pool._contexts._chromium
            assert chromium_of_pool is not None
            last = await pool.open()
            assert until(lambda: len(pool._contexts._out) == 1 and len(chromium_of_pool.contexts) == 1)
            await last.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_a_fork_starts_its_own_browser(chromium: str) -> None:
    pool = shared_pool(chromium)
    session = asyncio.run(pool.open(sites=HELLO))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="fork"):
                asyncio.run(pool.open())
            own = shared_pool(chromium)
            assert own is not pool
            mine = asyncio.run(own.open(sites=HELLO))
            asyncio.run(mine.goto("http://a.test/"))
            own.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(session.goto("http://a.test/"))
    assert asyncio.run(session.evaluate("document.title")) == "hello"
    pool.close()


TRAINER = """
import asyncio, os, signal, sys
from rllm_gym.envs.web.browser import BrowserPool
from rllm_gym.envs.web.sites.http import Response

async def play(pool):
    session = await pool.open(sites={"http://a.test": lambda request: Response(b"x")})
    await session.goto("http://a.test/")
    print("ready", flush=True)
    await session.evaluate("new Promise(() => 0)")

pool = BrowserPool()
if sys.argv[1] == "forks":
    asyncio.run(pool.open())
    if os.fork() == 0:
        signal.pause()
        os._exit(0)
asyncio.run(play(pool))
"""


@pytest.mark.parametrize(
    "ends",
    [
        (("forks", signal.SIGKILL), ("", signal.SIGINT)),
        pytest.param((("forks", signal.SIGTERM), ("", signal.SIGKILL), ("", signal.SIGTERM)), marks=pytest.mark.long),
    ],
    ids=["some", "others"],
)
def test_killing_the_trainer_ends_its_browser_and_removes_its_folder(
    chromium: str, tmp_path: Path, ends: tuple[tuple[str, int], ...]
) -> None:
    trainers = []
    for number, (how, sign) in enumerate(ends):
        (folder := tmp_path / str(number)).mkdir()
        environment = {**os.environ, "TMPDIR": str(folder), "RLLM_GYM_CHROMIUM": chromium}
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, how], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        trainers.append((trainer, sign, folder))  # concurrently: starting them takes most of the time
    for trainer, sign, folder in trainers:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready\n"
        everyone = psutil.Process(trainer.pid).children(recursive=True)
        (browser,) = browsers(trainer.pid)
        trainer.send_signal(sign)
        trainer.wait(120)
        trainer.stdout.close()
        assert until(lambda browser=browser: not command_line(browser))
        assert until(
            lambda all=everyone, its=str(folder): not any(its in command_line(process) for process in all)
        )  # driver too
        for process in everyone:  # the waiting fork
            if process.is_running():
                process.kill()
        assert until(lambda folder=folder: not list(folder.iterdir()))
